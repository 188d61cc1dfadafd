//! Paths of a session: they come, stall, recover, are superseded and go.
//!
//! What a lost path carried goes back to the flows' buffers; so does what a stalled one carries as
//! soon as another path can take it, lazily: the scheduler decides anew segment by segment.

use std::time::Instant;

use polyrail_model::{FlowId, LinkSample, PathId};
use polyrail_scheduler::PathView;

use super::Session;
use crate::flow::Flow;
use crate::limits::SESSION_PATHS_MAX;
use crate::path::{Carried, Path};
use crate::{Event, TunnelKey};

impl Session {
    /// Adds a path; false when there are too many. Of the paths of one carrier the one with the
    /// highest number supersedes the others.
    pub fn add_path(
        &mut self,
        now: Instant,
        id: PathId,
        tunnel: TunnelKey,
        carrier: &str,
        backup: bool,
    ) -> bool {
        if self.paths.iter().flatten().count() >= SESSION_PATHS_MAX {
            return false;
        }
        let same = |path: &&Path| path.carrier == carrier;
        // Greetings may come in another order than they left: the number decides, on both sides.
        let superseded = self.paths.iter().flatten().filter(same).any(|path| path.id > id);
        let older: Vec<usize> = (0..self.paths.len())
            .filter(|&slot| self.paths[slot].as_ref().filter(same).is_some_and(|path| path.id < id))
            .collect();
        let mut path = Path::new(now, id, tunnel, carrier.to_owned(), backup);
        path.superseded = superseded;
        let slot = self.paths.iter().position(Option::is_none).unwrap_or(self.paths.len());
        if slot == self.paths.len() {
            self.paths.push(None);
            self.views.push(path.view());
        }
        self.views[slot] = path.view();
        self.paths[slot] = Some(path);
        self.alone_since = None;
        self.greeted = true;
        for old in older {
            if let Some(path) = &mut self.paths[old] {
                path.superseded = true;
            }
            self.refresh(old);
        }
        self.take_back_from_stalled(now);
        true
    }

    /// A path's tunnel is gone.
    pub fn lose_path(&mut self, now: Instant, tunnel: TunnelKey) {
        let Some(slot) = self.slot_of(tunnel) else { return };
        self.take_back(now, slot, true);
        let lost = self.paths[slot].take();
        self.views[slot] = absent(self.views[slot]);
        if let Some(lost) = lost.filter(|path| !path.superseded) {
            self.reinstate(&lost.carrier);
        }
        if self.paths.iter().all(Option::is_none) {
            self.alone_since = Some(now);
        }
    }

    /// The path that had taken over is gone before it delivered: the one before it goes on.
    fn reinstate(&mut self, carrier: &str) {
        let older = |path: &Path| path.carrier == carrier && path.superseded && !path.dismissed;
        let slots = 0..self.paths.len();
        let older = slots.filter(|&slot| self.paths[slot].as_ref().is_some_and(older));
        let newest = older.max_by_key(|&slot| self.paths[slot].as_ref().map(|path| path.id));
        if let Some(slot) = newest {
            if let Some(path) = &mut self.paths[slot] {
                path.superseded = false;
            }
            self.refresh(slot);
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
            self.views[slot] = path.view();
        }
    }

    pub fn sample(&mut self, now: Instant, tunnel: TunnelKey, sample: &LinkSample) {
        let Some(slot) = self.slot_of(tunnel) else { return };
        let Some(path) = &mut self.paths[slot] else { return };
        path.sample(sample);
        let k = self.settings.reinjection.timeouts;
        if k.is_some_and(|k| path.timeouts() >= k) && path.outstanding > 0 && !path.stalled {
            self.stall(now, slot);
        }
        self.refresh(slot);
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
            self.views[slot] = path.view();
        }
    }

    /// Looks at all paths: who is overdue stalls.
    pub(super) fn judge(&mut self, now: Instant) {
        if !self.settings.reinjection.stall {
            return;
        }
        for slot in 0..self.paths.len() {
            if self.paths[slot].as_ref().is_some_and(|path| path.is_overdue(now)) {
                self.stall(now, slot);
            }
        }
    }

    fn stall(&mut self, now: Instant, slot: usize) {
        let Some(path) = &mut self.paths[slot] else { return };
        path.stalled = true;
        path.ping_soon(now);
        tracing::debug!(path = path.id.0, carrier = path.carrier, "path stalls");
        self.refresh(slot);
        self.take_back_from_stalled(now);
    }

    /// The path has proved that it delivers.
    pub(super) fn progress(&mut self, now: Instant, slot: usize) {
        let Some(path) = &mut self.paths[slot] else { return };
        let recovered = path.progress(now);
        let (carrier, superseded) = (path.carrier.clone(), path.superseded);
        if recovered {
            tracing::debug!(path = path.id.0, carrier, "path recovers");
            self.refresh(slot);
            self.take_back_from_stalled(now);
        }
        if superseded {
            return;
        }
        let older =
            |path: &&mut Path| path.superseded && !path.dismissed && path.carrier == carrier;
        for path in self.paths.iter_mut().flatten().filter(older) {
            path.dismissed = true;
            let reason = "superseded by a newer tunnel of the same carrier".to_owned();
            self.events.push_back(Event::CloseTunnel { tunnel: path.tunnel, reason });
        }
    }

    /// What stalled and superseded paths carry goes back, if another path can take it.
    fn take_back_from_stalled(&mut self, now: Instant) {
        let usable = |path: &Path| !path.stalled && !path.superseded;
        if !self.paths.iter().flatten().any(usable) {
            return;
        }
        for slot in 0..self.paths.len() {
            if self.paths[slot].as_ref().is_some_and(|path| !usable(path)) {
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
        self.reinjected += freed;
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

    /// Paths no longer wait for what this flow has out.
    pub(super) fn free_paths_of(&mut self, flow: &Flow) {
        for (length, live) in flow.send.out() {
            self.settle(length, live);
        }
    }

    pub(super) fn settle(&mut self, length: u64, live: polyrail_scheduler::PathSet) {
        for slot in live.iter() {
            if let Some(Some(path)) = self.paths.get_mut(slot) {
                path.outstanding = path.outstanding.saturating_sub(length);
                self.views[slot].outstanding = polyrail_model::Bytes(path.outstanding);
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
    PathView { room: polyrail_model::Bytes::ZERO, stalled: true, ..view }
}
