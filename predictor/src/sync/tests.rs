//! Two sides over a wire that loses, repeats, delays and is cut: they end equal, and say little.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::convert::Infallible;

use crate::wire::SyncDigest;
use polyrail_model::{CellId, Direction, HandoverOutcome, Position, RouteId, Speed};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::known::mixed;
use super::relay::{RELAY_RETRY, RELAY_WAIT, RELAYS_MAX};
use super::walk::PAUSE_MIN;
use super::*;

mod pushes;
mod star;

fn handover(trip: u64, sequence: u32) -> Handover {
    Handover {
        trip: TripId(trip),
        sequence,
        at_ms: 1_700_000_000_000 + trip * 10_000_000 + u64::from(sequence) * 9_000,
        carrier: "a".to_owned(),
        route: RouteId(1),
        direction: Direction::Up,
        position: Position { decimetres: sequence as i32 * 13_000 },
        speed: Speed { centimetres_per_second: 8_000 },
        from: CellId(u64::from(sequence)),
        to: Some(CellId(u64::from(sequence) + 1)),
        rsrp: None,
        outcome: HandoverOutcome::Success,
        dark: Duration::from_millis(40),
    }
}

fn filled(ledger: &mut MemoryLedger, trip: u64, count: u32) {
    let trip: Vec<Handover> = (0..count).map(|sequence| handover(trip, sequence)).collect();
    ledger.append(&trip).unwrap();
}

#[allow(clippy::disallowed_methods)] // a base for the clock of these tests
fn base() -> Instant {
    Instant::now()
}

/// About what a message takes on the wire.
fn bytes(message: &SyncMessage) -> u64 {
    match message {
        SyncMessage::Known(trips) => 8 + 10 * trips.len() as u64,
        SyncMessage::Records(records) => 8 + 62 * records.len() as u64,
        SyncMessage::Digest(_) => 16,
    }
}

/// How the wire treats a message.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    loss: f64,
    repeats: f64,
    delay_ms_max: u64,
    dark: bool,
}

#[derive(Debug)]
struct World {
    now: Instant,
    ledgers: [MemoryLedger; 2],
    sides: [Sync; 2],
    /// Under way: when it arrives, a number, and to which side.
    wire: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    messages: BTreeMap<u64, SyncMessage>,
    next: u64,
    random: Pcg64,
    weather: Weather,
    sent: [u64; 2],
    sent_bytes: [u64; 2],
}

impl World {
    fn new(seed: u64, shares: [Share; 2], ledgers: [MemoryLedger; 2]) -> Self {
        let now = base();
        Self {
            now,
            ledgers,
            sides: shares.map(|share| Sync::new(now, share)),
            wire: BinaryHeap::new(),
            messages: BTreeMap::new(),
            next: 0,
            random: Pcg64::seed_from_u64(seed),
            weather: Weather { delay_ms_max: 50, ..Weather::default() },
            sent: [0; 2],
            sent_bytes: [0; 2],
        }
    }

    fn connect(&mut self) {
        self.cut();
        let now = self.now;
        self.sides.iter_mut().for_each(|side| side.connected(now));
        self.drain();
    }

    /// The session is over, and all that was under way is gone.
    fn cut(&mut self) {
        self.sides.iter_mut().for_each(Sync::disconnected);
        self.wire.clear();
        self.messages.clear();
    }

    /// A handover is seen by one side.
    fn see(&mut self, side: usize, trip: u64, sequence: u32) {
        let seen = handover(trip, sequence);
        self.ledgers[side].append(std::slice::from_ref(&seen)).unwrap();
        self.sides[side].added(self.now, &seen);
        self.drain();
    }

    fn drain(&mut self) {
        for side in 0..2 {
            let mut at_once = 0;
            while let Some((_, message)) =
                self.sides[side].poll(self.now, &self.ledgers[side]).unwrap()
            {
                at_once += 1;
                assert!(at_once < 50, "side {side} does not stop: {message:?}");
                self.sent[side] += 1;
                self.sent_bytes[side] += bytes(&message);
                self.put(1 - side, message);
            }
        }
    }

