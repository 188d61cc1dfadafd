//! Recordings as links: through a scenario file, and those of others where they are at hand.

#![allow(clippy::unwrap_used)] // also in what the tests share

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polyrail_emulator::link::{LinkModel, LinkSpec, Rate};
use polyrail_emulator::rail::trip_of_traces;
use polyrail_emulator::scenario::{Direction, Scenario, Trace};
use polyrail_model::{Bitrate, Bytes};

#[test]
fn a_scenario_plays_recordings_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    write("down.mahimahi", "1\n2\n3\n4\n");
    write("up.csv", "time_s,mbps,delay_ms\n0,5,20\n1,6,30\n");
    let text = "[[link]]\nname = \"a\"\nup = { trace = \"up.csv\" }\n\
                down = { trace = \"down.mahimahi\", delay = \"5 ms\" }\n";
    let scenario = Scenario::load(&write("rail.toml", text)).unwrap();
    let link = &scenario.links[0];
    // One packet a millisecond is 12 Mbit/s: 1500 packets take one and a half seconds.
    let seconds = time_for(&link.down, 1_500).as_secs_f64();
    assert!((seconds - 1.505).abs() < 0.01, "{seconds}");
    assert_eq!(link.up.delay.at(Duration::from_secs(1)).value, Duration::from_millis(30));

    for (text, reason) in [
        ("up = {}\ndown = { trace = \"none\" }\n", "trace none"),
        ("up = {}\ndown = { trace = \"bad\" }\n", "trace bad: line 2: \"x\" is not"),
        ("up = {}\ndown = { trace = \"up.csv\", rate = \"1 Mbit/s\" }\n", "a rate beside"),
        ("down = {}\nup = { trace = \"up.csv\", delay = \"1 s\" }\n", "a delay beside"),
    ] {
        write("bad", "1\nx\n");
        let path = write("rail.toml", &format!("[[link]]\nname = \"a\"\n{text}"));
        let error = Scenario::load(&path).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("line 2: link a"), "{error}");
    }
}

#[test]
fn a_rate_may_stand_beside_a_recording_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    write("radio.csv", "t_s,rtt_ms,loss\n0,40,0\n1,60,0.5\n");
    let text = "[[link]]\nname = \"a\"\nup = { trace = \"radio.csv\" }\n\
                down = { trace = \"radio.csv\", rate = \"12 Mbit/s\" }\n";
    let scenario = Scenario::load(&write("rail.toml", text)).unwrap();
    let link = &scenario.links[0];
    assert_eq!(link.up.rate, LinkSpec::default().rate);
    assert_eq!(link.down.rate.at(Duration::ZERO).value, Rate::Limited(Bitrate::from_mbps(12.0)));
    assert_eq!(link.down.delay.at(Duration::from_secs(1)).value, Duration::from_millis(30));
    assert_eq!(link.down.loss_at(Duration::from_secs(3)).get(), 0.5);
    let again = Scenario::parse(&scenario.to_toml()).unwrap();
    assert_eq!((&again.links[0].up, &again.links[0].down), (&link.up, &link.down));

    for beside in ["loss = 0.1", "loss_steps = [{ at = \"1 s\", loss = 0.1 }]", "delay = \"1 s\""] {
        let text = format!(
            "[[link]]\nname = \"a\"\nup = {{}}\ndown = {{ trace = \"radio.csv\", {beside} }}\n"
        );
        let error = Scenario::load(&write("rail.toml", &text)).unwrap_err().to_string();
        assert!(error.contains("beside a trace that has one"), "{error}");
    }
}

#[test]
fn what_comes_out_follows_the_samples() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    for name in ["rates.csv", "delays.csv", "all.csv"] {
        follow(&folder.join(name));
    }
    let path = folder.join("deliveries.mahimahi");
    let text = std::fs::read_to_string(&path).unwrap();
    let moments: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let trace = Trace::load(&path, Direction::Down).unwrap();
    let spec = trace.clone().on(LinkSpec::default());
    let ends: Vec<f64> = (1..=trace.period.as_millis() / 100).map(|n| n as f64 / 10.0).collect();
    let sent = saturated(&spec, &ends, 1_500);
    for (bytes, end) in sent.iter().zip(1..) {
        let due = moments.iter().filter(|ms| (100 * end - 100 + 1..=100 * end).contains(*ms));
        let packets = *bytes as f64 / 1_500.0;
        assert!((packets - due.count() as f64).abs() <= 1.0, "{packets} packets by {end}00 ms");
    }
}

#[test]
fn what_comes_out_follows_the_recordings_of_others() {
    let Some(folder) = traces() else {
        let reason = "no ../shared/traces and no POLYRAIL_TRACES";
        assert!(common::skip_or_fail("traces", reason));
        return;
    };
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "csv")).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no recording in {}", folder.display());
    paths.iter().for_each(|path| follow(path));
    // All of them are carriers of trips, too.
    for pair in paths.windows(2) {
        let trip = trip_of_traces(pair).unwrap();
        assert!(trip.carriers.len() == 2 && trip.length > Duration::from_secs(300));
    }
}

