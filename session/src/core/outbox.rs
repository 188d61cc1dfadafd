//! The control outbox: which control frames are due, on which path, and when they are repeated.
//!
//! Control is sent before data, on the fastest path that makes progress, several frames together.
//! The outbox holds flags, not frames: each frame is encoded when it is sent, from the state at
//! that time. Frames sent since the last confirmed PING are due again when the path stalls or is
//! lost.
//!
//! Invariant: a flow with control due is in `due` exactly once, and has `due.listed` set.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, FlowId, NodeRole, PathId};

use super::flow_control::FlowControl;
use super::flows::{FlowOutcome, Flows};
use super::outlet::Outlet;
use super::paths::Paths;
use crate::flow::{Due, Flow, Life};
use crate::limits::{
    ACK_DELAY, ACK_DELAY_MAX, ACK_RECEIVED_SHARE, ACK_RECEIVED_SHARE_CALLS, ACK_REPEAT_MAX,
    ACK_UPLINK_SHARE, CONTROL_BATCH, NOTICES_MAX, TOMBSTONES_MAX, UNCONFIRMED_ENDED_MAX,
};
use crate::path::Standing;
use crate::wire::{ACK_RANGES_MAX, Ack, Frame, NUMBER_MAX, Notice, Reset, Said, encode};

#[derive(Debug)]
pub(crate) struct Outbox {
    role: NodeRole,
    /// Flows with control due, in order.
    due: VecDeque<FlowId>,
    /// The numbers of ended flows whose end must be repeated.
    due_ended: BTreeSet<FlowId>,
    /// The session's credit is due.
    pub due_credit: bool,
    /// Acknowledgements that wait for a second run.
    delayed: VecDeque<(Instant, FlowId)>,
    budget: AckBudget,
    pongs: Vec<Pong>,
    next_ping: u64,
    notices: VecDeque<Notice>,
    next_notice: u64,
    /// The reason of a GOAWAY that is due.
    pub going_away: Option<String>,
    /// When it was last sent on all paths. The answer to a later PING confirms it.
    pub went_away_at: Option<Instant>,
}

/// An answer to a PING, for the path on which it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pong {
    pub slot: usize,
    pub token: u64,
    pub sent_us: u64,
    pub received_us: u64,
}

impl Outbox {
    pub fn new(now: Instant, role: NodeRole) -> Self {
        Self {
            role,
            due: VecDeque::new(),
            due_ended: BTreeSet::new(),
            due_credit: false,
            delayed: VecDeque::new(),
            budget: AckBudget::new(now, role),
            pongs: Vec::new(),
            next_ping: 1,
            notices: VecDeque::new(),
            next_notice: 1,
            going_away: None,
            went_away_at: None,
        }
    }

    // Frames become due.

    /// Lists a flow for which something has become due.
    pub fn list(&mut self, flow: &mut Flow) {
        if !std::mem::replace(&mut flow.due.listed, true) {
            self.due.push_back(flow.id);
        }
    }

    pub fn ack(&mut self, flow: &mut Flow) {
        flow.due.ack = true;
        self.list(flow);
    }

    /// An acknowledgement is due after [`ACK_DELAY`], together with later ones.
    pub fn ack_later(&mut self, now: Instant, flow: &mut Flow) {
        if !std::mem::replace(&mut flow.due.ack_delayed, true) {
            self.delayed.push_back((now + ACK_DELAY, flow.id));
        }
    }

    pub fn window(&mut self, flow: &mut Flow) {
        flow.due.window = true;
        self.list(flow);
    }

    pub fn reset(&mut self, flow: &mut Flow) {
        flow.due.reset = true;
        self.list(flow);
    }

    /// The end of an ended flow is due again. Of too many it is dropped: the peer asks again.
    pub fn end(&mut self, number: FlowId) {
        if self.due_ended.len() < TOMBSTONES_MAX {
            self.due_ended.insert(number);
        }
    }

    /// Control frames of the flow with this number may not have arrived. Flow 0 is the session's
    /// credit.
    pub fn repeat(&mut self, number: FlowId, flows: &mut Flows) {
        let open = flows.numbered(number);
        if number == FlowId::default() {
            self.due_credit = true;
        } else if let Some(flow) = open.and_then(|id| flows.get_mut(id)) {
            flow.due.reset = flow.life != Life::Live;
            self.ack(flow);
        } else if flows.has_seen(number) {
            self.end(number);
        }
    }

    /// User data was received, next to a call or not.
    pub fn on_received(&mut self, bytes: u64, calls: bool) {
        let share = if calls { ACK_RECEIVED_SHARE_CALLS } else { ACK_RECEIVED_SHARE };
        self.budget.earn(bytes as f64 * share);
    }

