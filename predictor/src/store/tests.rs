//! The store: each record once, the order of eviction, and the counters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polyrail_model::{Bitrate, HandoverOutcome};
use proptest::prelude::*;

use super::clock::EARLIEST_MS;
use super::*;
use crate::record::tests::{any_handover, handover};

mod clock;
mod damage;

/// A plausible time.
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

/// All cells, sorted.
pub(crate) fn cells(store: &Store) -> Vec<(CellKey, CellHistory)> {
    let mut cells = store.cells_by_age().unwrap();
    cells.sort_by(|one, other| one.0.cmp(&other.0));
    cells
}

/// All trips with handovers, oldest first.
fn trips(store: &Store) -> Vec<Trip> {
    let held = store.known_before(None, usize::MAX).unwrap();
    let trip = |known: TripKnown| store.read(|reading| trip_of(reading, known.trip)).unwrap();
    held.into_iter().rev().map(|(_, known)| trip(known).unwrap()).collect()
}

fn ids(store: &Store) -> Vec<u64> {
    trips(store).iter().map(|trip| trip.id.0).collect()
}

fn evict_before(store: &mut Store, at_ms: u64) -> u64 {
    store.write(|batch| batch.evict_before(at_ms)).unwrap()
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

/// All contents except the size of the file.
#[derive(Clone, Debug, PartialEq)]
struct Dump {
    events: Vec<Handover>,
    known: Vec<TripKnown>,
    trips: Vec<Trip>,
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
        trips: trips(store),
        cells: cells(store),
        tracks: store.tracks()?,
        places,
        stats: StoreStats { file_bytes: 0, ..store.stats()? },
    })
}

/// The known part of each trip, newest first, including evicted ones. Checks the copy in memory.
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
    let mut rebuilt = KnownTrips::default();
    for one in &known {
        rebuilt.set(one.trip, Some(one.next));
    }
    assert_eq!(store.known, rebuilt);
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

/// Checks the counters against the contents.
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
        let own = || dump.events.iter().filter(|event| event.trip == trip.id);
        assert_eq!(own().count(), trip.count as usize);
        assert_eq!(own().filter(|one| one.outcome.is_failure()).count(), trip.failures as usize);
        let have: BTreeSet<u32> = own().map(|event| event.sequence).collect();
        assert_eq!((0..).find(|one| !have.contains(one)), Some(trip.next));
    }
}

/// A modem alternates at a platform: cells learn the same in any order of arrival.
#[test]
fn cells_keep_the_first_of_a_trip_and_ignore_a_standing_train() {
    let one = |trip: u64, sequence: u32, metres_per_second: f64| {
        let speed = polyrail_model::Speed::from_metres_per_second(metres_per_second);
        let (from, outcome) = (polyrail_model::CellId(1), HandoverOutcome::TypeI);
        Handover { speed, from, outcome, ..event(trip, sequence, NOW) }
    };
    let stands = |trip| (0..20).map(move |sequence| one(trip, sequence, 1.9));
    let crawls = |trip| (20..40).map(move |sequence| one(trip, sequence, 2.1));
    let mut seen = Vec::new();
    for backwards in [false, true] {
        let mut store = Store::in_memory(Limits::default()).unwrap();
        let mut all: Vec<_> = stands(1).collect();
        let appended = store.append(&all, NOW).unwrap();
        assert_eq!((appended.fresh, cells(&store)), (20, Vec::new()));
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
        seen.push(cells(&store));
    }
    assert_eq!(seen[0], seen[1]);
}

/// A peer sends its newest trips first, and a file may contain old ones.
#[test]
fn cells_keep_the_newest_trips_in_any_order_of_arrival() {
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
    let oldest_first = cells(&fed(&mut (0..300)));
    let mut store = fed(&mut (0..300).rev());
    assert_eq!(cells(&store), oldest_first);
    assert_eq!(cells(&fed(&mut (0..300).map(|one| one * 77 % 300))), oldest_first);
    let trips: Vec<u64> = oldest_first[0].1.passages().map(|one| one.trip.0).collect();
    assert!(trips.is_sorted() && trips[0] == 236, "{trips:?}");
    // All at once, of trips from years earlier.
    let old: Vec<_> =
        (1_000..1_200).flat_map(|trip| events(trip, 0..2, EARLIEST_MS + trip)).collect();
    assert_eq!(store.append(&old, NOW + 400 * 3_600_000).unwrap().fresh, 400);
    assert_eq!(cells(&store), oldest_first);
    assert_counted(&dump(&store).unwrap(), &Limits::default());
}

