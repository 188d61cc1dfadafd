//! Congestion controls on trips of the rail bench: goodput of the bound, the share of each carrier
//! that is used, queues and price. A sweep of constant windows shows the ceiling.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::rail::{Course, Workload, fluids};
use polyrail_emulator::record::Run;
use polyrail_emulator::usage::{Bins, Carriers as Links, EDGES};
use polyrail_scheduler::SEGMENT;

use super::metrics::{mean, quantile};
use super::rail::play::{Played, play};
use super::runs::{caught, parallel};
use super::table::Table;
use super::{Contestant, Engine, Tunnels};
use crate::congestion::Algorithm;
use crate::world::{CopyKind, CopyTally};

/// What to compare.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The number of trips.
    #[arg(long, default_value_t = 12)]
    trips: u64,
    /// The seed of the first trip; from 50000 on they are held back.
    #[arg(long, default_value_t = 100)]
    from: u64,
    /// The length of a trip in seconds.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// The speed in km/h.
    #[arg(long, default_value_t = 300)]
    speed: u32,
    /// The percentage of handovers that fail.
    #[arg(long, default_value_t = 6.0)]
    failures: f64,
    /// The number of carriers, from 1 to 8.
    #[arg(
        long,
        default_value_t = Course::CARRIERS,
        value_parser = clap::value_parser!(u8).range(1..=8)
    )]
    carriers: u8,
    /// The load.
    #[arg(long, value_enum, default_value = "downloads")]
    workload: Workload,
    /// The scheduler, as in `compare`: `polyrail`, `polyrail@aggregated`, `min_rtt/queue_bound`.
    #[arg(long, default_value = "polyrail")]
    chain: String,
    /// Controls: `tls` (TLS with bbr), `bbr2`, `cubic` and `rail` (QUIC), or a constant window of
    /// QUIC in KB.
    #[arg(long, value_delimiter = ',', default_value = "tls,bbr2,rail,120,240,480,1000")]
    controls: Vec<String>,
}

/// Plays the trips with each control, and prints a table.
///
/// # Errors
/// An option is invalid, or the simulated world found a breach.
pub fn command(options: &Options) -> Result<()> {
    let base = Contestant::parse(&options.chain, Engine::Full)?;
    let contestant = |name: &String| {
        let tunnels = tunnels(name)?;
        anyhow::Ok(Contestant { name: name.clone(), tunnels, ..base.clone() })
    };
    let contestants = options.controls.iter().map(contestant).collect::<Result<Vec<_>>>()?;
    let course = |seed| Course {
        speed_kmh: options.speed,
        failures: options.failures,
        seed,
        seconds: options.seconds,
        carriers: options.carriers,
    };
    let courses: Vec<Course> = (options.from..).take(options.trips as usize).map(course).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let tasks = contestants.len() * courses.len();
    let outcomes = parallel(tasks, threads, |task| {
        let (contestant, course) =
            (&contestants[task / courses.len()], &courses[task % courses.len()]);
        caught(|| play(course, options.workload, 0, contestant))
    });
    let mut outcomes = outcomes.into_iter();
    let mut table = Table::new(
        format!("Congestion controls, {:?}, {}", options.workload, options.chain),
        options.controls.clone(),
    );
    let mut columns: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for contestant in &contestants {
        let mut sum = Sum::default();
        for course in &courses {
            let played = outcomes.next().context("a run is missing")?;
            let played = played.map_err(anyhow::Error::msg)?;
            sum.add(course, options.workload, contestant, &played?)?;
        }
        for (name, value) in sum.figures() {
            columns.entry(name).or_default().push(value);
        }
    }
    for (name, values) in columns {
        ensure!(values.len() == contestants.len(), "a control has no figure {name:?}");
        table.column(&name, values.into_iter());
    }
    println!("{}", table.markdown());
    Ok(())
}

fn tunnels(name: &str) -> Result<Tunnels> {
    let congestion = match name {
        "tls" => return Ok(Tunnels::TLS),
        "bbr2" => Algorithm::Bbr2,
        "cubic" => Algorithm::Cubic,
        "rail" => Algorithm::Rail,
        other => match other.parse::<u64>() {
            Ok(kilobytes @ 1..) => Algorithm::Fixed(kilobytes * 1_000),
            _ => bail!("{other:?} is none of: tls bbr2 cubic rail, or a window in KB"),
        },
    };
    Ok(Tunnels { stream: false, congestion })
}