    /// A PONG is due; of too many it is dropped.
    pub fn pong(&mut self, pong: Pong) {
        if self.pongs.len() < PONGS_MAX {
            self.pongs.push(pong);
        }
    }

    /// A notice about a path is due on all paths, including that path, so that it arrives if any of
    /// them is alive. Of too many the oldest is dropped.
    pub fn notice(&mut self, path: PathId, said: Said) {
        if self.notices.len() >= NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(Notice { path, serial: self.next_notice, said });
        self.next_notice += 1;
    }

    /// When [`Outbox::on_timeout`] wants to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let delayed = self.delayed.front().map(|&(at, _)| at);
        delayed.into_iter().chain(self.budget.blocked_until).min()
    }

    /// Acknowledgements whose delay is over become due.
    pub fn on_timeout(&mut self, now: Instant, flows: &mut Flows) {
        while let Some(&(at, id)) = self.delayed.front()
            && at <= now + ACK_SLACK
        {
            self.delayed.pop_front();
            let Some(flow) = flows.get_mut(id) else { continue };
            flow.due.ack_delayed = false;
            if flow.recv.unacknowledged > 0 {
                self.ack(flow);
            } else if flow.recv.owes_drained() {
                self.window(flow);
            }
        }
    }

    // Frames are sent.

    /// Sends due frames, as long as paths take them. `clock` is the session's time in microseconds.
    pub fn send(
        &mut self,
        (now, clock): (Instant, u64),
        flows: &mut Flows,
        flow_control: &mut FlowControl,
        paths: &mut Paths,
        outlet: &mut dyn Outlet,
    ) {
        self.send_on_own_paths((now, clock), paths, outlet);
        if !self.budget.permits(now, paths, self.has_due()) {
            return;
        }
        let mut batch = Vec::new();
        while self.has_due() {
            let Some(slot) = paths.control_slot(None) else { return };
            batch.clear();
            self.fill(now, slot, &mut batch, flows, flow_control, paths);
            if batch.is_empty() {
                // None of the due frames is needed any more.
                continue;
            }
            self.budget.charge(batch.len());
            paths.send_control(slot, &batch, outlet);
            if batch.len() <= ACK_REPEAT_MAX {
                let rank = |slot: usize| paths.get(slot).map(|path| path.wish.rank);
                let fits = |other: &usize| paths.takes_copies(*other) && rank(*other) == rank(slot);
                if let Some(other) = paths.control_slot(Some(slot)).filter(fits) {
                    self.budget.charge(batch.len());
                    paths.send_control(other, &batch, outlet);
                }
            }
        }
    }

    fn has_due(&self) -> bool {
        self.due_credit || !self.due.is_empty() || !self.due_ended.is_empty()
    }

    /// Sends PONGs on the paths of their PINGs, and PINGs, GOAWAY and notices on all paths.
    fn send_on_own_paths(
        &mut self,
        (now, clock): (Instant, u64),
        paths: &mut Paths,
        outlet: &mut dyn Outlet,
    ) {
        let mut batch = Vec::new();
        for Pong { slot, token, sent_us, received_us } in std::mem::take(&mut self.pongs) {
            batch.clear();
            encode(&Frame::Pong { token, sent_us, received_us }, &mut batch);
            paths.send_control(slot, &batch, outlet);
        }
        let going_away = self.going_away.take().map(|reason| Frame::GoAway { reason });
        if going_away.is_some() {
            self.went_away_at = Some(now);
        }
        let notices: Vec<Notice> = self.notices.drain(..).collect();
        for slot in paths.slots() {
            let Some(path) = paths.get_mut(slot) else { continue };
            batch.clear();
            if let Some(frame) = &going_away {
                encode(frame, &mut batch);
                // Flow 0 has a PING follow soon, also if one is in flight.
                path.pings.sent_control(now, FlowId::default());
                path.pings.soon(now);
            }
            if path.standing != Standing::Closing {
                notices.iter().for_each(|&n| encode(&Frame::PathStatus(n), &mut batch));
            }
            if now >= path.pings.next_at() {
                path.pings.sent(now, self.next_ping);
                encode(&Frame::Ping { token: self.next_ping, sent_us: clock }, &mut batch);
                self.next_ping += 1;
            }
            if !batch.is_empty() {
                paths.send_control(slot, &batch, outlet);
            }
        }
    }

    /// Encodes due frames into one batch.
    fn fill(
        &mut self,
        now: Instant,
        slot: usize,
        batch: &mut Vec<u8>,
        flows: &mut Flows,
        flow_control: &mut FlowControl,
        paths: &mut Paths,
    ) {
        let mut unconfirmed = Vec::new();
        if std::mem::take(&mut self.due_credit) {
            let (limit, drained) = flow_control.credit.advertise();
            encode(&Frame::Window { flow: FlowId::default(), limit, drained }, batch);
            unconfirmed.push(FlowId::default());
        }
        while batch.len() < CONTROL_BATCH - FRAME_MAX
            && let Some(id) = self.due.pop_front()
        {
            let flow = flows.get_mut(id);
            unconfirmed.extend(flow.and_then(|flow| put_due(flow, self.role, batch)));
        }
        while batch.len() < CONTROL_BATCH - FRAME_MAX
            && let Some(id) = self.due_ended.pop_first()
        {
            put_end(id, flows.outcome(id), batch);
            unconfirmed.push(id);
        }
        if let Some(path) = paths.get_mut(slot) {
            unconfirmed.into_iter().for_each(|number| path.pings.sent_control(now, number));
            // A peer that does not answer PINGs may end flows without limit.
            if path.pings.unconfirmed() > 2 * flows.len() + UNCONFIRMED_ENDED_MAX {
                let open = |&number: &FlowId| flows.numbered(number).is_some();
                path.pings
                    .retain_unconfirmed(|number| *number == FlowId::default() || open(number));
            }
        }
    }
}

