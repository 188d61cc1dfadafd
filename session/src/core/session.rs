//! One session: its parts, and the caller's operations on its flows.
//!
//! Each part owns its state: [`Flows`] the flows, [`FlowControl`] credit and shares, [`Paths`] the
//! paths, [`Outbox`] the control frames that are due, [`Messages`] the messages of no flow,
//! [`Datagrams`] users' datagrams, [`Turns`] the order of flows, [`Writers`] the writers that wait
//! for room, [`UsersTraffic`] the bytes of each user, [`ConfinedTraffic`] those of confined flows.
//! The session only connects them. Frames arrive in `input` and are sent in `transmit`.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Bytes, Destination, FlowId, NodeRole, SessionKey, UserId, Weight};
use polyrail_scheduler::Chain;

use super::confined::ConfinedTraffic;
use super::datagrams::Datagrams;
use super::flow_control::FlowControl;
use super::flows::Flows;
use super::messages::Messages;
use super::outbox::Outbox;
use super::paths::Paths;
use super::turns::Turns;
use super::user_traffic::UsersTraffic;
use super::writers::{self, Writers};
use crate::event::{Event, FlowKey, OpenError};
use crate::flow::{Flow, Life};
use crate::limits::{
    OPEN_HOLD, PING_SILENT, POOL_SHARE, RESET_LINGER, SILENT_AFTER, STOPPED_LOOK,
    WINDOW_INITIAL_MAX, WINDOW_SHARE, WRITABLE_MIN,
};
use crate::settings::{SessionStatus, Settings};
use crate::wire::{ResetReason, Target, Terms};

#[derive(Debug)]
pub(crate) struct Session {
    pub(super) key: SessionKey,
    pub(super) role: NodeRole,
    pub(super) settings: Settings,
    /// The zero of this side's clock on the wire.
    pub(super) epoch: Instant,
    pub(super) chain: Chain,
    pub(super) flows: Flows,
    pub(super) flow_control: FlowControl,
    pub paths: Paths,
    pub(super) outbox: Outbox,
    pub messages: Messages,
    pub datagrams: Datagrams,
    pub(super) turns: Turns,
    pub(super) writers: Writers,
    pub(super) traffic: UsersTraffic,
    pub(super) confined: ConfinedTraffic,
    /// OPENs that wait for first data, and until when.
    open_line: VecDeque<(Instant, FlowId)>,
    /// Reset flows that may deliver earlier data, and until when.
    reset_line: VecDeque<(Instant, FlowId)>,
    /// When flows without an OPEN may have expired.
    pub(super) unopened_at: Option<Instant>,
    /// When the last frame arrived.
    heard_at: Instant,
    /// The time in which frames arrived: a pause counts as [`SILENT_AFTER`] at most.
    pub(super) heard: Duration,
    pub(super) going_away: Option<String>,
    /// Flows of the peer are refused, too.
    pub(super) refuses_flows: bool,
    pub(super) peer_going: bool,
    /// The peer has received the GOAWAY.
    pub(super) heard_going: bool,
    /// The caller knows that the peer broke the protocol on a flow.
    alarmed: bool,
    /// Events for the caller, in order.
    pub events: VecDeque<Event>,
    /// The tag of the next unit of data.
    pub(super) next_tag: u64,
    /// When the newest run was sent, in microseconds. No two are equal, so that an echo tells which
    /// run arrived.
    pub(super) run_us: u64,
    pub(super) reinjected: u64,
}

impl Session {
    pub fn new(now: Instant, key: SessionKey, role: NodeRole, settings: Settings) -> Self {
        Self {
            key,
            role,
            epoch: now,
            chain: settings.chain.build(),
            flows: Flows::default(),
            flow_control: FlowControl::new(settings.memory.0),
            paths: Paths::new(now),
            outbox: Outbox::new(now, role),
            messages: Messages::new(now),
            datagrams: Datagrams::new(now, &settings),
            turns: Turns::new(now),
            writers: Writers::default(),
            traffic: UsersTraffic::default(),
            confined: ConfinedTraffic::default(),
            open_line: VecDeque::new(),
            reset_line: VecDeque::new(),
            unopened_at: None,
            heard_at: now,
            heard: Duration::ZERO,
            going_away: None,
            refuses_flows: false,
            peer_going: false,
            heard_going: false,
            alarmed: false,
            events: VecDeque::new(),
            // Unique, because a tunnel may outlive its session.
            next_tag: key.0 << TAG_BITS,
            run_us: 0,
            reinjected: 0,
            settings,
        }
    }

