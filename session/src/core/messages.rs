//! Messages that belong to no flow: which of them leaves when, and on which paths.
//!
//! The session neither reads nor retransmits them. Of [`Delivery::Latest`] only the newest on each
//! channel waits. [`Delivery::Urgent`] goes ahead of everything, a copy on each path, including
//! paths that come up or have room again within seconds. [`Delivery::Background`] goes on one path,
//! so rarely that flows do not notice. Serials let the receiver discard copies.
//!
//! Invariant: the queues hold whole payloads, at most as many as their bounds.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, Channel, Delivery, PathId};

use super::{Outlet, Session};
use crate::Event;
use crate::counters::Counters;
use crate::limits::{
    BACKGROUND_MAX, BACKGROUND_PAUSE_MAX, BACKGROUND_SHARE, URGENT_BURST, URGENT_KEPT, URGENT_MAX,
    URGENT_RATE,
};
use crate::path::Path;
use crate::wire::{Frame, MESSAGE_MAX, encode};

#[derive(Debug)]
pub(super) struct Messages {
    /// Serial of the last message that was queued.
    serial: u64,
    latest: BTreeMap<Channel, Queued>,
    latest_received: BTreeMap<Channel, u64>,
    received: Counters,
    urgent: VecDeque<Queued>,
    /// Urgent messages that have left: paths that take control only now get their copy.
    recent: VecDeque<Recent>,
    /// How many urgent messages may leave, as of `tokens_at`.
    tokens: f64,
    tokens_at: Instant,
    background: VecDeque<Queued>,
    /// When the next one of `background` may leave.
    background_at: Instant,
    dropped: u64,
}

#[derive(Debug)]
struct Queued {
    channel: Channel,
    serial: u64,
    queued_at: Instant,
    payload: Vec<u8>,
}

/// A message that has left on some paths.
#[derive(Debug)]
struct Recent {
    frame: Vec<u8>,
    left_at: Instant,
    on: Vec<PathId>,
}

impl Queued {
    fn frame(&self, now: Instant, latest: bool) -> Vec<u8> {
        let Self { channel, serial, queued_at, ref payload } = *self;
        let waited = now.saturating_duration_since(queued_at);
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let mut frame = Vec::new();
        encode(&Frame::Message { channel, latest, serial, waited_us, payload }, &mut frame);
        frame
    }
}

impl Messages {
    pub fn new(now: Instant) -> Self {
        Self {
            serial: 0,
            latest: BTreeMap::new(),
            latest_received: BTreeMap::new(),
            received: Counters::default(),
            urgent: VecDeque::new(),
            recent: VecDeque::new(),
            tokens: URGENT_BURST,
            tokens_at: now,
            background: VecDeque::new(),
            background_at: now,
            dropped: 0,
        }
    }

    /// Number of messages that were dropped because a queue was full or the payload too long.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Queues a message. A full queue drops its oldest one.
    pub fn queue(&mut self, now: Instant, channel: Channel, delivery: Delivery, payload: Vec<u8>) {
        if payload.len() > MESSAGE_MAX {
            self.dropped += 1;
            return;
        }
        self.serial += 1;
        let message = Queued { channel, serial: self.serial, queued_at: now, payload };
        let (queue, max) = match delivery {
            Delivery::Latest => {
                self.latest.insert(channel, message);
                return;
            }
            Delivery::Urgent => (&mut self.urgent, URGENT_MAX),
            Delivery::Background => (&mut self.background, BACKGROUND_MAX),
        };
        if queue.len() >= max {
            queue.pop_front();
            self.dropped += 1;
        }
        queue.push_back(message);
    }

    /// Whether a received message is new; false for a copy, and for one that a newer one replaces.
    fn accept(&mut self, channel: Channel, latest: bool, serial: u64) -> bool {
        if !latest {
            return self.received.accept(serial);
        }
        let newest = self.latest_received.entry(channel).or_default();
        let is_new = serial > *newest;
        *newest = serial.max(*newest);
        is_new
    }

    /// Whether an urgent message may leave; if not, when.
    fn may_leave(&mut self, now: Instant) -> Result<(), Instant> {
        let age = now.saturating_duration_since(self.tokens_at).as_secs_f64();
        self.tokens_at = now;
        self.tokens = (self.tokens + age * URGENT_RATE).min(URGENT_BURST);
        let lacking = 1.0 - self.tokens;
        if lacking <= 0.0 {
            return Ok(());
        }
        // Rounded up, so that there is a token then.
        Err(now + Duration::from_secs_f64(lacking / URGENT_RATE) + Duration::from_millis(1))
    }
}

