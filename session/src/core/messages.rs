//! TELEMETRY and HANDOVER: where the train is, and what the databases of handovers say.
//!
//! None of it is confirmed or sent again here. Of telemetry only the newest counts. A message of
//! the databases that must arrive at once goes ahead of everything, a copy on each path, also on
//! one that comes or has room again within seconds; one that has time goes on one path, and so
//! seldom that users do not feel it. What is lost the databases say again. Serials tell the
//! receiver which copies it has had.
//!
//! Invariant: `now`, `recent` and `later` hold whole frames, and no more than their bounds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, LedgerMessage, PathId, Telemetry, Urgency};

use super::outlet::Outlet;
use super::paths::Paths;
use super::turns::Turns;
use crate::counters::Counters;
use crate::limits::{
    LEDGER_LATER_MAX, LEDGER_LATER_PAUSE_MAX, LEDGER_LATER_SHARE, LEDGER_NOW_BURST,
    LEDGER_NOW_KEPT, LEDGER_NOW_MAX, LEDGER_NOW_RATE,
};
use crate::wire::{Frame, encode};

#[derive(Debug)]
pub(super) struct Messages {
    /// What is to be told, and since when it waits.
    telemetry: Option<(Instant, Telemetry)>,
    telemetry_told: u64,
    telemetry_heard: u64,
    messages_told: u64,
    messages_heard: Counters,
    /// What must arrive at once, in order.
    now: VecDeque<Vec<u8>>,
    /// Of those, what has left just now: paths that take it only now get their copy.
    recent: VecDeque<Recent>,
    /// How many of those may go, as of when.
    now_tokens: f64,
    now_tokens_at: Instant,
    /// What has time, in order.
    later: VecDeque<Vec<u8>>,
    /// The next of those goes no sooner.
    later_at: Instant,
    dropped: u64,
}

/// A message that has left on some paths.
#[derive(Debug)]
struct Recent {
    frame: Vec<u8>,
    left_at: Instant,
    on: Vec<PathId>,
}

impl Messages {
    pub fn new(now: Instant) -> Self {
        Self {
            telemetry: None,
            telemetry_told: 0,
            telemetry_heard: 0,
            messages_told: 0,
            messages_heard: Counters::default(),
            now: VecDeque::new(),
            recent: VecDeque::new(),
            now_tokens: LEDGER_NOW_BURST,
            now_tokens_at: now,
            later: VecDeque::new(),
            later_at: now,
            dropped: 0,
        }
    }

    /// Messages that fell out of the queues.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Says something to the peer's database, in as many frames as it needs.
    pub fn say(&mut self, message: &LedgerMessage, urgency: Urgency) {
        match message {
            LedgerMessage::Known(trips) => {
                let parts = trips.chunks(LedgerMessage::KNOWN_MAX);
                let parts = parts.map(|part| LedgerMessage::Known(part.to_vec()));
                parts.for_each(|part| self.queue(part, urgency));
            }
            LedgerMessage::Records(records) => {
                let parts = records.chunks(LedgerMessage::RECORDS_MAX);
                let parts = parts.map(|part| LedgerMessage::Records(part.to_vec()));
                parts.for_each(|part| self.queue(part, urgency));
            }
            LedgerMessage::Digest(_) => self.queue(message.clone(), urgency),
        }
    }

    fn queue(&mut self, message: LedgerMessage, urgency: Urgency) {
        self.messages_told += 1;
        let mut frame = Vec::new();
        encode(&Frame::Handover { serial: self.messages_told, message }, &mut frame);
        let (queue, most) = match urgency {
            Urgency::Now => (&mut self.now, LEDGER_NOW_MAX),
            Urgency::Later => (&mut self.later, LEDGER_LATER_MAX),
        };
        if queue.len() >= most {
            queue.pop_front();
            self.dropped += 1;
        }
        queue.push_back(frame);
    }

    /// Whether something that is due at once may go; else when.
    fn may_go(&mut self, now: Instant) -> Result<(), Instant> {
        let age = now.saturating_duration_since(self.now_tokens_at).as_secs_f64();
        self.now_tokens_at = now;
        self.now_tokens = (self.now_tokens + age * LEDGER_NOW_RATE).min(LEDGER_NOW_BURST);
        let lacking = 1.0 - self.now_tokens;
        if lacking <= 0.0 {
            return Ok(());
        }
        // Rounded up: at the time named there is enough.
        Err(now + Duration::from_secs_f64(lacking / LEDGER_NOW_RATE) + Duration::from_millis(1))
    }