    /// Since when the session has been without a path while something depended on it.
    pub fn lingers_since(&self) -> Option<Instant> {
        self.paths.alone_since.filter(|_| self.paths.greeted || self.flows.len() > 0)
    }

    /// Applies new settings, except the memory and the families.
    pub fn set_settings(&mut self, settings: &Settings) {
        if self.settings.chain != settings.chain {
            self.chain = settings.chain.build();
        }
        if self.settings.datagram_chain != settings.datagram_chain {
            self.datagrams.chain = settings.datagram_chain.build();
        }
        let (memory, families) = (self.settings.memory, self.settings.families);
        self.settings = Settings { memory, families, ..settings.clone() };
    }

    /// The terms that this side grants.
    pub fn terms(&self) -> Terms {
        Terms { window: self.window_initial(), credit: self.settings.memory.0 }
    }

    /// Applies the peer's terms. Repeated terms of a session have no effect.
    pub fn agree(&mut self, terms: Terms) {
        self.flow_control.credit.agree(terms.credit);
        self.flow_control.peer_window = terms.window;
    }

    /// The receive window of a new flow.
    pub(super) fn window_initial(&self) -> u64 {
        self.window_largest().min(WINDOW_INITIAL_MAX)
    }

    fn window_largest(&self) -> u64 {
        self.settings.memory.0 / WINDOW_SHARE
    }

    pub(super) fn flow_key(&self, flow: FlowId) -> FlowKey {
        FlowKey { session: self.key, flow }
    }

    pub fn open(
        &mut self,
        now: Instant,
        user: UserId,
        destination: Destination,
    ) -> Result<FlowKey, OpenError> {
        if self.going_away.is_some() || self.peer_going {
            return Err(OpenError::GoingAway);
        }
        self.make_room(now, user)?;
        if self.flows.len() == 0 && !self.paths.greeted {
            // A session that never had a path lingers from now on.
            self.paths.alone_since = Some(now);
        }
        let (id, limit) = (self.flows.next_id(), self.flow_control.peer_window);
        let mut flow = Flow::new(now, id, user, true, limit, self.window_initial());
        flow.target = Some(Target::Server(destination));
        flow.hold = true;
        self.flows.insert(flow);
        self.open_line.push_back((now + OPEN_HOLD, id));
        Ok(self.flow_key(id))
    }

    /// The weight of a user changes, also for its open flows and its bindings (gateway).
    pub fn set_weight(&mut self, user: UserId, weight: Weight) {
        let (flows, streams) = (&self.flows.users, &self.datagrams.streams);
        let flows: Vec<FlowId> = flows.flows_of(user).chain(streams.flows_of(user)).collect();
        for id in flows {
            self.flows.get_mut(id).into_iter().for_each(|flow| flow.weight = weight);
        }
        let bindings = self.datagrams.bindings.values_mut();
        let own = bindings.filter(|binding| binding.user == user);
        own.for_each(|binding| binding.weight = weight);
    }

    /// A new flow has its user's weight.
    pub fn weigh(&mut self, id: FlowId, weight: Weight) {
        self.flows.get_mut(id).into_iter().for_each(|flow| flow.weight = weight);
    }

    /// Bytes that [`Session::write`] takes now; if they are few, [`Event::Writable`] follows.
    pub fn write_room(&mut self, id: FlowId) -> u64 {
        let Some(flow) = self.flows.get(id) else { return 0 };
        let room = writers::room(flow, &self.flow_control);
        if room < WRITABLE_MIN {
            self.writers.waiting.insert(id);
        }
        room
    }