#[test]
fn gaps_are_kept_and_numbers_far_ahead_are_refused() {
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
    assert_eq!(known(&store).unwrap().len(), 1, "a trip without handovers is not stored");
    assert_counted(&dump(&store).unwrap(), &Limits::default());
}

#[test]
fn invalid_records_are_skipped_and_the_rest_is_appended() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    let bad = Handover { carrier: "x".repeat(33), ..event(1, 0, NOW) };
    let appended = store.append(&[bad, event(1, 1, NOW)], NOW).unwrap();
    assert_eq!(appended, Appended { fresh: 1, known: 0, refused: 1 });
}

#[test]
fn oldest_trips_are_evicted_and_not_appended_again() {
    let limits = Limits { events_max: 25, ..Limits::default() };
    let mut store = Store::in_memory(limits).unwrap();
    // They arrive newest first, as in a new database.
    for trip in (0..5).rev() {
        store.append(&events(trip, 0..10, NOW + trip * 1000), NOW).unwrap();
    }
    assert_eq!(ids(&store), [3, 4]);
    assert_eq!(store.records(TripId(3), 4, 3).unwrap(), events(3, 4..7, NOW + 3000));
    let known: Vec<_> = known(&store).unwrap().iter().map(|k| (k.trip.0, k.next)).collect();
    let gone = u32::MAX;
    assert_eq!(known, [(4, 10), (3, 10), (2, gone), (1, gone), (0, gone)]);
    let again = store.append(&events(2, 0..20, NOW), NOW).unwrap();
    assert_eq!(again, Appended { fresh: 0, known: 20, refused: 0 });
    assert_eq!(store.known_of(TripId(2)), gone);
    // The histories of cells stay.
    let cell = store.cell(&CellKey::of(&event(0, 0, NOW))).unwrap().unwrap();
    assert_eq!(cell.passages().len(), 10);
    // A trip that alone fills the database stays until there is a newer one.
    store.append(&events(9, 0..40, NOW + 9000), NOW).unwrap();
    assert_eq!((ids(&store), store.stats().unwrap().events), (vec![9], 25));
    assert_counted(&dump(&store).unwrap(), &limits);
}

#[test]
fn wrong_clocks_neither_evict_right_trips_nor_lose_their_own() {
    let limits = Limits { events_max: 100, ..Limits::default() };
    for wrong in [0, 5, NOW * 2, record::AT_MS_MAX] {
        let mut store = Store::in_memory(limits).unwrap();
        for trip in 0..50 {
            store.append(&events(trip, 0..10, wrong), NOW).unwrap();
        }
        assert_eq!(store.stats().unwrap().trips, 10, "new trips are not evicted at once");
        for trip in 100..110 {
            let at = NOW + trip * 60_000;
            store.append(&events(trip, 0..10, at), at).unwrap();
        }
        let trips = ids(&store);
        assert!(trips.iter().all(|trip| *trip >= 100), "clock {wrong}: {trips:?}");
        assert_eq!(trips.len(), 10);
        let late = store.append(&events(200, 0..10, wrong), NOW + 1_000_000_000).unwrap();
        assert_eq!(late.fresh, 10);
        assert_eq!(ids(&store).last(), Some(&200));
        // Retention uses the time of arrival, too.
        assert_eq!(evict_before(&mut store, NOW + 2_000_000_000), 10);
    }
}

