//! Input: frames from the peer, and changes of paths.
//!
//! A protocol violation on one flow resets that flow; a violation of the session's rules is
//! returned, and closes the path on which it arrived.

use std::time::{Duration, Instant};

use polyrail_model::{
    Channel, Destination, FlowId, LinkSample, NodeRole, PathId, PathWish, UserId, Weight,
};
use polyrail_scheduler::{Note, PathSet};

use super::flows::FlowOutcome;
use super::outbox::Pong;
use super::paths::Progress;
use super::session::Session;
use crate::event::{Event, PathReport, TunnelKey};
use crate::flow::{Flow, Life, Run, Violation};
use crate::limits::{
    ACK_EVERY, FLOWS_REFUSED_MAX, FLOWS_UNOPENED_MAX, RESET_LINGER, SESSION_PATHS_MAX,
};
use crate::path::{Manner, Standing};
use crate::wire::{Ack, Echo, Frame, Notice, Open, Reset, ResetReason, Said, Target};

impl Session {
    /// Handles a frame that arrived over this tunnel.
    pub fn input(
        &mut self,
        now: Instant,
        tunnel: TunnelKey,
        frame: Frame<'_>,
    ) -> Result<(), Violation> {
        let Some(slot) = self.paths.slot_of(tunnel) else { return Ok(()) };
        self.hear(now);
        match frame {
            Frame::Open { open, data } => return self.on_open(now, slot, &open, data),
            Frame::Data { flow, sequence, sent_us, marks, data } => {
                self.on_weight(flow, marks.weight);
                let run = Run { sequence, open: false, data, fin: marks.fin };
                return self.on_run(now, slot, flow, &run, sent_us);
            }
            Frame::Ack(ack) => {
                let echoed = ack.echo.and_then(|echo| self.on_run_echo(now, echo));
                self.on_ack(now, &ack);
                if let Some(slot) = echoed {
                    self.progress(now, slot, true);
                }
            }
            Frame::Window { flow, limit, drained } => self.on_window(now, flow, limit, drained),
            Frame::Reset(reset) => return self.on_reset(now, &reset),
            Frame::Ping { token, sent_us } => {
                self.outbox.pong(Pong { slot, token, sent_us, received_us: self.clock(now) });
            }
            Frame::Pong { token, sent_us, received_us } => {
                self.on_pong(now, slot, token, (sent_us, received_us));
            }
            Frame::Message { channel, latest, serial, waited_us, payload } => {
                self.on_message((channel, latest), serial, waited_us, payload);
            }
            Frame::Datagram { datagram, data } => self.on_datagram(now, slot, datagram, data),
            Frame::PathStatus(notice) => self.on_notice(now, notice),
            Frame::GoAway { reason } => {
                if !std::mem::replace(&mut self.peer_going, true) {
                    self.events.push_back(Event::PeerGoing { session: self.key, reason });
                }
            }
            Frame::Unknown { kind } => tracing::trace!(kind, "skipped a frame of unknown type"),
            Frame::Hello { .. }
            | Frame::Join { .. }
            | Frame::Welcome { .. }
            | Frame::Reject { .. } => return Err(Violation("a greeting inside a session")),
        }
        Ok(())
    }

