//! Passengers and servers, and the reference model: the bytes written and the bytes to be read.
//!
//! Each flow has two legs, one per side. A leg writes its owner's bytes as far as the session
//! accepts them, and reads at the pace of its reader. Every event of the session is compared with
//! the actions of both legs.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::{Destination, HostName, UserId};
use polyrail_session::{FlowKey, OpenError, ResetReason};

use super::content::Content;
use super::{Side, Timer, Verbosity, World};

/// A flow of the world, numbered from 0.
pub type FlowNo = usize;

/// One flow and its two legs.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Its user.
    pub user: UserId,
    destination: Destination,
    /// The outcome of the server's connection.
    pub dial: Dial,
    dialed: bool,
    dialed_reported: bool,
    /// The legs at the gateway and at the cloud.
    pub legs: [Leg; 2],
    /// The server's actions once it is dialled: bytes to write, and whether it then ends.
    pub server: (u64, bool),
    /// How the server reads.
    pub server_reader: Reader,
}

/// The outcome of a server's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dial {
    /// It is established after this time.
    Stands(Duration),
    /// It fails after this time.
    Fails(Duration, ResetReason),
}

/// How a leg's owner reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reader {
    /// Everything, at once.
    #[default]
    Quick,
    /// This many bytes, then a pause.
    Slow(usize, Duration),
    /// The first bytes at once, then nothing: the buffers behind the daemon fill up.
    First(u64),
    /// Nothing.
    Stalled,
}

/// One end of a flow.
#[derive(Clone, Debug, Default)]
pub struct Leg {
    /// Its key in the session.
    pub key: Option<FlowKey>,
    /// Its state.
    pub state: LegState,
    /// How it reads.
    pub reader: Reader,
    /// All bytes that its owner wants to write.
    pub goal: u64,
    /// The bytes that the session accepted.
    pub written: u64,
    /// Bytes it has read.
    pub read: u64,
    /// The owner ends its direction when all is written.
    pub ends: bool,
    /// The session has received that end.
    pub finished: bool,
    /// The end of the other direction was reached.
    pub end_seen: bool,
    /// When the last byte was read.
    pub last_read: Option<Instant>,
    blocked: bool,
    asks_room: bool,
    read_timer: bool,
}

/// The state of a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LegState {
    /// The cloud does not know it yet.
    #[default]
    Unknown,
    /// Open.
    Open,
    /// The session reported that it closed.
    Closed,
    /// The session reported a reset.
    Reset(ResetReason),
    /// Its owner reset it then.
    Aborted(ResetReason, Instant),
    /// Its process died, or the flow was never opened.
    Gone,
}

impl World {
    /// A passenger opens a flow.
    ///
    /// # Errors
    /// Those of the session.
    pub fn open(&mut self, user: u64) -> Result<FlowNo, OpenError> {
        self.open_with(user, Dial::Stands(Duration::from_millis(5)), false)
    }

    /// As [`World::open`], with the outcome of the dial, and a name instead of an address if
    /// `named`.
    ///
    /// # Errors
    /// Those of the session.
    pub fn open_with(&mut self, user: u64, dial: Dial, named: bool) -> Result<FlowNo, OpenError> {
        let flow = self.flows.len();
        let destination = destination(flow, named);
        let now = self.now;
        let node = &mut self.nodes[Side::Gateway as usize];
        node.dirty = true;
        let opened = node.endpoint.open(now, UserId(user), destination.clone());
        let key = match opened {
            Ok(key) => key,
            Err(error) => {
                self.drain();
                return Err(error);
            }
        };
        assert!(node.keys.insert(key, flow).is_none(), "{key:?} was used before");
        let asks_room = self.dice.chance(0.5);
        let leg = Leg { key: Some(key), state: LegState::Open, asks_room, ..Leg::default() };
        self.flows.push(Flow {
            user: UserId(user),
            destination,
            dial,
            dialed: false,
            dialed_reported: false,
            legs: [leg, Leg::default()],
            server: (0, false),
            server_reader: Reader::Quick,
        });
        self.say(Verbosity::Operations, || format!("flow {flow} opened by user {user}: {key:?}"));
        self.drain();
        Ok(flow)
    }

    /// A flow of the world.
    pub fn flow(&self, flow: FlowNo) -> &Flow {
        &self.flows[flow]
    }

