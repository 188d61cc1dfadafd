//! One session: its flows and paths, and the caller's operations on flows.
//!
//! The parts: `input` takes frames in, `control` says what is due, `transmit` asks the scheduler
//! and sends, `paths` adds, loses and judges paths, `notices` tells and hears about them, `delays`
//! compares them, `messages` sends what belongs to no flow, `credit` keeps the memory bounds, `backpressure` what
//! readers that do not keep up may hold of them, and `early` what windows that begin larger may.
//!
//! Invariants: `held_sent` and `held_received` are the sums over all flows; a flow that has
//! something to send and may send it stands in the queue or aside of it; a flow with control due
//! stands in `due`.

mod again;
mod backpressure;
mod control;
mod credit;
mod delays;
mod early;
mod forecasts;
mod input;
mod messages;
mod notices;
mod paths;
mod pool;
mod resets;
#[cfg(test)]
mod tests;
mod transmit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Bytes, Destination, Families, FlowId, LinkForecast, LinkOutlook, UserId};
use polyrail_scheduler::{Chain, FairQueue, PathView, Turn};

pub use transmit::Outlet;

use crate::flow::{Flow, Life};
use crate::limits::{
    ACK_DELAY, INTERACTIVE_MAX, OPEN_HOLD, TOMBSTONES_MAX, WINDOW_INITIAL, WRITABLE_MIN,
};
use crate::path::Path;
use crate::ranges::RangeSet;
use crate::wire::{Notice, Terms};
use crate::{
    Event, FlowKey, OpenError, ResetReason, Role, SessionKey, SessionStatus, Settings, TunnelKey,
};

#[derive(Debug)]
pub(crate) struct Session {
    key: SessionKey,
    role: Role,
    settings: Settings,
    /// Zero of this side's clock on the wire.
    epoch: Instant,
    flows: BTreeMap<FlowId, Flow>,
    next_flow: u64,
    /// What a flow may send before its first acknowledgement.
    peer_window: u64,
    /// All numbers that ever were a flow.
    seen: RangeSet,
    tombstones: BTreeMap<FlowId, Tombstone>,
    /// The flows with a tombstone, in the order in which they ended.
    burials: VecDeque<FlowId>,
    /// By slot; slots of lost paths are used again.
    paths: Vec<Option<Path>>,
    views: Vec<PathView>,
    chain: Chain,
    queue: FairQueue,
    /// Flows of the queue that were asked and wait for better paths, while others are asked.
    aside: Vec<Turn>,
    /// One of them is interactive.
    aside_interactive: bool,
    /// Flows that wait for credit, not for a path.
    starved: BTreeSet<FlowId>,
    /// Writers that wait for memory.
    cramped: BTreeSet<FlowId>,
    /// Whose turn it is among them.
    cramped_next: FlowId,
    /// Flows whose windows wait until their user's readers have taken more.
    withheld: BTreeSet<(UserId, FlowId)>,
    /// Flows with control due, in order.
    due: VecDeque<FlowId>,
    /// Ended flows whose end is to be said (again).
    due_ended: BTreeSet<FlowId>,
    due_credit: bool,
    ack_line: VecDeque<(Instant, FlowId)>,
    open_line: VecDeque<(Instant, FlowId)>,
    reset_line: VecDeque<(Instant, FlowId)>,
    ack_tokens: f64,
    ack_tokens_at: Instant,
    ack_blocked_until: Option<Instant>,
    credit: credit::Credit,
    backpressure: backpressure::Backpressure,
    held_sent: u64,
    held_received: u64,
    early: early::Early,
    pongs: Vec<(usize, u64, u64, u64)>,
    next_ping: u64,
    /// The tag of the next unit of data.
    next_tag: u64,
    /// Units that need not arrive any more.
    withdrawals: Vec<(TunnelKey, u64)>,
    /// What is to be said about paths.
    notices: VecDeque<Notice>,
    next_notice: u64,
    /// Some carrier has more than one path.
    rivalry: bool,
    reinjected: u64,
    /// When a scheduler that lets a segment wait decides anew.
    wake_at: Option<Instant>,
    /// What is foreseen, by carrier.
    forecasts: BTreeMap<String, LinkForecast>,
    outlooks: BTreeMap<String, LinkOutlook>,
    messages: messages::Messages,
    pub families: Families,
    pub alone_since: Option<Instant>,
    /// It has had a path.
    greeted: bool,
    pub going_away: Option<String>,
    goaway_due: bool,
    pub peer_going: bool,
    pub events: VecDeque<Event>,
    /// Scratch for frames.
    scratch: Vec<u8>,
}

