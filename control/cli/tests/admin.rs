//! The commands that talk to a running daemon, against a control thread on a real socket.

#[path = "../../admin/src/tests/schema.rs"]
mod schema;
mod scripted;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use polyrail_admin::metrics::MetricsSnapshot;
use polyrail_admin::{
    AdminCommand, AdminError, AdminEvent, CapLevel, CapState, CloudPhase, CloudState, DrainState,
    FlowPage, FlowPhase, FlowState, LinkDbProbe, PathChange, PathCounters, PathPhase, PathState,
    RefusedCounts, SkippedCarrier, Snapshot, SpeedtestPhase, SpeedtestRow, SpeedtestState,
    Timestamp, UserPage, UserState,
};
use polyrail_config::{GatewayTables, Mode};
use polyrail_identity::NodeRole;
use polyrail_model::{FlowKind, FlowName, SessionKey, TunnelMode};
use polyrail_predictor::worker::{Feeder, Input, LinkDbSettings, Options, Worker};
use scripted::Daemon;

const TEXT: &str = r#"[tls]
certificate = "n.crt"
key = "n.key"
authority = "ca.crt"
[cloud]
name = "c"
addresses = ["192.0.2.1:4433"]
[[carrier]]
name = "a"
[socks5]
listen = ["127.0.0.1:1080"]
[admin]
socket = "s"
"#;

fn start(linkdb: Option<LinkDbProbe>) -> Daemon {
    let mut mode = Mode::Auto;
    Daemon::start(TEXT, linkdb, Vec::new(), move |handle, command| {
        answer(command, &mut mode);
        handle.publish(AdminEvent::QuicRetried { path: "a".to_owned() });
    })
}

impl Daemon {
    fn socket(&self) -> PathBuf {
        self.folder().join("s")
    }

    /// Runs `polyrail` with this daemon's socket: exit code, output, errors.
    fn polyrail(&self, arguments: &str) -> (i32, String, String) {
        polyrail(arguments, &self.socket())
    }

    fn fine(&self, arguments: &str) -> String {
        let (code, out, complaint) = self.polyrail(arguments);
        assert_eq!((code, complaint.as_str()), (0, ""), "{arguments}: {out}");
        out
    }
}

fn answer(command: AdminCommand<GatewayTables>, mode: &mut Mode) {
    match command {
        AdminCommand::Status(reply) => {
            reply.send(Snapshot { clouds: clouds(), ..Snapshot::default() })
        }
        AdminCommand::Paths(reply) => reply.send(vec![path(*mode)]),
        AdminCommand::Flows { query, reply } => {
            // At most two flows in an answer, as a data plane that examines few.
            let after = query.after.map_or(0, |after| after.number);
            let flows: Vec<_> = (after + 1..=FLOWS).take(query.limit.min(2)).map(flow).collect();
            let next = flows.last().map(|flow| flow.id).filter(|id| id.number < FLOWS);
            reply.send(FlowPage { flows, next });
        }
        AdminCommand::Users { reply, .. } => {
            reply.send(UserPage { users: vec![user()], next: None, places: Vec::new() });
        }
        AdminCommand::Metrics(reply) => reply.send(MetricsSnapshot::default()),
        AdminCommand::Report(_) => {}
        AdminCommand::SetPath { name, change, reply } => {
            if name != "a" {
                return reply.send(Err(AdminError::unknown_path(&name)));
            }
            if change.enabled == Some(false) {
                return reply.send(Err(AdminError::refused("it is the last carrier")));
            }
            *mode = change.mode.unwrap_or(*mode);
            reply.send(Ok(changed(&change, path(*mode))));
        }
        AdminCommand::SetScheduler { reply, .. } => reply.send(()),
        AdminCommand::Reload { reply, .. } => reply.send(Ok(Vec::new())),
        AdminCommand::Drain { limit, reply } => {
            reply.send(Ok(DrainState { flows: 2, ends_in_s: limit.as_secs_f64() }));
        }
        AdminCommand::Speedtest { order: None, reply } => reply.send(Ok(speedtest())),
        AdminCommand::Speedtest { order: Some(order), reply } => {
            if order.carriers == ["b"] {
                return reply.send(Err(AdminError::refused("a speed test runs")));
            }
            let state = SpeedtestPhase::Running;
            reply.send(Ok(SpeedtestState { state, rows: Vec::new(), ..speedtest() }));
        }
        AdminCommand::Links(_) | AdminCommand::Usage(_) => {}
    }
}