    /// Microseconds of this side's clock.
    pub(super) fn clock(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    /// Reports a message of the peer, unless it is a copy or outdated.
    fn on_message(
        &mut self,
        (channel, latest): (Channel, bool),
        serial: u64,
        waited_us: u64,
        payload: &[u8],
    ) {
        if self.messages.accept(channel, latest, serial) {
            let (waited, payload) = (Duration::from_micros(waited_us), payload.to_vec());
            self.events.push_back(Event::Message { session: self.key, channel, waited, payload });
        }
    }

    // Data.

    fn on_open(
        &mut self,
        now: Instant,
        slot: usize,
        open: &Open,
        data: &[u8],
    ) -> Result<(), Violation> {
        if self.role == NodeRole::Gateway {
            return Err(Violation("an OPEN from the cloud"));
        }
        let Some(id) = self.ensure_flow(now, open.flow, true)? else { return Ok(()) };
        if let Some(flow) = self.flows.get_mut(id)
            && flow.target.is_none()
            && flow.is_callers()
        {
            flow.user = open.user;
            flow.target = Some(open.target.clone());
            flow.send.limit = flow.send.limit.max(open.window);
            match &open.target {
                Target::Server(destination) => self.on_opened(now, id, destination),
                Target::Binding(binding) => self.accept_stream(now, id, *binding),
            }
        }
        self.on_weight(open.flow, open.marks.weight);
        let run = Run { sequence: 0, open: true, data, fin: open.marks.fin };
        self.on_run(now, slot, open.flow, &run, open.sent_us)
    }

    /// A new flow leads to this server: tells the caller, or refuses it.
    fn on_opened(&mut self, now: Instant, id: FlowId, destination: &Destination) {
        let Some(user) = self.user_of(id) else { return };
        self.flows.users.add(user, id);
        let kept = match self.refuses_flows {
            true => Err(ResetReason::Overload),
            false => self.keep_opened(now, user),
        };
        match kept {
            Err(reason) => self.reset(now, id, reason),
            Ok(()) => {
                let (flow, destination) = (self.flow_key(id), destination.clone());
                self.events.push_back(Event::Opened { flow, user, destination });
            }
        }
    }

    /// The gateway states the weight of a flow's user (cloud).
    fn on_weight(&mut self, number: FlowId, weight: Weight) {
        if self.role == NodeRole::Cloud
            && let Some(flow) = self.flows.numbered(number).and_then(|id| self.flows.get_mut(id))
        {
            flow.weight = weight;
        }
    }

    /// The open flow with this number. An unknown flow is created without a target, which
    /// follows if the frame `opens` it; for an ended flow, its end is due again.
    fn ensure_flow(
        &mut self,
        now: Instant,
        number: FlowId,
        opens: bool,
    ) -> Result<Option<FlowId>, Violation> {
        if let Some(id) = self.flows.numbered(number) {
            return Ok(Some(id));
        }
        if self.flows.has_seen(number) {
            self.outbox.end(number);
            return Ok(None);
        }
        if self.flows.len() >= self.settings.flows_max + FLOWS_REFUSED_MAX {
            return Err(Violation("more flows than the bound"));
        }
        if !opens && self.flows.unopened() >= FLOWS_UNOPENED_MAX {
            return Err(Violation("more flows without an OPEN than the bound"));
        }
        self.see(number)?;
        let mut flow = Flow::new(now, number, UserId(0), false, 0, self.window_initial());
        (flow.number, flow.heard_before) = (Some(number), self.heard);
        self.flows.insert(flow);
        self.unopened_at.get_or_insert(now + RESET_LINGER);
        Ok(Some(number))
    }

    /// The peer uses a new flow number.
    fn see(&mut self, number: FlowId) -> Result<(), Violation> {
        if self.role == NodeRole::Gateway {
            return Err(Violation("a flow that was never opened"));
        }
        self.flows.see(number);
        Ok(())
    }

    fn on_run(
        &mut self,
        now: Instant,
        slot: usize,
        number: FlowId,
        run: &Run<'_>,
        sent_us: u64,
    ) -> Result<(), Violation> {
        let (received_us, calls) = (self.clock(now), self.paths.calls(now));
        let path = self.paths.get_mut(slot).map(|path| {
            let bytes = run.data.len() as u64;
            path.received += bytes;
            self.outbox.on_received(bytes, calls);
            path.pings.on_received(now, bytes, self.role == NodeRole::Gateway);
            (path.id, path.carrier_number)
        });
        let Some(id) = self.ensure_flow(now, number, false)? else {
            return self.count_ended(number, run.end());
        };
        let open = self.flows.len();
        let Some(flow) = self.flows.get_mut(id) else { return Ok(()) };
        let taken = match flow.recv.fresh(run) {
            Ok(fresh) => {
                self.flow_control.credit.receive(fresh, open)?;
                self.flow_control.accept(flow, run)
            }
            Err(violation) => Err(violation),
        };
        let advanced = match taken {
            Ok(advanced) => advanced,
            Err(Violation(what)) => {
                self.violate(now, id, what);
                return Ok(());
            }
        };
        if let Some((path, carrier)) = path {
            flow.recv.echo = Some(Echo { path, sent_us, received_us });
            flow.carriers.insert(carrier);
            if flow.only.is_some() {
                self.confined.received(carrier, run.data.len() as u64);
            }
        }
        flow.recv.unacknowledged += 1;
        if flow.recv.unacknowledged >= ACK_EVERY || run.fin || run.open {
            self.outbox.ack(flow);
        } else {
            self.outbox.ack_later(now, flow);
        }
        if advanced {
            self.announce(now, id);
            self.after_drain(now, id);
        }
        self.watch_readers(now);
        Ok(())
    }

    /// Reports to the caller that the flow is readable, once until it reads. Reads a stream.
    fn announce(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if let Some(binding) = flow.binding() {
            return self.read_stream(now, id, binding);
        }
        let known = flow.is_callers() && self.is_known(flow);
        if known
            && let Some(flow) = self.flows.get_mut(id)
            && !std::mem::replace(&mut flow.told_readable, true)
        {
            self.events.push_back(Event::Readable { flow: self.flow_key(id) });
        }
    }

    // Acknowledgements and windows.

    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        let Some(id) = self.flows.numbered(ack.flow) else { return };
        let Some(flow) = self.flows.get_mut(id) else { return };
        let before = flow.send.held();
        let (cumulative, drained) = if ack.done {
            // The peer needs no more data, not even the skipped numbers.
            flow.send.runs.drop_gaps();
            (flow.send.next, flow.send.next)
        } else {
            (ack.cumulative, ack.drained)
        };
        let mut settled: Vec<(u64, u64, PathSet)> = Vec::new();
        let ranges = if ack.done { &[] } else { ack.ranges.as_slice() };
        if self.flow_control.is_short_of_runs() && flow.send.splits(cumulative, ranges) {
            return self.violate(now, id, "an acknowledgement that splits runs without end");
        }
        let each = |start, length, live| settled.push((start, length, live));
        if !flow.send.acknowledge(cumulative, ranges, each) {
            return self.violate(now, id, "an acknowledgement of data that was never sent");
        }
        let freed = before - flow.send.held();
        let spare = flow.send.runs.take_spare();
        self.flow_control.held_sent -= freed;
        flow.send.limit = flow.send.limit.max(ack.limit);
        let progressed = self.flow_control.drained(now, flow, drained);
        self.flow_control.recount(flow);
        if ack.dialed {
            self.note_dialed(id);
        }
        if let (true, Some(flow)) = (ack.done, self.flows.get_mut(id))
            && let Life::Resetting { answered, after, .. } = &mut flow.life
        {
            (*answered, *after) = (true, 0);
        }
        self.note_acked(now, id, &settled);
        self.credit_paths(now, &settled);
        self.paths.withdraw(spare);
        let is_whole = |flow: &Flow| flow.send.is_done() && flow.recv.fin_reached();
        let forgotten = |flow: &Flow| ack.done && flow.life == Life::Live && !is_whole(flow);
        if let Some(flow) = self.flows.get_mut(id).filter(|flow| forgotten(flow)) {
            // The peer does not know the flow any more, and the flow was not over.
            flow.life = Life::Ending { reason: ResetReason::Internal, after: 0 };
            return self.end_if_over(now, id);
        }
        if freed > 0 {
            self.relieve_one(id);
            self.relieve();
        }
        self.enqueue(now, id);
        if let Some(binding) = self.flows.get(id).and_then(Flow::binding) {
            self.advance(now, binding);
        }
        if progressed {
            self.feed_starved(now);
        }
        self.end_if_over(now, id);
    }

