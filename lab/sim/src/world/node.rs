//! One side's endpoint and the world's state about it: tunnels, keys, the next wake-up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use polyrail_model::{InstanceId, Unit};
use polyrail_predictor::wire::{SyncMessage, Telemetry};
use polyrail_session::limits::{FLOWS_REFUSED_MAX, FLOWS_RESERVED};
use polyrail_session::{
    Endpoint, Event, FlowKey, Outlet, PathReport, PathStatus, Settings, Status, TunnelKey,
};

use super::copies::Copies;
use super::tunnels::{Carrier, Connection};
use super::{FlowNo, Side, Tap, Verbosity, World};
use crate::dice::Dice;

pub(super) struct Node {
    pub endpoint: Endpoint,
    pub settings: Settings,
    /// The largest limit of flows so far.
    pub flows_most: usize,
    /// It had an input since it was drained.
    pub dirty: bool,
    /// The `next_timeout` after the last drain.
    pub wake: Option<Instant>,
    pub tunnels: BTreeMap<TunnelKey, usize>,
    pub keys: BTreeMap<FlowKey, FlowNo>,
    /// Tunnels that are paths of a session.
    paths: BTreeSet<TunnelKey>,
    /// The time since which there is none.
    alone_since: Instant,
    pub tap: Tap,
    pub alarms: Vec<String>,
    pub reports: Vec<(Instant, PathReport)>,
    /// Received telemetry and messages of the peer's database, with their times.
    pub telemetry: Vec<(Instant, Telemetry)>,
    pub ledger: Vec<(Instant, SyncMessage)>,
    pub sessions_up: u32,
    /// Flows that lost their session, whose end is not reported yet.
    pub orphans: u32,
    wakes: WakeCount,
}

/// Calls of `on_timeout`, to find a loop that never rests.
#[derive(Debug)]
struct WakeCount {
    at: Instant,
    at_once: u32,
    second: u64,
    in_second: u32,
}

struct Wire<'a> {
    now: Instant,
    side: Side,
    tunnels: &'a BTreeMap<TunnelKey, usize>,
    connections: &'a mut BTreeMap<usize, Connection>,
    carriers: &'a mut [Carrier],
    tap: &'a mut Tap,
    sent: Vec<(TunnelKey, usize)>,
    withdrawn: u64,
    /// The runs of the cloud, if they are watched.
    copies: Option<&'a mut Copies>,
    /// Frames in words, if they are printed.
    words: Option<Vec<String>>,
}

impl Outlet for Wire<'_> {
    fn send(&mut self, tunnel: TunnelKey, unit: Unit, frames: &[u8]) -> usize {
        assert!(!frames.is_empty(), "an empty record");
        assert!(frames.len() <= RECORD_MAX, "{} bytes in one record", frames.len());
        self.tap.see(self.now, frames);
        self.sent.push((tunnel, frames.len()));
        if let Some(words) = &mut self.words {
            words.push(format!("on {}: {}", tunnel.0, super::tap::in_words(frames)));
        }
        if let (Some(copies), Some(&id)) = (&mut self.copies, self.tunnels.get(&tunnel)) {
            copies.sent(id, unit, frames);
        }
        let connection = self.tunnels.get(&tunnel).and_then(|id| self.connections.get_mut(id));
        let Some(connection) = connection else {
            panic!("{:?} sends on {tunnel:?}, which is down", self.side)
        };
        connection.take(self.now, self.side, unit, frames, self.carriers)
    }

    fn withdraw(&mut self, tunnel: TunnelKey, tag: u64) {
        let connection = self.tunnels.get(&tunnel).and_then(|id| self.connections.get_mut(id));
        let Some(connection) = connection else {
            panic!("{:?} withdraws on {tunnel:?}, which is down", self.side)
        };
        connection.withdraw(self.side, tag);
        self.withdrawn += 1;
    }
}

impl Node {
    pub fn new(now: Instant, side: Side, settings: Settings, dice: &mut Dice) -> Self {
        let endpoint = match side {
            Side::Gateway => {
                let mut instance = [0; 16];
                instance.copy_from_slice(&dice.key()[..16]);
                Endpoint::gateway(now, settings.clone(), InstanceId(instance))
            }
            Side::Cloud => Endpoint::cloud(now, settings.clone(), dice.key()),
        };
        Self {
            endpoint,
            flows_most: settings.flows_max,
            settings,
            dirty: true,
            wake: None,
            tunnels: BTreeMap::new(),
            keys: BTreeMap::new(),
            paths: BTreeSet::new(),
            alone_since: now,
            tap: Tap::default(),
            alarms: Vec::new(),
            reports: Vec::new(),
            telemetry: Vec::new(),
            ledger: Vec::new(),
            sessions_up: 0,
            orphans: 0,
            wakes: WakeCount { at: now, at_once: 0, second: 0, in_second: 0 },
        }
    }