/// A finished test of two carriers, of which one went dark.
fn speedtest() -> SpeedtestState {
    let names = ["a", "b"].map(str::to_owned);
    let mut good = SpeedtestRow::new(&names[..1]);
    good.carriers[0].received_bytes = 12_000_000;
    (good.download_bits_per_s, good.upload_bits_per_s) = (Some(19_200_000), Some(4_800_000));
    (good.rtt_idle_us, good.rtt_download_us) = (Some(40_000), Some(95_500));
    (good.sent_packets, good.lost_packets) = (200, 3);
    let error = Some("dark".to_owned());
    let reason = "it is metered; name it to test it".to_owned();
    SpeedtestState {
        state: SpeedtestPhase::Finished,
        message: None,
        cloud: "c".to_owned(),
        seconds: 5,
        measuring: None,
        rows: vec![good, SpeedtestRow { error, ..SpeedtestRow::new(&names) }],
        skipped: vec![SkippedCarrier { carrier: "m".to_owned(), reason }],
    }
}

/// The path with the wishes of a change.
fn changed(change: &PathChange, path: PathState) -> PathState {
    let cap = change.cap.flatten().map(|cap| CapState {
        limit_bytes: cap.bytes.bytes().0,
        reset_day: cap.reset_day,
        at: cap.at,
        level: CapLevel::High,
        used_bytes: Some(40_000_000_000),
        period_from: Some("2026-11-01".to_owned()),
        period_until: Some("2026-12-01".to_owned()),
    });
    let rate_limit = change.rate_limit.flatten();
    PathState {
        role: change.role.unwrap_or(path.role),
        rate_limit_bits_per_s: rate_limit.map(|limit| limit.rate().as_bps()),
        cap,
        ..path
    }
}

const FLOWS: u64 = 5;

fn flow(number: u64) -> FlowState {
    let (session, kind) = (SessionKey(1), FlowKind::Tcp);
    FlowState {
        id: FlowName { session, kind, number },
        kind,
        gateway: Some("train-7".to_owned()),
        user: "00000000000000ab".to_owned(),
        state: FlowPhase::HalfClosed,
        source: Some("198.18.0.2:50000".parse().expect("an address")),
        destination: Some("example.com:443".to_owned()),
        age_s: 61.0,
        idle_s: 2.0,
        sent_bytes: 1_500,
        received_bytes: 2_000_000,
        carriers: vec!["a".to_owned(), "b".to_owned()],
    }
}

fn user() -> UserState {
    UserState {
        user: "00000000000000ab".to_owned(),
        address: Some("198.18.0.2".parse().expect("an address")),
        flows: 5,
        sent_bytes: Some(7_500),
        refused: RefusedCounts { quota: 3, ..RefusedCounts::default() },
        refused_reason: Some("too many dials".to_owned()),
        refused_at: Some(Timestamp::now()),
        ..UserState::default()
    }
}

fn clouds() -> Vec<CloudState> {
    let cloud = |(name, priority, state): (&str, u64, CloudPhase)| CloudState {
        name: name.to_owned(),
        priority,
        current: priority == 2,
        state,
        flows: priority,
    };
    [("c", 1, CloudPhase::GoingAway), ("d", 2, CloudPhase::Up)].map(cloud).to_vec()
}

fn path(configured_mode: Mode) -> PathState {
    PathState {
        name: "a".to_owned(),
        carrier: "a".to_owned(),
        peer: Some("c".to_owned()),
        enabled: true,
        configured_mode,
        mode: Some(TunnelMode::Tls),
        state: PathPhase::NoInterface,
        since: Timestamp::now(),
        counters: PathCounters { sent_bytes: 1_500_000, ..PathCounters::default() },
        ..PathState::default()
    }
}

fn process(arguments: &str, socket: &Path) -> Process {
    let mut process = Process::new(env!("CARGO_BIN_EXE_polyrail"));
    process.args(arguments.split(' ')).arg("--socket").arg(socket);
    process
}