/// A flow that is over.
#[derive(Clone, Copy, Debug)]
struct Tombstone {
    outcome: Outcome,
    /// The peer's numbers that were counted as credit: what it used beyond may still come or be
    /// told.
    counted: u64,
}

/// How a flow ended, for a peer that asks again.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Delivered,
    Reset {
        reason: ResetReason,
        last: u64,
        /// Delivered before the reset.
        after: u64,
    },
}

impl Session {
    pub fn new(now: Instant, key: SessionKey, role: Role, settings: Settings) -> Self {
        let chain = settings.chain.build();
        let memory = settings.memory.0;
        Self {
            key,
            role,
            settings,
            epoch: now,
            flows: BTreeMap::new(),
            next_flow: 1,
            peer_window: WINDOW_INITIAL,
            seen: RangeSet::default(),
            tombstones: BTreeMap::new(),
            burials: VecDeque::new(),
            paths: Vec::new(),
            views: Vec::new(),
            chain,
            queue: FairQueue::new(now),
            aside: Vec::new(),
            aside_interactive: false,
            starved: BTreeSet::new(),
            cramped: BTreeSet::new(),
            withheld: BTreeSet::new(),
            cramped_next: FlowId(0),
            due: VecDeque::new(),
            due_ended: BTreeSet::new(),
            due_credit: false,
            ack_line: VecDeque::new(),
            open_line: VecDeque::new(),
            reset_line: VecDeque::new(),
            ack_tokens: 0.0,
            ack_tokens_at: now,
            ack_blocked_until: None,
            credit: credit::Credit::new(memory),
            backpressure: backpressure::Backpressure::default(),
            held_sent: 0,
            held_received: 0,
            early: early::Early::default(),
            pongs: Vec::new(),
            next_ping: 1,
            // Unique also on a tunnel that outlives its session.
            next_tag: key.0 << TAG_BITS,
            withdrawals: Vec::new(),
            notices: VecDeque::new(),
            next_notice: 1,
            rivalry: false,
            reinjected: 0,
            wake_at: None,
            forecasts: BTreeMap::new(),
            outlooks: BTreeMap::new(),
            messages: messages::Messages::new(now),
            families: Families::default(),
            alone_since: Some(now),
            greeted: false,
            going_away: None,
            goaway_due: false,
            peer_going: false,
            events: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// Since when the session has been without a path while something depended on it.
    pub fn lingers_since(&self) -> Option<Instant> {
        self.alone_since.filter(|_| self.greeted || !self.flows.is_empty())
    }

    /// Takes new settings; what is held and granted keeps to the old bound of memory.
    pub fn set_settings(&mut self, settings: &Settings) {
        if self.settings.chain != settings.chain {
            self.chain = settings.chain.build();
            // What the old chain held a path to is over.
            (0..self.paths.len()).for_each(|slot| self.show_room(slot));
        }
        let (memory, families) = (self.settings.memory, self.settings.families);
        self.settings = Settings { memory, families, ..settings.clone() };
    }

    /// What this side grants from the start.
    pub fn terms(&self) -> Terms {
        Terms { window: WINDOW_INITIAL, credit: self.settings.memory.0 }
    }

    /// What the peer grants. Repeated terms of one session change nothing.
    pub fn agree(&mut self, terms: Terms) {
        self.credit.agree(terms.credit);
        self.peer_window = terms.window;
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
        if self.flows.len() >= self.settings.flows_max {
            return Err(OpenError::TooManyFlows);
        }
        if self.flows.is_empty() {
            // A session that never had a path waits for one from now on.
            self.alone_since = self.alone_since.map(|since| if self.greeted { since } else { now });
        }
        let id = FlowId(self.next_flow);
        self.next_flow += 1;
        self.seen.insert(id.0..id.0 + 1);
        let early = self.early_window(now, user);
        let window = WINDOW_INITIAL + early;
        let mut flow = Flow::new(now, id, user, true, self.peer_window, window);
        flow.early = early;
        self.early.count(now, &mut flow);
        flow.destination = Some(destination);
        flow.hold = true;
        self.flows.insert(id, flow);
        self.open_line.push_back((now + OPEN_HOLD, id));
        Ok(FlowKey { session: self.key, flow: id })
    }

    pub fn write_room(&mut self, now: Instant, id: FlowId) -> u64 {
        let room = self.room_of(now, id);
        if room < WRITABLE_MIN
            && let Some(flow) = self.flows.get_mut(&id)
        {
            flow.wants_room = true;
            self.cramped.insert(id);
        }
        room
    }

    pub fn write(&mut self, now: Instant, id: FlowId, data: &[u8]) -> usize {
        let room = self.room_of(now, id);
        let Some(flow) = self.flows.get_mut(&id) else { return data.len() };
        if flow.life != Life::Live || flow.send.is_finished() {
            return data.len();
        }
        let taken = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if taken < data.len() {
            flow.wants_room = true;
            self.cramped.insert(id);
        }
        if taken > 0 {
            flow.send.write(&data[..taken]);
            flow.hold = false;
            self.held_sent += taken as u64;
            self.backpressure.recount(flow);
            self.enqueue(now, id);
        }
        taken
    }

    pub fn finish(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.life == Life::Live && !flow.send.is_finished() {
            flow.send.finish();
            flow.hold = false;
            self.enqueue(now, id);
        }
    }

    pub fn dialed(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id)
            && !flow.dialed
        {
            flow.dialed = true;
            flow.due.ack = true;
            self.list(id);
        }
    }

    pub fn readable(&self, id: FlowId) -> [&[u8]; 2] {
        self.flows.get(&id).map_or([&[], &[]], |flow| flow.recv.readable())
    }

    pub fn finished(&self, id: FlowId) -> bool {
        self.flows.get(&id).is_some_and(|flow| flow.life == Life::Live && flow.recv.finished())
    }

    pub fn consume(&mut self, now: Instant, id: FlowId, count: usize) {
        let rtt = self.slowest_rtt();
        let largest = self.largest_window();
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let taken = flow.recv.consume(count);
        flow.told_readable = false;
        self.held_received -= taken as u64;
        let user = flow.user;
        flow.recv.tune(now, taken as u64, rtt, largest);
        self.credit.read(user, taken as u64);
        self.release_windows(user);
        self.after_drain(now, id);
    }

    /// The reader has taken something, or the end was reached: credit flows back.
    fn after_drain(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        self.early.moved(now, flow);
        let drained = flow.recv.drained();
        let released = drained - flow.recv.released;
        flow.recv.released = drained;
        if flow.is_callers() {
            if flow.recv.wants_window() || flow.recv.wants_drained() {
                flow.due.window = true;
                self.list(id);
            } else if flow.recv.owes_drained() && !flow.due.ack_delayed {
                flow.due.ack_delayed = true;
                self.ack_line.push_back((now + ACK_DELAY, id));
            }
        }
        self.credit.release(released);
        if self.credit.wants_update() {
            self.due_credit = true;
        }
        self.end_if_over(now, id);
    }

    /// Puts the flow into the queue if it has something to send and may send it.
    fn enqueue(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get(&id) else { return };
        if flow.queued || flow.hold {
            return;
        }
        let allowance = self.allowance(flow);
        if flow.send.piece(allowance).is_none() {
            if flow.send.unsent() > 0 && flow.send.limit > flow.send.next() {
                self.starved.insert(id);
            }
            return;
        }
        let turn = self.turn(now, flow);
        self.queue.push(turn);
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.queued = true;
        }
    }

