//! Paths of a session: they come, stall, recover, are superseded and go.
//!
//! What a lost path carried goes back to the flows' buffers; so does what a hidden one carries as
//! soon as another path can take it, lazily: the scheduler decides anew segment by segment.
//!
//! Of the paths of one carrier the newest that the peer is known to hear supersedes the older ones;
//! a cloud knows that from the JOIN, a gateway from the answer. Until then the older ones go on, if
//! they can. An older path that delivers keeps what it carries and is closed when it is drained.
//! One that stalled is closed at once, and its tunnel need not deliver what others carry now.

use std::time::Instant;

use polyrail_model::{Bytes, FlowId, LinkSample, PathId};
use polyrail_scheduler::{Note, PathView, SEGMENT};

use super::Session;
use crate::flow::Flow;
use crate::limits::SESSION_PATHS_MAX;
use crate::path::{Carried, Manner, Path};
use crate::wire::Said;
use crate::{Event, Role, TunnelKey};

impl Session {
    /// Adds a path; false when there are too many. Superseded ones and older attempts make room:
    /// those of a restart that a carrier held back may all come at once.
    pub fn add_path(
        &mut self,
        now: Instant,
        id: PathId,
        tunnel: TunnelKey,
        manner: Manner<'_>,
    ) -> bool {
        if self.paths.iter().flatten().count() >= SESSION_PATHS_MAX && !self.make_room(now) {
            return false;
        }
        let mut path = Path::new(now, id, tunnel, manner);
        path.carrier_number = self.number_of(manner.carrier);
        let same = self.paths.iter().flatten().filter(|other| other.carrier == manner.carrier);
        if let Some(newest) = same.max_by_key(|other| other.id) {
            path.expect(newest.srtt());
        }
        let slot = self.paths.iter().position(Option::is_none).unwrap_or(self.paths.len());
        if slot == self.paths.len() {
            self.paths.push(None);
            self.views.push(path.view());
        }
        self.paths[slot] = Some(path);
        self.alone_since = None;
        self.greeted = true;
        if manner.proven {
            self.take_over(now, slot);
        }
        self.choose(now);
        true
    }

    /// The number of a carrier: that of the paths it has, else one that is free.
    fn number_of(&self, carrier: &str) -> u32 {
        let paths = || self.paths.iter().flatten();
        let known = paths().find(|path| path.carrier == carrier).map(|path| path.carrier_number);
        let is_free = |number: &u32| paths().all(|path| path.carrier_number != *number);
        known.or_else(|| (0..).find(is_free)).unwrap_or_default()
    }

    /// Drops the oldest path that was superseded, or is not proven while its carrier has a newer
    /// one; false when there is none.
    fn make_room(&mut self, now: Instant) -> bool {
        let paths = self.paths.iter().flatten();
        let has_newer = |path: &Path| {
            paths.clone().any(|other| other.carrier == path.carrier && other.id > path.id)
        };
        let spare = paths.clone().filter(|p| p.superseded || (!p.proven && has_newer(p)));
        let Some(oldest) = spare.min_by_key(|path| path.id) else { return false };
        let (tunnel, told) = (oldest.tunnel, oldest.dismissed);
        if !told {
            self.dismiss(tunnel);
        }
        self.lose_path(now, tunnel);
        true
    }

    fn dismiss(&mut self, tunnel: TunnelKey) {
        let reason = "superseded by a newer tunnel of the same carrier".to_owned();
        self.events.push_back(Event::CloseTunnel { tunnel, reason, superseded: true });
    }

    /// The peer hears this path. Greetings may come in another order than they left: the number
    /// decides, on both sides.
    fn take_over(&mut self, now: Instant, slot: usize) {
        let Some(path) = &self.paths[slot] else { return };
        if path.superseded {
            return;
        }
        let (id, carrier) = (path.id, path.carrier.clone());
        let rivals = self.paths.iter_mut().flatten().filter(|path| path.carrier == carrier);
        let (mut newer, mut older) = (false, false);
        for rival in rivals {
            newer |= rival.id > id && rival.is_sound();
            if rival.id < id && !rival.superseded {
                (rival.superseded, older) = (true, true);
            }
        }
        if let Some(path) = &mut self.paths[slot] {
            path.superseded = newer;
            if older {
                // Its PONG is the progress that lets the older ones go.
                path.ping_soon(now);
            }
        }
    }