    fn put(&mut self, to: usize, message: SyncMessage) {
        let Weather { loss, repeats, delay_ms_max, dark } = self.weather;
        let copies = 1 + u32::from(self.random.random_bool(repeats));
        for _ in 0..copies {
            if dark || self.random.random_bool(loss) {
                continue;
            }
            let delay = Duration::from_millis(self.random.random_range(1..=delay_ms_max));
            self.next += 1;
            self.wire.push(Reverse((self.now + delay, self.next, to)));
            self.messages.insert(self.next, message.clone());
        }
    }

    /// Lets time pass until it is over or the condition holds; returns how long it was.
    fn run(&mut self, most: Duration, done: impl Fn(&Self) -> bool) -> Duration {
        let (from, until) = (self.now, self.now + most);
        let mut idle = 0;
        while !done(self) {
            let arrival = self.wire.peek().map(|Reverse((at, ..))| *at);
            let timeouts = self.sides.iter().filter_map(Sync::next_timeout);
            let Some(at) = arrival.into_iter().chain(timeouts).min().filter(|at| *at <= until)
            else {
                self.now = until;
                return most;
            };
            idle = if at <= self.now { idle + 1 } else { 0 };
            assert!(idle < 1_000, "next_timeout stays in the past");
            self.now = self.now.max(at);
            if arrival == Some(at) {
                let Some(Reverse((_, number, to))) = self.wire.pop() else { continue };
                let message = self.messages.remove(&number).unwrap();
                self.sides[to].on_message(self.now, &mut self.ledgers[to], message).unwrap();
            }
            self.drain();
        }
        self.now - from
    }

    fn run_for(&mut self, time: Duration) {
        self.run(time, |_| false);
    }

    fn are_equal(&self) -> bool {
        self.ledgers[0].handovers().eq(self.ledgers[1].handovers())
    }

    /// What both have sent together.
    fn total(&self) -> (u64, u64) {
        (self.sent.iter().sum(), self.sent_bytes.iter().sum())
    }
}