    /// Tells the peer where the train is, as soon as a path takes it (gateway).
    pub fn set_telemetry(&mut self, now: Instant, telemetry: &Telemetry) {
        self.telemetry = Some((now, telemetry.clone()));
    }

    /// Sends what must arrive at once, and the newest telemetry.
    pub fn send(
        &mut self,
        now: Instant,
        paths: &mut Paths,
        turns: &mut Turns,
        outlet: &mut dyn Outlet,
    ) {
        while !self.now.is_empty() {
            if let Err(at) = self.may_go(now) {
                turns.wake_by(at);
                break;
            }
            if paths.live_slots().is_empty() {
                break;
            }
            let Some(frame) = self.now.pop_front() else { break };
            self.now_tokens -= 1.0;
            self.recent.push_back(Recent { frame, left_at: now, on: Vec::new() });
        }
        self.spread_recent(now, paths, outlet);
        self.tell_telemetry(now, paths, outlet);
    }

    /// A copy of what is urgent for each path that takes it and has not had it.
    fn spread_recent(&mut self, now: Instant, paths: &mut Paths, outlet: &mut dyn Outlet) {
        self.recent.retain(|recent| now < recent.left_at + LEDGER_NOW_KEPT);
        for Recent { frame, on, .. } in &mut self.recent {
            let mut slots = paths.live_slots();
            slots.extend(paths.stalled_slots());
            for slot in slots {
                let Some(path) = paths.get(slot) else { continue };
                if !on.contains(&path.id) {
                    on.push(path.id);
                    paths.send_control(slot, frame, outlet);
                }
            }
        }
    }

    /// On the fastest path; on others if they have room.
    fn tell_telemetry(&mut self, now: Instant, paths: &mut Paths, outlet: &mut dyn Outlet) {
        let slots = paths.live_slots();
        let Some(&fastest) = slots.first() else { return };
        let Some((since, mut telemetry)) = self.telemetry.take() else { return };
        telemetry.age += now.saturating_duration_since(since);
        self.telemetry_told += 1;
        let mut frame = Vec::new();
        let serial = self.telemetry_told;
        encode(&Frame::Telemetry { serial, telemetry }, &mut frame);
        for slot in slots {
            if slot == fastest || paths.has_room(slot) {
                paths.send_control(slot, &frame, outlet);
            }
        }
    }

    /// What has time goes on the path that has least to do, one frame a round trip, and beside
    /// users' data so seldom that it takes a small share of that path.
    pub fn send_later(
        &mut self,
        now: Instant,
        paths: &mut Paths,
        turns: &mut Turns,
        outlet: &mut dyn Outlet,
    ) {
        if self.later.is_empty() {
            return;
        }
        if now < self.later_at {
            return turns.wake_by(self.later_at);
        }
        let slots = paths.live_slots().into_iter().filter(|&slot| paths.has_room(slot));
        let busy = |slot: &usize| paths.get(*slot).map(|path| path.outstanding);
        // Of paths that have as much to do the fastest, which stands first.
        let Some(slot) = slots.min_by_key(busy) else { return };
        let Some(path) = paths.get(slot) else { return };
        let Some(frame) = self.later.pop_front() else { return };
        let bytes = Bytes(frame.len() as u64 * LEDGER_LATER_SHARE);
        let most = LEDGER_LATER_PAUSE_MAX;
        let share = |rate: Bitrate| rate.time_for(bytes).map_or(most, |time| time.min(most));
        // Alone on its path it is in nobody's way, and the rate known is no more than its own.
        let shared = path.rate.most().filter(|_| path.outstanding > 0);
        let share = shared.map(share).unwrap_or_default();
        self.later_at = now + path.srtt().max(share);
        paths.send_control(slot, &frame, outlet);
        if !self.later.is_empty() {
            turns.wake_by(self.later_at);
        }
    }

    /// Whether telemetry of the peer is newer than what came before.
    pub fn is_newest(&mut self, serial: u64) -> bool {
        let before = self.telemetry_heard;
        self.telemetry_heard = before.max(serial);
        serial > before
    }

    /// Whether a message of the peer's database has not come before.
    pub fn is_new(&mut self, serial: u64) -> bool {
        self.messages_heard.accept(serial)
    }
}