    /// A path was welcomed.
    pub fn prove(&mut self, now: Instant, tunnel: TunnelKey) {
        let Some(slot) = self.slot_of(tunnel) else { return };
        let Some(path) = &mut self.paths[slot] else { return };
        let recovered = path.progress(now);
        if recovered {
            self.events.push_back(Event::PathRecovered { tunnel });
        }
        if !std::mem::replace(&mut path.proven, true) || recovered {
            self.take_over(now, slot);
            self.choose(now);
        }
    }

    /// Decides which paths the scheduler may use, and takes back what others carry.
    fn choose(&mut self, now: Instant) {
        let paths = self.paths.iter().flatten();
        let sound = paths.clone().any(Path::is_sound);
        let newest_hope = |path: &Path| {
            let mut rivals = paths.clone().filter(|rival| rival.carrier == path.carrier);
            !sound && !rivals.any(|r| r.id > path.id && !r.stalled && !r.superseded)
        };
        let hides =
            |path: &Path| path.stalled || path.superseded || !(path.proven || newest_hope(path));
        let hidden: Vec<bool> =
            self.paths.iter().map(|path| path.as_ref().is_some_and(hides)).collect();
        self.rivalry = paths.clone().any(|path| {
            paths.clone().any(|rival| rival.id != path.id && rival.carrier == path.carrier)
        });
        for (slot, hidden) in hidden.into_iter().enumerate() {
            if let Some(path) = &mut self.paths[slot] {
                path.hidden = hidden;
            }
            self.refresh(slot);
        }
        self.take_back_hidden(now);
    }

    /// A path's tunnel is gone.
    pub fn lose_path(&mut self, now: Instant, tunnel: TunnelKey) {
        let Some(slot) = self.slot_of(tunnel) else { return };
        self.take_back(now, slot, true);
        let lost = self.paths[slot].take();
        self.chain.note(&Note::Gone { path: self.views[slot].id }, now);
        self.views[slot] = absent(self.views[slot]);
        self.withdrawals.retain(|(of, _)| *of != tunnel);
        if let Some(lost) = lost.filter(|path| !path.superseded) {
            self.reinstate(&lost.carrier);
        }
        self.choose(now);
        if self.paths.iter().all(Option::is_none) {
            self.alone_since = Some(now);
        }
    }

    /// The path that had taken over is gone or stalls before it delivered: the one before it goes
    /// on.
    fn reinstate(&mut self, carrier: &str) {
        let rivals = || self.paths.iter().flatten().filter(|path| path.carrier == carrier);
        if rivals().any(Path::is_sound) {
            return;
        }
        let older = rivals().filter(|path| path.superseded && !path.dismissed);
        let newest = older.map(|path| path.id).max();
        for path in self.paths.iter_mut().flatten().filter(|path| Some(path.id) == newest) {
            (path.superseded, path.relieved) = (false, false);
        }
    }

    pub(super) fn slot_of(&self, tunnel: TunnelKey) -> Option<usize> {
        self.paths.iter().position(|path| path.as_ref().is_some_and(|p| p.tunnel == tunnel))
    }

    pub fn set_room(&mut self, tunnel: TunnelKey, room: usize) {
        let Some(slot) = self.slot_of(tunnel) else { return };
        if let Some(path) = &mut self.paths[slot] {
            path.room = room as u64;
            if room > 0 {
                path.control_debt = 0;
            }
            self.refresh(slot);
        }
    }

    pub fn sample(&mut self, now: Instant, tunnel: TunnelKey, sample: &LinkSample) {
        let Some(slot) = self.slot_of(tunnel) else { return };
        let Some(path) = &mut self.paths[slot] else { return };
        path.sample(sample);
        let waits = path.outstanding > 0 && !path.stalled;
        self.views[slot].capacity = path.capacity.now(now);
        self.refresh(slot);
        let back = self.chain.gives_back(&self.views[slot], now);
        if waits && back {
            self.stall(now, slot);
        }
    }

    /// A round-trip time that the greeting took.
    pub fn measured(&mut self, tunnel: TunnelKey, rtt: std::time::Duration) {
        if let Some(slot) = self.slot_of(tunnel) {
            if let Some(path) = &mut self.paths[slot] {
                path.measured(rtt);
            }
            self.refresh(slot);
        }
    }

    pub(super) fn refresh(&mut self, slot: usize) {
        if let Some(path) = &self.paths[slot] {
            let PathView { forecast, track, rate_age, capacity, .. } = self.views[slot];
            let fresh = path.view();
            self.views[slot] = PathView { forecast, track, rate_age, capacity, ..fresh };
            self.show_room(slot);
        }
    }