    fn turn(&self, now: Instant, flow: &Flow) -> Turn {
        let small = flow.send.unsent() <= polyrail_scheduler::RUN_MAX;
        let interactive = small && flow.recent(now) < INTERACTIVE_MAX;
        Turn { user: flow.user, flow: flow.id, interactive }
    }

    /// Puts the flow into the list of those with control due.
    fn list(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id)
            && !flow.due.listed
        {
            flow.due.listed = true;
            self.due.push_back(id);
        }
    }

    /// Tells writers that wait for room, as far as there is some; a few at a time, in turn.
    fn relieve(&mut self, now: Instant) {
        let from = self.cramped_next;
        let turn = self.cramped.range(from..).chain(self.cramped.range(..from));
        let waiting: Vec<FlowId> = turn.copied().take(RELIEVED_AT_ONCE).collect();
        self.cramped_next = waiting.last().map_or(FlowId(0), |last| FlowId(last.0 + 1));
        for id in waiting {
            self.relieve_one(now, id);
        }
    }

    fn relieve_one(&mut self, now: Instant, id: FlowId) {
        if !self.cramped.contains(&id) {
            return;
        }
        let room = self.room_of(now, id);
        let least = match self.flows.get(&id).map(|flow| &flow.send) {
            Some(send) if send.held() > 0 && send.unsent() > 0 => WRITABLE_MIN,
            Some(send) if send.held() > 0 => polyrail_scheduler::SEGMENT,
            _ => 1,
        };
        if room >= least {
            self.cramped.remove(&id);
            if let Some(flow) = self.flows.get_mut(&id)
                && std::mem::take(&mut flow.wants_room)
            {
                self.events
                    .push_back(Event::Writable { flow: FlowKey { session: self.key, flow: id } });
            }
        }
    }

    /// Ends the flow if nothing is left to do for it.
    fn end_if_over(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get(&id) else { return };
        if !flow.is_over() {
            return;
        }
        let key = FlowKey { session: self.key, flow: id };
        match flow.life {
            // The caller never heard of it: its OPEN has not come.
            _ if flow.destination.is_none() && self.role == Role::Cloud => {}
            Life::Live => self.events.push_back(Event::Closed { flow: key }),
            Life::Ending { reason, .. } => {
                self.events.push_back(Event::Reset { flow: key, reason })
            }
            Life::Resetting { .. } => {}
        }
        self.bury(now, id);
    }

    /// Takes the flow out, settles its accounts and remembers how it ended.
    fn bury(&mut self, now: Instant, id: FlowId) {
        let Some(mut flow) = self.flows.remove(&id) else { return };
        let outcome = match flow.life {
            Life::Live => Outcome::Delivered,
            Life::Ending { reason, .. } => {
                Outcome::Reset { reason, last: flow.send.next(), after: 0 }
            }
            Life::Resetting { reason, after, .. } => {
                Outcome::Reset { reason, last: flow.send.next(), after }
            }
        };
        if flow.due.ack || flow.due.ack_delayed || flow.due.reset || flow.recv.unacknowledged > 0 {
            self.say_end_again(id);
        }
        self.remember(id, Tombstone { outcome, counted: flow.recv.highest() });
        if flow.queued {
            self.queue.remove(flow.user, id);
        }
        self.starved.remove(&id);
        self.cramped.remove(&id);
        self.held_sent -= flow.send.held();
        self.held_received -= flow.recv.held();
        self.credit.read(flow.user, flow.recv.unread());
        self.withheld.remove(&(flow.user, id));
        self.release_windows(flow.user);
        self.credit.release(flow.recv.highest() - flow.recv.released);
        self.backpressure.forget(&mut flow);
        self.early.forget(&mut flow);
        self.due_credit |= self.credit.wants_update();
        self.free_paths_of(&flow);
        self.relieve(now);
        if !self.starved.is_empty() {
            self.feed_starved(now);
        }
    }

    /// Remembers how a flow ended; of too many, the one that ended first is forgotten.
    fn remember(&mut self, id: FlowId, tombstone: Tombstone) {
        if self.tombstones.insert(id, tombstone).is_none() {
            self.burials.push_back(id);
        }
        if self.burials.len() > TOMBSTONES_MAX
            && let Some(oldest) = self.burials.pop_front()
        {
            self.tombstones.remove(&oldest);
        }
    }

    /// The end of a flow is to be said (again). Of too many at once the peer asks again.
    fn say_end_again(&mut self, id: FlowId) {
        if self.due_ended.len() < TOMBSTONES_MAX {
            self.due_ended.insert(id);
        }
    }

    /// The greatest round-trip time of a live path; 100 ms when there is none.
    fn slowest_rtt(&self) -> Duration {
        let live = self.paths.iter().flatten().filter(|path| !path.stalled);
        live.map(Path::srtt).max().unwrap_or(Duration::from_millis(100))
    }

    /// Microseconds of this side's clock.
    fn clock(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    pub fn status(&self) -> SessionStatus {
        SessionStatus {
            session: self.key,
            peer: None,
            flows: self.flows.len(),
            memory_received: Bytes(self.held_received),
            memory_sent: Bytes(self.held_sent),
            credit: Bytes(self.credit.left()),
            reinjected: Bytes(self.reinjected),
            messages_dropped: self.messages.dropped(),
            paths: self.paths.iter().flatten().map(Path::status).collect(),
        }
    }
}

/// Tags of one session; more units than one ever sends.
const TAG_BITS: u32 = 40;
/// Writers told in one go when memory becomes free.
const RELIEVED_AT_ONCE: usize = 16;
