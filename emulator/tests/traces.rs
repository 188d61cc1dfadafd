//! Recordings as links: through a scenario file, and those of others where they are at hand.

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polyrail_emulator::link::{LinkModel, LinkSpec};
use polyrail_emulator::scenario::{Direction, Scenario, Trace};

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
fn recordings_of_others_play() {
    let Some(folder) = traces() else {
        let reason = "no ../shared/traces and no POLYRAIL_TRACES";
        assert!(common::skip_or_fail("traces", reason));
        return;
    };
    let mut played = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "csv") {
            continue;
        }
        match Trace::load(&path, Direction::Down) {
            Ok(trace) => {
                let spec = LinkSpec { rate: trace.rate, ..LinkSpec::default() };
                assert!(time_for(&spec, 100) < Duration::from_secs(3_600), "{}", path.display());
                played += 1;
            }
            // Some have no rates, only delays and losses.
            Err(error) => assert_eq!(error.reason, "no line has a rate", "{}", path.display()),
        }
    }
    assert!(played > 0, "no recording with rates in {}", folder.display());
}

/// How long a link takes for so many packets of 1500 bytes that wait from the beginning.
fn time_for(spec: &LinkSpec, packets: u64) -> Duration {
    let start = Instant::now();
    let queue = polyrail_model::Bytes(packets * 1_500);
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
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    let told = std::env::var_os("POLYRAIL_TRACES").map(PathBuf::from);
    told.or(Some(beside)).filter(|folder| folder.is_dir())
}