    pub fn write(&mut self, now: Instant, id: FlowId, data: &[u8]) -> usize {
        let Some(flow) = self.flows.get_mut(id) else { return data.len() };
        if flow.life != Life::Live || flow.send.fin {
            return data.len();
        }
        let room = writers::room(flow, &self.flow_control);
        let taken = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if taken < data.len() {
            self.writers.waiting.insert(id);
        }
        if taken > 0 {
            flow.send.write(&data[..taken]);
            self.traffic.sent(now, flow.user, taken as u64);
            flow.moved_at = now;
            flow.hold = false;
            self.flow_control.held_sent += taken as u64;
            self.flow_control.recount(flow);
            self.turns.enqueue(now, flow, &self.flow_control);
        }
        taken
    }

    pub fn finish(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        if flow.life == Life::Live && !flow.send.fin {
            flow.send.finish();
            flow.hold = false;
            self.turns.enqueue(now, flow, &self.flow_control);
        }
    }

    /// Sends new data of a flow only over these carriers. Returns false, and changes nothing, if
    /// none of them has had a path in this session.
    pub fn confine(&mut self, id: FlowId, carriers: &[String]) -> bool {
        let only = self.paths.names.set(carriers);
        match self.flows.get_mut(id) {
            Some(flow) if !only.is_empty() => flow.only = Some(only),
            _ => return false,
        }
        true
    }

    /// Bytes of confined flows, sent and received, by carrier.
    pub fn confined_traffic(&self) -> BTreeMap<String, [u64; 2]> {
        self.confined.named(&self.paths.names)
    }

    pub fn dialed(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(id)
            && !std::mem::replace(&mut flow.dialed, true)
        {
            self.outbox.ack(flow);
        }
    }

    pub fn readable(&self, id: FlowId) -> [&[u8]; 2] {
        self.flows.get(id).map_or([&[], &[]], |flow| flow.recv.readable())
    }

    pub fn finished(&self, id: FlowId) -> bool {
        self.flows.get(id).is_some_and(|flow| flow.life == Life::Live && flow.recv.finished())
    }

    pub fn consume(&mut self, now: Instant, id: FlowId, count: usize) {
        let (rtt, largest) = (self.paths.slowest_rtt(), self.window_largest());
        let Some(flow) = self.flows.get_mut(id) else { return };
        let taken = flow.recv.consume(count) as u64;
        flow.told_readable = false;
        if taken > 0 {
            flow.moved_at = now;
            if flow.binding().is_none() {
                self.traffic.received(now, flow.user, taken);
            }
        }
        self.flow_control.held_received -= taken;
        flow.recv.tune(now, taken, rtt, largest);
        self.after_drain(now, id);
    }

    /// The reader has taken bytes, or the end was reached: returns credit to the peer.
    pub(super) fn after_drain(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let released = flow.recv.release();
        if flow.is_callers() {
            if flow.recv.wants_window() || flow.recv.wants_drained() {
                self.outbox.window(flow);
            } else if flow.recv.owes_drained() {
                self.outbox.ack_later(now, flow);
            }
        }
        self.flow_control.credit.release(released);
        self.outbox.due_credit |= self.flow_control.credit.wants_update();
        self.end_if_over(now, id);
    }

    /// Queues a flow that may have data to send.
    pub(super) fn enqueue(&mut self, now: Instant, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(id) {
            self.turns.enqueue(now, flow, &self.flow_control);
        }
    }

    /// There may be credit for the flows that wait for it: queues some of those that may send.
    pub(super) fn feed_starved(&mut self, now: Instant) {
        self.turns.starved.take().into_iter().for_each(|id| self.enqueue(now, id));
    }

    /// Wakes writers that have room again.
    pub(super) fn relieve(&mut self) {
        for id in self.writers.relieve(&self.flows, &self.flow_control) {
            self.events.push_back(Event::Writable { flow: self.flow_key(id) });
        }
    }

