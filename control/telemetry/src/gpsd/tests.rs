//! The client against scripts cut anywhere, against a server that comes and goes, and against the
//! real gpsd with a recorded track.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio_test::io::Builder;

use super::super::source::recorded;
use super::super::state::{SourceKind, SourcePhase, SourceState};
use super::*;

const VERSION: &str = r#"{"class":"VERSION","release":"3.22","proto_major":3,"proto_minor":14}"#;
const DEVICES: &str = r#"{"class":"DEVICES","devices":[{"class":"DEVICE","path":"/dev/a"}]}"#;

fn source() -> (Source, Receiver<Observation>) {
    recorded(SourceKind::Gpsd)
}

fn fixes(receiver: &Receiver<Observation>) -> Vec<Fix> {
    let all = std::iter::from_fn(|| receiver.try_recv().ok());
    all.map(|one| match one {
        Observation::Fix(fix) => fix,
        other => panic!("{other:?}"),
    })
    .collect()
}

/// A reading of a receiver at a second.
fn tpv(device: &str, second: u32, lat: f64) -> String {
    let time = format!("2024-05-01T10:00:{second:02}.000Z");
    let place = format!("\"lat\":{lat},\"lon\":13.4");
    format!(r#"{{"class":"TPV","device":"{device}","mode":3,"time":"{time}",{place}}}"#)
}

/// The result of a conversation in which gpsd sends `parts`: its end, the state, the latitudes.
fn conversation(parts: &[&[u8]]) -> (String, SourceState, Vec<f64>) {
    let mut builder = Builder::new();
    builder.write(WATCH);
    for part in parts.iter().filter(|part| !part.is_empty()) {
        builder.read(part);
    }
    let (source, receiver) = source();
    let end =
        tokio_test::block_on(run_connection(builder.build(), &source, &mut Backoff::default()));
    let latitudes = fixes(&receiver).into_iter().map(|fix| fix.latitude).collect();
    (end, source.monitor.state(), latitudes)
}

fn script() -> String {
    let lines = [
        VERSION,
        DEVICES,
        "this is not JSON",
        r#"{"class":"TPV","device":"/dev/a","mode":1}"#,
        &tpv("/dev/a", 1, 52.1),
        &tpv("/dev/a", 1, 52.1),
        r#"{"class":"SKY","satellites":[]}"#,
        r#"{"class":"ERROR","message":"no such command"}"#,
        &tpv("/dev/a", 2, 95.0),
        &tpv("/dev/b", 2, 50.0),
        &tpv("/dev/a", 3, 52.2),
    ];
    lines.map(|line| format!("{line}\r\n")).concat()
}

#[test]
fn result_does_not_depend_on_chunk_boundaries() {
    let script = script();
    for cut in 0..=script.len() {
        let (left, right) = script.as_bytes().split_at(cut);
        let (end, state, latitudes) = conversation(&[left, right]);
        assert_eq!(latitudes, [52.1, 52.2], "cut at {cut}");
        assert_eq!((state.lines, state.errors, state.observations), (11, 3, 2), "cut at {cut}");
        assert_eq!(end, "it closed the connection");
    }
}

#[test]
fn long_and_binary_lines_are_skipped() {
    let long = vec![b'x'; 3 * super::super::lines::LINE_MAX as usize];
    let (good, rest) = (tpv("/dev/a", 1, 1.5), [0xff, 0xfe, b'\n']);
    let (_, state, latitudes) = conversation(&[&long, b"\n", &rest, good.as_bytes()]);
    assert_eq!((state.errors, latitudes), (2, vec![1.5]));
}

#[test]
fn unsupported_protocol_closes_the_connection() {
    let foreign = VERSION.replace(":3,", ":4,");
    let (end, ..) = conversation(&[foreign.as_bytes(), b"\n"]);
    assert_eq!(end, "gpsd 3.22 speaks protocol 4; supported is 3");
}

#[tokio::test(start_paused = true)]
async fn connection_without_lines_is_lost() {
    let (stream, mut server) = Builder::new().write(WATCH).build_with_handle();
    let (source, _receiver) = source();
    let begun = tokio::time::Instant::now();
    let other = source.clone();
    let ended =
        tokio::spawn(async move { run_connection(stream, &other, &mut Backoff::default()).await });
    tokio::time::sleep(Duration::from_secs(9)).await;
    server.read(tpv("/dev/a", 1, 1.0).as_bytes());
    server.read(b"\n");
    tokio::time::sleep(Duration::from_secs(9)).await;
    // An incomplete line does not reset the timeout.
    server.read(b"{\"class\"");
    assert_eq!(ended.await.unwrap(), "silent for 10 s");
    assert_eq!(begun.elapsed().as_secs(), 19);
}

#[test]
fn one_receiver_is_used_until_it_loses_its_fix() {
    let start = Instant::now();
    let mut watch = Watch::default();
    let mut hear = |seconds: u64, line: String| {
        let heard = watch.parse(Line::Text(line), start + Duration::from_secs(seconds));
        matches!(heard, Message::Fix(_))
    };
    assert!(hear(0, tpv("a", 0, 1.0)));
    assert!(!hear(0, tpv("b", 0, 2.0)));
    assert!(hear(1, tpv("a", 1, 1.1)));
    assert!(!hear(4, tpv("b", 4, 2.4)), "a has had no fix for 3 s");
    assert!(hear(5, tpv("b", 5, 2.5)));
    assert!(!hear(5, tpv("a", 5, 1.5)), "b is in use");
    // b was unplugged.
    assert!(!hear(6, r#"{"class":"DEVICE","path":"b","activated":0}"#.to_owned()));
    assert!(hear(6, tpv("a", 6, 1.6)));
}

#[tokio::test]
async fn restarted_server_is_found_again() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (source, receiver) = source();
    let running = tokio::spawn(run(listener.local_addr().unwrap(), source.clone()));
    for round in 1..=2 {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; WATCH.len()];
        stream.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, WATCH);
        let line = tpv("/dev/a", round, f64::from(round));
        stream.write_all(format!("{VERSION}\r\n{line}\r\n").as_bytes()).await.unwrap();
    }
    while source.monitor.state().observations < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let latitudes: Vec<_> = fixes(&receiver).into_iter().map(|fix| fix.latitude).collect();
    assert_eq!(latitudes, [1.0, 2.0]);
    drop(listener);
    while source.monitor.state().state != SourcePhase::Waiting {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.abort();
}

/// 40 s of a train at 300 km/h with a tunnel from 10:00:20 to 10:00:25, made for this test.
fn track() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/track.nmea")
}

