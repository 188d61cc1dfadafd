//! Messages that belong to no flow: their order, their rate and their paths.
//!
//! The session neither reads nor retransmits them. Of [`Delivery::Latest`] only the newest message
//! of each channel is queued. [`Delivery::Prompt`] is sent once, on the fastest path.
//! [`Delivery::Urgent`] has priority over everything else and is sent on every path, including
//! paths that come up or have room again within seconds. [`Delivery::Background`] is sent on one
//! path, so rarely that flows do not notice. Serials let the receiver discard copies.
//!
//! Invariant: the queues hold whole payloads, at most as many as their bounds.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, Channel, Delivery, PathId};

use super::outlet::Outlet;
use super::paths::Paths;
use super::turns::Turns;
use crate::counters::Counters;
use crate::limits::{
    BACKGROUND_MAX, BACKGROUND_PAUSE_MAX, BACKGROUND_SHARE, COUNTER_RANGES_MAX, PROMPT_MAX,
    URGENT_BURST, URGENT_KEPT, URGENT_MAX, URGENT_RATE,
};
use crate::wire::{Frame, MESSAGE_MAX, encode};

#[derive(Debug)]
pub(crate) struct Messages {
    /// Serial of the last message that was queued.
    serial: u64,
    latest: BTreeMap<Channel, Queued>,
    latest_received: BTreeMap<Channel, u64>,
    received: Counters,
    prompt: VecDeque<Queued>,
    urgent: VecDeque<Queued>,
    /// Urgent messages that were sent, for paths that take control again.
    recent: VecDeque<Recent>,
    /// Urgent messages that may be sent, as of `tokens_at`.
    tokens: f64,
    tokens_at: Instant,
    background: VecDeque<Queued>,
    /// When the next background message may be sent.
    background_at: Instant,
    /// Messages that were dropped because a queue was full or the payload too long.
    pub dropped: u64,
}

#[derive(Debug)]
struct Queued {
    channel: Channel,
    serial: u64,
    queued_at: Instant,
    payload: Vec<u8>,
}

/// A message that was sent on some paths.
#[derive(Debug)]
struct Recent {
    frame: Vec<u8>,
    sent_at: Instant,
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
            received: Counters::new(COUNTER_RANGES_MAX),
            prompt: VecDeque::new(),
            urgent: VecDeque::new(),
            recent: VecDeque::new(),
            tokens: URGENT_BURST,
            tokens_at: now,
            background: VecDeque::new(),
            background_at: now,
            dropped: 0,
        }
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
            Delivery::Prompt => (&mut self.prompt, PROMPT_MAX),
            Delivery::Urgent => (&mut self.urgent, URGENT_MAX),
            Delivery::Background => (&mut self.background, BACKGROUND_MAX),
        };
        if queue.len() >= max {
            queue.pop_front();
            self.dropped += 1;
        }
        queue.push_back(message);
    }

    /// Whether a received message is new; false for a copy and for an outdated message.
    pub fn accept(&mut self, channel: Channel, latest: bool, serial: u64) -> bool {
        if !latest {
            return self.received.accept(serial);
        }
        let newest = self.latest_received.entry(channel).or_default();
        let is_new = serial > *newest;
        *newest = serial.max(*newest);
        is_new
    }

    /// Whether an urgent message may be sent; if not, when.
    fn permit_urgent(&mut self, now: Instant) -> Result<(), Instant> {
        let age = now.saturating_duration_since(self.tokens_at).as_secs_f64();
        self.tokens_at = now;
        self.tokens = (self.tokens + age * URGENT_RATE).min(URGENT_BURST);
        let lacking = 1.0 - self.tokens;
        if lacking <= 0.0 {
            return Ok(());
        }
        // Rounded up, so that the token is there at that time.
        Err(now + Duration::from_secs_f64(lacking / URGENT_RATE) + Duration::from_millis(1))
    }

    /// Sends urgent messages, then the prompt ones, then the latest of each channel.
    pub fn send(
        &mut self,
        now: Instant,
        paths: &mut Paths,
        turns: &mut Turns,
        outlet: &mut dyn Outlet,
    ) {
        while !self.urgent.is_empty() {
            if let Err(at) = self.permit_urgent(now) {
                turns.wake_by(at);
                break;
            }
            if paths.live_slots().is_empty() {
                break;
            }
            let Some(message) = self.urgent.pop_front() else { break };
            self.tokens -= 1.0;
            let frame = message.frame(now, false);
            self.recent.push_back(Recent { frame, sent_at: now, on: Vec::new() });
        }
        self.spread_recent(now, paths, outlet);
        self.send_prompt(now, paths, outlet);
        self.send_latest(now, paths, outlet);
    }

    /// Sends each recent urgent message on each path that takes it and has not carried it.
    fn spread_recent(&mut self, now: Instant, paths: &mut Paths, outlet: &mut dyn Outlet) {
        self.recent.retain(|recent| now < recent.sent_at + URGENT_KEPT);
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

    fn send_prompt(&mut self, now: Instant, paths: &mut Paths, outlet: &mut dyn Outlet) {
        if self.prompt.is_empty() {
            return;
        }
        let Some(&fastest) = paths.live_slots().first() else { return };
        for message in std::mem::take(&mut self.prompt) {
            paths.send_control(fastest, &message.frame(now, false), outlet);
        }
    }

    /// Sends the latest messages on the fastest path, and on others that have room.
    fn send_latest(&mut self, now: Instant, paths: &mut Paths, outlet: &mut dyn Outlet) {
        if self.latest.is_empty() {
            return;
        }
        let slots = paths.live_slots();
        let Some(&fastest) = slots.first() else { return };
        for message in std::mem::take(&mut self.latest).into_values() {
            let frame = message.frame(now, true);
            for &slot in &slots {
                if slot == fastest || paths.takes_copies(slot) {
                    paths.send_control(slot, &frame, outlet);
                }
            }
        }
    }

    /// Sends a background message on the path with the least data in flight: one a round trip, and
    /// next to flows' data so rarely that it takes a small share of that path.
    pub fn send_background(
        &mut self,
        now: Instant,
        paths: &mut Paths,
        turns: &mut Turns,
        outlet: &mut dyn Outlet,
    ) {
        if self.background.is_empty() {
            return;
        }
        if now < self.background_at {
            return turns.wake_by(self.background_at);
        }
        let slots = paths.live_slots().into_iter().filter(|&slot| paths.has_room(slot));
        let busy = |slot: &usize| paths.get(*slot).map(|path| path.stall.outstanding);
        // Among equal paths the first, which is the fastest.
        let Some(slot) = slots.min_by_key(busy) else { return };
        let Some(path) = paths.get(slot) else { return };
        let Some(message) = self.background.pop_front() else { return };
        let frame = message.frame(now, false);
        let bytes = Bytes(frame.len() as u64 * BACKGROUND_SHARE);
        let max = BACKGROUND_PAUSE_MAX;
        let share = |rate: Bitrate| rate.time_for(bytes).map_or(max, |time| time.min(max));
        // On a path without other data, the measured rate is that of the messages.
        let shared = path.link.rate.max().filter(|_| path.stall.outstanding > 0);
        let share = shared.map(share).unwrap_or_default();
        self.background_at = now + path.link.srtt().max(share);
        paths.send_control(slot, &frame, outlet);
        if !self.background.is_empty() {
            turns.wake_by(self.background_at);
        }
    }
}