fn pair(counts: [&[(u64, u32)]; 2]) -> World {
    let mut ledgers = [MemoryLedger::default(), MemoryLedger::default()];
    for (ledger, trips) in ledgers.iter_mut().zip(counts) {
        trips.iter().for_each(|&(trip, count)| filled(ledger, trip, count));
    }
    World::new(1, [Share::All; 2], ledgers)
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn what_one_side_lacks_the_other_gives() {
    let both = [(1, 100), (2, 30), (3, 7)];
    let cases: [[&[(u64, u32)]; 2]; 6] = [
        [&both, &[]],
        [&[], &both],
        [&[(1, 100), (2, 10)], &[(1, 60), (2, 30), (3, 7)]],
        [&[(1, 100)], &[(2, 30), (3, 7)]],
        [&both, &both],
        [&[(1, 99), (2, 30), (3, 7)], &both],
    ];
    for counts in cases {
        let mut world = pair(counts);
        world.connect();
        let took = world.run(MINUTE, World::are_equal);
        assert!(took < Duration::from_secs(5), "{counts:?}: {took:?}");
        assert!(!counts.concat().is_empty() && world.ledgers[0].handovers().count() > 0);
        world.run_for(MINUTE);
        let before = world.total();
        world.run_for(MINUTE * 60);
        let (messages, bytes) = world.total();
        let quiet = (messages - before.0, bytes - before.1);
        assert!(quiet.0 <= 2 * 60 / 5 + 2 && quiet.1 <= 450, "{counts:?}: {quiet:?}");
    }
}

#[test]
fn a_handover_that_is_seen_goes_at_once_and_is_answered() {
    let mut world = pair([&[(1, 10)], &[(1, 10)]]);
    world.connect();
    world.run_for(MINUTE);
    let before = world.total().0;
    let seen = handover(1, 10);
    world.ledgers[0].append(std::slice::from_ref(&seen)).unwrap();
    world.sides[0].added(world.now, &seen);
    let first = world.sides[0].poll(world.now, &world.ledgers[0]).unwrap();
    assert_eq!(first, Some((Delivery::Urgent, SyncMessage::Records(vec![seen.clone()]))));
    world.put(1, SyncMessage::Records(vec![seen]));
    assert!(world.run(MINUTE, World::are_equal) <= Duration::from_millis(50));
    world.run_for(MINUTE);
    assert_eq!(world.total().0 - before, 1, "its answer, and nothing more");
}

#[test]
fn a_handover_that_was_lost_is_said_again_within_seconds() {
    let mut world = pair([&[(1, 10)], &[(1, 10)]]);
    world.connect();
    world.run_for(MINUTE);
    world.weather.dark = true;
    (10..13).for_each(|sequence| world.see(0, 1, sequence));
    world.weather.dark = false;
    let took = world.run(MINUTE, World::are_equal);
    assert!(took <= RETRY + Duration::from_millis(200), "{took:?}");
    // One is lost and the next arrives: the gap shows.
    world.run_for(MINUTE);
    world.weather.dark = true;
    world.see(0, 1, 13);
    world.weather.dark = false;
    world.see(0, 1, 14);
    let took = world.run(MINUTE, World::are_equal);
    assert!(took <= Duration::from_millis(300), "{took:?}");
}

#[test]
fn a_cut_in_the_middle_ends_nothing() {
    let mut world = pair([&[(1, 600)], &[(2, 400)]]);
    world.connect();
    world.run_for(Duration::from_secs(1));
    let partly = world.ledgers[1].handovers().count();
    assert!((401..1_000).contains(&partly), "{partly}");
    // A silence of the wire first, then a new session.
    world.weather.dark = true;
    world.run_for(MINUTE * 3);
    world.weather.dark = false;
    let took = world.run(MINUTE * 10, |world| world.ledgers[1].handovers().count() > partly);
    assert!(took <= INTERVAL, "{took:?}");
    world.connect();
    world.run_for(Duration::from_secs(1));
    world.cut();
    world.run_for(MINUTE);
    world.connect();
    let took = world.run(MINUTE * 5, World::are_equal);
    assert!(took < MINUTE, "{took:?}");
}

#[test]
fn random_histories_end_equal() {
    let longest = (0..150).map(|seed| (random_history(seed), seed)).max();
    println!("the longest way to equality and its seed: {longest:?}");
}

/// Returns how long it took at last until both were equal.
fn random_history(seed: u64) -> Duration {
    println!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed ^ 0x7261_696c);
    let mut world = pair([&[], &[]]);
    world.random = Pcg64::seed_from_u64(seed);
    for side in 0..2 {
        for trip in 0..random.random_range(0..150) {
            let count = random.random_range(1..40);
            if random.random_bool(0.5) {
                filled(&mut world.ledgers[side], trip, count);
            }
        }
    }
    // Each side has a trip of its own under way.
    let mut sequences = [0; 2];
    world.connect();
    for _ in 0..random.random_range(1..40) {
        world.weather = Weather {
            loss: random.random_range(0.0..0.6),
            repeats: random.random_range(0.0..0.3),
            delay_ms_max: random.random_range(1..2_000),
            dark: random.random_bool(0.15),
        };
        match random.random_range(0..8) {
            0 => world.connect(),
            1 => world.cut(),
            side @ 2..6 => {
                let side = side % 2;
                world.see(side, 1_000 + side as u64, sequences[side]);
                sequences[side] += 1;
            }
            _ => {}
        }
        let time = Duration::from_millis(random.random_range(0..20_000));
        world.run_for(time);
    }
    world.weather = Weather { loss: 0.1, repeats: 0.1, delay_ms_max: 200, dark: false };
    if !world.sides.iter().all(|side| side.connected) {
        world.connect();
    }
    let took = world.run(MINUTE * 60, World::are_equal);
    assert!(world.are_equal(), "seed {seed}: not equal after {took:?}");
    assert!(took <= MINUTE * 15, "seed {seed}: {took:?}");
    // Then there is nothing to say.
    world.weather = Weather { loss: 0.0, repeats: 0.0, delay_ms_max: 50, dark: false };
    world.run_for(MINUTE * 30);
    let before = world.total();
    world.run_for(MINUTE * 60);
    let after = world.total();
    let quiet = (after.0 - before.0, after.1 - before.1);
    assert!(quiet.0 <= 26 && quiet.1 <= 450, "seed {seed}: {quiet:?}");
    took
}

