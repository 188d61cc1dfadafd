//! The admin interface over scripted connections, over a real socket, and through reloads.

mod openapi;
mod page;
mod reference;
mod reloads;
mod schema;
mod scrapes;
mod scripted;
mod sockets;

pub(crate) use reference::{full_path, full_status};

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use polyrail_config::{CarrierRole, GatewayConfig, GatewayTables, Mode, Overrides};
use polyrail_identity::{Authority, IssueRequest, NodeRole};
use polyrail_model::{FlowKind, SessionKey, TunnelMode, UserId};

use super::control::Control;
use super::metrics::MetricsSnapshot;
use super::{
    AdminCommand, AdminError, AdminOptions, CarrierBytes, CloudPhase, CloudState, DrainState,
    FlowPage, FlowPhase, FlowState, PathChange, PathCounters, PathPhase, PathState, RefusedCounts,
    SessionPhase, SessionState, SkippedCarrier, Snapshot, SpeedtestOrder, SpeedtestPhase,
    SpeedtestRow, SpeedtestState, SpeedtestStep, SpeedtestStepKind, StartOptions, Timestamp,
    UserPage, UserPlace, UserState,
};

/// A folder with certificates and a valid `gateway.toml`.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Self { folder };
        let authority = Authority::create(&node.path(""), "Test", false).unwrap();
        for (name, role) in [("g", NodeRole::Gateway), ("c", NodeRole::Cloud)] {
            let name = polyrail_model::Identity::new(name).unwrap();
            let out = node.path("");
            authority.issue(&IssueRequest { name, role, days: 397, out, force: false }).unwrap();
        }
        node.write(TEXT);
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self) -> PathBuf {
        self.path("gateway.toml")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.file(), text).unwrap();
    }

    /// Writes the example with `to` in place of `from`.
    fn change(&self, from: &str, to: &str) {
        assert!(TEXT.contains(from), "{from:?} is not in the example");
        self.write(&TEXT.replacen(from, to, 1));
    }

    fn options(&self, waker: Arc<mio::Waker>) -> AdminOptions<GatewayTables> {
        AdminOptions {
            config: GatewayConfig::load(self.file(), &Overrides::default()).unwrap(),
            start: StartOptions { file: self.file(), ..StartOptions::default() },
            waker,
            watch_links: false,
            usage: None,
            linkdb: None,
        }
    }
}

const TEXT: &str = r#"mode = "auto"
[tls]
certificate = "g.crt"
key = "g.key"
authority = "ca.crt"
revocations = "revoked.crl"
[cloud]
name = "c"
addresses = ["192.0.2.1:4433"]
[[carrier]]
name = "a"
interface = "wwan0"
[socks5]
listen = ["127.0.0.1:1080"]
[admin]
socket = "admin.sock"
[log]
level = "info"
"#;

/// The path of the only carrier, `a`.
fn path_a() -> PathState {
    PathState {
        name: "a".to_owned(),
        carrier: "a".to_owned(),
        peer: Some("c".to_owned()),
        enabled: true,
        interface: Some("wwan0".to_owned()),
        mode: Some(TunnelMode::Quic),
        state: PathPhase::Up,
        counters: PathCounters { attempts: 1, quic_attempts: 1, ..PathCounters::default() },
        peer_address: Some("192.0.2.1:4433".parse().unwrap()),
        ..PathState::default()
    }
}

/// The status of the data plane.
fn snapshot() -> Snapshot {
    let session = SessionState {
        id: "1".to_owned(),
        peer: Some("c".to_owned()),
        state: SessionPhase::Up,
        age_s: 1.5,
        paths: 1,
        flows: 2,
        users: 1,
        flows_opened: 9,
        memory_sent_bytes: 1,
        memory_max_bytes: 16 << 20,
        credit_bytes: 5,
        reinjected_bytes: 6,
        sent_bytes: 7,
        received_bytes: 8,
        bindings: 1,
        datagrams_sent: 2,
        datagram_copies_sent: 1,
        datagrams_received: 3,
        datagram_copies_received: 1,
        datagrams_dropped: 17,
        datagrams_too_long: 2,
        datagrams_unbound: 1,
        datagrams_stale: 4,
        datagrams_codel: 5,
        datagrams_ended: 2,
        ..SessionState::default()
    };
    Snapshot {
        scheduler: vec!["min_rtt".to_owned()],
        sessions: vec![session],
        clouds: vec![CloudState {
            name: "c".to_owned(),
            priority: 1,
            current: true,
            state: CloudPhase::Up,
            flows: 2,
        }],
        drain: Some(DrainState { flows: 2, ends_in_s: 1.0 }),
        ..Snapshot::default()
    }
}

