//! What other peers have said, and what telling does while something moves.

use std::cell::Cell;

use super::*;
use crate::sync::walk::{PAUSE_MAX, PAUSE_STIRRED_MAX, Told, Walk};

/// Another peer has said it to the first side.
fn relay(world: &mut World, trip: u64, sequence: u32) {
    let said = handover(trip, sequence);
    world.ledgers[0].append(std::slice::from_ref(&said)).unwrap();
    world.sides[0].relayed(world.now, &said);
    world.drain();
}

#[test]
fn what_others_say_goes_together_within_seconds() {
    let mut world = pair([&[(1, 10)], &[(1, 10)]]);
    world.connect();
    world.run_for(MINUTE);
    let before = world.total();
    (10..13).for_each(|sequence| relay(&mut world, 1, sequence));
    relay(&mut world, 2, 0);
    assert_eq!(world.total(), before, "not at once");
    let took = world.run(MINUTE, World::are_equal);
    assert!(took <= RELAY_WAIT + Duration::from_millis(50), "{took:?}");
    world.run_for(MINUTE);
    assert_eq!(world.total().0 - before.0, 2, "a message and its answer");
    // A full message does not wait.
    (13..25).for_each(|sequence| relay(&mut world, 1, sequence));
    assert_eq!(world.sent[0] + world.sent[1], before.0 + 3);
    // Of what was not named this peer hears nothing.
    let mut world = pair([&[(1, 10)], &[(2, 10)]]);
    world.sides[0] = Sync::new(world.now, Share::Own);
    world.connect();
    world.run_for(MINUTE);
    relay(&mut world, 1, 10);
    relay(&mut world, 2, 10);
    world.run_for(MINUTE);
    assert_eq!(world.ledgers[1].handovers().filter(|one| one.trip == TripId(1)).count(), 0);
    assert_eq!(world.ledgers[1].handovers().count(), 11);
}

#[test]
fn digests_agree_while_something_is_on_its_way() {
    let mut world = pair([&[(1, 10)], &[(1, 10)]]);
    world.connect();
    world.run_for(MINUTE);
    let digests = |world: &World| [0, 1].map(|side| digest(world, side));
    let equal = digests(&world);
    relay(&mut world, 1, 10);
    relay(&mut world, 2, 0);
    assert_eq!(digests(&world), equal, "they wait");
    world.weather.dark = true;
    world.run_for(RELAY_WAIT);
    assert_eq!(digests(&world), equal, "they were said and lost");
    world.see(1, 3, 0);
    assert_eq!(digests(&world), equal, "so was this one");
    world.weather.dark = false;
    let took = world.run(MINUTE, World::are_equal);
    assert!(took <= RELAY_RETRY + Duration::from_secs(1), "{took:?}");
}

#[test]
fn digests_do_not_list_all_trips_for_what_is_under_way() {
    for share in [Share::All, Share::Own] {
        let now = base();
        // The first has fallen out.
        let mut ledger = Unlisted(MemoryLedger::new(8));
        (0..9).for_each(|trip| filled(&mut ledger.0, trip, 20));
        let mut side = Sync::new(now, share);
        side.connected(now);
        let named = (0..9).map(|trip| TripKnown { trip: TripId(trip), next: 20 });
        side.on_message(now, &mut ledger, SyncMessage::Known(named.collect())).unwrap();
        let seen = [(0, 20), (3, 19), (4, 18), (4, 19), (7, 19)];
        let said = [(5, 17), (5, 16), (6, 0), (7, 18), (8, 20)];
        seen.iter().for_each(|&(trip, sequence)| side.added(now, &handover(trip, sequence)));
        let heard = said.map(|(trip, sequence)| side.relayed(now, &handover(trip, sequence)));
        assert_eq!(heard, [true; 5]);
        // What it leaves out it leaves out, whatever is under way.
        side.left_out.insert(TripId(3));
        let mut compared = MemoryLedger::default();
        let trips = [(1, 20), (2, 20), (4, 18), (5, 16), (7, 18), (8, 20)];
        trips.iter().for_each(|&(trip, next)| filled(&mut compared, trip, next));
        assert_eq!(side.digest(&ledger, false), compared.digest(), "{share:?}");
    }
}

fn digest(world: &World, side: usize) -> SyncDigest {
    world.sides[side].digest(&world.ledgers[side], false).unwrap()
}

#[test]
fn what_others_say_to_a_silent_peer_is_bounded_and_comes_in_the_end() {
    let mut world = pair([&[(1, 10)], &[(1, 10)]]);
    world.connect();
    world.run_for(MINUTE);
    world.weather.dark = true;
    let before = world.total().0;
    for second in 0..3_600 {
        relay(&mut world, 2 + second % 200, (second / 200) as u32);
        world.run_for(Duration::from_secs(1));
        assert!(world.sides[0].relays.iter().count() <= RELAYS_MAX);
        assert!(world.sides[0].unsure.len() <= UNSURE_MAX);
    }
    let said = world.total().0 - before;
    assert!(said <= 300, "{said} messages in an hour");
    world.weather.dark = false;
    let took = world.run(MINUTE * 10, World::are_equal);
    println!("{said} messages in an hour of silence, {took:?} until equal");
    assert!(world.are_equal());
}

/// Counts what it is to write.
struct Counting(MemoryLedger, Cell<u32>);

