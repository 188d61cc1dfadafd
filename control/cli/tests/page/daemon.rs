//! Daemons with a status page, and their answers.

use std::sync::Arc;
use std::time::Instant;

use polyrail_admin::{
    AdminCommand, AdminEvent, FlowPage, LinkDbProbe, LinkState, PathCounters, PathPhase, PathState,
    SessionPhase, SessionState, Snapshot, Timestamp, UserPage, UserState,
};
use polyrail_config::Tables;
use polyrail_model::{TunnelMode, UserId};
use serde_json::{Value, json};

use super::scripted::Daemon;

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

/// Starts a daemon with a status page.
pub fn start<C: Tables>(port: u16, mut script: Script) -> Daemon {
    let text = script.config.replace("PORT", &port.to_string());
    let begun = Instant::now();
    let seconds = move || begun.elapsed().as_secs_f64();
    let linkdb = script.trips.map(|trips| -> LinkDbProbe {
        Arc::new(move || Some(json!({ "trips": trips(seconds()) })))
    });
    let events = std::mem::take(&mut script.events);
    Daemon::start::<C>(&text, linkdb, events, move |_, command| {
        answer(command, seconds(), &script);
    })
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
        memory_max_bytes: 16 << 20,
        bindings: 3,
        ..SessionState::default()
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
        interface: Some(format!("wwan-{name}")),
        mode,
        state,
        since: Timestamp::now(),
        counters: PathCounters {
            sent_bytes: bytes(seconds, mbit_per_s / 9.0),
            received_bytes: bytes(seconds, mbit_per_s),
            ..PathCounters::default()
        },
        link,
        ..PathState::default()
    }
}

/// A user of whom a gateway receives less the greater the number is.
pub fn user(number: u64, seconds: f64) -> UserState {
    let share = 18.0 / (number + 1) as f64;
    UserState {
        user: UserId(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1)).to_string(),
        address: Some([198, 18, 0, number as u8].into()),
        flows: 14 - number,
        sent_bytes: Some(bytes(seconds, share / 9.0)),
        received_bytes: Some(bytes(seconds, share)),
        ..UserState::default()
    }
}
