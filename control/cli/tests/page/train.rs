//! A daemon on a train: a control thread, and a data plane whose answers follow the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use mio::{Events, Poll, Token, Waker};
use polyrail_admin::{
    AdminCommand, AdminEvent, AdminOptions, Demotion, FlowPage, LinkDbProbe, LinkState,
    PathCounters, PathPhase, PathState, RefusedCounts, SessionPhase, SessionState, Snapshot,
    StartOptions, Timestamp, UserPage, UserState,
};
use polyrail_config::{CarrierRole, GatewayConfig, GatewayTables, Mode, Overrides};
use polyrail_identity::{Authority, IssueRequest, NodeRole};
use polyrail_model::{Identity, TunnelMode, UserId};
use serde_json::json;

/// A running daemon.
pub struct Train {
    _folder: tempfile::TempDir,
    waker: Arc<Waker>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Train {
    /// Starts a daemon with a status page; a `busy` one has a session, users and LinkDB.
    pub fn start(port: u16, busy: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let authority = Authority::create(dir, "Test", false).unwrap();
        let (name, role, out) = (Identity::new("g").unwrap(), NodeRole::Gateway, dir.to_owned());
        authority.issue(&IssueRequest { name, role, days: 397, out, force: false }).unwrap();
        let file = dir.join("gateway.toml");
        std::fs::write(&file, TEXT.replace("PORT", &port.to_string())).unwrap();
        let mut poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let begun = Instant::now();
        let options = AdminOptions {
            config: GatewayConfig::load(&file, &Overrides::default()).unwrap(),
            start: StartOptions { file, ..StartOptions::default() },
            waker: waker.clone(),
            watch_links: false,
            linkdb: busy.then(|| linkdb(begun)),
            usage: None,
        };
        let handle = polyrail_admin::start(options).unwrap();
        if busy {
            events().into_iter().for_each(|event| handle.publish(event));
        }
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = thread::spawn(move || {
            let mut events = Events::with_capacity(4);
            while !ends.load(Ordering::Relaxed) {
                poll.poll(&mut events, None).unwrap();
                while let Some(command) = handle.try_recv() {
                    answer(command, begun.elapsed().as_secs_f64(), busy);
                }
            }
        });
        Self { _folder: folder, waker, over, thread: Some(thread) }
    }
}

impl Drop for Train {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(command: AdminCommand<GatewayTables>, seconds: f64, busy: bool) {
    match command {
        AdminCommand::Status(reply) => reply.send(Snapshot {
            scheduler: ["handover_rejection(hazard=true)", "earliest_delivery"]
                .map(str::to_owned)
                .into(),
            sessions: busy.then(session).into_iter().collect(),
            ..Snapshot::default()
        }),
        AdminCommand::Paths(reply) => reply.send(paths(seconds, busy)),
        AdminCommand::Users { reply, .. } => {
            let users = (0..if busy { 14 } else { 0 }).map(|user| self::user(user, seconds));
            reply.send(UserPage { users: users.collect(), next: None, places: Vec::new() });
        }
        AdminCommand::Flows { reply, .. } => reply.send(FlowPage::default()),
        AdminCommand::SetPath { .. }
        | AdminCommand::SetScheduler { .. }
        | AdminCommand::Drain { .. }
        | AdminCommand::Speedtest { .. }
        | AdminCommand::Reload { .. } => panic!("the page changes nothing"),
        AdminCommand::Metrics(_)
        | AdminCommand::Report(_)
        | AdminCommand::Links(_)
        | AdminCommand::Usage(_) => {}
    }
}

fn session() -> SessionState {
    SessionState {
        id: "1".to_owned(),
        peer: Some("cloud".to_owned()),
        state: SessionPhase::Up,
        age_s: 11_130.0,
        paths: 3,
        flows: 42,
        users: 14,
        flows_opened: 3_100,
        memory_received_bytes: 0,
        memory_sent_bytes: 0,
        memory_max_bytes: 16 << 20,
        credit_bytes: 0,
        reinjected_bytes: 0,
        sent_bytes: 0,
        received_bytes: 0,
        bindings: 3,
        datagrams_sent: 0,
        datagram_copies_sent: 0,
        datagrams_received: 0,
        datagram_copies_received: 0,
        datagrams_dropped: 0,
        datagrams_too_long: 0,
        datagrams_unbound: 0,
        datagrams_stale: 0,
        datagrams_codel: 0,
        datagrams_ended: 0,
        messages_dropped: 0,
    }
}

/// Bytes after this time at a rate that swings around its mean.
fn bytes(seconds: f64, mbit_per_s: f64) -> u64 {
    let swing = seconds - (seconds * 1.7).cos() / 2.4;
    ((swing + 60.0) * mbit_per_s * 125_000.0) as u64
}

fn paths(seconds: f64, busy: bool) -> Vec<PathState> {
    let state = |state: PathPhase| if busy { state } else { PathPhase::Down };
    let fast = path("lte-a", state(PathPhase::Up), Some(TunnelMode::Quic), (seconds, 38.0));
    let slow = path("lte-b", state(PathPhase::Stalled), Some(TunnelMode::Tls), (seconds, 4.0));
    let third = path("5g", state(PathPhase::Up), Some(TunnelMode::Quic), (seconds, 12.0));
    let gone = path("satellite", PathPhase::NoInterface, None, (0.0, 0.0));
    let reason = "UDP is blocked".to_owned();
    let demotion = Some(Demotion { reason, since: Timestamp::now(), retry_in_s: 20.0 });
    let role = CarrierRole::Backup;
    vec![fast, PathState { demotion, ..slow }, third, PathState { role, ..gone }]
}

fn path(
    name: &str,
    state: PathPhase,
    mode: Option<TunnelMode>,
    (seconds, mbit_per_s): (f64, f64),
) -> PathState {
    let packets = (seconds * 900.0) as u64;
    let link = mode.map(|_| LinkState {
        srtt_us: 47_300,
        rtt_min_us: 31_000,
        rtt_var_us: 4_000,
        window_bytes: 400_000,
        in_flight_bytes: 100_000,
        unsent_bytes: 0,
        delivery_rate_bits_per_s: Some(40_000_000),
        application_limited: false,
        sent_packets: packets,
        lost_packets: packets / 80,
        timeouts: 0,
        acked_bytes: 1,
    });
    PathState {
        name: name.to_owned(),
        carrier: name.to_owned(),
        peer: Some("cloud".to_owned()),
        enabled: true,
        role: CarrierRole::Primary,
        rate_limit_bits_per_s: None,
        cap: None,
        interface: Some(format!("wwan-{name}")),
        configured_mode: Mode::Auto,
        mode,
        state,
        since: Timestamp::now(),
        decision: None,
        demotion: None,
        counters: PathCounters {
            sent_bytes: bytes(seconds, mbit_per_s / 9.0),
            received_bytes: bytes(seconds, mbit_per_s),
            ..PathCounters::default()
        },
        local_address: None,
        peer_address: None,
        link,
        connections: Vec::new(),
    }
}

fn user(number: u64, seconds: f64) -> UserState {
    let share = 18.0 / (number + 1) as f64;
    UserState {
        user: UserId(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1)).to_string(),
        gateway: None,
        address: Some([198, 18, 0, number as u8].into()),
        group: None,
        flows: 14 - number,
        sent_bytes: Some(bytes(seconds, share / 9.0)),
        received_bytes: Some(bytes(seconds, share)),
        dials: 0,
        dials_waiting: 0,
        refused: RefusedCounts::default(),
        refused_reason: None,
        refused_at: None,
    }
}

fn events() -> Vec<AdminEvent> {
    let (mode, none) = (TunnelMode::Quic, None);
    let path = |name: &str| name.to_owned();
    vec![
        AdminEvent::SessionUp { session: "1".to_owned(), peer: "cloud".to_owned() },
        AdminEvent::PathUp { path: path("lte-a"), mode, local_address: none, peer_address: none },
        AdminEvent::PathUp { path: path("5g"), mode, local_address: none, peer_address: none },
        AdminEvent::PathRestarted {
            path: path("5g"),
            mode,
            reason: "the modem changed the cell".to_owned(),
            attempts: 2,
            took_s: 0.31,
        },
        AdminEvent::Alarm { message: "<b>lte-b</b> is no element".to_owned(), path: None },
        AdminEvent::PathStalled {
            path: path("lte-b"),
            reason: "no acknowledgement for 0.4 s".to_owned(),
        },
    ]
}

/// A train at 230 km/h: cells change every few hundred metres, and the first carrier will fail.
fn linkdb(begun: Instant) -> LinkDbProbe {
    Arc::new(move || {
        let seconds = begun.elapsed().as_secs_f64();
        let metres = 12_345.0 + 64.0 * seconds;
        let cell = |every: f64, first: u64| first + (metres / every) as u64;
        Some(json!({ "trips": [{
            "gateway": null,
            "trip": "a1b2c3d4",
            "route": "4fd0bfc100000007",
            "direction": "up",
            "metres": metres,
            "metres_per_second": 64.0,
            "error_metres": 12.0,
            "carriers": [
                { "carrier": "lte-a", "cell": cell(130.0, 0x4fd0), "fails_in_s": 9.0,
                  "permille": 410 },
                { "carrier": "lte-b", "cell": null, "fails_in_s": null, "permille": null },
                { "carrier": "5g", "cell": cell(90.0, 0x1a00), "fails_in_s": null,
                  "permille": null },
            ],
        }]}))
    })
}

const TEXT: &str = r#"[tls]
certificate = "g.crt"
key = "g.key"
authority = "ca.crt"
[cloud]
name = "cloud"
addresses = ["192.0.2.1:4433"]
[[carrier]]
name = "lte-a"
[socks5]
listen = ["127.0.0.1:1080"]
[page]
listen = "127.0.0.1:PORT"
"#;
