//! One direction of one link: from a TUN device through the link model to another.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::time::Instant;

use super::frame::{Frame, Pool};
use crate::link::{Blackout, LinkModel, Setting, Verdict};
use crate::packet::nat::{Nat, Passage};
use crate::packet::{class, icmp};
use crate::report::{DirectionReport, Timing};
use crate::scenario::direction_seed;

/// The most packets read in one turn.
const READ_BATCH: usize = 32;

pub(super) struct Lane<'f> {
    from: &'f File,
    to: &'f File,
    /// From far to near: the NAT is at its beginning, otherwise at its end.
    down: bool,
    model: LinkModel<Frame>,
    pool: Pool,
    timing: Timing,
    refused: u64,
    nat_dropped: u64,
    /// The next departure of the model.
    wake: Option<Instant>,
}

impl<'f> Lane<'f> {
    pub(super) fn new(
        from: &'f File,
        to: &'f File,
        down: bool,
        model: LinkModel<Frame>,
        pool: Pool,
    ) -> Self {
        let (timing, refused, nat_dropped) = (Timing::new(), 0, 0);
        Self { from, to, down, model, pool, timing, refused, nat_dropped, wake: None }
    }

    /// Reads queued packets from the device, within a bound.
    pub(super) fn take_in(&mut self, nat: &mut Nat) {
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
            self.take(frame, nat);
        }
        self.wake = self.model.next_departure();
    }

    fn take(&mut self, mut frame: Frame, nat: &mut Nat) {
        // The ICMP answer quotes the packet as it was sent.
        let answer = self.answer(&frame);
        if self.down && nat.inbound(frame.packet_mut()) == Passage::Dropped {
            self.nat_dropped += 1;
            return;
        }
        let (bytes, class) = (frame.packet().len(), class(frame.packet()));
        let verdict = self.model.enqueue_as(Instant::now(), class, frame, bytes);
        tracing::trace!(bytes, ?verdict, "packet in");
        if let (Verdict::TooBig, Some(answer)) = (verdict, answer)
            && let Err(error) = self.from.write(&answer)
        {
            tracing::debug!(%error, "sending the MTU to a sender");
        }
    }

    /// The ICMP answer if the packet is too big.
    fn answer(&self, frame: &Frame) -> Option<Vec<u8>> {
        let mtu = self.model.spec().mtu.filter(|mtu| !mtu.silent)?;
        let too_big = frame.packet().len() > usize::from(mtu.bytes);
        too_big.then(|| icmp::too_big(frame.packet(), mtu.bytes))?
    }

    /// Sends due packets, and records how late they are.
    pub(super) fn give_out(&mut self, now: Instant, nat: &mut Nat) {
        if self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        while let Some((due, mut frame)) = self.model.poll_due(Instant::now()) {
            if !self.down && nat.outbound(frame.packet_mut()) == Passage::Dropped {
                self.nat_dropped += 1;
            } else if let Err(error) = frame.write(self.to) {
                // The interface is down, or its namespace refuses the packet.
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
        let setting = match setting {
            Setting::Seed(seed) => Setting::Seed(direction_seed(seed, self.down)),
            other => other,
        };
        self.model.set(now, setting);
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
            nat_dropped: self.nat_dropped,
            unsorted_drops: None,
            dark: self.model.blackout().is_some(),
            timing: Some(self.timing.report()),
        }
    }
}