    /// Tells the scheduler. For a run with copies, the first path counts, marked as unsure.
    fn note_acked(&mut self, now: Instant, flow: FlowId, settled: &[(u64, u64, PathSet)]) {
        let cumulative = self.flows.get(flow).map_or(0, |flow| flow.send.acked);
        for &(offset, bytes, live) in settled {
            let path = live.iter().next().and_then(|slot| self.paths.get(slot));
            let Some(path) = path.map(|path| path.id) else { continue };
            let sure = live.len() == 1;
            self.chain.note(&Note::Acked { path, sure, flow, offset, bytes, cumulative }, now);
        }
    }

    /// A path that alone carried an acknowledged run has made progress. If several paths carried
    /// the run, or the path is fresh, the echoes decide.
    fn credit_paths(&mut self, now: Instant, settled: &[(u64, u64, PathSet)]) {
        let (mut touched, mut progressed) = (PathSet::EMPTY, PathSet::EMPTY);
        for &(_, length, live) in settled {
            self.paths.settle(length, live);
            touched = touched.or(live);
            if live.len() == 1 {
                progressed = progressed.or(live);
            }
        }
        for slot in touched.iter() {
            self.paths.trim_carried(slot, &self.flows);
            let path = self.paths.get(slot);
            // A run that another path gave up may have arrived over that path.
            let credible = path.is_some_and(|path| path.proven && path.delivered);
            if credible && progressed.contains(slot) {
                self.progress(now, slot, true);
            }
        }
    }

