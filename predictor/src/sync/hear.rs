//! What the peer says, and what follows from it.

use std::cmp::Ordering;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::wire::{SyncDigest, SyncMessage, TripKnown};
use polyrail_model::{Handover, TripId};

use super::{DIGESTS_APART, INTERVAL, Ledger, RETRY, SETTLE, Share, Sync};

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
            if next > page.from {
                self.walk.moved(trip);
            }
            self.settle(now);
        }
        self.relays.known(trip, next);
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

    /// Whether all that the peer lacks of a trip was pushed and may still arrive, or waits to be.
    fn is_under_way(&mut self, now: Instant, trip: TripId, next: u32) -> bool {
        let waits = self.relays.continues(trip, next);
        let Some(unsure) = self.unsure.get_mut(&trip) else { return waits };
        if next >= unsure.to {
            self.unsure.remove(&trip);
            return waits;
        }
        let moves = next > unsure.from;
        if moves {
            (unsure.from, unsure.until) = (next, unsure.until.max(now + RETRY));
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
        if self.walk.is_on() {
            self.digest_at = self.digest_at.max(now + SETTLE);
        }
    }

    pub(super) fn on_records<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &mut L,
        mut records: Vec<Handover>,
    ) -> Result<Vec<Handover>, L::Error> {
        records.truncate(SyncMessage::RECORDS_MAX);
        let mut trips: BTreeMap<TripId, u32> = BTreeMap::new();
        for trip in records.iter().map(|record| record.trip) {
            if self.share == Share::Own {
                self.named.insert(trip);
            }
            trips.insert(trip, ledger.next_of(trip)?);
        }
        records.retain(|record| !self.left_out.contains(record.trip));
        let mut fresh = unheld(ledger, &trips, records)?;
        // A write waits for the disk: none for nothing.
        let added = if fresh.is_empty() { 0 } else { ledger.append(&fresh)? };
        for (trip, before) in trips {
            let after = ledger.next_of(trip)?;
            let offered = |record: &Handover| record.trip == trip && record.sequence == before;
            if after > before {
                self.walk.moved(trip);
                self.settle(now);
            } else if fresh.iter().any(offered) {
                // The ledger does not want it.
                self.left_out.insert(trip);
            }
            self.owe_answer(trip);
        }
        if added < fresh.len() {
            let mut taken = Vec::new();
            for record in fresh {
                if is_held(ledger, &record)? {
                    taken.push(record);
                }
            }
            fresh = taken;
        }
        Ok(fresh)
    }

    pub(super) fn on_digest<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &L,
        digest: SyncDigest,
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
            self.page = None;
            // One side asks, the other answers.
            let apart = if digest.answer { Duration::ZERO } else { INTERVAL / 10 };
            (self.digest_at, self.digest_wait) = (now + INTERVAL + apart, RETRY);
            self.walk.equal(now);
        } else if !(self.walk.is_on() && self.gives())
            && let Some(quiet_until) = self.walk.differ(now)
        {
            self.digest_at = quiet_until;
        }
        Ok(())
    }
}

/// Those that the ledger does not hold, each once. `trips`: how far it knows them.
fn unheld<L: Ledger>(
    ledger: &L,
    trips: &BTreeMap<TripId, u32>,
    records: Vec<Handover>,
) -> Result<Vec<Handover>, L::Error> {
    let (mut fresh, mut seen) = (Vec::new(), BTreeSet::new());
    // Whether there is anything behind a gap.
    let mut beyond: BTreeMap<TripId, bool> = BTreeMap::new();
    for record in records {
        let Handover { trip, sequence, .. } = record;
        let next = trips.get(&trip).copied().unwrap_or_default();
        if sequence < next || !seen.insert((trip, sequence)) {
            continue;
        }
        let beyond = match beyond.entry(trip) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(open) => *open.insert(!ledger.records(trip, next, 1)?.is_empty()),
        };
        if !(beyond && is_held(ledger, &record)?) {
            fresh.push(record);
        }
    }
    Ok(fresh)
}

fn is_held<L: Ledger>(ledger: &L, record: &Handover) -> Result<bool, L::Error> {
    let found = ledger.records(record.trip, record.sequence, 1)?;
    Ok(found.first().is_some_and(|one| one.sequence == record.sequence))
}
