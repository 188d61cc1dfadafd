//! The store: what is taken once, what falls out and in which order, and what is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polyrail_model::{Bitrate, HandoverOutcome};
use proptest::prelude::*;

use super::trips::EARLIEST_MS;
use super::*;
use crate::record::tests::{any_handover, handover};

mod damage;

/// A time within reason.
const NOW: u64 = EARLIEST_MS + 1_000_000_000_000;

/// The handover of a trip with the given number; some fail.
fn event(trip: u64, sequence: u32, at_ms: u64) -> Handover {
    let outcome = if sequence % 3 == 1 { HandoverOutcome::TypeI } else { HandoverOutcome::Success };
    let from = polyrail_model::CellId(u64::from(sequence / 2));
    Handover { trip: TripId(trip), sequence, at_ms, outcome, from, ..handover() }
}

fn events(trip: u64, sequences: std::ops::Range<u32>, at_ms: u64) -> Vec<Handover> {
    sequences.map(|sequence| event(trip, sequence, at_ms)).collect()
}

fn place(trip: u64, metres: f64, mbps: u64) -> PlaceSample {
    PlaceSample {
        carrier: "A".to_owned(),
        route: RouteId(7),
        direction: Direction::Up,
        position: Position::from_metres(metres),
        trip: TripId(trip),
        rate: Some(Bitrate::from_bps(mbps * 1_000_000)),
        delay: Some(Duration::from_millis(40)),
    }
}

/// Everything that can be asked, but for the size of the file.
#[derive(Clone, Debug, PartialEq)]
struct Dump {
    events: Vec<Handover>,
    known: Vec<TripKnown>,
    trips: Vec<TripSummary>,
    cells: Vec<(CellKey, CellHistory)>,
    tracks: Vec<(RouteId, Vec<u8>)>,
    places: Vec<(PlaceKey, Place)>,
    stats: StoreStats,
}

fn dump(store: &Store) -> Result<Dump, StoreError> {
    let (mut events, mut places) = (Vec::new(), Vec::new());
    store.visit(|event| {
        events.push(event);
        Ok::<_, StoreError>(())
    })?;
    store.visit_places(|key, place| {
        places.push((key, place));
        Ok::<_, StoreError>(())
    })?;
    Ok(Dump {
        events,
        known: known(store)?,
        trips: store.trips()?,
        cells: store.cells()?,
        tracks: store.tracks()?,
        places,
        stats: StoreStats { file_bytes: 0, ..store.stats()? },
    })
}

/// How far each trip is known, the newest first, those that fell out among them; and what the
/// store says of it from memory is that.
fn known(store: &Store) -> Result<Vec<TripKnown>, StoreError> {
    let known: Vec<TripKnown> = store.read(|reading| {
        let order = reading.open_table(ORDER)?;
        let rows = order.iter()?.rev();
        rows.map(|row| {
            let (trip, next) = row?.1.value();
            Ok(TripKnown { trip: TripId(trip), next })
        })
        .collect()
    })?;
    let mut afresh = KnownTrips::default();
    for one in &known {
        afresh.set(one.trip, Some(one.next));
    }
    assert_eq!(store.known, afresh);
    let mut held = known.clone();
    held.retain(|one| one.next != u32::MAX);
    // By pages of three.
    let mut paged = Vec::new();
    let mut before = None;
    loop {
        let page = store.known_before(before, 3)?;
        let Some((last, _)) = page.last() else { break };
        before = Some(*last);
        paged.extend(page.into_iter().map(|(_, known)| known));
    }
    assert_eq!(paged, held);
    Ok(known)
}