/// Encodes the due frames of one flow into the batch; returns its number, unless there are none.
fn put_due(flow: &mut Flow, role: NodeRole, batch: &mut Vec<u8>) -> Option<FlowId> {
    let due = std::mem::take(&mut flow.due);
    flow.due = Due { ack_delayed: due.ack_delayed, ..Due::default() };
    // A flow without a number is unknown to the peer.
    let number = flow.number?;
    let length = batch.len();
    if due.reset
        && let Some(reset) = reset_of(number, flow)
    {
        encode(&Frame::Reset(reset), batch);
    }
    if due.ack {
        encode(&Frame::Ack(ack_of(number, flow, role)), batch);
    } else if due.window {
        let (told, owes) = (flow.recv.limit, flow.recv.owes_drained());
        let quarter = flow.recv.wants_drained();
        let (limit, drained) = flow.recv.advertise();
        if limit > told || owes || quarter {
            encode(&Frame::Window { flow: number, limit, drained }, batch);
        }
    }
    (batch.len() > length).then_some(number)
}

/// Encodes the end of a flow into the batch.
fn put_end(number: FlowId, outcome: FlowOutcome, batch: &mut Vec<u8>) {
    let frame = match outcome {
        FlowOutcome::Reset { reason, last, after } => {
            Frame::Reset(Reset { flow: number, answer: true, reason, last, after })
        }
        FlowOutcome::Delivered => Frame::Ack(Ack {
            flow: number,
            done: true,
            cumulative: NUMBER_MAX,
            limit: NUMBER_MAX,
            drained: NUMBER_MAX,
            ..Ack::default()
        }),
    };
    encode(&frame, batch);
}

fn ack_of(number: FlowId, flow: &mut Flow, role: NodeRole) -> Ack {
    flow.recv.unacknowledged = 0;
    let (limit, drained) = flow.recv.advertise();
    Ack {
        flow: number,
        done: false,
        dialed: role == NodeRole::Cloud && flow.dialed,
        cumulative: flow.recv.cumulative,
        limit,
        drained,
        echo: flow.recv.echo.take(),
        ranges: flow.recv.ranges_for_ack(ACK_RANGES_MAX),
    }
}

fn reset_of(number: FlowId, flow: &Flow) -> Option<Reset> {
    let (reason, after, answer) = match flow.life {
        Life::Live => return None,
        Life::Resetting { reason, after, .. } => (reason, after, false),
        // The answer states how far this side still reads.
        Life::Ending { reason, after } => (reason, after, true),
    };
    Some(Reset { flow: number, answer, reason, last: flow.send.next, after })
}

/// Control frames take at most [`ACK_UPLINK_SHARE`] of the uplink and [`ACK_RECEIVED_SHARE`] (next
/// to a call [`ACK_RECEIVED_SHARE_CALLS`]) of the received user data; beyond, they wait for at most
/// [`ACK_DELAY_MAX`].
#[derive(Debug)]
struct AckBudget {
    /// The least rate of the uplink that counts; `None`: without limit while none is known.
    least: Option<Bitrate>,
    tokens: f64,
    at: Instant,
    blocked_until: Option<Instant>,
}

impl AckBudget {
    fn new(now: Instant, role: NodeRole) -> Self {
        let least = (role == NodeRole::Gateway).then_some(UPLINK_LEAST);
        Self { least, tokens: 0.0, at: now, blocked_until: None }
    }

