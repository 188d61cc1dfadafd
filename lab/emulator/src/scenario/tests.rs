//! Parsed scenarios and the messages of errors.

use super::*;
use crate::link::{Blackout, PathMtu, Policing, Rate};
use polyrail_model::{Bitrate, Bytes};

const FULL: &str = r#"
seed = 7
duration = "90 s"

[namespaces]
near = "/run/netns/train"
far = "/run/netns/net"

[[link]]
name = "a"
mtu = 1400
nat = true
[link.near]
interface = "wwan0"
addresses = ["10.1.0.1/24", "fd00:1::1/64"]
[link.far]
addresses = ["10.1.0.2/24"]
namespace = "/proc/1/ns/net"
[link.up]
rate = "5 Mbit/s"
delay = "40 ms"
queue = "64 KiB"
loss = 0.01
burst_loss = { enter = 0.001, leave = 0.2 }
duplicate = 0.5
reorder = { share = 0.1, delay = "5 ms" }
udp = "1 Mbit/s"
mtu = 1280
mtu_silent = true
[link.down]
rate = "20 Mbit/s"
rate_steps = [{ at = "10 s", rate = "2 Mbit/s" }]
rate_repeat = "20 s"
delay_steps = [{ at = "3 s", delay = "80 ms" }]
loss_steps = [{ at = "3 s", loss = 0.5 }]
loss_repeat = "5 s"
[[link.blackout]]
start = "5 s"
length = "2 s"
mode = "hold"
[[link.blackout]]
start = "8 s"
length = "1 s"
mode = "drop"
direction = "down"

[[link]]
name = "b"
up = {}
down = {}
"#;

#[test]
fn everything_written_is_read() {
    let scenario = Scenario::parse(FULL).unwrap();
    assert_eq!((scenario.seed, scenario.duration), (7, Some(Duration::from_secs(90))));
    assert_eq!(scenario.near.as_deref(), Some(Path::new("/run/netns/train")));
    let [a, b] = scenario.links.as_slice() else { panic!("not two links") };
    assert_eq!((a.name.as_str(), a.mtu, a.near.interface.as_str()), ("a", 1400, "wwan0"));
    assert_eq!(a.far.interface, "a");
    assert_eq!(a.near.addresses.len(), 2);
    assert_eq!(a.far.namespace.as_deref(), Some(Path::new("/proc/1/ns/net")));
    let mbit = |count| Rate::Limited(Bitrate::from_mbps(count));
    let at = Duration::from_secs;
    assert_eq!(a.up.rate.at(at(11)).value, mbit(5.0));
    assert_eq!(a.down.rate.at(at(11)).value, mbit(2.0));
    assert_eq!(a.down.rate.at(at(21)).value, mbit(20.0));
    assert_eq!(a.down.delay.at(at(4)).value, Duration::from_millis(80));
    assert_eq!(a.up.queue, Bytes::from_kib(64));
    assert_eq!(a.up.loss.get(), 0.01);
    assert_eq!([2, 3, 5].map(|s| a.down.loss_at(at(s)).get()), [0.0, 0.5, 0.0]);
    assert!((a.down.loss.get() - 0.2).abs() < 1e-9);
    assert_eq!(a.up.burst_loss.unwrap().loss.get(), 1.0);
    assert_eq!(a.up.reorder.unwrap().delay, Duration::from_millis(5));
    assert_eq!(a.up.udp, Policing::Limited(Bitrate::from_mbps(1.0)));
    assert_eq!(a.up.mtu, Some(PathMtu { bytes: 1280, silent: true }));
    assert_eq!((a.down.udp, a.down.mtu, a.nat, b.nat), (Policing::Free, None, true, false));
    assert_eq!(a.up.blackouts.at(at(6)).value, Some(Blackout::Hold));
    assert_eq!(a.up.blackouts.at(at(8)).value, None);
    assert_eq!(a.down.blackouts.at(at(8)).value, Some(Blackout::Drop));
    assert_eq!((b.mtu, &b.up), (1500, &LinkSpec::default()));
    let seeds: std::collections::BTreeSet<_> =
        (0..9).flat_map(|link| [false, true].map(|down| scenario.seed_of(link, down))).collect();
    assert_eq!(seeds.len(), 18);
}