/// The counters say what is there.
fn assert_counted(dump: &Dump, limits: &Limits) {
    let stats = dump.stats;
    let failures = dump.events.iter().filter(|event| event.outcome.is_failure()).count();
    let forecastable = dump.cells.iter().filter(|(_, history)| {
        let failed = history.passages().filter(|passage| passage.outcome.is_failure());
        failed.map(|passage| passage.trip).collect::<BTreeSet<_>>().len() >= 2
    });
    assert_eq!(stats.events, dump.events.len() as u64);
    assert_eq!(stats.failures, failures as u64);
    assert_eq!(stats.forecastable_cells, forecastable.count() as u64);
    assert_eq!(stats.cells, dump.cells.len() as u64);
    assert_eq!(stats.trips, dump.trips.len() as u64);
    assert_eq!(stats.trips + stats.trips_fallen, dump.known.len() as u64);
    assert!(stats.events <= limits.events_max && stats.cells <= limits.cells_max);
    assert!(stats.trips <= limits.trips_max && stats.trips_fallen <= limits.trips_max);
    for trip in &dump.trips {
        let own = || dump.events.iter().filter(|event| event.trip == trip.trip);
        assert_eq!(own().count(), trip.count as usize);
        assert_eq!(own().filter(|one| one.outcome.is_failure()).count(), trip.failures as usize);
        let have: BTreeSet<u32> = own().map(|event| event.sequence).collect();
        assert_eq!((0..).find(|one| !have.contains(one)), Some(trip.next));
    }
}

#[test]
fn handovers_are_taken_once_and_the_first_counts() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    let all = events(5, 0..10, NOW);
    let fresh = |fresh, known| Appended { fresh, known, refused: 0 };
    assert_eq!(store.append(&all[..6], NOW).unwrap(), fresh(6, 0));
    assert_eq!(store.append(&all, NOW).unwrap(), fresh(4, 6));
    let other = Handover { outcome: HandoverOutcome::TypeIII, ..all[3].clone() };
    assert_eq!(store.append(&[other], NOW).unwrap(), fresh(0, 1));
    assert_eq!(store.append(&[], NOW).unwrap(), fresh(0, 0));
    assert_eq!(store.records(TripId(5), 0, 100).unwrap(), all);
    assert_eq!(store.records(TripId(5), 4, 3).unwrap(), all[4..7]);
    assert_eq!(store.records(TripId(6), 0, 3).unwrap(), []);
    assert_eq!(store.known_of(TripId(5)), 10);
    assert_eq!(store.known_of(TripId(6)), 0);
    let cell = store.cell(&CellKey::of(&all[2])).unwrap().unwrap();
    assert_eq!(cell.passages().len(), 2);
    assert_counted(&dump(&store).unwrap(), &Limits::default());
}

/// A modem goes to and fro at a platform: both ends hold the events, and cells learn the same of
/// them in whatever order they come.
#[test]
fn cells_remember_the_first_of_a_trip_and_nothing_of_a_train_that_stands() {
    let one = |trip: u64, sequence: u32, metres_per_second: f64| {
        let speed = polyrail_model::Speed::from_metres_per_second(metres_per_second);
        let (from, outcome) = (polyrail_model::CellId(1), HandoverOutcome::TypeI);
        Handover { speed, from, outcome, ..event(trip, sequence, NOW) }
    };
    let stands = |trip| (0..20).map(move |sequence| one(trip, sequence, 1.9));
    let crawls = |trip| (20..40).map(move |sequence| one(trip, sequence, 2.1));
    let mut cells = Vec::new();
    for backwards in [false, true] {
        let mut store = Store::in_memory(Limits::default()).unwrap();
        let mut all: Vec<_> = stands(1).collect();
        let appended = store.append(&all, NOW).unwrap();
        assert_eq!((appended.fresh, store.cells().unwrap()), (20, Vec::new()));
        all = crawls(1).collect();
        if backwards {
            all.reverse();
        }
        for record in &all {
            store.append(std::slice::from_ref(record), NOW).unwrap();
        }
        let stats = store.stats().unwrap();
        assert_eq!((stats.events, stats.failures, stats.forecastable_cells), (40, 40, 0));
        let history = store.cell(&CellKey::of(&all[0])).unwrap().unwrap();
        let held: Vec<_> = history.passages().map(|one| (one.trip.0, one.sequence)).collect();
        assert_eq!(held, [(1, 20), (1, 21)]);
        store.append(&[one(2, 0, 80.0)], NOW).unwrap();
        assert_eq!(store.stats().unwrap().forecastable_cells, 1, "failed on two trips");
        assert_counted(&dump(&store).unwrap(), &Limits::default());
        cells.push(store.cells().unwrap());
    }
    assert_eq!(cells[0], cells[1]);
}

