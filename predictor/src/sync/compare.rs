//! How far the trips are compared with the peer's, as a digest and trip by trip.
//!
//! A trip of which something is on its way to the peer counts as far as the peer has answered. A
//! digest is made of the ledger's, in which only those trips are looked at that count otherwise
//! here; what the peer is told of is read page by page.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::wire::{SyncDigest, SyncMessage, TripKnown};
use polyrail_model::TripId;

use super::known::{counts, put_in, take_out};
use super::walk::Told;
use super::{Ledger, RETRY, SETTLE, Share, Sync};

impl Sync {
    /// Over the trips that are compared: all, or those that the peer has named, but for those
    /// that are left out.
    pub(super) fn digest<L: Ledger>(
        &self,
        ledger: &L,
        answer: bool,
    ) -> Result<SyncDigest, L::Error> {
        let known = |trip| Ok(TripKnown { trip, next: ledger.next_of(trip)? });
        let under_way = self.under_way();
        let mut digest = SyncDigest::default();
        match self.share {
            Share::All => {
                digest = ledger.digest()?;
                let moving = under_way.keys().copied();
                let moving = moving.filter(|trip| !self.left_out.contains(*trip));
                for trip in self.left_out.iter().chain(moving) {
                    let known = known(trip)?;
                    take_out(&mut digest, known);
                    if let Some(compared) = self.compared(known, &under_way) {
                        put_in(&mut digest, compared);
                    }
                }
            }
            Share::Own => {
                for trip in self.named.iter() {
                    if let Some(compared) = self.compared(known(trip)?, &under_way) {
                        put_in(&mut digest, compared);
                    }
                }
            }
        }
        Ok(SyncDigest { answer, ..digest })
    }

    /// From which number on something of a trip is on its way to the peer, or waits to go.
    fn under_way(&self) -> BTreeMap<TripId, u32> {
        let unsure = self.unsure.iter().map(|(&trip, unsure)| (trip, unsure.from));
        let mut under_way: BTreeMap<TripId, u32> = unsure.collect();
        for (trip, sequence) in self.relays.iter() {
            let from = under_way.entry(trip).or_insert(sequence);
            *from = sequence.min(*from);
        }
        under_way
    }

    /// How far a trip counts in comparisons, if it does.
    fn compared(&self, known: TripKnown, under_way: &BTreeMap<TripId, u32>) -> Option<TripKnown> {
        let TripKnown { trip, next } = known;
        if !counts(known) || !self.shows(trip) || self.left_out.contains(trip) {
            return None;
        }
        let next = under_way.get(&trip).map_or(next, |&from| next.min(from));
        (next > 0).then_some(TripKnown { trip, next })
    }

    /// The next page of how far the trips are known, if one is due and not all was told.
    pub(super) fn next_told<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &L,
    ) -> Result<Option<Vec<TripKnown>>, L::Error> {
        let Some(told) = self.walk.take_due() else { return Ok(None) };
        let (page, told) = self.page_behind(told, ledger)?;
        if page.is_empty() {
            self.digest_at = self.walk.all_told(now);
            return Ok(None);
        }
        self.walk.page_told(told);
        (self.digest_at, self.digest_wait) = (now + SETTLE, RETRY);
        Ok(Some(page))
    }

    /// The next trips that are compared, and up to where they go.
    fn page_behind<L: Ledger>(
        &self,
        mut told: Told,
        ledger: &L,
    ) -> Result<(Vec<TripKnown>, Told), L::Error> {
        let under_way = self.under_way();
        let mut page = Vec::new();
        while page.len() < SyncMessage::KNOWN_MAX {
            let wanted = SyncMessage::KNOWN_MAX - page.len();
            let older = ledger.known_before(told.rank(), wanted)?;
            let Some((last, _)) = older.last() else { break };
            told = Told::Until(*last);
            let trips = older.into_iter().map(|(_, known)| known);
            page.extend(trips.filter_map(|known| self.compared(known, &under_way)));
        }
        Ok((page, told))
    }
}
