//! One direction of one link: from a TUN device through the link model to another.

use std::fs::File;
use std::io::ErrorKind;
use std::time::Instant;

use super::frame::{Frame, Pool};
use crate::control::Setting;
use crate::link::{Blackout, LinkModel, Schedule};
use crate::report::{DirectionReport, Timing};

/// How many packets are taken in before others get their turn.
const READ_BATCH: usize = 32;

pub(super) struct Lane<'f> {
    from: &'f File,
    to: &'f File,
    model: LinkModel<Frame>,
    pool: Pool,
    timing: Timing,
    refused: u64,
    /// When the model next wants to be asked.
    wake: Option<Instant>,
}

impl<'f> Lane<'f> {
    pub(super) fn new(from: &'f File, to: &'f File, model: LinkModel<Frame>, pool: Pool) -> Self {
        Self { from, to, model, pool, timing: Timing::new(), refused: 0, wake: None }
    }

    /// Takes in what waits at the device, within a bound.
    pub(super) fn take_in(&mut self) {
        for _ in 0..READ_BATCH {
            let frame = match self.pool.read(self.from) {
                Ok(frame) => frame,
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        tracing::debug!(%error, "reading from a device");
                    }
                    break;
                }
            };
            let bytes = frame.len();
            let verdict = self.model.enqueue(Instant::now(), frame, bytes);
            tracing::trace!(bytes, ?verdict, "packet in");
        }
        self.wake = self.model.next_departure();
    }

    /// Gives out what is due, and records how late.
    pub(super) fn give_out(&mut self, now: Instant) {
        if self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        while let Some((due, frame)) = self.model.poll_due(Instant::now()) {
            if let Err(error) = frame.write(self.to) {
                // The interface is down, or the packet is not what its namespace takes.
                self.refused += 1;
                tracing::debug!(%error, "writing to a device");
            }
            self.timing.record(due.elapsed());
        }
        self.wake = self.model.next_departure();
    }

    pub(super) fn wake(&self) -> Option<Instant> {
        self.wake
    }

    pub(super) fn set_blackout(&mut self, now: Instant, blackout: Option<Blackout>) {
        self.model.set_blackout(now, blackout);
        self.wake = self.model.next_departure();
    }

    pub(super) fn set(&mut self, now: Instant, setting: Setting) {
        match setting {
            Setting::Rate(rate) => self.model.set_rate(now, Schedule::constant(rate)),
            Setting::Delay(delay) => self.model.set_delay(now, Schedule::constant(delay)),
            Setting::Loss(loss) => self.model.set_loss(now, loss),
            Setting::Queue(queue) => self.model.set_queue(now, queue),
        }
        self.wake = self.model.next_departure();
    }

    pub(super) fn timing(&self) -> &Timing {
        &self.timing
    }

    pub(super) fn report(&self) -> DirectionReport {
        DirectionReport {
            counters: *self.model.counters(),
            queued: self.model.queued(),
            in_flight: self.model.in_flight(),
            refused: self.refused,
            unsorted_drops: None,
            dark: self.model.blackout().is_some(),
            timing: Some(self.timing.report()),
        }
    }
}