    /// Whether control frames may be sent now; `due` if there are any.
    fn permits(&mut self, now: Instant, paths: &Paths, due: bool) -> bool {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        let rates = paths.iter().filter_map(|path| path.link.proven_rate);
        let proven: u64 = rates.map(Bitrate::as_bps).sum();
        let uplink = proven.max(self.least.map_or(0, Bitrate::as_bps));
        if uplink == 0 {
            self.tokens = ACK_BURST;
        }
        self.earn(uplink as f64 / 8.0 * ACK_UPLINK_SHARE * age);
        let until = *self.blocked_until.get_or_insert(now + ACK_DELAY_MAX);
        let permitted = self.tokens > 0.0 || !due || now >= until;
        if permitted {
            self.blocked_until = None;
        }
        permitted
    }

    fn earn(&mut self, bytes: f64) {
        self.tokens = (self.tokens + bytes).clamp(-ACK_BURST, ACK_BURST);
    }

    fn charge(&mut self, bytes: usize) {
        self.tokens -= (bytes + PACKET_OVERHEAD) as f64;
    }
}

/// An upper bound of a control frame, in bytes.
const FRAME_MAX: usize = 1_024;
/// An acknowledgement that becomes due this shortly after another is sent with it.
const ACK_SLACK: Duration = Duration::from_millis(2);
/// Bytes of acknowledgements that may be sent at once.
const ACK_BURST: f64 = 16.0 * 1024.0;
/// A gateway that only acknowledges never fills its uplink. So it may not learn the rate, or learn
/// a much lower one from a few packets of telemetry. The downlinks of a cloud are wide enough for
/// any acknowledgements.
const UPLINK_LEAST: Bitrate = Bitrate::from_bps(1_000_000);
/// What the packet around a batch takes, about: IP, UDP and QUIC, or TCP and TLS.
const PACKET_OVERHEAD: usize = 60;
/// PONGs that may be due; only a misbehaving peer causes more.
const PONGS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use polyrail_model::UserId;

    use super::*;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
        Instant::now()
    }

    #[test]
    fn flow_is_listed_once_and_delayed_acknowledgement_becomes_due() {
        let now = base();
        let (mut outbox, mut flows) = (Outbox::new(now, NodeRole::Cloud), Flows::default());
        flows.insert(Flow::new(now, FlowId(1), UserId(1), false, 0, 1_000));
        flows.number(FlowId(1));
        let flow = flows.get_mut(FlowId(1)).unwrap();
        outbox.ack(flow);
        outbox.window(flow);
        assert_eq!((outbox.due.len(), outbox.next_timeout()), (1, None));
        let mut batch = Vec::new();
        let mut put = || put_due(flow, NodeRole::Cloud, &mut batch);
        assert_eq!((put(), put()), (Some(FlowId(1)), None));
        outbox.due.clear();
        flow.recv.unacknowledged = 1;
        outbox.ack_later(now, flow);
        outbox.ack_later(now, flow);
        assert_eq!(outbox.next_timeout(), Some(now + ACK_DELAY));
        outbox.on_timeout(now + ACK_DELAY, &mut flows);
        assert!(outbox.has_due() && outbox.next_timeout().is_none());
    }

    #[test]
    fn acknowledgements_beyond_their_budget_wait_for_a_bounded_time() {
        let now = base();
        let at = |ms| now + Duration::from_millis(ms);
        let paths = Paths::new(now);
        let mut cloud = AckBudget::new(now, NodeRole::Cloud);
        for _ in 0..100 {
            cloud.charge(ACK_BURST as usize);
            assert!(cloud.permits(now, &paths, true), "no limit without a known rate");
        }
        let mut gateway = AckBudget::new(now, NodeRole::Gateway);
        assert!(gateway.permits(at(1), &paths, true), "3.75 kB a second");
        gateway.charge(375 - PACKET_OVERHEAD + 3);
        assert!(!gateway.permits(at(1), &paths, true) && gateway.permits(at(1), &paths, false));
        assert!(!gateway.permits(at(2), &paths, true) && !gateway.permits(at(51), &paths, true));
        assert!(gateway.permits(at(52), &paths, true), "after 50 ms at the latest");
        gateway.charge(10 * ACK_BURST as usize);
        assert!(!gateway.permits(at(53), &paths, true));
        gateway.earn(ACK_BURST + 1.0);
        assert!(gateway.permits(at(53), &paths, true), "the debt is bounded");
    }

    #[test]
    fn notices_and_pongs_are_bounded() {
        let mut outbox = Outbox::new(base(), NodeRole::Gateway);
        for token in 0..1_000 {
            outbox.notice(PathId(token), Said::Stalled);
            outbox.pong(Pong { slot: 0, token, sent_us: 0, received_us: 0 });
        }
        assert_eq!((outbox.notices.len(), outbox.pongs.len()), (NOTICES_MAX, PONGS_MAX));
        assert_eq!(outbox.notices.back().unwrap().path, PathId(999));
    }
}