    fn on_window(&mut self, now: Instant, number: FlowId, limit: u64, drained: u64) {
        if number == FlowId::default() {
            self.flow_control.credit.raise_limit(limit);
            return self.feed_starved(now);
        }
        let Some(id) = self.flows.numbered(number) else { return };
        let Some(flow) = self.flows.get_mut(id) else { return };
        flow.send.limit = flow.send.limit.max(limit);
        if self.flow_control.drained(now, flow, drained) {
            self.flow_control.recount(flow);
            self.feed_starved(now);
        }
        self.relieve_one(id);
        self.enqueue(now, id);
    }

    // Resets.

    fn on_reset(&mut self, now: Instant, reset: &Reset) -> Result<(), Violation> {
        let number = reset.flow;
        // A RESET may overtake its OPEN; data before it must still be delivered.
        let overtook = !reset.answer
            && reset.after > 0
            && self.role == NodeRole::Cloud
            && !self.flows.has_seen(number);
        if self.flows.numbered(number).is_none() && !overtook {
            return self.on_reset_of_ended(reset);
        }
        let Some(id) = self.ensure_flow(now, number, false)? else { return Ok(()) };
        let open = self.flows.len();
        let Some(flow) = self.flows.get_mut(id) else { return Ok(()) };
        let more = reset.last.saturating_sub(flow.recv.highest);
        self.flow_control.credit.receive(more, open)?;
        flow.recv.raise(reset.last);
        if reset.after > 0 {
            // The server has sent bytes: the RESET has overtaken the ACK that says so.
            self.note_dialed(id);
        }
        let Some(flow) = self.flows.get_mut(id) else { return Ok(()) };
        flow.life = match flow.life {
            Life::Resetting { reason, after: before, .. } => {
                // An answer states how far the peer still reads; a peer that resets reads no more.
                let after = if reset.answer { before.min(reset.after) } else { 0 };
                flow.life = Life::Resetting { reason, after, answered: true };
                self.cut_sending(id, after);
                self.end_if_over(now, id);
                if after < before && !self.flows.contains(id) {
                    // The peer must learn how many numbers were used.
                    self.outbox.end(number);
                }
                return Ok(());
            }
            // A repeated RESET may lower `after`, and never raises it.
            Life::Ending { reason, after: before } => {
                Life::Ending { reason, after: before.min(reset.after) }
            }
            Life::Live => Life::Ending { reason: reset.reason, after: reset.after },
        };
        flow.due.reset |= !reset.answer;
        self.outbox.list(flow);
        self.cut_sending(id, 0);
        self.leave_stream(now, id);
        if reset.after == 0 {
            self.discard_received(id);
            if self.flows.get(id).is_some_and(|flow| !self.is_known(flow)) {
                self.bury(now, id);
            }
        }
        self.end_if_over(now, id);
        Ok(())
    }