    /// The room that the scheduler sees: the tunnel's, and what a handler's cap leaves of it. An
    /// idle path always has some: caps are no less than a segment, and nothing is out there.
    pub(super) fn show_room(&mut self, slot: usize) {
        let Some(path) = &self.paths[slot] else { return };
        let left = self.left_by_cap(slot).unwrap_or(path.room);
        self.views[slot].room = Bytes(path.room.min(left));
    }

    /// The same for all paths: caps change with what arrives and with what handlers are asked.
    pub(super) fn show_rooms(&mut self) {
        if self.chain.has_handlers() {
            (0..self.paths.len()).for_each(|slot| self.show_room(slot));
        }
    }

    /// What may still go out before a handler's cap is reached, in bytes.
    pub(super) fn left_by_cap(&self, slot: usize) -> Option<u64> {
        let path = self.paths.get(slot)?.as_ref()?;
        let cap = self.chain.cap(path.id)?.0.max(SEGMENT);
        Some(cap.saturating_sub(path.outstanding))
    }

    /// Looks at all paths: who is overdue stalls.
    pub(super) fn judge(&mut self, now: Instant) {
        let judged = self.settings.stall;
        for slot in 0..self.paths.len() {
            let overdue = |path: &Path| path.is_judged(judged) && path.is_overdue(now);
            if self.paths[slot].as_ref().is_some_and(overdue) {
                self.stall(now, slot);
            }
        }
    }

    fn stall(&mut self, now: Instant, slot: usize) {
        let Some(path) = &mut self.paths[slot] else { return };
        path.stalled = true;
        path.ping_soon(now);
        tracing::debug!(path = path.id.0, carrier = path.carrier, "path stalled");
        let (tunnel, since) = (path.tunnel, path.dark_since(now));
        self.events.push_back(Event::PathStalled { tunnel, since });
        let (id, current) = (path.id, !path.superseded);
        let young = (!path.delivered).then(|| path.carrier.clone());
        if self.role == Role::Cloud && current && path.outstanding > 0 {
            // Only the gateway can put another tunnel in its place.
            self.notice(id, Said::Stalled);
        }
        if let Some(carrier) = young.filter(|_| current) {
            self.reinstate(&carrier);
        }
        self.choose(now);
        self.dismiss_drained(now);
    }

    /// The path has proved that it delivers.
    pub(super) fn progress(&mut self, now: Instant, slot: usize) {
        let Some(Some(path)) = self.paths.get_mut(slot) else { return };
        let recovered = path.progress(now);
        let fresh = !std::mem::replace(&mut path.proven, true);
        path.delivered = true;
        if recovered {
            self.events.push_back(Event::PathRecovered { tunnel: path.tunnel });
        }
        if recovered || fresh {
            tracing::debug!(path = path.id.0, carrier = path.carrier, "path makes progress");
            self.take_over(now, slot);
            self.choose(now);
        }
        if self.rivalry {
            self.relieve_older(slot);
            self.dismiss_drained(now);
        }
    }

    /// A path that is its carrier's newest has made progress: older ones are not needed any more.
    fn relieve_older(&mut self, slot: usize) {
        let Some(path) = self.paths[slot].as_ref().filter(|path| !path.superseded) else { return };
        let (id, carrier) = (path.id, path.carrier.clone());
        let older = |path: &&mut Path| path.superseded && path.carrier == carrier && path.id < id;
        for path in self.paths.iter_mut().flatten().filter(older) {
            path.relieved = true;
        }
    }

    /// Asks for the closing of superseded paths that have nothing under way any more.
    pub(super) fn dismiss_drained(&mut self, now: Instant) {
        for slot in 0..self.paths.len() {
            let over =
                |path: &&mut Path| path.leaves() && (path.gives_up() || path.is_drained(now));
            if let Some(path) = self.paths[slot].as_mut().filter(over) {
                path.dismissed = true;
                let (tunnel, given_up) = (path.tunnel, path.gives_up());
                if given_up {
                    self.recall(slot);
                }
                self.dismiss(tunnel);
            }
        }
    }

    /// What went out over this path goes over others: its tunnel must not send it again beside
    /// them while it ends.
    fn recall(&mut self, slot: usize) {
        let Some(path) = &self.paths[slot] else { return };
        let flows: std::collections::BTreeSet<FlowId> =
            path.carried.iter().map(|carried| carried.flow).collect();
        let flows = flows.into_iter().filter_map(|id| self.flows.get(&id));
        let units = flows.flat_map(|flow| flow.send.all_units());
        let tunnel = path.tunnel;
        self.withdrawals
            .extend(units.filter(|(_, on)| on.contains(slot)).map(|(tag, _)| (tunnel, tag)));
    }

