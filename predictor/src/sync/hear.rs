//! What the peer says, and what follows from it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{Handover, LedgerDigest, LedgerMessage, TripId, TripKnown};

use super::{DIGESTS_APART, INTERVAL, Ledger, PAUSE_MIN, RETRY, SETTLE, Share, Sync, Told};

impl Sync {
    pub(super) fn on_known<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &L,
        trip: TripId,
        next: u32,
    ) -> Result<(), L::Error> {
        if self.share == Share::Own {
            self.named.insert(trip);
        }
        let known = ledger.next_of(trip)?;
        if next == TripKnown::LEFT_OUT {
            if known > 0 {
                self.left_out.insert(trip);
            }
            self.drop_trip(trip);
            return Ok(());
        }
        if self.left_out.contains(trip) || known == TripKnown::LEFT_OUT {
            self.owe_answer(trip);
            return Ok(());
        }
        if let Some(page) = self.page.filter(|page| page.trip == trip) {
            if next == page.from {
                // It has not arrived, or this was said before: it goes again in its time.
                return Ok(());
            }
            self.page = None;
            self.gained |= next > page.from;
            self.settle(now);
        }
        self.lacking.retain(|(lacking, _)| *lacking != trip);
        let under_way = self.is_under_way(now, trip, next);
        match next.cmp(&known) {
            Ordering::Less if under_way => {}
            Ordering::Less => self.give(trip, next),
            Ordering::Equal => {}
            Ordering::Greater => self.owe_answer(trip),
        }
        Ok(())
    }

    /// Whether all that the peer lacks of a trip was said at once and may still arrive.
    fn is_under_way(&mut self, now: Instant, trip: TripId, next: u32) -> bool {
        let Some((from, to, until)) = self.unsure.get_mut(&trip) else { return false };
        if next >= *to {
            self.unsure.remove(&trip);
            return false;
        }
        let moves = next > *from;
        if moves {
            (*from, *until) = (next, now + RETRY);
        }
        moves
    }

    fn drop_trip(&mut self, trip: TripId) {
        self.page = self.page.filter(|page| page.trip != trip);
        self.lacking.retain(|(lacking, _)| *lacking != trip);
        self.unsure.remove(&trip);
    }

    /// Something moves: the next digest waits for what else comes.
    fn settle(&mut self, now: Instant) {
        if self.told.is_some() {
            self.digest_at = self.digest_at.max(now + SETTLE);
        }
    }

    pub(super) fn on_records<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &mut L,
        mut records: Vec<Handover>,
    ) -> Result<usize, L::Error> {
        records.truncate(LedgerMessage::RECORDS_MAX);
        let mut trips: BTreeMap<TripId, u32> = BTreeMap::new();
        for trip in records.iter().map(|record| record.trip) {
            if self.share == Share::Own {
                self.named.insert(trip);
            }
            trips.insert(trip, ledger.next_of(trip)?);
        }
        records.retain(|record| !self.left_out.contains(record.trip));
        let added = ledger.append(&records)?;
        for (trip, before) in trips {
            let after = ledger.next_of(trip)?;
            let offered = |record: &Handover| record.trip == trip && record.sequence == before;
            if after > before {
                self.gained = true;
                self.settle(now);
            } else if records.iter().any(offered) {
                // The ledger does not want it.
                self.left_out.insert(trip);
            }
            self.owe_answer(trip);
        }
        Ok(added)
    }

    pub(super) fn on_digest<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &L,
        digest: LedgerDigest,
    ) -> Result<(), L::Error> {
        let soon = self.digest_asked_at.is_some_and(|at| now < at + DIGESTS_APART);
        let expected = if digest.answer { self.digest_out } else { !soon };
        if !expected {
            return Ok(());
        }
        if digest.answer {
            self.digest_out = false;
        } else {
            (self.digest_asked, self.digest_asked_at) = (true, Some(now));
        }
        let own = self.digest(ledger, digest.answer)?;
        if own == digest {
            // Of two that cross each answers the other.
            self.digest_asked &= !std::mem::take(&mut self.digest_out);
            self.lacking.clear();
            (self.page, self.told, self.tell, self.gained) = (None, None, false, false);
            // One side asks, the other answers.
            let apart = if digest.answer { Duration::ZERO } else { INTERVAL / 10 };
            (self.digest_at, self.digest_wait) = (now + INTERVAL + apart, RETRY);
            (self.tell_at, self.pause) = (now, PAUSE_MIN);
        } else if self.told.is_some() {
            self.tell |= !self.gives();
        } else if now >= self.tell_at {
            (self.told, self.tell, self.gained) = (Some(Told::Nothing), true, false);
        }
        Ok(())
    }
}