/// A peer tells its newest trips first, and a file may bring old ones.
#[test]
fn cells_keep_the_newest_trips_in_whatever_order_they_come() {
    let failed = |trip: u64| {
        let all = events(trip, 0..2, NOW + trip * 3_600_000).into_iter();
        all.map(|one| Handover { outcome: HandoverOutcome::TypeI, ..one }).collect::<Vec<_>>()
    };
    let fed = |trips: &mut dyn Iterator<Item = u64>| {
        let mut store = Store::in_memory(Limits::default()).unwrap();
        for trip in trips {
            store.append(&failed(trip), NOW + 400 * 3_600_000).unwrap();
        }
        store
    };
    let oldest_first = fed(&mut (0..300)).cells().unwrap();
    let mut store = fed(&mut (0..300).rev());
    assert_eq!(store.cells().unwrap(), oldest_first);
    assert_eq!(fed(&mut (0..300).map(|one| one * 77 % 300)).cells().unwrap(), oldest_first);
    let trips: Vec<u64> = oldest_first[0].1.passages().map(|one| one.trip.0).collect();
    assert!(trips.is_sorted() && trips[0] == 236, "{trips:?}");
    // All at once, of trips from years before.
    let old: Vec<_> =
        (1_000..1_200).flat_map(|trip| events(trip, 0..2, EARLIEST_MS + trip)).collect();
    assert_eq!(store.append(&old, NOW + 400 * 3_600_000).unwrap().fresh, 400);
    assert_eq!(store.cells().unwrap(), oldest_first);
    assert_counted(&dump(&store).unwrap(), &Limits::default());
}

#[test]
fn gaps_are_told_and_numbers_far_ahead_wait_for_their_turn() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    let ahead = SEQUENCE_AHEAD_MAX;
    let batch = [event(1, 2, NOW), event(1, ahead - 1, NOW), event(1, ahead, NOW)];
    let appended = store.append(&batch, NOW).unwrap();
    assert_eq!(appended, Appended { fresh: 2, known: 0, refused: 1 });
    let next = |store: &Store| known(store).unwrap()[0].next;
    assert_eq!(next(&store), 0);
    store.append(&[event(1, 1, NOW)], NOW).unwrap();
    store.append(&[event(1, 0, NOW)], NOW).unwrap();
    assert_eq!(next(&store), 3);
    assert_eq!(store.append(&[event(1, ahead, NOW)], NOW).unwrap().fresh, 1);
    assert_eq!(store.append(&[event(1, u32::MAX, NOW)], NOW).unwrap().refused, 1);
    assert_eq!(store.append(&[event(2, u32::MAX, NOW)], NOW).unwrap().refused, 1);
    assert_eq!(known(&store).unwrap().len(), 1, "a trip of which nothing was taken is not there");
    assert_counted(&dump(&store).unwrap(), &Limits::default());
}

#[test]
fn what_cannot_be_is_left_out_and_the_rest_is_taken() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    let bad = Handover { carrier: "x".repeat(33), ..event(1, 0, NOW) };
    let appended = store.append(&[bad, event(1, 1, NOW)], NOW).unwrap();
    assert_eq!(appended, Appended { fresh: 1, known: 0, refused: 1 });
}

