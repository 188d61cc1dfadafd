//! The netem driver next to the TUN driver, on one scenario, in a guest whose kernel has netem.
//!
//! Both drivers must pass the same assertions, and their figures must agree. The guest's clock does
//! not depend on the host's load, so the bounds are narrow.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::rail::{Pinger, Rail};
use polyrail_emulator::guest;
use polyrail_emulator::namespace::Namespace;
use serde_json::Value;

/// The time limit on the host's clock. An idle machine takes about 10 s.
const LIMIT: Duration = Duration::from_secs(5 * 60);

const PATIENCE: Duration = Duration::from_secs(3);

/// Goodput and traffic of the two drivers may differ by this share, because TCP's losses differ.
const SHARE_MAX: f64 = 0.15;

const SCENARIO: &str = r#"
[[link]]
name = "a"
near = { interface = "wan0", addresses = ["10.1.0.1/24", "fd00:1::1/64"] }
far = { interface = "net0", addresses = ["10.1.0.2/24", "fd00:1::2/64"] }
up = { rate = "8 Mbit/s", delay = "30 ms", queue = "128 KiB" }
down = { rate = "8 Mbit/s", delay = "30 ms", queue = "128 KiB" }
[[link.blackout]]
start = "3 s"
length = "2 s"
mode = "drop"

[[link]]
name = "b"
near.addresses = ["10.2.0.1/24"]
far.addresses = ["10.2.0.2/24"]
up = { loss = 0.1, burst_loss = { enter = 0.01, leave = 0.3 }, duplicate = 0.01 }
down = { rate = "5 Mbit/s", rate_steps = [{ at = "1 s", rate = "4 Mbit/s" }] }
"#;

/// The figures of one driver.
#[derive(Debug)]
struct Measured {
    /// Of IPv4 and IPv6.
    round_trips: [Duration; 2],
    goodput_mbit_s: f64,
    /// All bytes that link `a` delivered downwards.
    down_bytes: f64,
}

#[test]
fn netem_driver_measures_as_the_tun_driver_does() {
    if guest::is_inside() {
        compare_drivers();
        unsupported_scenario_is_refused();
        return;
    }
    if !guest::is_installed() {
        common::skip_or_fail("guest", "QEMU or the guest's kernel is missing: run `make setup`");
        return;
    }
    let programs = [env!("CARGO_BIN_EXE_polyrail-emulator"), "/usr/bin/ip", "/usr/sbin/tc"];
    let name = "netem_driver_measures_as_the_tun_driver_does";
    let console = guest::run_test(name, &programs.map(PathBuf::from), LIMIT);
    println!("{}", console.unwrap_or_else(|error| panic!("{error}")));
}

fn compare_drivers() {
    let netem = measure("auto", "netem");
    let tun = measure("tun", "tun");
    for (netem, tun) in netem.round_trips.iter().zip(tun.round_trips) {
        assert!(netem.abs_diff(tun) < Duration::from_millis(2), "{netem:?}, by tun {tun:?}");
    }
    for (what, netem, tun) in [
        ("goodput", netem.goodput_mbit_s, tun.goodput_mbit_s),
        ("bytes down", netem.down_bytes, tun.down_bytes),
    ] {
        let difference = (netem / tun - 1.0).abs();
        assert!(difference < SHARE_MAX, "{what}: {netem:.3} by netem, {tun:.3} by tun");
    }
}

/// Runs the scenario with one driver, checks its effects, and returns the figures.
fn measure(driver: &str, expected: &str) -> Measured {
    let rail = Rail::start(SCENARIO, &["--driver", driver]);
    let start = Instant::now();
    assert_eq!(rail.ready["driver"], expected, "{}", rail.ready);
    scheduled_blackout_is_total(&rail, start);
    let round_trips = delay_is_the_scenarios(&rail);
    let goodput_mbit_s = rate_limit_holds(&rail);
    commands_take_effect(&rail);
    if expected == "netem" {
        unsupported_commands_are_refused(&rail);
    }
    let lines = rail.stop();
    let (up, down) = (delivered(&lines[0]["up"]), delivered(&lines[0]["down"]));
    assert!(up > 10.0 * 28.0, "{}", lines[0]);
    let measured = Measured { round_trips, goodput_mbit_s, down_bytes: down };
    println!("MEASURED {expected}: {measured:?}");
    measured
}

fn delivered(direction: &Value) -> f64 {
    direction["delivered"]["bytes"].as_f64().unwrap()
}