    /// The server was reached (gateway).
    fn note_dialed(&mut self, id: FlowId) {
        if let (NodeRole::Gateway, Some(flow)) = (self.role, self.flows.get_mut(id))
            && flow.life == Life::Live
            && flow.binding().is_none()
            && !std::mem::replace(&mut flow.dialed, true)
        {
            self.events.push_back(Event::Dialed { flow: self.flow_key(id) });
        }
    }

    /// A RESET of an ended flow, or of one whose OPEN was overtaken.
    fn on_reset_of_ended(&mut self, reset: &Reset) -> Result<(), Violation> {
        let id = reset.flow;
        if !self.flows.has_seen(id) {
            self.see(id)?;
            let outcome = FlowOutcome::Reset { reason: reset.reason, last: 0, after: 0 };
            self.flows.remember(id, outcome, 0);
        }
        self.count_ended(id, reset.last)?;
        if !reset.answer {
            self.outbox.end(id);
        }
        Ok(())
    }

    /// The peer has used numbers of an ended flow: they count, and are released at once.
    fn count_ended(&mut self, id: FlowId, end: u64) -> Result<(), Violation> {
        let more = self.flows.uncounted(id, end);
        self.flow_control.credit.receive(more, self.flows.len())?;
        self.flow_control.credit.release(more);
        self.flows.count_ended(id, more);
        self.outbox.due_credit |= self.flow_control.credit.wants_update();
        Ok(())
    }

    // Paths.

    /// Adds a path; false when there are too many.
    pub fn add_path(
        &mut self,
        now: Instant,
        id: PathId,
        tunnel: TunnelKey,
        manner: Manner<'_>,
    ) -> bool {
        if self.paths.iter().count() >= SESSION_PATHS_MAX {
            let Some(spare) = self.paths.spare() else { return false };
            let (tunnel, closed) = (spare.tunnel, spare.standing == Standing::Closing);
            if !closed {
                self.close_superseded(tunnel);
            }
            self.lose_path(now, tunnel);
        }
        self.paths.add(now, id, tunnel, manner);
        self.give_up_hidden(now);
        true
    }

    /// The other tunnels of a tunnel's carrier, the newest first.
    pub fn siblings(&self, tunnel: TunnelKey) -> Vec<TunnelKey> {
        self.paths.siblings(tunnel)
    }

    /// A path was welcomed; its greeting took `rtt`.
    pub fn welcomed(&mut self, now: Instant, tunnel: TunnelKey, rtt: Duration) {
        if let Some(slot) = self.paths.slot_of(tunnel) {
            self.paths.get_mut(slot).into_iter().for_each(|path| path.link.measured(rtt));
            self.progress(now, slot, false);
        }
        self.brief_new_path();
    }

    /// A path's tunnel is closed.
    pub fn lose_path(&mut self, now: Instant, tunnel: TunnelKey) {
        let Some(slot) = self.paths.slot_of(tunnel) else { return };
        self.give_up(now, slot, true);
        if let Some(lost) = self.paths.remove(now, slot) {
            let gone = Note::Gone { path: lost.id };
            self.chain.note(&gone, now);
            self.datagrams.chain.note(&gone, now);
        }
        self.give_up_hidden(now);
    }

    pub fn set_room(&mut self, tunnel: TunnelKey, room: usize) {
        if let Some(path) = self.paths.slot_of(tunnel).and_then(|slot| self.paths.get_mut(slot)) {
            path.set_room(room);
        }
    }

    pub fn sample(&mut self, now: Instant, tunnel: TunnelKey, sample: &LinkSample) {
        let Some(slot) = self.paths.slot_of(tunnel) else { return };
        let Some(path) = self.paths.get_mut(slot) else { return };
        path.link.sample(sample, path.sent + path.datagrams_sent);
        let waits = path.stall.outstanding > 0 && !path.stall.stalled;
        let Some(view) = self.paths.view_of(now, slot, &self.chain) else { return };
        if self.chain.gives_back(&view, now) && waits {
            self.stall(now, slot);
        }
    }