impl Session {
    /// Queues a message to the peer.
    pub fn send_message(
        &mut self,
        now: Instant,
        channel: Channel,
        delivery: Delivery,
        payload: Vec<u8>,
    ) {
        self.messages.queue(now, channel, delivery, payload);
    }

    /// Sends urgent messages, then the latest of each channel: ahead of everything else.
    pub(super) fn send_messages(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        while !self.messages.urgent.is_empty() {
            if let Err(at) = self.messages.may_leave(now) {
                self.wake_by(at);
                break;
            }
            if self.live_slots().is_empty() {
                break;
            }
            let Some(message) = self.messages.urgent.pop_front() else { break };
            self.messages.tokens -= 1.0;
            let frame = message.frame(now, false);
            self.messages.recent.push_back(Recent { frame, left_at: now, on: Vec::new() });
        }
        self.spread_recent(now, outlet);
        self.send_latest(now, outlet);
    }

    /// Sends a copy of each recent urgent message on each path that takes it and has not had one.
    fn spread_recent(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        let mut recent = std::mem::take(&mut self.messages.recent);
        recent.retain(|recent| now < recent.left_at + URGENT_KEPT);
        for Recent { frame, on, .. } in &mut recent {
            let mut slots = self.live_slots();
            slots.extend(self.stalled_slots());
            for slot in slots {
                let Some(path) = self.paths[slot].as_ref() else { continue };
                if !on.contains(&path.id) {
                    on.push(path.id);
                    self.put_control(slot, frame, outlet);
                }
            }
        }
        self.messages.recent = recent;
    }

    /// On the fastest path, and on others that have room.
    fn send_latest(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        if self.messages.latest.is_empty() {
            return;
        }
        let slots = self.live_slots();
        let Some(&fastest) = slots.first() else { return };
        for message in std::mem::take(&mut self.messages.latest).into_values() {
            let frame = message.frame(now, true);
            for &slot in &slots {
                if slot == fastest || self.has_room(slot) {
                    self.put_control(slot, &frame, outlet);
                }
            }
        }
    }

    /// Sends a background message on the path that has least in flight: one a round trip, and next
    /// to flows' data so rarely that it takes a small share of that path.
    pub(super) fn send_background(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        if self.messages.background.is_empty() {
            return;
        }
        if now < self.messages.background_at {
            return self.wake_by(self.messages.background_at);
        }
        let slots = self.live_slots().into_iter().filter(|&slot| self.has_room(slot));
        let busy = |slot: &usize| self.paths[*slot].as_ref().map(|path| path.outstanding);
        // Among paths with as much in flight the fastest, which is the first.
        let Some(slot) = slots.min_by_key(busy) else { return };
        let Some(path) = self.paths[slot].as_ref() else { return };
        let Some(message) = self.messages.background.pop_front() else { return };
        let frame = message.frame(now, false);
        let bytes = Bytes(frame.len() as u64 * BACKGROUND_SHARE);
        let max = BACKGROUND_PAUSE_MAX;
        let share = |rate: Bitrate| rate.time_for(bytes).map_or(max, |time| time.min(max));
        // A path that carries nothing else needs no share, and its rate is that of the messages.
        let shared = path.rate.most().filter(|_| path.outstanding > 0);
        let share = shared.map(share).unwrap_or_default();
        self.messages.background_at = now + path.srtt().max(share);
        self.put_control(slot, &frame, outlet);
        if !self.messages.background.is_empty() {
            self.wake_by(self.messages.background_at);
        }
    }

    /// Stalled paths that take control. One of them may have recovered unnoticed, and a path that
    /// counts as live may be dark.
    fn stalled_slots(&self) -> impl Iterator<Item = usize> {
        let paths = self.paths.iter().enumerate();
        paths.filter_map(|(slot, path)| {
            let stalls = |path: &&Path| path.stalled && !path.superseded && !path.backup;
            path.as_ref().filter(stalls).filter(|path| path.takes_control()).map(|_| slot)
        })
    }

    fn has_room(&self, slot: usize) -> bool {
        self.paths[slot].as_ref().is_some_and(|path| path.room > 0)
    }

    /// Passes on a message of the peer, unless it is a copy or outdated.
    pub(super) fn on_message(
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
}