/// Plays both directions of a table for its length and compares what comes out with its lines.
fn follow(path: &Path) {
    let table = Table::read(path);
    let mut shown = Vec::new();
    for (direction, own) in [(Direction::Up, "up_mbps"), (Direction::Down, "down_mbps")] {
        let rates = table.column("mbps").or(table.column(own));
        let rtts = table.column("rtt_ms").map(|all| all.iter().map(|ms| ms / 2.0).collect());
        let delays = table.column("delay_ms").or(rtts);
        let losses = table.column("loss");
        let trace = match Trace::load(path, direction) {
            Ok(trace) => trace,
            Err(error) => {
                assert!(rates.is_none() && delays.is_none() && losses.is_none(), "{error}");
                continue;
            }
        };
        if let Some(rates) = rates {
            let rate = trace.rate.clone().unwrap();
            shown.push(table.rates_follow(&rates, &LinkSpec { rate, ..LinkSpec::default() }));
        }
        if delays.is_some() || losses.is_some() {
            let spec = Trace { rate: None, ..trace }.on(LinkSpec::default());
            let none = || vec![0.0; table.times.len()];
            let (delays, losses) = (delays.unwrap_or_else(none), losses.unwrap_or_else(none));
            let seed = direction as u64 + 1;
            shown.push(table.probes_follow(&delays, &losses, &spec, seed));
        }
    }
    assert!(!shown.is_empty(), "nothing of {} was played", path.display());
    println!("{}: {}", path.file_name().unwrap().display(), shown.join("; "));
}

/// A table as this test reads it.
struct Table {
    path: PathBuf,
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Of each line, and when the last one ends, from the first one on.
    times: Vec<f64>,
    end: f64,
}

impl Table {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let heading = lines.next().unwrap();
        let rows: Vec<Vec<String>> = lines.collect();
        let times: Vec<f64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
        let times: Vec<f64> = times.iter().map(|time| time - times[0]).collect();
        let [.., before, last] = times[..] else { panic!("{}", path.display()) };
        Self { path: path.to_owned(), heading, rows, times, end: 2.0 * last - before }
    }

    /// The values by line, if there is one at all; an empty cell goes on with what was.
    fn column(&self, name: &str) -> Option<Vec<f64>> {
        let place = self.heading.iter().position(|other| other == name)?;
        let cells: Vec<Option<f64>> =
            self.rows.iter().map(|row| row.get(place).and_then(|cell| cell.parse().ok())).collect();
        let mut last = cells.iter().flatten().next().copied()?;
        let held = cells.into_iter().map(|cell| {
            last = cell.unwrap_or(last);
            last
        });
        Some(held.collect())
    }

    /// The end of each line.
    fn ends(&self) -> Vec<f64> {
        self.times[1..].iter().copied().chain([self.end]).collect()
    }

    /// A link that always has something to send carries what each line says.
    fn rates_follow(&self, rates: &[f64], spec: &LinkSpec) -> String {
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let packet = 1_500 * (mean / 2.0).max(1.0) as usize;
        let sent = saturated(spec, &self.ends(), packet);
        let (mut wanted_all, mut sent_all) = (0.0, 0.0);
        for (line, (start, end)) in self.times.iter().zip(self.ends()).enumerate() {
            let (wanted, sent) = (rates[line] * (end - start), sent[line] as f64 * 8e-6);
            let off = (sent - wanted).abs();
            let most = packet as f64 * 8e-6 + 0.001 * wanted;
            assert!(off <= most, "{} s: {sent}, not {wanted} Mbit: {}", start, self.path.display());
            (wanted_all, sent_all) = (wanted_all + wanted, sent_all + sent);
        }
        assert!((sent_all / wanted_all - 1.0).abs() < 0.001, "{sent_all}, not {wanted_all} Mbit");
        format!("{:.3} of {:.3} Mbit/s", sent_all / self.end, wanted_all / self.end)
    }

    /// Probes are delayed and lost as each line says. Where a delay falls, what follows waits for
    /// what went before: for so long it may be later than recorded.
    fn probes_follow(
        &self,
        delays_ms: &[f64],
        losses: &[f64],
        spec: &LinkSpec,
        seed: u64,
    ) -> String {
        let probes = probed(spec, seed, self.end);
        let mut place = 0;
        // When the last of what went before is due: nothing overtakes it.
        let mut busy: f64 = 0.0;
        let (mut lost, mut wanted_lost) = (0.0, 0.0);
        let (mut late, mut wanted_late, mut caught_up) = (0.0, 0.0, 0.0);
        for (line, (start, end)) in self.times.iter().zip(self.ends()).enumerate() {
            let own = probes[place..].iter().take_while(|probe| probe.0 < end - 1e-9);
            let own: Vec<(f64, Option<f64>)> = own.copied().collect();
            place += own.len();
            let arrived: Vec<f64> = own.iter().filter_map(|probe| probe.1).collect();
            let (count, share) = (own.len() as f64, 1.0 - arrived.len() as f64 / own.len() as f64);
            let wanted = losses[line];
            let chance = 5.0 * (wanted * (1.0 - wanted) / count).sqrt();
            let at = format!("{start} s of {}", self.path.display());
            assert!((share - wanted).abs() <= chance, "{share}, not {wanted} lost at {at}");
            let delay = delays_ms[line] / 1e3;
            let behind = (busy - start - delay).max(0.0);
            let more = behind.min(behind * behind / (2.0 * (end - start)));
            busy = busy.max(end + delay);
            (lost, wanted_lost) = (lost + share * count, wanted_lost + wanted * count);
            if arrived.is_empty() {
                continue;
            }
            let mean = arrived.iter().sum::<f64>() / arrived.len() as f64;
            let fits = 0.999 * delay - 1e-4..=1.001 * delay + more + 1e-3;
            assert!(fits.contains(&mean), "{mean} s, not {delay} s at {at}");
            (late, wanted_late) = (late + mean * count, wanted_late + delay * count);
            caught_up += more * count;
        }
        let count = probes.len() as f64;
        let off = (lost / wanted_lost.max(1.0) - 1.0).abs();
        assert!(wanted_lost == 0.0 && lost == 0.0 || off < 0.05, "{lost}, not {wanted_lost} lost");
        let fits = 0.99 * wanted_late..=1.01 * wanted_late + caught_up;
        assert!(fits.contains(&late), "{late}, not {wanted_late} s of delay");
        let (late, wanted_ms) = (late / count * 1e3, wanted_late / count * 1e3);
        let (lost, wanted_lost) = (lost / count * 1e2, wanted_lost / count * 1e2);
        format!("{late:.2} of {wanted_ms:.2} ms, {lost:.3} of {wanted_lost:.3} % lost")
    }
}

