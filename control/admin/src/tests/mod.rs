//! The admin interface over scripted connections, over a real socket, and through reloads.

mod reference;
mod reloads;
mod scripted;
mod sockets;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use polyrail_config::{CarrierRole, GatewayConfig, GatewayTables, Mode, Overrides};
use polyrail_identity::{Authority, IssueRequest, NodeRole};
use polyrail_model::TunnelMode;

use super::control::Control;
use super::{
    AdminCommand, AdminError, AdminOptions, CloudPhase, CloudState, DrainState, PathChange,
    PathCounters, PathPhase, PathState, SessionPhase, SessionState, Snapshot, StartOptions,
    Timestamp,
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
        role: CarrierRole::Primary,
        interface: Some("wwan0".to_owned()),
        configured_mode: Mode::Auto,
        mode: Some(TunnelMode::Quic),
        state: PathPhase::Up,
        since: Timestamp::now(),
        decision: None,
        demotion: None,
        counters: PathCounters { attempts: 1, quic_attempts: 1, ..PathCounters::default() },
        local_address: None,
        peer_address: Some("192.0.2.1:4433".parse().unwrap()),
        link: None,
        connections: Vec::new(),
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
        memory_received_bytes: 0,
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
        datagrams_dropped: 0,
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

/// Answers one command as a small data plane would.
fn answer(command: AdminCommand<GatewayTables>) {
    match command {
        AdminCommand::Status(reply) => reply.send(snapshot()),
        AdminCommand::Paths(reply) => reply.send(vec![path_a()]),
        AdminCommand::Users(reply) => reply.send(Vec::new()),
        AdminCommand::SetPath { name, change, reply } => reply.send(changed(&name, &change)),
        AdminCommand::SetScheduler { reply, .. } => reply.send(()),
        AdminCommand::Reload { reply, .. } => reply.send(Ok(vec!["a warning".to_owned()])),
        AdminCommand::Drain { limit, reply } => {
            reply.send(Ok(DrainState { flows: 2, ends_in_s: limit.as_secs_f64() }));
        }
        AdminCommand::Links(_) => {}
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