    pub(super) fn relieve_one(&mut self, id: FlowId) {
        if self.writers.relieve_one(id, &self.flows, &self.flow_control) {
            self.events.push_back(Event::Writable { flow: self.flow_key(id) });
        }
    }

    // The end of a flow.

    /// Whether it is known what the flow is: in a cloud, whether the OPEN has arrived.
    pub(super) fn is_known(&self, flow: &Flow) -> bool {
        flow.target.is_some() || self.role == NodeRole::Gateway
    }

    /// Ends the flow if both sides are done with it.
    pub(super) fn end_if_over(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get(id).filter(|flow| flow.is_over()) else { return };
        let key = self.flow_key(id);
        match flow.life {
            _ if !self.is_known(flow) || flow.binding().is_some() => {}
            Life::Live => self.events.push_back(Event::Closed { flow: key }),
            Life::Ending { reason, .. } => {
                self.events.push_back(Event::Reset { flow: key, reason })
            }
            Life::Resetting { .. } => {}
        }
        self.bury(now, id);
    }

    /// Removes the flow, returns its credit and shares, and remembers how it ended.
    pub(super) fn bury(&mut self, now: Instant, id: FlowId) {
        let Some(mut flow) = self.flows.bury(id) else { return };
        let due = flow.due.ack || flow.due.ack_delayed || flow.due.reset;
        self.datagrams.streams.forget(now, &flow);
        if due || flow.recv.unacknowledged > 0 {
            flow.number.into_iter().for_each(|number| self.outbox.end(number));
        }
        self.turns.forget(&flow);
        self.writers.waiting.remove(&id);
        self.flow_control.forget(&mut flow);
        self.outbox.due_credit |= self.flow_control.credit.wants_update();
        self.paths.forget_flow(&flow);
        self.paths.withdraw(flow.send.runs.all_units());
        flow.binding().into_iter().for_each(|binding| self.advance(now, binding));
        self.relieve();
        self.feed_starved(now);
    }