/// What a link that always has something to send carries until each of these times, in bytes.
fn saturated(spec: &LinkSpec, ends: &[f64], packet: usize) -> Vec<u64> {
    let start = Instant::now();
    let mut link =
        LinkModel::new(LinkSpec { queue: Bytes::from_mib(64), ..spec.clone() }, start, 1);
    let fill = |link: &mut LinkModel<()>, now| {
        while link.queued().packets < AHEAD {
            let _verdict = link.enqueue(now, (), packet);
        }
    };
    fill(&mut link, start);
    let mut sent = vec![0; ends.len()];
    let last = start + Duration::from_secs_f64(ends[ends.len() - 1]);
    let mut line = 0;
    while let Some(next) = link.next_departure().filter(|next| *next <= last) {
        while let Some((due, ())) = link.poll_due(next) {
            while (due - start).as_secs_f64() > ends[line] + 1e-9 {
                line += 1;
            }
            sent[line] += packet as u64;
        }
        fill(&mut link, next);
    }
    sent
}

/// Probes at even times: when each was sent, and after how long it arrived, in seconds.
fn probed(spec: &LinkSpec, seed: u64, seconds: f64) -> Vec<(f64, Option<f64>)> {
    let start = Instant::now();
    let mut link = LinkModel::new(spec.clone(), start, seed);
    let mut probes: Vec<(f64, Option<f64>)> = Vec::new();
    let arrive = |link: &mut LinkModel<usize>, probes: &mut Vec<(f64, Option<f64>)>, now| {
        while let Some((due, probe)) = link.poll_due(now) {
            probes[probe].1 = Some((due - start).as_secs_f64() - probes[probe].0);
        }
    };
    for probe in 0..(seconds * PROBES_A_SECOND) as usize {
        let at = probe as f64 / PROBES_A_SECOND;
        probes.push((at, None));
        let now = start + Duration::from_secs_f64(at);
        let _verdict = link.enqueue(now, probe, 100);
        arrive(&mut link, &mut probes, now);
    }
    arrive(&mut link, &mut probes, start + Duration::from_secs_f64(seconds + 3_600.0));
    probes
}

/// Enough for the fastest link between two looks at it.
const AHEAD: u64 = 64;
const PROBES_A_SECOND: f64 = 4_000.0;

/// How long a link takes for so many packets of 1500 bytes that wait from the beginning.
fn time_for(spec: &LinkSpec, packets: u64) -> Duration {
    let start = Instant::now();
    let queue = Bytes(packets * 1_500);
    let mut link = LinkModel::new(LinkSpec { queue, ..spec.clone() }, start, 1);
    for _ in 0..packets {
        let _verdict = link.enqueue(start, (), 1_500);
    }
    let mut now = start;
    while let Some(next) = link.next_departure() {
        now = next;
        while link.poll(now).is_some() {}
    }
    now - start
}

fn traces() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let told = std::env::var_os("POLYRAIL_TRACES").map(PathBuf::from);
    told.or(Some(beside)).filter(|folder| folder.is_dir())
}