    /// A name for a new tunnel: the lowest free one, so that names are reused.
    pub fn new_tunnel(&mut self, connection: usize) -> TunnelKey {
        let free = (0..).map(TunnelKey).find(|key| !self.tunnels.contains_key(key));
        let key = free.unwrap_or(TunnelKey(usize::MAX));
        self.tunnels.insert(key, connection);
        key
    }

    pub fn drop_tunnel(&mut self, now: Instant, key: TunnelKey) {
        self.tunnels.remove(&key);
        self.drop_path(now, key);
    }

    fn drop_path(&mut self, now: Instant, key: TunnelKey) {
        if self.paths.remove(&key) && self.paths.is_empty() {
            self.alone_since = now;
        }
    }

    fn count_wake(&mut self, now: Instant, elapsed_s: u64, inputs: u32) {
        let wakes = &mut self.wakes;
        wakes.at_once = if wakes.at == now { wakes.at_once + 1 } else { 1 };
        wakes.at = now;
        assert!(wakes.at_once <= WAKES_AT_ONCE_MAX, "next_timeout stays in the past");
        if wakes.second != elapsed_s {
            (wakes.second, wakes.in_second) = (elapsed_s, 0);
        }
        wakes.in_second += 1;
        let bound = WAKES_PER_SECOND_MAX + inputs;
        assert!(wakes.in_second <= bound, "{} wake-ups within a second", wakes.in_second);
    }
}

impl World {
    /// Drains the endpoints that had inputs, according to the contract.
    pub(super) fn drain(&mut self) {
        for side in Side::BOTH {
            while std::mem::take(&mut self.nodes[side as usize].dirty) {
                self.drain_one(side);
            }
        }
    }

    fn take_events(&mut self, side: Side) {
        while let Some(event) = self.nodes[side as usize].endpoint.poll_event() {
            self.on_event(side, event);
        }
    }

    fn drain_one(&mut self, side: Side) {
        self.take_events(side);
        assert_eq!(self.nodes[side as usize].orphans, 0, "flows lost, but no session ended");
        let now = self.now;
        let node = &mut self.nodes[side as usize];
        node.dirty = false;
        let mut wire = Wire {
            now,
            side,
            tunnels: &node.tunnels,
            connections: &mut self.connections,
            carriers: &mut self.carriers,
            tap: &mut node.tap,
            sent: Vec::new(),
            withdrawn: 0,
            copies: self.copies.as_mut().filter(|_| side == Side::Cloud),
            words: (self.trace.verbosity() == Verbosity::Everything).then(Vec::new),
        };
        node.endpoint.transmit(now, &mut wire);
        let (sent, words) = (wire.sent, wire.words);
        self.coverage.withdrawn += wire.withdrawn;
        node.wake = node.endpoint.next_timeout();
        for (key, length) in sent {
            self.trace.note(&[2, side as u64, key.0 as u64, length as u64]);
        }
        for words in words.unwrap_or_default() {
            self.say(Verbosity::Everything, || format!("{side:?} sends {words}"));
        }
        // Sending makes room for writers. Their owners act at once; the daemons do in the next
        // round of their loop.
        self.take_events(side);
        if self.steps.is_multiple_of(CHECK_EVERY) {
            self.check_bounds(side);
        }
    }

    pub(super) fn endpoint_timeout(&mut self, side: Side) {
        let elapsed = self.elapsed().as_secs();
        let flows = self.flows.len() as u32;
        let node = &mut self.nodes[side as usize];
        node.count_wake(self.now, elapsed, flows * 4);
        node.endpoint.on_timeout(self.now);
        // The drain sets it again.
        node.wake = None;
        node.dirty = true;
    }