    /// User data that came in and stopped is asked after, if more is to come.
    pub(super) fn listen(&mut self, now: Instant) {
        let open = !self.flows.is_empty();
        for path in self.paths.iter_mut().flatten() {
            if path.falls_silent(now) && open && !path.superseded {
                path.ping_soon(now);
            }
        }
    }

    /// What hidden paths carry goes back, if another path can take it.
    fn take_back_hidden(&mut self, now: Instant) {
        if self.paths.iter().flatten().all(|path| path.hidden) {
            return;
        }
        for slot in 0..self.paths.len() {
            if self.paths[slot].as_ref().is_some_and(|path| path.gives_up() && path.owes()) {
                self.take_back(now, slot, false);
            }
        }
    }

    /// Gives up what the path carries; with `forget` it may carry the same again.
    fn take_back(&mut self, now: Instant, slot: usize, forget: bool) {
        let Some(path) = &mut self.paths[slot] else { return };
        let carried: Vec<Carried> = if forget {
            path.carried.drain(..).collect()
        } else {
            path.carried.iter().copied().collect()
        };
        let mut spoken = std::mem::take(&mut path.spoken);
        spoken.append(&mut path.spoken_before);
        let mut touched = std::collections::BTreeSet::new();
        let mut freed = 0;
        for Carried { flow: id, start, end } in carried {
            if let Some(flow) = self.flows.get_mut(&id) {
                let given_up = flow.send.give_up(start, end, slot, forget);
                if given_up > 0 {
                    freed += given_up;
                    touched.insert(id);
                }
            }
        }
        if let Some(path) = &mut self.paths[slot] {
            path.outstanding = path.outstanding.saturating_sub(freed);
        }
        // Attempts that never delivered anything are no copies.
        let counts = self.paths[slot].as_ref().is_some_and(|path| path.delivered);
        self.reinjected += if counts { freed } else { 0 };
        if freed > 0 {
            let note = Note::Reinjected { path: self.views[slot].id, bytes: freed };
            self.chain.note(&note, now);
        }
        touched.into_iter().for_each(|id| self.enqueue(now, id));
        spoken.into_iter().for_each(|id| self.say_again(id));
        self.refresh(slot);
    }

    /// What was said of this flow may not have arrived.
    fn say_again(&mut self, id: FlowId) {
        if id == FlowId::default() {
            self.due_credit = true;
        } else if let Some(flow) = self.flows.get_mut(&id) {
            flow.due.ack = true;
            flow.due.reset = !matches!(flow.life, crate::flow::Life::Live);
            self.list(id);
        } else if self.seen.contains(id.0) {
            self.say_end_again(id);
        }
    }

    /// Paths no longer wait for what this flow has out, nor need they deliver it.
    pub(super) fn free_paths_of(&mut self, flow: &Flow) {
        for (length, live) in flow.send.out() {
            self.settle(length, live);
        }
        self.withdraw(flow.send.all_units());
    }

    /// These units need not arrive any more, whatever path carries them.
    pub(super) fn withdraw(&mut self, units: Vec<(u64, polyrail_scheduler::PathSet)>) {
        if !self.settings.withdrawal {
            return;
        }
        for (tag, on) in units {
            let paths = on.iter().filter_map(|slot| self.paths.get(slot)?.as_ref());
            self.withdrawals.extend(paths.map(|path| (path.tunnel, tag)));
        }
    }

    pub(super) fn settle(&mut self, length: u64, live: polyrail_scheduler::PathSet) {
        for slot in live.iter() {
            if let Some(Some(path)) = self.paths.get_mut(slot) {
                path.outstanding = path.outstanding.saturating_sub(length);
                self.views[slot].outstanding = Bytes(path.outstanding);
            }
        }
    }

    /// Drops settled entries from the front of what the path carries.
    pub(super) fn trim_carried(&mut self, slot: usize) {
        let Some(Some(path)) = self.paths.get_mut(slot) else { return };
        while let Some(entry) = path.carried.front() {
            let out = self.flows.get(&entry.flow);
            if out.is_some_and(|flow| flow.send.is_out(entry.start, entry.end)) {
                break;
            }
            path.carried.pop_front();
        }
    }
}

/// The view of a slot without a path: never available.
fn absent(view: PathView) -> PathView {
    PathView { room: Bytes::ZERO, stalled: true, ..view }
}