#[test]
fn the_oldest_trips_fall_out_whole_and_are_not_taken_again() {
    let limits = Limits { events_max: 25, ..Limits::default() };
    let mut store = Store::in_memory(limits).unwrap();
    // They arrive newest first, as a database that begins anew gets them.
    for trip in (0..5).rev() {
        store.append(&events(trip, 0..10, NOW + trip * 1000), NOW).unwrap();
    }
    let trips = |store: &Store| -> Vec<u64> {
        store.trips().unwrap().iter().map(|trip| trip.trip.0).collect()
    };
    assert_eq!(trips(&store), [3, 4]);
    let known: Vec<_> = known(&store).unwrap().iter().map(|k| (k.trip.0, k.next)).collect();
    let gone = u32::MAX;
    assert_eq!(known, [(4, 10), (3, 10), (2, gone), (1, gone), (0, gone)]);
    let again = store.append(&events(2, 0..20, NOW), NOW).unwrap();
    assert_eq!(again, Appended { fresh: 0, known: 20, refused: 0 });
    assert_eq!(store.known_of(TripId(2)), gone);
    // What the cells remember stays.
    let cell = store.cell(&CellKey::of(&event(0, 0, NOW))).unwrap().unwrap();
    assert_eq!(cell.passages().len(), 10);
    // A trip that alone fills everything stays until there is a newer one.
    store.append(&events(9, 0..40, NOW + 9000), NOW).unwrap();
    assert_eq!((trips(&store), store.stats().unwrap().events), (vec![9], 25));
    assert_counted(&dump(&store).unwrap(), &limits);
}

#[test]
fn wrong_clocks_neither_push_out_honest_trips_nor_lose_their_own() {
    let limits = Limits { events_max: 100, ..Limits::default() };
    for wrong in [0, 5, NOW * 2, record::AT_MS_MAX] {
        let mut store = Store::in_memory(limits).unwrap();
        for trip in 0..50 {
            store.append(&events(trip, 0..10, wrong), NOW).unwrap();
        }
        assert_eq!(store.stats().unwrap().trips, 10, "what just arrived is not dropped at once");
        for trip in 100..110 {
            let at = NOW + trip * 60_000;
            store.append(&events(trip, 0..10, at), at).unwrap();
        }
        let trips = store.trips().unwrap();
        assert!(trips.iter().all(|trip| trip.trip.0 >= 100), "clock {wrong}: {trips:?}");
        assert_eq!(trips.len(), 10);
        let late = store.append(&events(200, 0..10, wrong), NOW + 1_000_000_000).unwrap();
        assert_eq!(late.fresh, 10);
        assert_eq!(store.trips().unwrap().last().unwrap().trip, TripId(200));
        // Retention goes by when it came, too.
        assert_eq!(store.forget_before(NOW + 2_000_000_000).unwrap(), 10);
    }
}

#[test]
fn a_machine_without_the_time_keeps_what_came_last() {
    let limits = Limits { events_max: 30, ..Limits::default() };
    let mut store = Store::in_memory(limits).unwrap();
    store.append(&events(1, 0..10, NOW), NOW).unwrap();
    for trip in 2..6 {
        store.append(&events(trip, 0..10, 1000), 1000).unwrap();
    }
    let trips: Vec<_> = store.trips().unwrap().iter().map(|trip| trip.trip.0).collect();
    assert_eq!(trips, [3, 4, 5]);
}

