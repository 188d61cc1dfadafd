//! The receiving half: acknowledges, and hands over what is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::{Content, Delivery, PacketKind, Segment};

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    stream: bool,
    cumulative: u64,
    ahead: BTreeMap<u64, Rc<Segment>>,
    parts: BTreeMap<u64, Vec<Rc<Segment>>>,
    /// Messages that were handed over or dropped: all below, and these.
    below: u64,
    handed: BTreeSet<u64>,
    /// Greetings handed over.
    epoch: u64,
}

impl Receiver {
    pub(super) fn new(stream: bool) -> Self {
        Self {
            stream,
            cumulative: 0,
            ahead: BTreeMap::new(),
            parts: BTreeMap::new(),
            below: 0,
            handed: BTreeSet::new(),
            epoch: 0,
        }
    }

    /// Takes a segment in; returns the acknowledgement to send, and hands over what is complete.
    pub fn accept(
        &mut self,
        serial: u64,
        segment: Rc<Segment>,
        deliveries: &mut Vec<Delivery>,
    ) -> PacketKind {
        if serial >= self.cumulative && !self.ahead.contains_key(&serial) {
            self.ahead.insert(serial, Rc::clone(&segment));
            if !self.stream {
                self.collect(segment, deliveries);
            }
            while let Some(segment) = self.ahead.remove(&self.cumulative) {
                self.cumulative += 1;
                if self.stream {
                    hand_over(&segment, deliveries);
                }
            }
        }
        PacketKind::Ack { serial, cumulative: self.cumulative }
    }

    fn collect(&mut self, segment: Rc<Segment>, deliveries: &mut Vec<Delivery>) {
        let number = segment.message.number;
        if self.was_handed(number) {
            return;
        }
        if matches!(segment.message.content, Content::Withdrawn) {
            self.parts.remove(&number);
            self.over(number);
        } else {
            self.parts.entry(number).or_default().push(segment);
        }
        // Messages that wait for another one follow it at once.
        while let Some(number) = self.ready() {
            let Some(mut parts) = self.parts.remove(&number) else { return };
            self.over(number);
            let message = Rc::clone(&parts[0].message);
            if message.is_control() || message.epoch == self.epoch {
                parts.sort_by_key(|part| part.range.start);
                parts.iter().for_each(|part| hand_over(part, deliveries));
            }
            self.epoch += u64::from(message.is_barrier());
        }
    }

    fn over(&mut self, number: u64) {
        self.handed.insert(number);
        while self.handed.remove(&self.below) {
            self.below += 1;
        }
    }

    fn ready(&self) -> Option<u64> {
        let whole = |parts: &Vec<Rc<Segment>>| {
            let message = &parts[0].message;
            let held: usize = parts.iter().map(|part| part.range.len()).sum();
            let turn = match &message.content {
                Content::Close => self.below == message.number,
                _ if message.number == 0 => true,
                _ if message.is_control() => self.was_handed(message.after),
                // Data needs the tunnel, too, which the first message makes.
                _ => message.epoch <= self.epoch && self.was_handed(0),
            };
            held == message.length() && turn
        };
        self.parts.iter().find(|(_, parts)| whole(parts)).map(|(&number, _)| number)
    }

    fn was_handed(&self, message: u64) -> bool {
        message < self.below || self.handed.contains(&message)
    }
}

fn hand_over(segment: &Rc<Segment>, deliveries: &mut Vec<Delivery>) {
    let last = segment.range.end == segment.message.length();
    match &segment.message.content {
        Content::Frames(..) => deliveries.push(Delivery::Frames(Rc::clone(segment))),
        Content::Hello if last => deliveries.push(Delivery::Hello),
        Content::Finished => deliveries.push(Delivery::Finished),
        Content::Close => deliveries.push(Delivery::Close),
        Content::Hello | Content::Withdrawn => {}
    }
}