#[test]
fn a_scenario_reads_back_from_its_text() {
    let scenario = Scenario { seed: u64::MAX, ..Scenario::parse(FULL).unwrap() };
    let again = Scenario::parse(&scenario.to_toml().unwrap()).unwrap();
    assert_eq!(format!("{scenario:?}"), format!("{again:?}"));
}

#[test]
fn an_error_names_the_line_and_the_reason() {
    for (from, to, line, reason) in [
        ("seed = 7", "sed = 7", 2, "unknown field `sed`"),
        ("udp = \"1 Mbit/s\"", "udp = \"unlimited\"", 27, "\"free\", \"blocked\" or a rate"),
        ("mtu = 1280", "mtu = 500", 28, "an MTU of 576 to 65535"),
        ("rate = \"5 Mbit/s\"", "rate = \"5 Mb\"", 20, "is not \"unlimited\" or a rate"),
        ("delay = \"40 ms\"", "delay = \"40\"", 21, "is not a time such as"),
        ("delay = \"40 ms\"", "delay = \"2000 h\"\nx = \"9000 h\"", 22, "unknown field `x`"),
        ("loss = 0.01", "loss = 1.5", 23, "1.5 is not a share between 0 and 1"),
        ("queue = \"64 KiB\"", "queue = \"2 GiB\"", 22, "larger than"),
        ("mode = \"hold\"", "mode = \"pause\"", 40, "unknown variant `pause`"),
        ("name = \"b\"", "name = \"a\"", 48, "two links are called \"a\""),
        ("name = \"b\"", "name = \"b b\"", 48, "letters, digits"),
        ("interface = \"wwan0\"", "interface = \"w/n\"", 10, "cannot be the name"),
        ("mtu = 1400", "mtu = 1200", 10, "at least 1280"),
        ("\"10.1.0.2/24\"", "\"10.1.0.2\"", 17, "invalid IP address"),
        ("rate_repeat = \"20 s\"", "rate_repeat = \"9 s\"", 30, "repeat period"),
    ] {
        let text = FULL.replacen(from, to, 1);
        assert_ne!(text, FULL, "{from} is not in the example");
        let error = Scenario::parse(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{to}: {error}");
        assert!(error.contains(&format!("line {line}:")), "{to}: not line {line}: {error}");
    }
    assert!(Scenario::parse("link = []").unwrap_err().to_string().contains("0 links"));
}

#[test]
fn times_and_rates_have_units() {
    for (text, micros) in
        [("40ms", 40_000), ("1.5 s", 1_500_000), ("2m", 120_000_000), ("0 s", 0), ("9 us", 9)]
    {
        assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)), "{text}");
    }
    for bad in ["", "s", "1", "-1 s", "1 d", "1 s s", "9000 h", "1e3 s", "nan s"] {
        assert!(parse_duration(bad).is_err(), "{bad:?} passed");
    }
    assert_eq!(parse_rate(" unlimited "), Ok(Rate::Unlimited));
    for bad in ["", "fast", "-1 Mbit/s", "101 Gbit/s"] {
        assert!(parse_rate(bad).is_err(), "{bad:?} passed");
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Scenario::load(Path::new("/nonexistent/x.toml")).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/x.toml"), "{error}");
}

#[test]
fn the_example_of_the_documentation_is_right() {
    let page = include_str!("../../../../docs/emulation.md");
    let example = page.split("```toml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let scenario = Scenario::parse(example).unwrap();
    assert_eq!(scenario.links[0].down.queue, LinkSpec::default().queue);
}