fn polyrail(arguments: &str, socket: &Path) -> (i32, String, String) {
    shown(process(arguments, socket))
}

/// Runs `polyrail` without a socket.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let mut process = Process::new(env!("CARGO_BIN_EXE_polyrail"));
    process.args(arguments);
    shown(process)
}

fn shown(mut process: Process) -> (i32, String, String) {
    let output = process.output().expect("polyrail runs");
    let text = |bytes| String::from_utf8(bytes).expect("its output is text");
    (output.status.code().expect("it was not killed"), text(output.stdout), text(output.stderr))
}

#[test]
fn operator_inspects_and_changes_paths() {
    let daemon = start(None);
    let text = daemon.fine("status");
    assert!(text.starts_with("polyrail-gateway 0.1.0, process "), "{text}");
    assert!(text.contains("daemon.toml, read 2") && text.contains("no session"), "{text}");
    assert!(text.contains("cloud 1        c: going away, flows: 1\n"), "{text}");
    assert!(text.contains("cloud 2        d: up, current, flows: 2\n"), "{text}");
    let text = daemon.fine("status --json");
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&value["api"], &value["role"]), (&"v1".into(), &"gateway".into()));

    let text = daemon.fine("paths");
    let words: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[1][..5], ["a", "no", "interface", "tls", "auto"], "{text}");
    assert!(text.contains("1.5 MB"), "{text}");
    assert!(daemon.fine("path set a --mode quic").contains("quic"));
    let value: serde_json::Value = serde_json::from_str(&daemon.fine("paths --json")).unwrap();
    assert_eq!(value["paths"][0]["configured_mode"], "quic");
    daemon.fine("path set a --enable");
    assert_eq!(daemon.fine("scheduler min_rtt,redundancy"), "scheduler: min_rtt, redundancy\n");
    daemon.fine("path restart a");
    daemon.fine("path restart a --cell");
    for (arguments, limit) in [("drain", "5 min 0 s"), ("drain --limit 90s", "1 min 30 s")] {
        let line =
            format!("draining       2 flows left; ends with the last one, at most in {limit}\n");
        assert_eq!(daemon.fine(arguments), line);
    }
    for limit in ["0s", "25h", "soon", "500ms"] {
        assert_eq!(daemon.polyrail(&format!("drain --limit {limit}")).0, 2, "{limit}");
    }
    let (code, text, complaint) = daemon.polyrail("speedtest --seconds 7");
    assert_eq!((code, complaint.as_str()), (1, ""), "a row has an error: {text}");
    let wanted = "\
CARRIER  DOWN         UP          RTT IDLE  RTT DOWN  RTT UP  LOSS UP  BYTES         ERROR
a        19.2 Mbit/s  4.8 Mbit/s  40.0 ms   95.5 ms   -       1.5 %    12 MB
(bond)   -            -           -         -         -       -        a 0 B, b 0 B  dark
not tested: m (it is metered; name it to test it)
to c; the test competed with passengers as one user
";
    assert_eq!(text, wanted);
    let (code, _, complaint) = daemon.polyrail("speedtest --carrier b");
    assert!(code == 1 && complaint.contains("a speed test runs"), "{complaint}");
    for wrong in ["--seconds 0", "--seconds 31", "--carrier"] {
        assert_eq!(daemon.polyrail(&format!("speedtest {wrong}")).0, 2, "{wrong}");
    }
    let text = daemon.fine("paths a");
    assert!(text.contains("primary, over any interface, to c; no interface since 2"), "{text}");

    let set = "path set a --role backup --rate-limit 20Mbit/s --cap 50GB --reset-day 7 --json";
    let value: serde_json::Value = serde_json::from_str(&daemon.fine(set)).unwrap();
    let shown = (&value["role"], &value["rate_limit_bits_per_s"], &value["cap"]["limit_bytes"]);
    assert_eq!(shown, (&"backup".into(), &20_000_000.into(), &50_000_000_000_u64.into()));
    assert_eq!((&value["cap"]["reset_day"], &value["cap"]["at"]), (&7.into(), &"stop".into()));
    let value = daemon.fine("path set a --cap none --rate-limit none --json");
    assert!(value.contains("\"cap\":null"), "{value}");

    for (arguments, reason) in [
        ("paths b", "there is no path \"b\""),
        ("path restart b", "there is no path \"b\""),
        ("path set a --disable", "it is the last carrier"),
    ] {
        let (code, out, complaint) = daemon.polyrail(arguments);
        assert_eq!((code, out.as_str()), (1, ""), "{complaint}");
        assert!(complaint.contains(reason), "{complaint}");
    }
}