    /// A flow of the world, to change its server's actions.
    pub fn flow_mut(&mut self, flow: FlowNo) -> &mut Flow {
        &mut self.flows[flow]
    }

    /// All flows so far.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    fn leg(&mut self, flow: FlowNo, side: Side) -> &mut Leg {
        &mut self.flows[flow].legs[side as usize]
    }

    /// The owner of a leg wants to write more.
    pub fn write(&mut self, flow: FlowNo, side: Side, bytes: u64) {
        let leg = self.leg(flow, side);
        if leg.state == LegState::Open && !leg.ends {
            leg.goal += bytes;
            self.say(Verbosity::Operations, || format!("flow {flow} {side:?} writes {bytes}"));
            self.write_on(flow, side);
            self.drain();
        }
    }

    /// The owner of a leg ends its direction.
    pub fn finish(&mut self, flow: FlowNo, side: Side) {
        let leg = self.leg(flow, side);
        if leg.state == LegState::Open && !leg.ends {
            leg.ends = true;
            self.say(Verbosity::Operations, || format!("flow {flow} {side:?} ends"));
            self.write_on(flow, side);
            self.drain();
        }
    }

    /// The owner of a leg resets the flow.
    pub fn reset(&mut self, flow: FlowNo, side: Side, reason: ResetReason) {
        let now = self.now;
        let leg = self.leg(flow, side);
        if leg.state != LegState::Open {
            return;
        }
        leg.state = LegState::Aborted(reason, now);
        let key = leg.key.unwrap_or_else(|| panic!("an open leg without a key"));
        self.say(Verbosity::Operations, || format!("flow {flow} {side:?} resets: {reason}"));
        let node = &mut self.nodes[side as usize];
        node.keys.remove(&key);
        node.endpoint.reset(now, key, reason);
        // A dead key has no effect.
        assert_eq!(node.endpoint.readable(key), [&[] as &[u8], &[]]);
        node.endpoint.consume(now, key, 10);
        node.endpoint.finish(now, key);
        node.dirty = true;
        self.drain();
    }

    /// Changes the reader of a leg.
    pub fn set_reader(&mut self, flow: FlowNo, side: Side, reader: Reader) {
        if std::mem::replace(&mut self.leg(flow, side).reader, reader) == reader {
            return;
        }
        self.say(Verbosity::Operations, || format!("flow {flow} {side:?} reads {reader:?}"));
        self.read(flow, side);
        self.drain();
    }

    /// Writes as much as the session accepts, then finishes if requested.
    fn write_on(&mut self, flow: FlowNo, side: Side) {
        let content = Content::of(flow, side);
        let now = self.now;
        let leg = &mut self.flows[flow].legs[side as usize];
        let (Some(key), LegState::Open) = (leg.key, leg.state) else { return };
        let node = &mut self.nodes[side as usize];
        let buffer = &mut self.scratch;
        while leg.written < leg.goal && !leg.blocked {
            let wanted = (leg.goal - leg.written).min(CHUNK);
            let offered = if leg.asks_room {
                let room = node.endpoint.write_room(key) as u64;
                leg.blocked = room == 0;
                wanted.min(room)
            } else {
                wanted
            };
            buffer.clear();
            content.extend(buffer, leg.written, offered as usize);
            let taken = node.endpoint.write(now, key, buffer) as u64;
            assert!(taken <= offered, "more was taken than offered");
            assert!(taken == offered || !leg.asks_room, "less was taken than there was room");
            leg.written += taken;
            leg.blocked |= taken < offered;
            self.coverage.held_back += u64::from(leg.blocked);
            node.dirty = true;
        }
        if leg.ends && leg.written == leg.goal && !leg.finished {
            leg.finished = true;
            node.endpoint.finish(now, key);
            node.dirty = true;
        }
    }

    /// Reads according to the leg's reader.
    fn read(&mut self, flow: FlowNo, side: Side) {
        if side == Side::Cloud && !self.flows[flow].dialed {
            return;
        }
        match self.leg(flow, side).reader {
            Reader::Stalled => {}
            Reader::Quick => self.read_up_to(flow, side, usize::MAX),
            Reader::First(bytes) => {
                let left = bytes.saturating_sub(self.leg(flow, side).read);
                self.read_up_to(flow, side, left as usize);
            }
            Reader::Slow(_, pause) => {
                if !std::mem::replace(&mut self.leg(flow, side).read_timer, true) {
                    self.timer(pause, Timer::Read { flow, side });
                }
            }
        }
    }

    /// A slow reader's pause has ended.
    pub(super) fn read_some(&mut self, flow: FlowNo, side: Side) {
        self.leg(flow, side).read_timer = false;
        if let Reader::Slow(bytes, _) = self.leg(flow, side).reader {
            self.read_up_to(flow, side, bytes);
            let leg = self.leg(flow, side);
            let more = leg.key.filter(|_| leg.state == LegState::Open).is_some_and(|key| {
                self.nodes[side as usize].endpoint.readable(key).iter().any(|p| !p.is_empty())
            });
            if more {
                self.read(flow, side);
            }
        } else {
            self.read(flow, side);
        }
    }

    fn read_up_to(&mut self, flow: FlowNo, side: Side, most: usize) {
        let content = Content::of(flow, side.other());
        let other = self.flows[flow].legs[side.other() as usize].clone();
        let now = self.now;
        let leg = &mut self.flows[flow].legs[side as usize];
        let (Some(key), LegState::Open) = (leg.key, leg.state) else { return };
        let node = &mut self.nodes[side as usize];
        let mut taken = 0;
        for part in node.endpoint.readable(key) {
            let part = &part[..part.len().min(most - taken)];
            let at = leg.read + taken as u64;
            if let Some(wrong) = content.differs(at, part) {
                panic!("flow {flow} {side:?}: wrong byte at {wrong} (read from {at})");
            }
            taken += part.len();
        }
        assert!(taken == 0 || !leg.end_seen, "flow {flow} {side:?}: bytes after the end");
        leg.read += taken as u64;
        assert!(leg.read <= other.written, "flow {flow} {side:?}: more was read than written");
        if taken > 0 {
            leg.last_read = Some(now);
        }
        node.endpoint.consume(now, key, taken);
        node.dirty = true;
        if node.endpoint.finished(key) {
            leg.end_seen = true;
            assert!(other.finished, "flow {flow} {side:?}: an end that was not written");
            assert_eq!(leg.read, other.written, "flow {flow} {side:?}: an early end");
        }
        let total = leg.read;
        self.trace.note(&[5, side as u64, flow as u64, total]);
    }

    fn known(&self, side: Side, key: FlowKey, what: &str) -> FlowNo {
        match self.nodes[side as usize].keys.get(&key) {
            Some(&flow) => flow,
            None => panic!("{side:?}: {what} for {key:?}, which is dead"),
        }
    }

    pub(super) fn on_opened(
        &mut self,
        side: Side,
        key: FlowKey,
        user: UserId,
        wanted: &Destination,
    ) {
        assert_eq!(side, Side::Cloud, "the gateway was asked to dial");
        let flow = flow_of(wanted);
        let first = self.nodes[side as usize].keys.insert(key, flow).is_none();
        assert!(first, "{key:?} was used before");
        let asks_room = self.dice.chance(0.5);
        let record = &mut self.flows[flow];
        assert_eq!((record.user, &record.destination), (user, wanted), "flow {flow}");
        assert_eq!(record.legs[1].state, LegState::Unknown, "flow {flow} was opened twice");
        record.legs[1] = Leg {
            key: Some(key),
            state: LegState::Open,
            asks_room,
            reader: record.server_reader,
            ..Leg::default()
        };
        let (Dial::Stands(time) | Dial::Fails(time, _)) = record.dial;
        self.trace.note(&[6, flow as u64]);
        self.timer(time, Timer::Dial { flow });
    }

    pub(super) fn dial_over(&mut self, flow: FlowNo) {
        let record = &mut self.flows[flow];
        let (Some(key), LegState::Open) = (record.legs[1].key, record.legs[1].state) else {
            return;
        };
        match record.dial {
            Dial::Stands(_) => {
                record.dialed = true;
                let (bytes, ends) = record.server;
                let now = self.now;
                let node = &mut self.nodes[Side::Cloud as usize];
                node.endpoint.dialed(now, key);
                node.dirty = true;
                self.write(flow, Side::Cloud, bytes);
                if ends {
                    self.finish(flow, Side::Cloud);
                }
                self.read(flow, Side::Cloud);
            }
            Dial::Fails(_, reason) => self.reset(flow, Side::Cloud, reason),
        }
    }

    pub(super) fn on_dialed(&mut self, side: Side, key: FlowKey) {
        let flow = self.known(side, key, "Dialed");
        let record = &mut self.flows[flow];
        // Bytes that the server wrote before a reset also prove the dial.
        let reached = record.dialed || record.legs[Side::Cloud as usize].written > 0;
        assert!(side == Side::Gateway && reached, "flow {flow}: dialled without a dial");
        assert!(
            !std::mem::replace(&mut record.dialed_reported, true),
            "flow {flow}: dialled twice"
        );
    }

    pub(super) fn on_readable(&mut self, side: Side, key: FlowKey) {
        // By now the flow may have ended by its own reset.
        if let Some(&flow) = self.nodes[side as usize].keys.get(&key) {
            self.read(flow, side);
        } else {
            self.was_aborted(side, key, "Readable");
        }
    }

    pub(super) fn on_writable(&mut self, side: Side, key: FlowKey) {
        if let Some(&flow) = self.nodes[side as usize].keys.get(&key) {
            self.leg(flow, side).blocked = false;
            self.write_on(flow, side);
        } else {
            self.was_aborted(side, key, "Writable");
        }
    }

    /// Only an event that was queued when the owner reset the flow may arrive later.
    fn was_aborted(&self, side: Side, key: FlowKey, what: &str) {
        let leg = |flow: &Flow| flow.legs[side as usize].clone();
        let aborted = self.flows.iter().map(leg).any(|leg| {
            leg.key == Some(key) && matches!(leg.state, LegState::Aborted(_, at) if at == self.now)
        });
        assert!(aborted, "{side:?}: {what} for {key:?}, which is dead");
    }

    pub(super) fn on_closed(&mut self, side: Side, key: FlowKey) {
        let flow = self.known(side, key, "Closed");
        self.nodes[side as usize].keys.remove(&key);
        let other = self.flows[flow].legs[side.other() as usize].clone();
        let leg = self.leg(flow, side);
        assert!(leg.finished, "flow {flow} {side:?}: closed, but not ended here");
        assert_eq!(leg.written, leg.goal);
        assert!(other.finished, "flow {flow} {side:?}: closed, but not ended there");
        assert_eq!(leg.read, other.written, "flow {flow} {side:?}: closed before all was read");
        leg.state = LegState::Closed;
        leg.end_seen = true;
        self.coverage.closed += 1;
        self.trace.note(&[7, side as u64, flow as u64]);
        self.say(Verbosity::Operations, || format!("flow {flow} {side:?} closed"));
    }

    pub(super) fn on_reset(&mut self, side: Side, key: FlowKey, reason: ResetReason) {
        let flow = self.known(side, key, "Reset");
        self.nodes[side as usize].keys.remove(&key);
        self.say(Verbosity::Operations, || format!("flow {flow} {side:?} was reset: {reason}"));
        self.trace.note(&[8, side as u64, flow as u64, reason.code()]);
        let other = self.flows[flow].legs[side.other() as usize].clone();
        let leg = &mut self.flows[flow].legs[side as usize];
        leg.state = LegState::Reset(reason);
        let (read, reader) = (leg.read, leg.reader);
        match (reason, other.state) {
            // The end of the session follows and is checked itself.
            (ResetReason::SessionLost, _) => {
                self.nodes[side as usize].orphans += 1;
                self.coverage.lost += 1;
            }
            // The heaviest user sheds a flow on the side that is at its cap. The peer follows; its
            // caller may not know the flow yet.
            (ResetReason::Quota, state)
                if !matches!(state, LegState::Aborted(ResetReason::Quota, _)) =>
            {
                let follows =
                    matches!(state, LegState::Reset(ResetReason::Quota) | LegState::Unknown);
                assert!(follows || self.is_full(side), "flow {flow} {side:?}: shed below the cap");
                self.coverage.refused += 1;
            }
            (ResetReason::Overload, LegState::Unknown) => self.coverage.refused += 1,
            // A side that lacks memory resets a flow that its owner hardly reads. The peer follows.
            (ResetReason::Overload, state)
                if !matches!(state, LegState::Aborted(ResetReason::Overload, _)) =>
            {
                let follows = state == LegState::Reset(ResetReason::Overload);
                let unread = other.written - read > polyrail_session::limits::FLOOR;
                let stopped = unread && reader != Reader::Quick;
                assert!(follows || stopped, "flow {flow} {side:?}: it was read");
                self.coverage.reset += 1;
            }
            (_, LegState::Aborted(given, at)) => {
                self.coverage.reset += 1;
                assert_eq!(given, reason, "flow {flow} {side:?}: reset for another reason");
                let late = self.now - at >= polyrail_session::limits::RESET_LINGER;
                if reason == ResetReason::PeerReset && !late {
                    assert_eq!(read, other.written, "flow {flow} {side:?}: reset too early");
                }
            }
            (_, state) => panic!("flow {flow} {side:?}: unexpected reset ({reason}): {state:?}"),
        }
    }

    /// Whether a session of this side may have had all the flows that its settings permit. Some may
    /// have ended since, in the same turn.
    fn is_full(&self, side: Side) -> bool {
        self.flows.len() >= self.nodes[side as usize].settings.flows_max
    }

    /// The process of one side has died, and its legs with it.
    pub(super) fn flows_die(&mut self, side: Side) {
        for flow in &mut self.flows {
            let leg = &mut flow.legs[side as usize];
            if leg.state == LegState::Open {
                leg.state = LegState::Gone;
            }
        }
    }

    /// The flows with an open leg on one side.
    pub fn open_legs(&self, side: Side) -> Vec<FlowNo> {
        let open = |&flow: &FlowNo| self.flows[flow].legs[side as usize].state == LegState::Open;
        (0..self.flows.len()).filter(open).collect()
    }

    /// Lets all readers read and all writers end, so that every flow ends.
    pub fn wind_up(&mut self) {
        for flow in 0..self.flows.len() {
            let record = &mut self.flows[flow];
            record.server.1 = true;
            record.server_reader = Reader::Quick;
            for side in Side::BOTH {
                self.set_reader(flow, side, Reader::Quick);
                // A server that is not dialled yet ends later.
                if side == Side::Gateway || self.flows[flow].dialed {
                    self.finish(flow, side);
                }
            }
        }
    }

    /// Whether all flows have ended on both sides.
    pub fn is_quiet(&self) -> bool {
        self.nodes.iter().all(|node| node.keys.is_empty())
    }

    /// Checks the state some time after every flow has ended.
    pub fn check_end(&self) {
        for (number, flow) in self.flows.iter().enumerate() {
            let [gateway, cloud] = &flow.legs;
            for (leg, other) in [(gateway, cloud), (cloud, gateway)] {
                if leg.state == LegState::Closed {
                    let fair = !matches!(other.state, LegState::Open | LegState::Unknown);
                    assert!(fair, "flow {number}: one side closed, the other is {other:?}");
                }
                assert!(!leg.read_timer || leg.state != LegState::Open);
            }
        }
        for side in Side::BOTH {
            for session in self.status(side).sessions {
                let held = (session.memory_received.0, session.memory_sent.0);
                if session.flows > 0 {
                    self.say(Verbosity::Operations, || {
                        format!("{:?}", self.nodes[side as usize].endpoint)
                    });
                }
                assert_eq!((session.flows, held), (0, (0, 0)), "{side:?} keeps something");
                // Credit that a flow used and did not return would be lost forever.
                let told = session.peer.is_some() && !session.paths.is_empty();
                let memory = self.nodes[side.other() as usize].settings.memory.0;
                let least = if told { memory - memory / 8 } else { 0 };
                let left = session.credit.0;
                assert!(left >= least, "{side:?} has {left} credit left, not {least}");
            }
        }
    }
}

fn destination(flow: FlowNo, named: bool) -> Destination {
    if named {
        let name = HostName::new(&format!("f{flow}.example"));
        return Destination::Name(name.unwrap_or_else(|error| panic!("{error}")), 443);
    }
    let ip = Ipv4Addr::from(0x0a00_0000 + u32::try_from(flow).unwrap_or(0));
    Destination::Address(SocketAddr::from((ip, 80)))
}

fn flow_of(destination: &Destination) -> FlowNo {
    match destination {
        Destination::Name(name, _) => {
            let digits = name.as_str().trim_start_matches('f').trim_end_matches(".example");
            digits.parse().unwrap_or(usize::MAX)
        }
        Destination::Address(SocketAddr::V4(address)) => {
            (u32::from(*address.ip()) - 0x0a00_0000) as usize
        }
        Destination::Address(SocketAddr::V6(_)) => usize::MAX,
    }
}

const CHUNK: u64 = 100_000;