/// The second, latitude and longitude of each position in the track.
fn positions() -> Vec<(u64, f64, f64)> {
    let text = fs::read_to_string(track()).unwrap();
    let mut positions = Vec::new();
    for line in text.lines() {
        let (body, sum) = line.trim_start_matches('$').split_once('*').unwrap();
        let sum = u8::from_str_radix(sum, 16).unwrap();
        assert_eq!(body.bytes().fold(0, |sum, byte| sum ^ byte), sum, "{line}");
        let fields: Vec<_> = body.split(',').collect();
        if fields[0] == "GPRMC" && fields[2] == "A" {
            let degrees = |text: &str, split: usize| {
                let (degrees, minutes) = text.split_at(split);
                degrees.parse::<f64>().unwrap() + minutes.parse::<f64>().unwrap() / 60.0
            };
            let second = fields[1][4..6].parse().unwrap();
            positions.push((second, degrees(fields[3], 2), degrees(fields[5], 3)));
        }
    }
    positions
}

/// The real gpsd with a track, by gpsfake; both end with it.
struct Gpsfake(Child);

impl Gpsfake {
    /// `None` if it is missing and `POLYRAIL_ALLOW_SKIP` permits that.
    fn start(port: u16) -> Option<Self> {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{path}:/usr/local/sbin:/usr/sbin:/sbin");
        let mut command = Command::new("gpsfake");
        command.args(["-1", "-n", "-q", "-c", "0.05", "-P", &port.to_string()]).arg(track());
        command.env("PATH", path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.process_group(0).spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                let allowed = std::env::var("POLYRAIL_ALLOW_SKIP").unwrap_or_default();
                let may = allowed.split(',').any(|name| name.trim() == "gpsd");
                assert!(may, "gpsfake: {error}; make setup installs gpsd and gpsd-clients");
                // Not by `println!`, which the test runner keeps to itself when a test passes.
                let _ = writeln!(std::io::stdout(), "SKIP gpsd: gpsd and gpsfake are missing");
                None
            }
        }
    }
}

impl Drop for Gpsfake {
    fn drop(&mut self) {
        let group = self.0.id();
        if let Ok(group) = i32::try_from(group) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.0.wait();
        let _ = fs::remove_file(format!("/tmp/gpsfake-{group}.sock"));
    }
}

/// All positions of the real gpsd are right, and there are none where the track has none.
#[tokio::test]
async fn real_gpsd_reports_a_recorded_track() {
    let positions = positions();
    assert_eq!(positions.len(), 35);
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let Some(_gpsfake) = Gpsfake::start(free.port()) else { return };
    let (source, receiver) = source();
    let running = tokio::spawn(run(free, source.clone()));
    // It begins before gpsd listens, so that some of the first positions may be missed.
    let (mut seen, mut last) = (Vec::new(), 0);
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        seen.extend(fixes(&receiver));
        last = seen.last().and_then(|fix| fix.time_ms).unwrap_or(0) / 1000 % 60;
        if last == 39 {
            break;
        }
    }
    running.abort();
    let state = source.monitor.state();
    assert_eq!(last, 39, "{state:?}");
    assert!(seen.len() >= 15 && state.errors == 0, "{} fixes, {state:?}", seen.len());
    let mut before = None;
    for fix in &seen {
        // The first one may come before gpsd is sure of the time.
        let Some(time_ms) = fix.time_ms else { continue };
        assert!(before <= Some(time_ms), "time goes back at {fix:?}");
        before = Some(time_ms);
        assert!((1_714_557_600_000..1_714_557_640_000).contains(&time_ms), "{fix:?}");
        let second = time_ms / 1000 % 60;
        let expected = positions.iter().find(|position| position.0 == second);
        let (_, latitude, longitude) = *expected.unwrap_or_else(|| panic!("a fix at {second}"));
        assert!((fix.latitude - latitude).abs() < 1e-6, "{fix:?}");
        assert!((fix.longitude - longitude).abs() < 1e-6, "{fix:?}");
    }
    let full = seen.iter().rev().find_map(|fix| fix.speed.zip(fix.heading).zip(fix.error));
    let ((speed, heading), error) = full.unwrap();
    assert!((speed - 83.3).abs() < 0.2 && (80.0..91.0).contains(&heading), "{speed} {heading}");
    assert!((5.0..20.0).contains(&error), "HDOP 1.1 is about 10 m: {error}");
}