#[test]
fn operator_lists_flows_and_users() {
    let daemon = start(None);
    let text = daemon.fine("flows");
    let words: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words.len() as u64, 1 + FLOWS, "all pages: {text}");
    let row = "1-tcp-1 half closed train-7:00000000000000ab 198.18.0.2:50000 example.com:443 \
               1 min 1 s 2.0 s 1.5 kB 2 MB a,b";
    assert_eq!(words[1], row.split(' ').collect::<Vec<_>>(), "{text}");
    let text = daemon.fine("flows --limit 3 --kind tcp --carrier b --min-age 60 --min-bytes 1");
    assert!(text.ends_with("there are more: --after 1-tcp-3\n"), "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
    assert_eq!(daemon.fine("flows --after 1-tcp-4").lines().count(), 2);
    let value: serde_json::Value = serde_json::from_str(&daemon.fine("flows --json")).unwrap();
    assert_eq!(value["next"], "1-tcp-2", "one page");
    assert_eq!(value["flows"][0]["state"], "half_closed");

    let text = daemon.fine("users --user 00000000000000ab --min-flows 1");
    let words: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
    let row = "00000000000000ab 198.18.0.2 5 7.5 kB - 0 3 too many dials";
    assert_eq!(words, row.split(' ').collect::<Vec<_>>(), "{text}");
    assert!(daemon.fine("users --json").starts_with("{\"users\":[{"));
    for bad in ["flows --kind icmp", "flows --user x", "flows --after 7", "users --user 0xab"] {
        assert_eq!(daemon.polyrail(bad).0, 2, "{bad}");
    }
}

fn probe(worker: Feeder) -> LinkDbProbe {
    Arc::new(move || serde_json::to_value(worker.state()?).ok())
}