/// A clock that is two months late, on a train whose database is full: what is recorded now is
/// new, and what others say of that time is old.
#[test]
fn a_late_clock_does_not_lose_the_trips_that_it_records() {
    let limits = Limits { events_max: 100, ..Limits::default() };
    let mut store = Store::in_memory(limits).unwrap();
    for trip in 0..20 {
        let at = NOW + trip * 60_000;
        store.append_own(&events(trip, 0..10, at), at).unwrap();
    }
    let late = NOW - 60 * 86_400_000;
    assert_eq!(store.append(&events(99, 0..10, late), late).unwrap().fresh, 10);
    assert_eq!(store.known_of(TripId(99)), u32::MAX, "told, and older than all");
    for (trip, clock) in [(100, late), (101, late + 1), (102, 5)] {
        for sequence in 0..30 {
            let at = clock + u64::from(sequence);
            let appended = store.append_own(&[event(trip, sequence, at)], at).unwrap();
            assert_eq!(appended.fresh, 1, "{trip} {sequence}");
        }
        assert_eq!(store.known_of(TripId(trip)), 30);
        assert_eq!(store.trips().unwrap().last().unwrap().trip, TripId(trip));
        assert_counted(&dump(&store).unwrap(), &limits);
    }
    let trips = |store: &Store| -> Vec<u64> {
        store.trips().unwrap().iter().map(|trip| trip.trip.0).collect()
    };
    assert_eq!(trips(&store), [19, 100, 101, 102]);
    // The clock is right again.
    let right = NOW + 86_400_000;
    store.append_own(&events(200, 0..30, right), right).unwrap();
    assert_eq!(trips(&store), [101, 102, 200]);
}

#[test]
fn what_is_too_old_is_forgotten_but_for_what_cells_know() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    for trip in 0..10 {
        store.append(&events(trip, 0..5, NOW + trip), NOW).unwrap();
    }
    assert_eq!(store.forget_before(NOW + 4).unwrap(), 4);
    assert_eq!(store.forget_before(NOW + 4).unwrap(), 0);
    let stats = store.stats().unwrap();
    assert_eq!((stats.trips, stats.trips_fallen, stats.events), (6, 4, 30));
    assert_eq!((stats.oldest_at_ms, stats.newest_at_ms), (Some(NOW + 4), Some(NOW + 9)));
    assert_eq!(store.append(&events(0, 0..5, NOW), NOW).unwrap().fresh, 0);
    assert_eq!(store.cells().unwrap()[0].1.passages().len(), 20);
    assert_eq!(store.forget_before(u64::MAX).unwrap(), 6);
    assert_eq!(store.stats().unwrap().newest_at_ms, None);
}

#[test]
fn a_clock_that_is_years_ahead_makes_nothing_too_old() {
    let (day, year) = (86_400_000, Duration::from_secs(365 * 86_400));
    let mut store = Store::in_memory(Limits::default()).unwrap();
    assert_eq!(store.sweep(NOW, year).unwrap(), Swept::Forgotten(0));
    for trip in 0..100 {
        let at = NOW + trip * day;
        store.append(&events(trip, 0..2, at), at).unwrap();
    }
    let last = NOW + 99 * day;
    // A train that begins its days in another century, for four weeks.
    let wrong = last + 40 * 365 * day;
    for trip in 100..128 {
        let at = wrong + (trip - 100) * day;
        assert_eq!(store.sweep(at, year).unwrap(), Swept::ClockDoubted { attested_ms: last });
        store.append(&events(trip, 0..2, at), at).unwrap();
    }
    assert_eq!(store.stats().unwrap().trips, 128);
    // The clock is right again: what the wrong one recorded is as old as that.
    assert_eq!(store.sweep(last + 5 * day, year).unwrap(), Swept::Forgotten(0));
    let stats = store.stats().unwrap();
    assert_eq!((stats.trips, stats.newest_at_ms), (128, Some(last + 5 * day)));
    let trips: Vec<_> = store.trips().unwrap().iter().map(|trip| trip.trip.0).collect();
    assert_eq!(trips, (0..128).collect::<Vec<_>>());
    dump(&store).unwrap();
    assert_eq!(
        store.sweep(last + 5 * day, Duration::from_secs(86_400)).unwrap(),
        Swept::Forgotten(100)
    );
    assert_eq!(store.sweep(last + 170 * day, Duration::ZERO).unwrap(), Swept::Forgotten(28));
}