/// A clock that is two months late, with a full database: trips recorded here are new, and trips of
/// peers from that time are old.
#[test]
fn late_clock_does_not_evict_its_own_trips() {
    let limits = Limits { events_max: 100, ..Limits::default() };
    let mut store = Store::in_memory(limits).unwrap();
    for trip in 0..20 {
        let at = NOW + trip * 60_000;
        store.append_own(&events(trip, 0..10, at), at).unwrap();
    }
    let late = NOW - 60 * 86_400_000;
    assert_eq!(store.append(&events(99, 0..10, late), late).unwrap().fresh, 10);
    assert_eq!(store.known_of(TripId(99)), u32::MAX, "older than all others");
    for (trip, clock) in [(100, late), (101, late + 1), (102, 5)] {
        for sequence in 0..30 {
            let at = clock + u64::from(sequence);
            let appended = store.append_own(&[event(trip, sequence, at)], at).unwrap();
            assert_eq!(appended.fresh, 1, "{trip} {sequence}");
        }
        assert_eq!(store.known_of(TripId(trip)), 30);
        assert_eq!(ids(&store).last(), Some(&trip));
        assert_counted(&dump(&store).unwrap(), &limits);
    }
    assert_eq!(ids(&store), [19, 100, 101, 102]);
    // The clock is right again.
    let right = NOW + 86_400_000;
    store.append_own(&events(200, 0..30, right), right).unwrap();
    assert_eq!(ids(&store), [101, 102, 200]);
}

#[test]
fn old_trips_are_evicted_and_histories_stay() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    for trip in 0..10 {
        store.append(&events(trip, 0..5, NOW + trip), NOW).unwrap();
    }
    assert_eq!(evict_before(&mut store, NOW + 4), 4);
    assert_eq!(evict_before(&mut store, NOW + 4), 0);
    let stats = store.stats().unwrap();
    assert_eq!((stats.trips, stats.trips_fallen, stats.events), (6, 4, 30));
    assert_eq!((stats.oldest_at_ms, stats.newest_at_ms), (Some(NOW + 4), Some(NOW + 9)));
    assert_eq!(store.append(&events(0, 0..5, NOW), NOW).unwrap().fresh, 0);
    assert_eq!(cells(&store)[0].1.passages().len(), 20);
    assert_eq!(evict_before(&mut store, u64::MAX), 6);
    assert_eq!(store.stats().unwrap().newest_at_ms, None);
}

#[test]
fn clock_years_ahead_evicts_nothing() {
    let (day, year) = (86_400_000, Duration::from_secs(365 * 86_400));
    let mut store = Store::in_memory(Limits::default()).unwrap();
    assert_eq!(store.sweep(NOW, year).unwrap(), Swept::Evicted(0));
    for trip in 0..100 {
        let at = NOW + trip * day;
        store.append(&events(trip, 0..2, at), at).unwrap();
    }
    let last = NOW + 99 * day;
    // A train that records in another century for four weeks.
    let wrong = last + 40 * 365 * day;
    for trip in 100..128 {
        let at = wrong + (trip - 100) * day;
        assert_eq!(store.sweep(at, year).unwrap(), Swept::ClockDoubted { attested_ms: last });
        store.append(&events(trip, 0..2, at), at).unwrap();
    }
    assert_eq!(store.stats().unwrap().trips, 128);
    // The clock is right again: the wrong trips count as of now.
    assert_eq!(store.sweep(last + 5 * day, year).unwrap(), Swept::Evicted(0));
    let stats = store.stats().unwrap();
    assert_eq!((stats.trips, stats.newest_at_ms), (128, Some(last + 5 * day)));
    assert_eq!(ids(&store), (0..128).collect::<Vec<_>>());
    dump(&store).unwrap();
    assert_eq!(
        store.sweep(last + 5 * day, Duration::from_secs(86_400)).unwrap(),
        Swept::Evicted(100)
    );
    assert_eq!(store.sweep(last + 170 * day, Duration::ZERO).unwrap(), Swept::Evicted(28));
}

/// The first days of a new train are in another century. Later trips rank no older, but have their
/// own times.
#[test]
fn trips_of_the_future_do_not_keep_right_ones_for_ever() {
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
    // A clock behind all right trips reranks nothing.
    assert_eq!(store.sweep(NOW - 90 * day, year).unwrap(), Swept::Evicted(0));
    assert!(newest(&store) > wrong);
    assert_eq!(store.sweep(NOW + 20 * day, year).unwrap(), Swept::Evicted(0));
    assert_eq!(newest(&store), NOW + 20 * day);
    dump(&store).unwrap();
    // Days 3 to 10; trips of the wrong clock count as of day 20.
    let ten = Duration::from_secs(10 * 86_400 - 1);
    assert_eq!(store.sweep(NOW + 20 * day, ten).unwrap(), Swept::Evicted(8));
    assert_eq!(store.sweep(NOW + 31 * day, ten).unwrap(), Swept::Evicted(12));
}