#[test]
fn operator_inspects_linkdb() {
    let daemon = start(None);
    let (code, out, complaint) = daemon.polyrail("linkdb status");
    assert_eq!((code, out.as_str()), (1, ""), "{complaint}");
    assert!(complaint.contains("LinkDB is disabled: set linkdb.path"), "{complaint}");
    drop(daemon);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let retention = Duration::from_secs(86_400);
    let settings = LinkDbSettings { events_max: 1_000, retention, forecast: false, share: true };
    let role = NodeRole::Cloud;
    let notify = Box::new(|| {});
    let (name, file) = ("train-7".to_owned(), Some(path.clone()));
    let options = Options { role, name, path: file, settings, seed: 1, notify };
    let linkdb = Worker::start(options).unwrap();
    linkdb.feed(Input::Up { session: SessionKey(1), peer: "train-7".to_owned() });
    let daemon = start(Some(probe(linkdb.feeder())));
    let text = daemon.fine("linkdb status");
    let database = format!("database       {}\n", path.display());
    for part in
        [&database, "entries        0", "forecasts      off", "trip of train-7: no position"]
    {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    let value: serde_json::Value =
        serde_json::from_str(&daemon.fine("linkdb status --json")).unwrap();
    assert_eq!(value["store"]["open"], true);
    assert_eq!(value["trips"][0]["gateway"], "train-7");
    assert_eq!((&value["failed"], &value["failures"]), (&serde_json::Value::Null, &0.into()));
    for counter in ["unplaced", "gaps", "untold", "strangers", "dropped"] {
        assert_eq!(value["unrecorded"][counter], 0, "{counter}");
    }
    // The daemon adds the telemetry sources.
    let mut full = value.clone();
    full["sources"] = serde_json::json!([]);
    let document = schema::document();
    let differences = schema::differences(&document, schema::schema(&document, "LinkDb"), &full);
    assert!(differences.is_empty(), "{differences:#?}");
    // The daemon has locked the file.
    let (code, _, complaint) = run(&["linkdb", "stats", "--db", path.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(complaint.contains("ask the daemon with `polyrail linkdb status`"), "{complaint}");
    drop(linkdb);
    let (code, out, complaint) = run(&["linkdb", "stats", "--db", path.to_str().unwrap()]);
    assert_eq!(code, 0, "{complaint}");
    assert!(out.contains("0 handovers"), "{out}");
    // LinkDB's thread has stopped.
    let (code, _, complaint) = daemon.polyrail("linkdb status");
    assert_eq!(code, 1);
    assert!(complaint.contains("did not answer in time"), "{complaint}");
}

#[test]
fn reload_prints_changes_or_the_reason() {
    let daemon = start(None);
    let file = daemon.folder().join("daemon.toml");
    assert_eq!(daemon.fine("reload"), "reloaded: no changes\n");
    std::fs::write(&file, format!("mode = \"tls\"\n{TEXT}")).unwrap();
    assert_eq!(daemon.fine("reload"), "mode: auto -> tls\nreloaded: 1 changed\n");
    std::fs::write(&file, TEXT.replace("1080", "1081")).unwrap();
    let (code, _, complaint) = daemon.polyrail("reload");
    assert_eq!(code, 1);
    assert!(complaint.contains("need a restart of the daemon: socks5.listen"), "{complaint}");
    std::fs::write(&file, TEXT.replace("\"a\"", "\"A\"")).unwrap();
    let (code, _, complaint) = daemon.polyrail("reload");
    assert_eq!(code, 1);
    assert!(complaint.contains("daemon.toml:9:8: carrier[1].name: "), "{complaint}");
}

#[test]
fn events_are_shown_and_followed() {
    let daemon = start(None);
    let text = daemon.fine("events");
    assert!(text.ends_with("  started\n") || text.contains("  started"), "{text}");
    let mut child = Killed(
        process("events --follow --json", &daemon.socket())
            .stdout(Stdio::piped())
            .spawn()
            .expect("polyrail runs"),
    );
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut next = || {
        let line = lines.next().unwrap().unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["event"].clone()
    };
    assert_eq!(next(), "started");
    daemon.fine("path restart a");
    assert_eq!(next(), "quic_retried");
    // The stream ends with the daemon, and so does the command.
    drop(daemon);
    for _ in 0..500 {
        if child.0.try_wait().unwrap().is_some() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("the command did not exit with the daemon");
}

/// A child that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn unreachable_daemon_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let commands = ["status", "paths", "flows", "users", "reload", "events", "path restart a"];
    for arguments in commands.into_iter().chain(["linkdb status"]) {
        let (code, out, complaint) = polyrail(arguments, &socket);
        assert_eq!((code, out.as_str()), (3, ""), "{complaint}");
        assert!(
            complaint.contains("is it running, and does its configuration have"),
            "{complaint}"
        );
    }
    // A daemon that was killed leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert_eq!(polyrail("status", &socket).0, 3);
    if !nix::unistd::geteuid().is_root() {
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o000)).unwrap();
        let (code, _, complaint) = polyrail("status", &socket);
        assert_eq!(code, 1);
        assert!(complaint.contains("is not for this user"), "{complaint}");
    }
    let bad = [
        "path set a",
        "path set a --mode udp",
        "path set a --role spare",
        "path set a --cap 1B",
        "path set a --cap 1GB --reset-day 29",
        "path set a --mode tls --at backup",
        "path set a --rate-limit 1kbit/s",
        "scheduler best",
        "path",
    ];
    for bad in bad {
        assert_eq!(polyrail(bad, &socket).0, 2, "{bad}");
    }
    assert_eq!(polyrail("path set a --enable --disable", &socket).0, 2);
}

#[test]
fn answer_of_another_program_is_rejected() {
    use std::io::{Read, Write};
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let other = thread::spawn(move || {
        for answer in ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "SSH-2.0-x\r\n", ""] {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for _ in 0..3 {
        let (code, out, complaint) = polyrail("status", &socket);
        assert_eq!((code, out.as_str()), (1, ""), "{complaint}");
    }
    other.join().unwrap();
}
