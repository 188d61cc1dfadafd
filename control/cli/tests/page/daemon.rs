//! A daemon without a data plane: a control thread whose requests a script answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use mio::{Events, Poll, Token, Waker};
use polyrail_admin::{
    AdminCommand, AdminEvent, AdminOptions, FlowPage, LinkState, PathCounters, PathPhase,
    PathState, RefusedCounts, SessionPhase, SessionState, Snapshot, StartOptions, Timestamp,
    UserPage, UserState,
};
use polyrail_config::{CarrierRole, Config, Mode, Overrides, Tables};
use polyrail_identity::{Authority, IssueRequest};
use polyrail_model::{Identity, TunnelMode, UserId};
use serde_json::{Value, json};

/// What a daemon answers, some of it by the seconds since its start.
pub struct Script {
    /// Its configuration, of a node `n`. `PORT` is the page's port.
    pub config: &'static str,
    pub snapshot: Snapshot,
    pub paths: fn(f64) -> Vec<PathState>,
    pub users: fn(f64) -> Vec<UserState>,
    /// LinkDB's trips; `None` without LinkDB.
    pub trips: Option<fn(f64) -> Value>,
    pub events: Vec<AdminEvent>,
}

/// A running daemon.
pub struct Daemon {
    _folder: tempfile::TempDir,
    waker: Arc<Waker>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts a daemon with a status page.
    pub fn start<C: Tables>(port: u16, mut script: Script) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let authority = Authority::create(dir, "Test", false).unwrap();
        let (name, out) = (Identity::new("n").unwrap(), dir.to_owned());
        let request = IssueRequest { name, role: C::ROLE, days: 397, out, force: false };
        authority.issue(&request).unwrap();
        let file = dir.join("daemon.toml");
        std::fs::write(&file, script.config.replace("PORT", &port.to_string())).unwrap();
        let mut poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let begun = Instant::now();
        let seconds = move || begun.elapsed().as_secs_f64();
        let options = AdminOptions {
            config: Config::<C>::load(&file, &Overrides::default()).unwrap(),
            start: StartOptions { file, ..StartOptions::default() },
            waker: waker.clone(),
            watch_links: false,
            linkdb: script.trips.map(|trips| -> polyrail_admin::LinkDbProbe {
                Arc::new(move || Some(json!({ "trips": trips(seconds()) })))
            }),
            usage: None,
        };
        let handle = polyrail_admin::start(options).unwrap();
        script.events.drain(..).for_each(|event| handle.publish(event));
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = thread::spawn(move || {
            let mut events = Events::with_capacity(4);
            while !ends.load(Ordering::Relaxed) {
                poll.poll(&mut events, None).unwrap();
                while let Some(command) = handle.try_recv() {
                    answer(command, seconds(), &script);
                }
            }
        });
        Self { _folder: folder, waker, over, thread: Some(thread) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer<C: Tables>(command: AdminCommand<C>, seconds: f64, script: &Script) {
    match command {
        AdminCommand::Status(reply) => reply.send(script.snapshot.clone()),
        AdminCommand::Paths(reply) => reply.send((script.paths)(seconds)),
        AdminCommand::Users { reply, .. } => {
            let users = (script.users)(seconds);
            reply.send(UserPage { users, next: None, places: Vec::new() });
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

/// A session with this node.
pub fn session(peer: &str, state: SessionPhase, age_s: f64, flows: u64) -> SessionState {
    SessionState {
        id: "1".to_owned(),
        peer: Some(peer.to_owned()),
        state,
        age_s,
        paths: 3,
        flows,
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
pub fn bytes(seconds: f64, mbit_per_s: f64) -> u64 {
    let swing = seconds - (seconds * 1.7).cos() / 2.4;
    ((swing + 60.0) * mbit_per_s * 125_000.0) as u64
}

/// A path of a gateway that receives at this rate.
pub fn path(
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

/// A user of whom a gateway receives less the greater the number is.
pub fn user(number: u64, seconds: f64) -> UserState {
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