/// The first days of a new train are in another century; those that follow are no older, but they
/// say themselves when they were.
#[test]
fn trips_of_the_future_do_not_keep_honest_ones_for_ever() {
    let (day, year) = (86_400_000, Duration::from_secs(365 * 86_400));
    let mut store = Store::in_memory(Limits::default()).unwrap();
    let wrong = NOW + 70 * 365 * day;
    for trip in 0..3 {
        store.append_own(&events(trip, 0..2, wrong + trip * day), wrong + trip * day).unwrap();
    }
    for trip in 3..20 {
        let at = NOW + trip * day;
        store.append_own(&events(trip, 0..2, at), at).unwrap();
    }
    let newest = |store: &Store| store.stats().unwrap().newest_at_ms.unwrap();
    assert!(newest(&store) > wrong);
    // A clock that is behind all that is honest says nothing of what is new.
    assert_eq!(store.sweep(NOW - 90 * day, year).unwrap(), Swept::Forgotten(0));
    assert!(newest(&store) > wrong);
    assert_eq!(store.sweep(NOW + 20 * day, year).unwrap(), Swept::Forgotten(0));
    assert_eq!(newest(&store), NOW + 20 * day);
    dump(&store).unwrap();
    // Day 10 and what came before; those of the wrong clock came no later than day 20.
    let ten = Duration::from_secs(10 * 86_400 - 1);
    assert_eq!(store.sweep(NOW + 20 * day, ten).unwrap(), Swept::Forgotten(8));
    assert_eq!(store.sweep(NOW + 31 * day, ten).unwrap(), Swept::Forgotten(12));
}

#[test]
fn a_train_that_was_laid_up_for_years_forgets_a_month_later() {
    let (day, year) = (86_400_000, Duration::from_secs(365 * 86_400));
    let mut store = Store::in_memory(Limits::default()).unwrap();
    for day_of in (0..60).chain(1_000..1_031) {
        let at = NOW + day_of * day;
        store.append(&events(day_of, 0..2, at), at).unwrap();
        let wanted = match day_of {
            0..60 => Swept::Forgotten(0),
            1_000..1_030 => Swept::ClockDoubted { attested_ms: NOW + 59 * day },
            _ => Swept::Forgotten(60),
        };
        assert_eq!(store.sweep(at, year).unwrap(), wanted, "day {day_of}");
    }
    assert_eq!(store.stats().unwrap().trips, 31);
}

#[test]
fn numbers_of_fallen_trips_are_bounded_too() {
    let limits = Limits { trips_max: 3, ..Limits::default() };
    let mut store = Store::in_memory(limits).unwrap();
    for trip in 0..20 {
        store.append(&events(trip, 0..2, NOW + trip), NOW).unwrap();
    }
    let known: Vec<_> = known(&store).unwrap().iter().map(|known| known.trip.0).collect();
    assert_eq!(known, [19, 18, 17, 16, 15, 14]);
    assert_counted(&dump(&store).unwrap(), &limits);
}