/// The figures of one control.
#[derive(Default)]
struct Sum {
    /// By size: goodputs and those of the split bound; for an endless transfer bytes received and
    /// the links' volume.
    shares: BTreeMap<u64, Vec<[f64; 2]>>,
    messages: Vec<f64>,
    queues: Vec<f64>,
    /// Bytes of new data, and copies.
    new: u64,
    copies: BTreeMap<CopyKind, CopyTally>,
    /// Times of completion over those of the split bound. A user who gives up would have waited in
    /// proportion to the missing bytes; one segment counts as received.
    slowness: Vec<f64>,
    price: Vec<f64>,
    bins: Bins,
}

impl Sum {
    fn add(
        &mut self,
        course: &Course,
        workload: Workload,
        contestant: &Contestant,
        played: &Played,
    ) -> Result<()> {
        let route = course.route()?;
        let trip = course.trip(&route)?;
        let fluids = fluids(&trip);
        let mut payload = [0; 2];
        for (plan, seen) in course.transfers(workload).iter().zip(&played.transfers) {
            payload[usize::from(plan.up)] += seen.received;
            let share = match plan.bytes {
                u64::MAX => [seen.received as f64, plan.volume(&fluids)],
                bytes => [seen.goodput(), bytes as f64 * 8e-6 / plan.bound(&fluids).split],
            };
            if plan.bytes != u64::MAX {
                let part = seen.received.max(SEGMENT) as f64 / plan.bytes as f64;
                self.slowness.push(seen.took_s / part / plan.bound(&fluids).split);
            }
            self.shares.entry(plan.bytes).or_default().push(share);
        }
        let ends = |message: &Option<f64>| message.unwrap_or(course.length().as_secs_f64());
        self.messages.extend(played.messages.iter().map(ends));
        self.queues.push(played.queue_s);
        self.new += played.copies.0;
        for (kind, tally) in &played.copies.1 {
            self.copies.entry(*kind).or_default().add(tally);
        }
        let offered =
            |way: usize| -> u64 { played.carriers.iter().map(|it| it.offered[way]).sum() };
        let way = usize::from(payload[1] > payload[0]);
        self.price.push(offered(way) as f64 / payload[way].max(1) as f64);
        let is_ideal = played.carriers.len() < trip.carriers.len();
        let run = Run {
            course: *course,
            workload,
            contender: if is_ideal { "ideal".to_owned() } else { contestant.name.clone() },
            transfers: played.transfers.clone(),
            carriers: played.carriers.clone(),
            ..Run::default()
        };
        self.bins.add(&run, &Links::of(&trip, &route.names())?);
        Ok(())
    }

    fn figures(&self) -> Vec<(String, f64)> {
        let mut list = Vec::new();
        for (number, (bytes, shares)) in self.shares.iter().enumerate() {
            let name =
                if *bytes == u64::MAX { "bulk".into() } else { format!("{} KB", bytes / 1_000) };
            let total = |half: usize| shares.iter().map(|pair| pair[half]).sum::<f64>();
            list.push((format!("{number} of the bound, {name}"), total(0) / total(1)));
        }
        if !self.messages.is_empty() {
            list.push(("4 message, ms".into(), mean(&self.messages) * 1e3));
        }
        list.push(("5 queue, ms".into(), mean(&self.queues) * 1e3));
        list.push(("6 bytes / payload".into(), mean(&self.price)));
        if !self.slowness.is_empty() {
            list.push(("6 time / bound, mean".into(), mean(&self.slowness)));
            list.push(("6 time / bound, p95".into(), quantile(&self.slowness, 0.95)));
        }
        for kind in [CopyKind::Together, CopyKind::Tail, CopyKind::Head] {
            let tally = self.copies.get(&kind).cloned().unwrap_or_default();
            let name = |what: &str| format!("8 copies, {kind:?}: {what}");
            let (new, sent) = (self.new.max(1) as f64, tally.sent as f64);
            list.push((name("of new data"), sent / new));
            list.push((name("arrived twice, of new data"), tally.twice as f64 / new));
            list.push((name("won"), tally.won as f64 / sent));
            list.push((name("late, median ms"), quantile(&tally.late_s, 0.5) * 1e3));
        }
        for (bin, (share, _)) in self.bins.table().iter().enumerate() {
            let edge = EDGES.get(bin).map_or("more".to_owned(), |edge| format!("{edge:.2}"));
            list.push((format!("7 used, before < {edge}"), *share));
        }
        list
    }
}