    /// Reports a problem of a path to the peer.
    pub fn report(&mut self, tunnel: TunnelKey, report: PathReport) {
        let said = match report {
            PathReport::Stalled => Said::Stalled,
            PathReport::Policed { rate } => Said::Policed { rate },
        };
        if let Some(path) = self.paths.slot_of(tunnel).and_then(|slot| self.paths.get(slot)) {
            self.outbox.notice(path.id, said);
        }
    }

    /// The operator wants the paths of this carrier used in another way.
    pub fn set_wish(&mut self, now: Instant, carrier: &str, wish: PathWish) {
        for slot in self.paths.slots() {
            let Some(path) = self.paths.get_mut(slot).filter(|path| path.carrier == carrier) else {
                continue;
            };
            let (id, told) = (path.id, path.wish);
            path.set_wish(now, wish);
            self.tell_wish(id, told, wish);
        }
    }

    /// Tells the peer how this path is used; it knows that the operator wanted it used as `told`.
    pub fn tell_wish(&mut self, path: PathId, told: PathWish, wish: PathWish) {
        let PathWish { rank, metered, rate_limit } = wish;
        if (told.rank, told.metered) != (rank, metered) {
            self.outbox.notice(path, Said::Use { rank, metered });
        }
        if told.rate_limit != rate_limit {
            self.outbox.notice(path, Said::Limit { rate: rate_limit });
        }
    }

    /// Takes the gateway's statement about the use of a path (cloud).
    fn on_wish(&mut self, now: Instant, slot: usize, said: Said) {
        let is_cloud = self.role == NodeRole::Cloud;
        let Some(path) = self.paths.get_mut(slot).filter(|_| is_cloud) else { return };
        let wish = match said {
            Said::Use { rank, metered } => PathWish { rank, metered, ..path.wish },
            Said::Limit { rate: rate_limit } => PathWish { rate_limit, ..path.wish },
            Said::Stalled | Said::Policed { .. } => return,
        };
        path.set_wish(now, wish);
    }

    fn on_notice(&mut self, now: Instant, notice: Notice) {
        let Some(slot) = self.paths.slot_of_id(notice.path) else { return };
        let Some(path) = self.paths.get_mut(slot) else { return };
        let (place, report) = match notice.said {
            Said::Stalled => (0, Some(PathReport::Stalled)),
            Said::Policed { rate } => (0, Some(PathReport::Policed { rate })),
            Said::Use { .. } => (1, None),
            Said::Limit { .. } => (2, None),
        };
        if notice.serial <= path.noticed[place] {
            return;
        }
        path.noticed[place] = notice.serial;
        let Some(report) = report else { return self.on_wish(now, slot, notice.said) };
        if self.role == NodeRole::Gateway {
            // A PING shows whether this side still receives on it, and lets its transport notice.
            path.pings.soon(now);
        }
        path.reports.add(report);
        self.pass_reports(now, slot);
    }

    /// Passes the peer's reports about a path to the caller.
    pub(super) fn pass_reports(&mut self, now: Instant, slot: usize) {
        let Some(path) = self.paths.get_mut(slot) else { return };
        let (tunnel, reports) = (path.tunnel, path.reports.take(now));
        self.events.extend(reports.map(|report| Event::PathReport { tunnel, report }));
    }

    /// Takes an echoed arrival; returns the slot of its path.
    fn on_echo(&mut self, now: Instant, echo: Echo) -> Option<usize> {
        let Echo { path: id, sent_us, received_us } = echo;
        let slot = self.paths.slot_of_id(id)?;
        let path = self.paths.get_mut(slot)?;
        let sent_at = self.epoch.checked_add(Duration::from_micros(sent_us))?;
        let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
        path.delay.sample(now, sent_at, signed(received_us).saturating_sub(signed(sent_us)));
        Some(slot)
    }