#[test]
fn cells_tracks_and_places_that_were_not_seen_for_long_fall_out() {
    let limits = Limits {
        cells_max: 4,
        tracks_max: 2,
        places_max: 3,
        track_bytes_max: 5,
        ..Limits::default()
    };
    let mut store = Store::in_memory(limits).unwrap();
    store.append(&events(1, 0..20, NOW), NOW).unwrap();
    store.append(&events(2, 0..1, NOW), NOW).unwrap();
    let dumped = dump(&store).unwrap();
    let cells: Vec<_> = dumped.cells.iter().map(|(key, _)| key.cell.0).collect();
    assert_eq!(cells, [0, 7, 8, 9]);
    assert_counted(&dumped, &limits);

    for (route, track) in [(1, "one"), (2, "two"), (1, "again"), (3, "three")] {
        store.put_track(RouteId(route), track.as_bytes()).unwrap();
    }
    let tracks = store.tracks().unwrap();
    assert_eq!(tracks, [(RouteId(1), b"again".to_vec()), (RouteId(3), b"three".to_vec())]);
    let routes = |store: &Store| -> Vec<u64> {
        store.tracks().unwrap().iter().map(|(route, _)| route.0).collect()
    };
    // One that is used counts as new, also when nothing was learned of it.
    for route in [1, 1, 9] {
        store.touch_track(RouteId(route)).unwrap();
    }
    assert_eq!(routes(&store), [3, 1]);
    store.put_track(RouteId(2), b"two").unwrap();
    assert_eq!(routes(&store), [1, 2]);
    assert_eq!(store.tracks().unwrap()[0].1, b"again");
    let error = store.put_track(RouteId(4), b"longer").unwrap_err();
    assert!(error.to_string().contains("6 bytes is too large; at most 5"), "{error}");

    for metres in [0.0, 100.0, 200.0, 300.0] {
        store.record_places(&[place(1, metres, 8)]).unwrap();
    }
    let at = |metres| {
        store.place_quantiles("A", RouteId(7), Direction::Up, Position::from_metres(metres))
    };
    assert_eq!(at(50.0).unwrap(), None);
    assert_eq!(at(399.9).unwrap().unwrap().rate.unwrap().p50.as_mbps(), 8.0);
    assert_eq!(at(400.0).unwrap(), None);
}

/// Who cannot hold all takes them in so: the last ones are those that were written last.
#[test]
fn cells_come_by_age_where_that_is_asked_for() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    for cell in [7, 3, 9, 1, 3] {
        let from = polyrail_model::CellId(cell);
        let trip = store.stats().unwrap().trips;
        store.append(&[Handover { from, ..event(trip, 0, NOW) }], NOW).unwrap();
    }
    let mut by_age = store.cells_by_age().unwrap();
    let order: Vec<_> = by_age.iter().map(|(key, _)| key.cell.0).collect();
    assert_eq!(order, [7, 9, 1, 3]);
    by_age.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(by_age, store.cells().unwrap());
}

#[test]
fn a_cell_that_falls_out_while_its_batch_is_written_is_counted_once() {
    let limits = Limits { cells_max: 2, ..Limits::default() };
    let mut store = Store::in_memory(limits).unwrap();
    let failed = |cell: u64, trip| {
        let from = polyrail_model::CellId(cell);
        Handover { from, outcome: HandoverOutcome::TypeI, ..event(trip, 0, NOW) }
    };
    store.append(&[failed(9, 0), failed(9, 1), failed(5, 2), failed(5, 3)], NOW).unwrap();
    assert_eq!(store.stats().unwrap().forecastable_cells, 2);
    // Cells are written in their order: 1 and 2 push out 9, which is written again.
    store.append(&[failed(1, 4), failed(2, 5), failed(9, 6)], NOW).unwrap();
    assert_counted(&dump(&store).unwrap(), &limits);
}

#[test]
fn places_tell_quantiles_over_trips() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    let all: Vec<_> = (1..=10).map(|trip| place(trip, 1234.0, trip)).collect();
    store.record_places(&all).unwrap();
    let position = Position::from_metres(1200.0);
    let found = store.place_quantiles("A", RouteId(7), Direction::Up, position).unwrap().unwrap();
    let rate = found.rate.unwrap();
    assert_eq!([rate.p10, rate.p50, rate.p90].map(Bitrate::as_mbps), [1.0, 5.0, 9.0]);
    assert_eq!((found.trips, found.delay.unwrap().p90), (10, Duration::from_millis(40)));
    let down = store.place_quantiles("A", RouteId(7), Direction::Down, position);
    assert_eq!(down.unwrap(), None);
    let unnamed = PlaceSample { carrier: String::new(), ..place(1, 0.0, 1) };
    let error = store.record_places(&[place(1, 0.0, 1), unnamed]).unwrap_err();
    assert!(matches!(error, StoreError::Refused(_)), "{error}");
    assert_eq!(store.stats().unwrap().places, 1, "nothing of it was recorded");
}