#[test]
fn a_first_meeting_costs_little_more_than_its_records() {
    let trips: Vec<(u64, u32)> = (0..300).map(|trip| (trip, 100)).collect();
    let mut world = pair([&trips, &[]]);
    world.connect();
    let took = world.run(MINUTE * 60, World::are_equal);
    world.run_for(MINUTE);
    let (messages, bytes) = world.total();
    let needed = 300 * 100 * 62;
    println!("30000 handovers: {took:?}, {messages} messages, {bytes} bytes");
    assert!(bytes < needed + needed / 5, "{bytes} bytes for {needed}");
    // A second meeting compares digests.
    world.connect();
    world.run_for(MINUTE);
    let again = world.total().1 - bytes;
    assert!(again <= 100, "{again} bytes");
    // And one new trip costs a page of trips or two.
    world.cut();
    filled(&mut world.ledgers[1], 1_000, 5);
    world.connect();
    let (_, before) = world.total();
    assert!(world.run(MINUTE, World::are_equal) < Duration::from_secs(2));
    world.run_for(MINUTE * 4);
    let news = world.total().1 - before;
    assert!(news <= 4_000, "{news} bytes");
}

#[test]
fn trips_that_fell_out_are_not_given_for_ever() {
    // The first keeps 20 trips, the second all.
    let trips: Vec<(u64, u32)> = (0..100).map(|trip| (trip, 20)).collect();
    for (small, large) in [(0, 1), (1, 0)] {
        let mut world = pair([&[], &[]]);
        world.ledgers[small] = MemoryLedger::new(20);
        trips.iter().for_each(|&(trip, count)| filled(&mut world.ledgers[large], trip, count));
        // It has known some of the old ones, and one of them in part.
        (0..5).for_each(|trip| filled(&mut world.ledgers[small], trip, 20));
        filled(&mut world.ledgers[small], 5, 3);
        world.connect();
        world.run_for(MINUTE * 20);
        let newest = world.ledgers[small].handovers().filter(|one| one.trip.0 >= 80).count();
        assert_eq!(newest, 20 * 20);
        assert_eq!(world.ledgers[large].handovers().count(), 100 * 20);
        let (messages, bytes) = world.total();
        assert!(bytes < 2 * 100 * 20 * 62, "{messages} messages, {bytes} bytes");
        let before = world.total();
        world.run_for(MINUTE * 60);
        let quiet = world.total().1 - before.1;
        assert!(quiet <= 500, "{quiet} bytes in an hour");
        // In the next session they are named once more, and none is given that is remembered.
        let before = world.total().1;
        world.connect();
        world.run_for(MINUTE * 20);
        let again = world.total().1 - before;
        println!("{again} bytes in the next session");
        let forgotten = 60 * (62 + 100);
        assert!(again <= forgotten + 8_000, "{again} bytes in the next session");
    }
}

