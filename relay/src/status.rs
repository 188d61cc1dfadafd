//! The status as a file: one JSON object, replaced as a whole about once a second.
//!
//! For demonstrations and benchmarks, until there is an admin socket. The object:
//!
//! ```json
//! {"role": "gateway", "pid": 1, "uptime_s": 12.5, "cpu_s": 0.42, "legs": 3, "tunnels": 2,
//!  "carriers": [{"name": "a", "peer": "cloud", "state": "up", "mode": "quic", "sent_bytes": 1,
//!                "received_bytes": 2, "srtt_us": 40123, "sent_packets": 9, "lost_packets": 0,
//!                "paths": 1}],
//!  "sessions": [{"peer": "cloud", "flows": 3, "memory_received_bytes": 0,
//!                "memory_sent_bytes": 0, "reinjected_bytes": 0}]}
//! ```
//!
//! `state` is `up`, `stalled` or, on the gateway, `down`; `mode` is `quic` or `tls`, that of the
//! carrier's newest path, and empty before the first; `paths` counts its connections that became
//! paths, and packets are those of the newest. Bytes of a carrier are users' bytes with copies,
//! summed over its connections since the start. On the gateway `peer` of a carrier is empty, and
//! carriers stand in the order of the configuration.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use polyrail_model::{Identity, TunnelMode};
use polyrail_session::SessionStatus;
use serde::Serialize;

use crate::Relay;

/// The file, when it is due, and what is summed up for it.
#[derive(Debug)]
pub struct StatusFile {
    role: &'static str,
    path: PathBuf,
    started: Instant,
    due_at: Instant,
    failed: bool,
}

#[derive(Debug, Serialize)]
struct Snapshot {
    role: &'static str,
    pid: u32,
    uptime_s: f64,
    cpu_s: f64,
    legs: usize,
    tunnels: usize,
    carriers: Vec<CarrierLine>,
    sessions: Vec<SessionLine>,
}

#[derive(Clone, Debug, Serialize)]
struct CarrierLine {
    name: String,
    peer: String,
    state: &'static str,
    mode: &'static str,
    sent_bytes: u64,
    received_bytes: u64,
    srtt_us: u64,
    sent_packets: u64,
    lost_packets: u64,
    paths: u64,
}

#[derive(Debug, Serialize)]
struct SessionLine {
    peer: String,
    flows: usize,
    memory_received_bytes: u64,
    memory_sent_bytes: u64,
    reinjected_bytes: u64,
}

impl StatusFile {
    /// A file that is written at once, and then every `EVERY`.
    pub fn new(now: Instant, role: &'static str, path: PathBuf) -> Self {
        Self { role, path, started: now, due_at: now, failed: false }
    }

    /// When [`StatusFile::on_turn`] is due.
    pub fn next_timeout(&self) -> Instant {
        self.due_at
    }

    /// Writes the file if it is due. `expected` are the carriers that are listed in any case. A
    /// failure is logged once and tried again.
    pub fn on_turn(&mut self, now: Instant, relay: &mut Relay, expected: &[String]) {
        if now < self.due_at {
            return;
        }
        self.due_at = now + EVERY;
        relay.take_stock(now);
        let snapshot = self.snapshot(now, relay, expected);
        match self.replace(&snapshot) {
            Ok(()) => self.failed = false,
            Err(error) if !std::mem::replace(&mut self.failed, true) => {
                tracing::warn!(%error, file = %self.path.display(), "cannot write the status");
            }
            Err(_) => {}
        }
    }

    /// Writes the file at the next turn.
    pub fn hurry(&mut self, now: Instant) {
        self.due_at = now;
    }

    fn snapshot(&self, now: Instant, relay: &Relay, expected: &[String]) -> Snapshot {
        let status = relay.endpoint_ref().status();
        Snapshot {
            role: self.role,
            pid: std::process::id(),
            uptime_s: now.saturating_duration_since(self.started).as_secs_f64(),
            cpu_s: cpu_seconds(),
            legs: relay.leg_count(),
            tunnels: relay.tunnel_count(),
            carriers: self.carriers(relay, &status.sessions, expected),
            sessions: status.sessions.iter().map(session_line).collect(),
        }
    }

    fn carriers(
        &self,
        relay: &Relay,
        sessions: &[SessionStatus],
        expected: &[String],
    ) -> Vec<CarrierLine> {
        // A gateway has one peer.
        let shown = |peer: Option<&Identity>| match (peer, expected) {
            (Some(peer), []) => peer.to_string(),
            _ => String::new(),
        };
        let mut lines: BTreeMap<(String, String), CarrierLine> = BTreeMap::new();
        for ((peer, name), carried) in relay.carried() {
            let key = (shown(peer.as_ref()), name);
            let entry = lines.entry(key.clone()).or_insert_with(|| line(&key.0, &key.1));
            entry.sent_bytes += carried.sent_bytes;
            entry.received_bytes += carried.received_bytes;
            entry.paths += carried.paths;
            entry.mode = carried.mode.map_or(entry.mode, TunnelMode::as_str);
        }
        for session in sessions {
            for path in session.paths.iter().filter(|path| !path.superseded) {
                let key = (shown(session.peer.as_ref()), path.carrier.clone());
                let entry = lines.entry(key.clone()).or_insert_with(|| line(&key.0, &key.1));
                let idle = path.stalled || path.unproven;
                entry.state = if idle && entry.state != "up" { "stalled" } else { "up" };
                entry.srtt_us = u64::try_from(path.srtt.as_micros()).unwrap_or(u64::MAX);
                (entry.sent_packets, entry.lost_packets) = (path.sent_packets, path.lost_packets);
            }
        }
        let mut list: Vec<CarrierLine> = lines.into_values().collect();
        for name in expected {
            if !list.iter().any(|known| known.name == *name) {
                list.push(line("", name));
            }
        }
        list.sort_by_key(|line| {
            let place = expected.iter().position(|name| *name == line.name);
            (place.unwrap_or(usize::MAX), line.peer.clone(), line.name.clone())
        });
        list
    }

    fn replace(&self, snapshot: &Snapshot) -> io::Result<()> {
        let mut text = serde_json::to_string(snapshot)?;
        text.push('\n');
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        fs::write(&beside, text)?;
        fs::rename(&beside, &self.path)
    }
}

fn line(peer: &str, name: &str) -> CarrierLine {
    CarrierLine {
        name: name.to_owned(),
        peer: peer.to_owned(),
        state: "down",
        mode: "",
        sent_bytes: 0,
        received_bytes: 0,
        srtt_us: 0,
        sent_packets: 0,
        lost_packets: 0,
        paths: 0,
    }
}

fn peer_name(session: &SessionStatus) -> String {
    session.peer.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn session_line(session: &SessionStatus) -> SessionLine {
    SessionLine {
        peer: peer_name(session),
        flows: session.flows,
        memory_received_bytes: session.memory_received.0,
        memory_sent_bytes: session.memory_sent.0,
        reinjected_bytes: session.reinjected.0,
    }
}

/// User and system time of this process so far.
fn cpu_seconds() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        us as f64 / 1e6
    })
}

/// How often the file is written.
const EVERY: Duration = Duration::from_secs(1);