fn scheduled_blackout_is_total(rail: &Rail, start: Instant) {
    let mut pinger = Pinger::new(rail, "10.1.0.1:0", "10.1.0.2:7");
    let (mut dark, mut light) = (Vec::new(), 0);
    while start.elapsed() < Duration::from_millis(5500) {
        let sent = start.elapsed();
        // The schedule began some time before the ready line came, so edges are left out.
        let at = sent.as_millis();
        let (within, outside) = ((3050..4750).contains(&at), !(2700..5100).contains(&at));
        let answered = pinger.ping(Duration::from_millis(200)).is_some();
        if within {
            dark.push(answered);
        } else if outside {
            assert!(answered, "lost at {sent:?}");
            light += 1;
        }
    }
    println!("MEASURED blackout: {} sent during it, {light} answered outside it", dark.len());
    assert!(dark.len() >= 4 && dark.iter().all(|answered| !answered), "{dark:?}");
}

fn delay_is_the_scenarios(rail: &Rail) -> [Duration; 2] {
    [("10.1.0.1:0", "10.1.0.2:8"), ("[fd00:1::1]:0", "[fd00:1::2]:8")].map(|(near, far)| {
        let mut pinger = Pinger::new(rail, near, far);
        let mut times: Vec<_> = (0..20).filter_map(|_| pinger.ping(PATIENCE)).collect();
        times.sort();
        let median = times[times.len() / 2];
        assert_eq!(times.len(), 20, "lost without a fault");
        assert!(times[0] >= Duration::from_millis(60), "{:?} is faster than the link", times[0]);
        assert!(median < Duration::from_millis(64), "{median:?} for 60 ms");
        median
    })
}

fn rate_limit_holds(rail: &Rail) -> f64 {
    const BYTES: usize = 2_000_000;
    let listener = rail.far.run(|| TcpListener::bind("10.1.0.2:80")).unwrap().unwrap();
    let server = std::thread::spawn(move || {
        listener.accept().unwrap().0.write_all(&vec![7; BYTES]).unwrap();
    });
    let mut client = rail.near.run(|| TcpStream::connect("10.1.0.2:80")).unwrap().unwrap();
    let (start, mut got) = (Instant::now(), Vec::new());
    client.read_to_end(&mut got).unwrap();
    let rate = BYTES as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e6;
    server.join().unwrap();
    assert_eq!(got.len(), BYTES);
    assert!(rate > 5.0 && rate < 8.0, "{rate} Mbit/s through 8");
    rate
}

fn commands_take_effect(rail: &Rail) {
    let mut control = rail.control();
    let mut pinger = Pinger::new(rail, "10.1.0.1:0", "10.1.0.2:9");
    control.command("down a").unwrap();
    assert_eq!(pinger.ping(Duration::from_millis(400)), None, "an answer while the link is down");
    control.command("up a").unwrap();
    control.command("set a.up delay 130 ms").unwrap();
    let slow = pinger.ping(PATIENCE).unwrap();
    assert!(slow >= Duration::from_millis(160) && slow < Duration::from_millis(164), "{slow:?}");
    control.command("set a.up burst-loss 1 0").unwrap();
    // netem enters the bad state after its first packet.
    pinger.ping(Duration::from_millis(400));
    assert_eq!(pinger.ping(Duration::from_millis(400)), None, "an answer during an endless burst");
    control.command("set a.up burst-loss off").unwrap();
    assert!(pinger.ping(PATIENCE).is_some(), "the burst continues");
}

fn unsupported_commands_are_refused(rail: &Rail) {
    let mut control = rail.control();
    let stats = control.command("stats").unwrap();
    assert!(stats["links"][0]["up"]["unsorted_drops"].as_u64().unwrap() >= 1, "{stats}");
    for line in ["down a hold", "set a udp blocked", "set a nat on", "set a mtu 1280"] {
        let refused = control.command(line).unwrap_err().to_string();
        assert!(refused.contains("the tun driver can"), "{refused}");
    }
}

fn unsupported_scenario_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hold.toml");
    std::fs::write(&file, SCENARIO.replace("\"drop\"", "\"hold\"")).unwrap();
    let mut command = Namespace::new().unwrap().command(env!("CARGO_BIN_EXE_polyrail-emulator"));
    let output = command.arg("run").arg(&file).args(["--driver", "netem"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(words.contains("link a, up: netem cannot hold packets"), "{words}");
}