/// The large side forgets, the small one has less: it cannot be given the rest.
#[test]
fn what_can_not_be_given_is_left_out() {
    let mut world = pair([&[], &[]]);
    world.ledgers[0] = MemoryLedger::new(3);
    (1..=5).for_each(|trip| filled(&mut world.ledgers[0], trip, 20));
    (1..=5).for_each(|trip| filled(&mut world.ledgers[1], trip, 10));
    world.connect();
    world.run_for(MINUTE * 5);
    let of = |side: usize, trip| {
        world.ledgers[side].handovers().filter(|one| one.trip == TripId(trip)).count()
    };
    for (trip, counts) in [(1, [0, 10]), (2, [0, 10]), (3, [20, 20]), (5, [20, 20])] {
        assert_eq!([of(0, trip), of(1, trip)], counts, "trip {trip}");
    }
    let before = world.total();
    world.run_for(MINUTE * 60);
    assert!(world.total().1 - before.1 <= 500);
}

#[test]
fn a_peer_is_told_only_of_what_is_its_own() {
    let mut world = pair([&[(1, 20), (2, 5)], &[(2, 20), (3, 30), (4, 30)]]);
    world.sides[1] = Sync::new(world.now, Share::Own);
    world.connect();
    world.run_for(MINUTE * 10);
    let trips = |side: usize| -> BTreeSet<u64> {
        world.ledgers[side].handovers().map(|one| one.trip.0).collect()
    };
    assert_eq!(trips(0), BTreeSet::from([1, 2]));
    assert_eq!(trips(1), BTreeSet::from([1, 2, 3, 4]));
    assert_eq!(world.ledgers[0].handovers().count(), 40);
    let before = world.total();
    world.run_for(MINUTE * 60);
    let quiet = world.total().1 - before.1;
    assert!(quiet <= 500, "{quiet} bytes");
}

#[test]
fn a_silent_peer_costs_little() {
    let mut world = pair([&[(1, 1_000), (2, 50)], &[]]);
    world.weather.dark = true;
    world.connect();
    for sequence in 0..100 {
        world.see(0, 7, sequence);
        world.run_for(Duration::from_secs(10));
    }
    // Each handover once, and digests that grow rare.
    assert!(world.sent[0] <= 100 + 15, "{:?}", world.sent);
    let before = world.sent[0];
    world.run_for(MINUTE * 60);
    assert!(world.sent[0] - before <= 13, "{:?}", world.sent);
    // It falls silent only after it has spoken.
    let mut world = pair([&[(1, 1_000), (2, 50)], &[]]);
    world.connect();
    world.run_for(Duration::from_millis(500));
    world.weather.dark = true;
    let before = world.sent[0];
    world.run_for(MINUTE * 60);
    assert!(world.sent[0] - before <= 40, "{:?} {before}", world.sent);
}

/// Whatever a peer says, this side answers in proportion and holds little.
#[test]
fn a_hostile_peer_takes_neither_memory_nor_traffic() {
    for seed in 0..8 {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut ledger = MemoryLedger::new(50);
        (0..10).for_each(|trip| filled(&mut ledger, trip, 100));
        let mut now = base();
        let mut side = Sync::new(now, if seed % 2 == 0 { Share::All } else { Share::Own });
        side.connected(now);
        let (mut heard, mut said) = (0, 0);
        for _ in 0..20_000 {
            let message = hostile(&mut random);
            heard += bytes(&message);
            side.on_message(now, &mut ledger, message).unwrap();
            let mut at_once = 0;
            while let Some((_, message)) = side.poll(now, &ledger).unwrap() {
                at_once += 1;
                assert!(at_once <= 8, "seed {seed}");
                said += bytes(&message);
                let (SyncMessage::Known(_) | SyncMessage::Digest(_)) = message else {
                    continue;
                };
            }
            now += Duration::from_millis(random.random_range(0..20));
            assert!(side.answers.len() <= ANSWERS_MAX && side.lacking.len() <= LACKING_MAX);
            assert!(side.unsure.len() <= UNSURE_MAX && side.live.len() <= LIVE_MAX);
        }
        println!("seed {seed}: heard {heard} bytes, said {said}");
        assert!(said < 4 * heard, "seed {seed}: {said} for {heard}");
        assert!(ledger.handovers().count() <= 50 * 10_000);
        assert!(ledger.known_before(None, usize::MAX).unwrap().len() <= 100);
    }
}