    /// Resets a flow for its caller; no more events of it follow. If its endpoint reset it, data
    /// written before is delivered first; else no more data is delivered.
    pub fn reset(&mut self, now: Instant, id: FlowId, reason: ResetReason) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        match flow.life {
            Life::Resetting { .. } => return,
            Life::Ending { .. } => {
                let number = flow.number;
                self.bury(now, id);
                return number.into_iter().for_each(|number| self.outbox.end(number));
            }
            Life::Live => {}
        }
        let unused = flow.send.next == 0 && flow.recv.highest == 0;
        if flow.hold || (unused && self.role == NodeRole::Gateway) {
            // The peer does not know it.
            return self.bury(now, id);
        }
        let after = if reason == ResetReason::PeerReset { flow.send.written } else { 0 };
        flow.life = Life::Resetting { reason, after, answered: false };
        self.outbox.reset(flow);
        let user = flow.user;
        self.flows.users.leave(user, id);
        self.cut_sending(id, after);
        self.discard_received(id);
        self.leave_stream(now, id);
        if after > 0 {
            self.reset_line.push_back((now + RESET_LINGER, id));
            self.enqueue(now, id);
        }
        self.after_drain(now, id);
    }

    /// Resets a flow on which the peer broke the protocol, and reports that to the caller at once.
    /// The session raises one alarm.
    pub(super) fn violate(&mut self, now: Instant, id: FlowId, what: &str) {
        tracing::debug!(flow = id.0, what, "peer broke the protocol on a flow");
        if !std::mem::replace(&mut self.alarmed, true) {
            let text = format!("the peer broke the protocol on flow {}: {what}", id.0);
            self.events.push_back(Event::Alarm { session: Some(self.key), text });
        }
        self.break_off(now, id, ResetReason::Protocol);
    }

    /// Resets a flow, for a violation of the peer or for lack of room, and reports it to the
    /// caller.
    pub(super) fn break_off(&mut self, now: Instant, id: FlowId, reason: ResetReason) {
        let Some(flow) = self.flows.get(id) else { return };
        if self.is_known(flow) && flow.is_callers() && flow.binding().is_none() {
            self.events.push_back(Event::Reset { flow: self.flow_key(id), reason });
        }
        self.reset(now, id, reason);
    }

    /// The session is gone: reports the reset of all flows to the caller; returns how many.
    pub fn abandon(&mut self, reason: ResetReason) -> usize {
        let told = self.flows.iter().filter(|flow| flow.binding().is_none());
        let told = told.filter(|flow| flow.is_callers() && self.is_known(flow));
        let told = told.map(|flow| Event::Reset { flow: self.flow_key(flow.id), reason });
        let told: Vec<Event> = told.collect();
        let count = told.len();
        self.events.extend(told);
        self.flows.clear();
        count
    }

    /// Ends the sending half at `after`.
    pub(super) fn cut_sending(&mut self, id: FlowId, after: u64) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let before = flow.send.held();
        let paths = &mut self.paths;
        flow.send.truncate(after, |length, live| paths.settle(length, live));
        self.flow_control.held_sent -= before - flow.send.held();
        self.flow_control.recount(flow);
        let spare = flow.send.runs.take_spare();
        self.paths.withdraw(spare);
        self.writers.waiting.remove(&id);
        self.relieve();
    }

    /// Discards unread bytes.
    pub(super) fn discard_received(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(id) {
            self.flow_control.discard(flow);
        }
    }

    /// Ends the delivery of reset flows whose time is over.
    fn hurry_resets(&mut self, now: Instant) {
        while let Some(id) = pop_due(&mut self.reset_line, now) {
            let Some(flow) = self.flows.get_mut(id) else { continue };
            if let Life::Resetting { after, .. } = &mut flow.life {
                *after = 0;
                self.outbox.reset(flow);
                self.cut_sending(id, 0);
                self.end_if_over(now, id);
            }
        }
    }

    /// A frame has arrived.
    pub(super) fn hear(&mut self, now: Instant) {
        let pause = now.saturating_duration_since(self.heard_at);
        self.heard += pause.min(SILENT_AFTER);
        self.heard_at = now;
    }

    /// Removes flows whose OPEN did not arrive in time. An honest peer delivers it, or loses its
    /// session, within the linger. Time counts only while frames arrive: a silent peer may have
    /// dark carriers.
    fn expire_unopened(&mut self, now: Instant) {
        if self.unopened_at.is_none_or(|at| now < at) {
            return;
        }
        let patience = self.settings.linger + 2 * RESET_LINGER;
        let unopened = self.flows.iter().filter(|flow| !self.is_known(flow));
        let (over, waiting): (Vec<_>, Vec<_>) = unopened
            .map(|flow| (flow.id, self.heard - flow.heard_before >= patience))
            .partition(|(_, over)| *over);
        self.unopened_at = (!waiting.is_empty()).then(|| now + RESET_LINGER);
        for (id, _) in over {
            if let Some(flow) = self.flows.get_mut(id) {
                flow.life = Life::Ending { reason: ResetReason::Idle, after: 0 };
                self.bury(now, id);
            }
        }
    }

    /// Data has arrived: begins to look for stopped readers if too much memory is taken.
    pub(super) fn watch_readers(&mut self, now: Instant) {
        let control = &mut self.flow_control;
        if control.stopped.look_at.is_none() && control.credit.is_half_taken() {
            control.stopped.look(&self.flows, u64::MAX);
            control.stopped.look_at = Some(now + STOPPED_LOOK);
        }
    }

    /// Resets flows whose readers have stopped, while the others need the memory.
    fn reset_stopped(&mut self, now: Instant) {
        let control = &mut self.flow_control;
        if control.stopped.look_at.is_none_or(|at| now < at) {
            return;
        }
        for id in control.stopped.look(&self.flows, self.settings.memory.0 / POOL_SHARE) {
            tracing::debug!(flow = id.0, "resetting a flow that is not read, for its memory");
            self.break_off(now, id, ResetReason::Overload);
        }
        let goes_on = self.flow_control.credit.is_half_taken();
        self.flow_control.stopped.look_at = goes_on.then(|| now + STOPPED_LOOK);
    }

    // Timers, and the end of the session.

    /// When [`Session::on_timeout`] wants to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let lines = [&self.open_line, &self.reset_line];
        let lines = lines.into_iter().filter_map(|line| line.front().map(|&(at, _)| at));
        let judged = self.settings.stall;
        let paths = self.paths.iter().map(|path| path.deadline(judged));
        let parts = [
            self.outbox.next_timeout(),
            self.flow_control.next_period,
            self.flow_control.stopped.look_at,
            self.turns.wake_at,
            self.unopened_at,
            self.test().map(|(at, _)| at),
            self.datagrams.held_until.first().map(|&(until, _)| until),
            self.datagrams.streams.due,
        ];
        lines.chain(paths).chain(parts.into_iter().flatten()).min()
    }

    /// Runs the timers that are due.
    pub fn on_timeout(&mut self, now: Instant) {
        self.outbox.on_timeout(now, &mut self.flows);
        self.pass_overdue(now);
        self.attend_streams(now);
        self.turns.wake_at = self.turns.wake_at.filter(|&at| at > now);
        while let Some(id) = pop_due(&mut self.open_line, now) {
            if let Some(flow) = self.flows.get_mut(id) {
                flow.hold = false;
                self.enqueue(now, id);
            }
        }
        self.hurry_resets(now);
        self.expire_unopened(now);
        self.reset_stopped(now);
        self.paths.slots().for_each(|slot| self.pass_reports(now, slot));
        let rtt = self.paths.slowest_rtt();
        self.flow_control.on_timeout(now, rtt, &mut self.flows);
        self.paths.ping_paused(now, self.flows.len() > 0);
        if let Some((at, slot)) = self.test()
            && now >= at
        {
            self.paths.get_mut(slot).into_iter().for_each(|path| path.pings.soon(now));
        }
        for slot in self.paths.overdue(now, self.settings.stall) {
            self.stall(now, slot);
        }
        self.close_drained(now);
    }

    /// When a gateway PINGs its fastest path because no frame arrives, and the slot of the path. If
    /// there is no answer, the path stalls, and the next one is tested at once.
    fn test(&self) -> Option<(Instant, usize)> {
        let slot = self.paths.control_slot(None).filter(|_| self.role == NodeRole::Gateway)?;
        let is_tested = self.paths.get(slot)?.pings.pinged_at().is_some();
        (!is_tested).then(|| (self.heard_at + PING_SILENT, slot))
    }

    /// Opens no more flows and sends GOAWAY.
    pub fn go_away(&mut self, reason: &str, refuses_flows: bool) {
        self.refuses_flows |= refuses_flows;
        if self.going_away.is_none() {
            self.going_away = Some(reason.to_owned());
            self.outbox.going_away = self.going_away.clone();
        }
    }

    /// Sends the GOAWAY and the credit again, because there is a new path.
    pub fn brief_new_path(&mut self) {
        self.outbox.going_away = self.going_away.clone();
        self.outbox.due_credit = true;
    }

    pub fn status(&self) -> SessionStatus {
        SessionStatus {
            session: self.key,
            peer: None,
            flows: self.open_flows(),
            peer_going: self.peer_going,
            heard_going: self.heard_going,
            users: self.flows.users.users(),
            flows_opened: self.flows.users.opened(),
            flows_held: self.flows.len() - self.flows.streams,
            memory_received: Bytes(self.flow_control.held_received),
            memory_sent: Bytes(self.flow_control.held_sent),
            credit: Bytes(self.flow_control.credit.left()),
            reinjected: Bytes(self.reinjected),
            datagrams: self.datagrams.status(),
            messages_dropped: self.messages.dropped,
            paths: self.paths.status(),
        }
    }
}

/// The next flow of a line that is due.
fn pop_due(line: &mut VecDeque<(Instant, FlowId)>, now: Instant) -> Option<FlowId> {
    line.front().filter(|(at, _)| *at <= now)?;
    line.pop_front().map(|(_, id)| id)
}

/// The bits of a tag within a session: more units than a session sends.
const TAG_BITS: u32 = 40;