/// The only flow.
fn flow() -> FlowState {
    FlowState {
        id: "1-tcp-42".parse().unwrap(),
        kind: FlowKind::Tcp,
        gateway: None,
        user: UserId(0xab).to_string(),
        state: FlowPhase::Open,
        source: Some("198.18.0.2:50000".parse().unwrap()),
        destination: Some("example.com:443".to_owned()),
        age_s: 2.5,
        idle_s: 0.5,
        sent_bytes: 700,
        received_bytes: 80_000,
        carriers: vec!["a".to_owned()],
    }
}

/// The only user.
fn user_ab() -> UserState {
    UserState {
        user: UserId(0xab).to_string(),
        address: Some("198.18.0.2".parse().unwrap()),
        group: Some("crew".to_owned()),
        flows: 2,
        sent_bytes: Some(700),
        received_bytes: Some(80_000),
        refused: RefusedCounts { flows: 1, ..RefusedCounts::default() },
        refused_reason: Some("too many open flows of the user".to_owned()),
        refused_at: Some(Timestamp::now()),
        ..UserState::default()
    }
}

/// Answers one command as a small data plane would.
fn answer(command: AdminCommand<GatewayTables>) {
    match command {
        AdminCommand::Status(reply) => reply.send(snapshot()),
        AdminCommand::Paths(reply) => reply.send(vec![path_a()]),
        AdminCommand::Flows { query, reply } => {
            let next = (query.limit == 1).then_some(flow().id);
            reply.send(FlowPage { flows: vec![flow()], next });
        }
        AdminCommand::Users { query, reply } => {
            let (flows, session, user) = (Reverse(2), SessionKey(1), UserId(0xab));
            let next = (query.limit == 1).then_some(UserPlace { flows, session, user });
            reply.send(UserPage { users: vec![user_ab()], next, places: Vec::new() });
        }
        AdminCommand::Metrics(reply) => reply.send(MetricsSnapshot::default()),
        AdminCommand::Report(_) => {}
        AdminCommand::SetPath { name, change, reply } => reply.send(changed(&name, &change)),
        AdminCommand::SetScheduler { reply, .. } => reply.send(()),
        AdminCommand::Reload { reply, .. } => reply.send(Ok(vec!["a warning".to_owned()])),
        AdminCommand::Drain { limit, reply } => {
            reply.send(Ok(DrainState { flows: 2, ends_in_s: limit.as_secs_f64() }));
        }
        AdminCommand::Speedtest { order, reply } => {
            let running = |order: SpeedtestOrder| SpeedtestState {
                state: SpeedtestPhase::Running,
                seconds: order.seconds,
                rows: Vec::new(),
                ..speedtest()
            };
            reply.send(Ok(order.map_or_else(speedtest, running)));
        }
        AdminCommand::Links(_) | AdminCommand::Usage(_) => {}
    }
}

/// A stopped speed test with every field.
fn speedtest() -> SpeedtestState {
    let (carriers, text) = (vec!["a".to_owned()], || Some("m".to_owned()));
    let row = SpeedtestRow {
        carriers: vec![CarrierBytes { carrier: "a".to_owned(), sent_bytes: 1, received_bytes: 2 }],
        download_bits_per_s: Some(20_000_000),
        upload_bits_per_s: Some(5_000_000),
        rtt_idle_us: Some(40_000),
        rtt_download_us: Some(50_000),
        rtt_upload_us: None,
        sent_packets: 100,
        lost_packets: 1,
        error: text(),
    };
    SpeedtestState {
        state: SpeedtestPhase::Stopped,
        message: text(),
        cloud: "c".to_owned(),
        seconds: 5,
        measuring: Some(SpeedtestStep { carriers, step: SpeedtestStepKind::Download }),
        rows: vec![row],
        skipped: vec![SkippedCarrier { carrier: "b".to_owned(), reason: "down".to_owned() }],
    }
}

fn changed(name: &str, change: &PathChange) -> Result<PathState, AdminError> {
    if name != "a" {
        return Err(AdminError::unknown_path(name));
    }
    if change.enabled == Some(false) {
        return Err(AdminError::refused("it is the last carrier"));
    }
    Ok(PathState { configured_mode: change.mode.unwrap_or_default(), ..path_a() })
}

/// The control thread's state; another thread answers its commands.
fn answered_control() -> (Node, Arc<Control<GatewayTables>>) {
    let (node, control, commands) = silent_control();
    std::thread::spawn(move || commands.into_iter().for_each(answer));
    (node, control)
}

/// The control thread's state; nobody answers its commands.
fn silent_control() -> (Node, Arc<Control<GatewayTables>>, Receiver<AdminCommand<GatewayTables>>) {
    let node = Node::new();
    let poll = mio::Poll::new().unwrap();
    let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
    let (sender, commands) = sync_channel(super::COMMANDS_MAX);
    let control = Arc::new(node.options(waker).into_control(sender));
    (node, control, commands)
}

/// Runs a test on a runtime like the control thread's.
fn on_runtime<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.unwrap() })
}

/// Runs a test with a clock that skips waits.
fn on_leaping_clock<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(test)
}