fn hostile(random: &mut Pcg64) -> SyncMessage {
    let trip = |random: &mut Pcg64| match random.random_range(0..3) {
        0 => random.random(),
        _ => random.random_range(0..20),
    };
    match random.random_range(0..4) {
        0 | 1 => {
            let count = random.random_range(0..=SyncMessage::KNOWN_MAX);
            let known = (0..count).map(|_| {
                let next = match random.random_range(0..4) {
                    0 => random.random(),
                    1 if random.random_bool(0.1) => TripKnown::LEFT_OUT,
                    _ => random.random_range(0..120),
                };
                TripKnown { trip: TripId(trip(random)), next }
            });
            SyncMessage::Known(known.collect())
        }
        2 => {
            let count = random.random_range(0..=SyncMessage::RECORDS_MAX);
            let records = (0..count).map(|_| {
                let sequence = match random.random_range(0..4) {
                    0 => random.random(),
                    _ => random.random_range(0..120),
                };
                let known = handover(random.random_range(0..20), 0);
                Handover { trip: TripId(trip(random)), sequence, ..known }
            });
            SyncMessage::Records(records.collect())
        }
        _ => SyncMessage::Digest(SyncDigest {
            trips: random.random(),
            hash: random.random(),
            answer: random.random(),
        }),
    }
}

/// A ledger that fails at times.
struct Failing {
    ledger: MemoryLedger,
    fails: bool,
}

impl Ledger for Failing {
    type Error = &'static str;

    fn digest(&self) -> Result<SyncDigest, Self::Error> {
        if self.fails { Err("the disk is full") } else { Ok(self.ledger.digest().unwrap()) }
    }

    fn known_before(
        &self,
        before: Option<Rank>,
        max: usize,
    ) -> Result<Vec<(Rank, TripKnown)>, Self::Error> {
        if self.fails {
            return Err("the disk is full");
        }
        Ok(self.ledger.known_before(before, max).unwrap())
    }

    fn next_of(&self, trip: TripId) -> Result<u32, Self::Error> {
        if self.fails { Err("the disk is full") } else { Ok(self.ledger.next_of(trip).unwrap()) }
    }

    fn records(&self, trip: TripId, from: u32, max: usize) -> Result<Vec<Handover>, Self::Error> {
        if self.fails {
            return Err("the disk is full");
        }
        Ok(self.ledger.records(trip, from, max).unwrap())
    }

    fn append(&mut self, handovers: &[Handover]) -> Result<usize, Self::Error> {
        if self.fails {
            return Err("the disk is full");
        }
        Ok(self.ledger.append(handovers).unwrap())
    }
}

#[test]
fn a_ledger_that_fails_is_asked_again_later() {
    let mut now = base();
    let mut ledger = Failing { ledger: MemoryLedger::default(), fails: true };
    let mut side = Sync::new(now, Share::All);
    side.connected(now);
    for _ in 0..10 {
        assert_eq!(side.poll(now, &ledger), Err("the disk is full"));
        assert_eq!(side.poll(now, &ledger), Ok(None), "not at once");
        let next = side.next_timeout().unwrap();
        assert!(next >= now + RETRY);
        let records = SyncMessage::Records(vec![handover(1, 0)]);
        assert!(side.on_message(now, &mut ledger, records).is_err());
        now = next;
    }
    ledger.fails = false;
    assert!(side.poll(now, &ledger).unwrap().is_some());
    let records = SyncMessage::Records(vec![handover(1, 0)]);
    assert_eq!(side.on_message(now, &mut ledger, records), Ok(vec![handover(1, 0)]));
}

/// A ledger whose trips are too many to be listed for a message.
struct Unlisted(MemoryLedger);