impl Ledger for Counting {
    type Error = Infallible;

    fn digest(&self) -> Result<SyncDigest, Self::Error> {
        self.0.digest()
    }

    fn known_before(
        &self,
        before: Option<Rank>,
        max: usize,
    ) -> Result<Vec<(Rank, TripKnown)>, Self::Error> {
        self.0.known_before(before, max)
    }

    fn next_of(&self, trip: TripId) -> Result<u32, Self::Error> {
        self.0.next_of(trip)
    }

    fn records(&self, trip: TripId, from: u32, max: usize) -> Result<Vec<Handover>, Self::Error> {
        self.0.records(trip, from, max)
    }

    fn append(&mut self, handovers: &[Handover]) -> Result<usize, Self::Error> {
        self.1.set(self.1.get() + 1);
        self.0.append(handovers)
    }
}

#[test]
fn nothing_is_written_when_nothing_is_new() {
    let now = base();
    let mut ledger = Counting(MemoryLedger::new(3), Cell::new(0));
    let mut side = Sync::new(now, Share::All);
    side.connected(now);
    let mut hear = |ledger: &mut Counting, records: &[(u64, u32)]| {
        let records = records.iter().map(|&(trip, sequence)| handover(trip, sequence)).collect();
        let fresh = side.on_message(now, ledger, SyncMessage::Records(records)).unwrap();
        let fresh: Vec<_> = fresh.iter().map(|one| (one.trip.0, one.sequence)).collect();
        (fresh, ledger.1.take())
    };
    let first = [(7, 0), (7, 1), (7, 4), (7, 4)];
    assert_eq!(hear(&mut ledger, &first), (first[..3].to_vec(), 1));
    assert_eq!(hear(&mut ledger, &first), (vec![], 0));
    assert_eq!(hear(&mut ledger, &[]), (vec![], 0));
    assert_eq!(hear(&mut ledger, &[(7, 1), (7, 2), (7, 4)]), (vec![(7, 2)], 1));
    // What the ledger does not want is not new; then it is not asked again.
    assert_eq!(hear(&mut ledger, &[(8, 0), (9, 0)]), (vec![(8, 0), (9, 0)], 1));
    assert_eq!(hear(&mut ledger, &[(5, 0), (9, 1)]), (vec![(9, 1)], 1));
    assert_eq!(hear(&mut ledger, &[(5, 0)]), (vec![], 0));
}

/// The place behind so many trips that began a second apart.
fn behind(trips: u64) -> Told {
    let at_ms = 1_700_000_000_000 - trips * 1_000;
    if trips == 0 { Told::Nothing } else { Told::Until(Rank { at_ms, number: trips }) }
}

/// Behind how many of them a place is.
fn position(told: Told) -> u64 {
    told.rank().map_or(0, |rank| rank.number)
}

/// Lets a walk tell so many pages, while the digests differ and trips move; returns where each
/// began and when.
fn pages(walk: &mut Walk, mut moves: impl FnMut(&mut Walk), count: usize) -> Vec<(u64, u64)> {
    let from = base();
    let mut now = from;
    let mut pages = Vec::new();
    while pages.len() < count {
        now = walk.differ(now).unwrap_or(now);
        if let Some(told) = walk.take_due() {
            pages.push((position(told), now.duration_since(from).as_secs()));
            walk.page_told(behind(position(told) + 64));
            moves(walk);
        }
    }
    pages
}

#[test]
fn telling_goes_through_all_trips_where_nothing_else_moves() {
    let mut trip = 0;
    let mut finds = |walk: &mut Walk| {
        trip += 1;
        walk.moved(TripId(trip));
    };
    let all = [(0, 0), (64, 0), (128, 0), (192, 0), (256, 0)];
    assert_eq!(pages(&mut Walk::new(base()), |_| {}, 5), all);
    assert_eq!(pages(&mut Walk::new(base()), &mut finds, 5), all);
    // Also where trips move that had moved before.
    let both = |walk: &mut Walk| {
        walk.moved(TripId(1));
        finds(walk);
    };
    assert_eq!(pages(&mut Walk::new(base()), both, 5), all);
}

#[test]
fn where_trips_move_telling_begins_anew_and_pauses() {
    let mut walk = Walk::new(base());
    walk.moved(TripId(1));
    let stirs = |walk: &mut Walk| walk.moved(TripId(1));
    let pages = pages(&mut walk, stirs, 20);
    let expected = [(0, 0), (0, 20), (64, 20), (0, 60), (128, 60), (0, 140), (192, 140), (0, 300)];
    assert_eq!(pages[..8], expected);
    // A round every ten minutes in the end, and each tells of an older page.
    let ten = PAUSE_STIRRED_MAX.as_secs();
    assert_eq!(pages[19].1 - pages[17].1, ten);
    assert_eq!((pages[17].0, pages[18].0, pages[19].0), (0, 64 * 9, 0));
    // Of a trip that moves for the first time there may be more.
    walk.moved(TripId(2));
    let now = base() + MINUTE * 600;
    assert!(walk.differ(now).is_none() && walk.take_due().is_some());
    // At the end there is a pause as well.
    assert_eq!(walk.all_told(now), now + PAUSE_MIN);
    assert!(PAUSE_MIN < PAUSE_STIRRED_MAX && PAUSE_STIRRED_MAX < PAUSE_MAX);
}