    fn on_event(&mut self, side: Side, event: Event) {
        self.say(Verbosity::Everything, || format!("{side:?} {event:?}"));
        match event {
            Event::SessionUp { session, .. } => {
                self.trace.note(&[3, side as u64, session.0]);
                self.nodes[side as usize].sessions_up += 1;
            }
            Event::SessionEnded { session, reason, .. } => {
                self.trace.note(&[4, side as u64, session.0]);
                self.session_ended(side, &reason);
            }
            Event::PathUp { tunnel, .. } => {
                let node = &mut self.nodes[side as usize];
                let known = node.tunnels.contains_key(&tunnel);
                // One batch of inputs may close the connection that it opened.
                if known {
                    node.paths.insert(tunnel);
                    self.coverage.paths += 1;
                    self.on_path(side, tunnel);
                }
            }
            Event::CloseTunnel { tunnel, reason, superseded } => {
                self.say(Verbosity::Operations, || format!("{side:?} closes {tunnel:?}: {reason}"));
                let fair = FAIR_REASONS.iter().any(|fair| reason.contains(fair));
                let replayed = self.upheavals.replays > 0 && reason.contains("was used before");
                let odd = self.upheavals.impostors > 0;
                assert!(fair || replayed || odd, "{side:?}: breach: {reason}");
                if !superseded {
                    self.nodes[side as usize].drop_path(self.now, tunnel);
                }
                self.coverage.dismissed += 1;
                self.close_tunnel(side, tunnel);
            }
            Event::Alarm { text, .. } => {
                self.say(Verbosity::Operations, || format!("{side:?} alarm: {text}"));
                self.nodes[side as usize].alarms.push(text);
            }
            Event::PathStalled { .. }
            | Event::PathRecovered { .. }
            | Event::PeerGoing { .. }
            | Event::Datagram { .. } => {}
            Event::PathReport { tunnel, report } => {
                self.trace.note(&[9, side as u64, tunnel.0 as u64]);
                self.nodes[side as usize].reports.push((self.now, report));
                self.coverage.reported += 1;
                self.on_report(side, tunnel, report);
            }
            Event::Message { channel, waited, payload, .. } => {
                self.on_message(side, channel, waited, &payload);
            }
            Event::Opened { flow, user, destination } => {
                self.on_opened(side, flow, user, &destination);
            }
            Event::Dialed { flow } => self.on_dialed(side, flow),
            Event::Readable { flow } => self.on_readable(side, flow),
            Event::Writable { flow } => self.on_writable(side, flow),
            Event::Reset { flow, reason } => self.on_reset(side, flow, reason),
            Event::Closed { flow } => self.on_closed(side, flow),
        }
    }

    /// Checks that the world caused the end of a session.
    fn session_ended(&mut self, side: Side, reason: &str) {
        self.say(Verbosity::Operations, || format!("{side:?} session ends: {reason}"));
        let node = &mut self.nodes[side as usize];
        node.orphans = 0;
        let upheavals = &mut self.upheavals;
        if reason.starts_with("no path") {
            let since = self.now - node.alone_since;
            assert!(since >= node.settings.linger, "{side:?} lingered for {since:?} alone");
            upheavals.lingers[side as usize] += 1;
            self.coverage.lingered += 1;
        } else if reason.starts_with("the cloud does not know") {
            // A late HELLO of a dead process may also have taken over.
            let lost = upheavals.cloud_restarts + upheavals.lingers[Side::Cloud as usize];
            let all = lost + upheavals.gateway_restarts + upheavals.impostors;
            assert!(all > 0, "the cloud forgot a session");
        } else if reason.starts_with("a new process") {
            let new = upheavals.gateway_restarts + upheavals.lingers[Side::Gateway as usize];
            let other = upheavals.cloud_restarts + upheavals.lingers[Side::Cloud as usize];
            assert!(new + other + upheavals.impostors > 0, "a session was taken over");
        } else {
            let other = upheavals.impostors + upheavals.gateway_restarts;
            assert!(other > 0, "{side:?} ended a session: {reason}");
        }
    }

    /// A process dies and another one replaces it: all of its tunnels and flows are lost.
    pub fn restart(&mut self, side: Side) {
        self.say(Verbosity::Operations, || format!("{side:?} restarts"));
        match side {
            Side::Gateway => self.upheavals.gateway_restarts += 1,
            Side::Cloud => self.upheavals.cloud_restarts += 1,
        }
        let settings = self.nodes[side as usize].settings.clone();
        let mut node = Node::new(self.now, side, settings, &mut self.dice);
        node.tap = std::mem::take(&mut self.nodes[side as usize].tap);
        self.nodes[side as usize] = node;
        self.flows_die(side);
        let connections: Vec<usize> = self.connections.keys().copied().collect();
        for connection in connections {
            if let Some(c) = self.connections.get_mut(&connection)
                && let Some(end) = &mut c.ends[side as usize]
            {
                end.key = None;
            }
            self.end_down(connection, side, "restart");
        }
        self.drain();
    }