impl Ledger for Unlisted {
    type Error = Infallible;

    fn digest(&self) -> Result<SyncDigest, Infallible> {
        self.0.digest()
    }

    fn known_before(
        &self,
        _before: Option<Rank>,
        max: usize,
    ) -> Result<Vec<(Rank, TripKnown)>, Infallible> {
        panic!("{max} trips are listed")
    }

    fn next_of(&self, trip: TripId) -> Result<u32, Infallible> {
        self.0.next_of(trip)
    }

    fn records(&self, trip: TripId, from: u32, max: usize) -> Result<Vec<Handover>, Infallible> {
        self.0.records(trip, from, max)
    }

    fn append(&mut self, handovers: &[Handover]) -> Result<usize, Infallible> {
        self.0.append(handovers)
    }
}

#[test]
fn neither_digests_nor_records_list_all_trips() {
    for share in [Share::All, Share::Own] {
        let now = base();
        let mut ledger = Unlisted(MemoryLedger::default());
        (0..9).for_each(|trip| filled(&mut ledger.0, trip, 20));
        let mut side = Sync::new(now, share);
        side.connected(now);
        let mut digests = Vec::new();
        let mut hear = |at: u64, message| {
            let now = now + Duration::from_secs(at);
            side.on_message(now, &mut ledger, message).unwrap();
            while let Some((_, message)) = side.poll(now, &ledger).unwrap() {
                if let SyncMessage::Digest(digest) = message {
                    digests.push(digest);
                }
            }
        };
        let left_out = TripKnown { trip: TripId(3), next: TripKnown::LEFT_OUT };
        let named = (0..9).map(|trip| TripKnown { trip: TripId(trip), next: 20 });
        hear(0, SyncMessage::Known(named.collect()));
        hear(0, SyncMessage::Known(vec![left_out]));
        hear(0, SyncMessage::Records(vec![handover(9, 0)]));
        // The peer has the same: its first digest crosses this side's, the second is answered.
        let mut same = MemoryLedger::default();
        (0..9).filter(|trip| *trip != 3).for_each(|trip| filled(&mut same, trip, 20));
        filled(&mut same, 9, 1);
        let digest = same.digest().unwrap();
        hear(0, SyncMessage::Digest(digest));
        hear(1, SyncMessage::Digest(digest));
        let answer = SyncDigest { answer: true, ..digest };
        assert_eq!(digests.last(), Some(&answer), "{share:?}");
    }
}

#[test]
fn without_a_session_nothing_is_said_or_heard() {
    let now = base();
    let mut ledger = MemoryLedger::default();
    filled(&mut ledger, 1, 10);
    let mut side = Sync::new(now, Share::All);
    side.added(now, &handover(1, 9));
    assert_eq!(side.poll(now, &ledger), Ok(None));
    assert_eq!(side.next_timeout(), None);
    let records = SyncMessage::Records(vec![handover(2, 0)]);
    assert_eq!(side.on_message(now, &mut ledger, records), Ok(vec![]));
    side.connected(now);
    assert!(side.poll(now, &ledger).unwrap().is_some());
    side.disconnected();
    assert_eq!(side.poll(now, &ledger), Ok(None));
}

/// As `docs/protocol.md` has it: a change is a change of the protocol.
#[test]
fn the_digest_is_that_of_the_protocol() {
    let mut ledger = MemoryLedger::default();
    let side = Sync::new(base(), Share::All);
    let empty = side.digest(&ledger, false).unwrap();
    assert_eq!((empty.trips, empty.hash), (0, 0));
    // SplitMix64 with seed 0: the first output.
    assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
    filled(&mut ledger, 1, 3);
    filled(&mut ledger, 2, 70);
    let digest = side.digest(&ledger, false).unwrap();
    let of = |trip: u64, next: u64| mixed(trip ^ mixed(next));
    assert_eq!((digest.trips, digest.hash), (2, of(1, 3).wrapping_add(of(2, 70))));
}