    /// Takes the echoed arrival of a run; returns the slot of its path.
    fn on_run_echo(&mut self, now: Instant, echo: Echo) -> Option<usize> {
        let slot = self.on_echo(now, echo)?;
        let path = self.paths.get_mut(slot)?;
        let queued = path.delay.queued().unwrap_or_default();
        path.link.run_echoed(now, echo.sent_us, echo.received_us, queued);
        Some(slot)
    }

    fn on_pong(
        &mut self,
        now: Instant,
        slot: usize,
        token: u64,
        (sent_us, received_us): (u64, u64),
    ) {
        let Some(path) = self.paths.get_mut(slot) else { return };
        let (id, pinged_at) = (path.id, path.pings.pinged_at());
        let rtt = path.pings.answered(now, token);
        let went_at = self.outbox.went_away_at.filter(|_| rtt.is_some());
        self.heard_going |= went_at.is_some_and(|at| pinged_at >= Some(at));
        rtt.into_iter().for_each(|rtt| path.link.measured(rtt));
        self.on_echo(now, Echo { path: id, sent_us, received_us });
        if rtt.is_some() {
            self.progress(now, slot, true);
        }
    }

    pub(super) fn stall(&mut self, now: Instant, slot: usize) {
        let Some(path) = self.paths.get(slot) else { return };
        let (tunnel, since) = (path.tunnel, path.dark_since(now));
        self.events.push_back(Event::PathStalled { tunnel, since });
        let current = self.paths.stall(now, slot);
        if let Some(path) = self.paths.get(slot)
            && self.role == NodeRole::Cloud
            && current
            && path.stall.outstanding > 0
        {
            // Only the gateway can replace the tunnel.
            self.outbox.notice(path.id, Said::Stalled);
        }
        self.give_up_hidden(now);
        self.close_drained(now);
    }

    /// The peer receives on the path; it has `delivered` unless it was only welcomed.
    fn progress(&mut self, now: Instant, slot: usize, delivered: bool) {
        let Progress { recovered, changed } = self.paths.progress(now, slot, delivered);
        if let Some(path) = self.paths.get(slot).filter(|_| recovered) {
            self.events.push_back(Event::PathRecovered { tunnel: path.tunnel });
        }
        if changed {
            self.give_up_hidden(now);
        }
        if delivered && self.paths.rivalry {
            self.close_drained(now);
        }
    }

    /// Closes superseded paths that have nothing in flight any more.
    pub(super) fn close_drained(&mut self, now: Instant) {
        for slot in self.paths.close_drained(now) {
            let Some(path) = self.paths.get(slot) else { continue };
            let (tunnel, given_up) = (path.tunnel, path.gives_up());
            if given_up {
                self.paths.withdraw_all(slot, &self.flows);
            }
            self.close_superseded(tunnel);
        }
    }

    fn close_superseded(&mut self, tunnel: TunnelKey) {
        let reason = "superseded by a newer tunnel of the same carrier".to_owned();
        self.events.push_back(Event::CloseTunnel { tunnel, reason, superseded: true });
    }

    /// Returns the runs of hidden paths to their flows, if other paths can take them: lazily,
    /// because the scheduler decides segment by segment.
    fn give_up_hidden(&mut self, now: Instant) {
        for slot in self.paths.to_give_up() {
            self.give_up(now, slot, false);
        }
    }

    /// Returns the path's runs to their flows; with `forget` it may carry the same runs again.
    fn give_up(&mut self, now: Instant, slot: usize, forget: bool) {
        let given_up = self.paths.give_up(slot, forget, &mut self.flows);
        let Some(path) = self.paths.get(slot) else { return };
        if given_up.bytes > 0 {
            // Attempts that never delivered anything are no copies.
            self.reinjected += if path.delivered { given_up.bytes } else { 0 };
            self.chain.note(&Note::Reinjected { path: path.id, bytes: given_up.bytes }, now);
        }
        given_up.flows.into_iter().for_each(|id| self.enqueue(now, id));
        let unconfirmed = given_up.unconfirmed.into_iter();
        unconfirmed.for_each(|id| self.outbox.repeat(id, &mut self.flows));
    }
}