    /// One side opens no more flows.
    pub fn go_away(&mut self, side: Side) {
        self.say(Verbosity::Operations, || format!("{side:?} goes away"));
        let now = self.now;
        let node = &mut self.nodes[side as usize];
        node.endpoint.go_away(now, "maintenance");
        node.dirty = true;
        self.drain();
    }

    /// The status of one side.
    pub fn status(&self, side: Side) -> Status {
        self.nodes[side as usize].endpoint.status()
    }

    /// Bytes sent by one side.
    pub fn tap(&mut self, side: Side) -> &mut Tap {
        &mut self.nodes[side as usize].tap
    }

    /// The alarms of one side.
    pub fn alarms(&self, side: Side) -> &[String] {
        &self.nodes[side as usize].alarms
    }

    /// The path reports of one side, with their times.
    pub fn reports(&self, side: Side) -> &[(Instant, PathReport)] {
        &self.nodes[side as usize].reports
    }

    /// How often a session has come up at one side.
    pub fn sessions_up(&self, side: Side) -> u32 {
        self.nodes[side as usize].sessions_up
    }

    /// Checks the bounds that are visible from outside.
    pub fn check_bounds(&mut self, side: Side) {
        let node = &self.nodes[side as usize];
        let coverage = &mut self.coverage;
        for session in node.endpoint.status().sessions {
            let flows = session.flows_held as u64 + 1;
            let bound = node.settings.memory.0 + flows * (polyrail_scheduler::SEGMENT + 2);
            let (received, sent) = (session.memory_received.0, session.memory_sent.0);
            assert!(received <= bound, "{side:?} holds {received} received, bound {bound}");
            assert!(sent <= bound, "{side:?} holds {sent} to send, bound {bound}");
            let eighth = node.settings.memory.0 / 8;
            coverage.full_received += u64::from(received >= 3 * eighth);
            coverage.full_sent += u64::from(sent >= 3 * eighth);
            coverage.stalled += u64::from(session.paths.iter().any(|path| path.stalled));
            coverage.reinjected += u64::from(session.reinjected.0 > 0);
            let (flows, held) = (session.flows, session.flows_held);
            assert!(flows <= node.flows_most + FLOWS_RESERVED, "{side:?} has {flows} flows");
            let most = node.flows_most + FLOWS_REFUSED_MAX + FLOWS_RESERVED;
            assert!(held <= most, "{side:?} holds {held} flows");
            check_paths(side, &session.paths);
        }
    }
}

/// Checks a session's paths after a drain.
fn check_paths(side: Side, paths: &[PathStatus]) {
    let sound = |path: &&PathStatus| !path.stalled && !path.superseded && !path.unproven;
    let mut carriers: Vec<&str> = paths.iter().filter(sound).map(|p| p.carrier.as_str()).collect();
    if carriers.is_empty() {
        return;
    }
    for path in paths.iter().filter(|path| path.stalled || path.unproven) {
        let idle = path.outstanding.0 == 0;
        assert!(idle, "{side:?}: data in flight on an unusable path: {paths:?}");
    }
    carriers.sort_unstable();
    let twice = carriers.windows(2).any(|pair| pair[0] == pair[1]);
    assert!(!twice, "{side:?}: two paths of one carrier carry data: {paths:?}");
}

/// The reasons for which an honest peer may close a tunnel.
const FAIR_REASONS: [&str; 7] = [
    "superseded by a newer tunnel",
    "a new process of the gateway",
    "the cloud does not know",
    "no path came back",
    "no greeting in time",
    "a newer process",
    // A greeting of the gateway's previous session was delayed past the start of the next one.
    "the process has begun a later session",
];
/// A record of the tunnel.
const RECORD_MAX: usize = 16_384;
const WAKES_AT_ONCE_MAX: u32 = 20;
const WAKES_PER_SECOND_MAX: u32 = 1_000;
const CHECK_EVERY: u64 = 16;