#[test]
fn two_databases_that_tell_each_other_hold_the_same() {
    let mut stores = [0, 1].map(|_| Store::in_memory(Limits::default()).unwrap());
    for trip in 0..6 {
        let at = NOW + trip;
        stores[(trip % 2) as usize].append(&events(trip, 0..9, at), NOW).unwrap();
    }
    stores[0].append(&events(1, 4..7, NOW + 1), NOW).unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        let known: BTreeMap<_, _> =
            known(&stores[to]).unwrap().iter().map(|known| (known.trip, known.next)).collect();
        for trip in stores[from].trips().unwrap() {
            let next = known.get(&trip.trip).copied().unwrap_or(0);
            let records = stores[from].records(trip.trip, next, 100).unwrap();
            stores[to].append(&records, NOW).unwrap();
        }
    }
    let [one, other] = stores.map(|store| dump(&store).unwrap());
    assert_eq!((one.events, one.known), (other.events, other.known));
}

#[test]
fn compaction_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let mut store = Store::open(&path, Limits::default()).unwrap();
    for trip in 0..40 {
        store.append(&events(trip, 0..200, NOW + trip), NOW).unwrap();
    }
    store.forget_before(NOW + 30).unwrap();
    let (before, bytes) = (dump(&store).unwrap(), store.stats().unwrap().file_bytes);
    assert!(store.compact().unwrap());
    assert_eq!(dump(&store).unwrap(), before);
    assert!(store.stats().unwrap().file_bytes < bytes);
    drop(store);
    let store = Store::open(&path, Limits::default()).unwrap();
    assert_eq!(dump(&store).unwrap(), before);
    assert_eq!(before.stats.created_at_ms, Some(NOW));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_store_holds_what_a_simple_model_holds(
        batches in prop::collection::vec(
            prop::collection::vec((0u64..5, 0u32..12, any_handover()), 1..12), 1..12),
    ) {
        let mut store = Store::in_memory(Limits::default()).unwrap();
        let mut model: BTreeMap<(u64, u32), Handover> = BTreeMap::new();
        for batch in batches {
            let batch: Vec<_> = batch
                .into_iter()
                .map(|(trip, sequence, one)| Handover { trip: TripId(trip), sequence, ..one })
                .collect();
            let before = model.len();
            for one in &batch {
                model.entry((one.trip.0, one.sequence)).or_insert_with(|| one.clone());
            }
            let appended = store.append(&batch, NOW).unwrap();
            let fresh = model.len() - before;
            prop_assert_eq!(appended, Appended { fresh, known: batch.len() - fresh, refused: 0 });
        }
        let dump = dump(&store).unwrap();
        assert_counted(&dump, &Limits::default());
        let mut held = dump.events.clone();
        held.sort_by_key(|one| (one.trip, one.sequence));
        prop_assert_eq!(held, model.into_values().collect::<Vec<_>>());
    }

    #[test]
    fn limits_hold_whatever_comes(
        batches in prop::collection::vec(
            prop::collection::vec((0u64..20, 0u32..30, any::<u64>()), 1..40), 1..12),
        forget in prop::option::of(any::<u64>()),
    ) {
        let limits = Limits {
            events_max: 50, trips_max: 4, cells_max: 6, trip_events_max: 20, ..Limits::default()
        };
        let mut store = Store::in_memory(limits).unwrap();
        for batch in &batches {
            let batch: Vec<_> = batch
                .iter()
                .map(|(trip, sequence, at)| event(*trip, *sequence, at % (record::AT_MS_MAX + 9)))
                .collect();
            let appended = store.append(&batch, NOW).unwrap();
            prop_assert_eq!(appended.fresh + appended.known + appended.refused, batch.len());
            assert_counted(&dump(&store).unwrap(), &limits);
        }
        if let Some(at) = forget {
            store.forget_before(at).unwrap();
            assert_counted(&dump(&store).unwrap(), &limits);
        }
    }
}