#[test]
fn train_out_of_service_for_years_evicts_a_month_later() {
    let (day, year) = (86_400_000, Duration::from_secs(365 * 86_400));
    let mut store = Store::in_memory(Limits::default()).unwrap();
    for day_of in (0..60).chain(1_000..1_031) {
        let at = NOW + day_of * day;
        store.append(&events(day_of, 0..2, at), at).unwrap();
        let wanted = match day_of {
            0..60 => Swept::Evicted(0),
            1_000..1_030 => Swept::ClockDoubted { attested_ms: NOW + 59 * day },
            _ => Swept::Evicted(60),
        };
        assert_eq!(store.sweep(at, year).unwrap(), wanted, "day {day_of}");
    }
    assert_eq!(store.stats().unwrap().trips, 31);
}

#[test]
fn cells_tracks_and_places_written_longest_ago_are_evicted() {
    let limits = Limits { cells_max: 4, tracks_max: 2, places_max: 3, ..Limits::default() };
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

    for metres in [0.0, 100.0, 200.0, 300.0] {
        store.record_places(&[place(1, metres, 8)]).unwrap();
    }
    let at = |metres| {
        store.place_estimate("A", RouteId(7), Direction::Up, Position::from_metres(metres))
    };
    assert_eq!(at(50.0).unwrap(), None);
    assert_eq!(at(399.9).unwrap().unwrap().rate.unwrap().as_mbps(), 8.0);
    assert_eq!(at(400.0).unwrap(), None);
}

/// A full forecaster keeps the cells that were written last.
#[test]
fn cells_are_returned_by_age() {
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
    assert_eq!(by_age, cells(&store));
}

#[test]
fn cell_evicted_during_its_batch_is_counted_once() {
    let limits = Limits { cells_max: 2, ..Limits::default() };
    let mut store = Store::in_memory(limits).unwrap();
    let failed = |cell: u64, trip| {
        let from = polyrail_model::CellId(cell);
        Handover { from, outcome: HandoverOutcome::TypeI, ..event(trip, 0, NOW) }
    };
    store.append(&[failed(9, 0), failed(9, 1), failed(5, 2), failed(5, 3)], NOW).unwrap();
    assert_eq!(store.stats().unwrap().forecastable_cells, 2);
    // Cells are written in order of their keys: 1 and 2 evict 9, which is written again.
    store.append(&[failed(1, 4), failed(2, 5), failed(9, 6)], NOW).unwrap();
    assert_counted(&dump(&store).unwrap(), &limits);
}

#[test]
fn places_estimate_over_trips_and_invalid_names_are_skipped() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    let all: Vec<_> = (1..=10).map(|trip| place(trip, 1234.0, trip)).collect();
    store.record_places(&all).unwrap();
    let position = Position::from_metres(1200.0);
    let found = store.place_estimate("A", RouteId(7), Direction::Up, position).unwrap();
    let rate = Some(Bitrate::from_mbps(5.0));
    assert_eq!(found, Some(PlaceEstimate { rate, delay: Some(Duration::from_millis(40)) }));
    let down = store.place_estimate("A", RouteId(7), Direction::Down, position);
    assert_eq!(down.unwrap(), None);
    let unnamed = PlaceSample { carrier: String::new(), ..place(1, 0.0, 1) };
    store.record_places(&[place(1, 0.0, 1), unnamed]).unwrap();
    assert_eq!(store.stats().unwrap().places, 2);
}

#[test]
fn compaction_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let mut store = Store::open(&path, Limits::default()).unwrap();
    for trip in 0..40 {
        store.append(&events(trip, 0..200, NOW + trip), NOW).unwrap();
    }
    evict_before(&mut store, NOW + 30);
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
    fn store_agrees_with_a_simple_model(
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
    fn limits_hold_for_any_input(
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
            evict_before(&mut store, at);
            assert_counted(&dump(&store).unwrap(), &limits);
        }
    }
}
