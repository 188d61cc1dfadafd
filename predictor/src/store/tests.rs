//! The store: logs, eviction, floors, and unusable files.

use std::time::Duration;

use polyrail_model::{Handover, TripId};

use super::clock::EARLIEST_MS;
use super::*;
use crate::record::tests::handover;

mod clock;
mod damage;

/// A plausible time.
const NOW: u64 = EARLIEST_MS + 10_000_000_000;
const DAY: u64 = 86_400_000;

pub(crate) fn entry(trip: u64, sequence: u32, at_ms: u64) -> Entry {
    Entry::Handover(Handover { trip: TripId(trip), sequence, at_ms, ..handover() }, None)
}

pub(crate) fn entries(trip: u64, count: u32) -> Vec<Entry> {
    (0..count).map(|sequence| entry(trip, sequence, NOW)).collect()
}

fn named(name: &str, limits: Limits) -> Store {
    let mut store = Store::in_memory(limits).unwrap();
    store.set_own_name(name).unwrap();
    store
}

fn log(writer: &str, incarnation: u64) -> LogId {
    LogId { writer: writer.to_owned(), incarnation }
}

/// Appends a trip to another writer's log.
fn append(store: &mut Store, id: &LogId, trip: u64, count: u32) -> Appended {
    let next = store.find(id).and_then(|log| store.log(log)).map_or(0, |log| log.next);
    let all: Vec<_> = (next..).zip(entries(trip, count)).collect();
    store.append(id, 0, (next, next + u64::from(count)), &all, NOW).unwrap()
}

/// The trips of a writer and the number of their entries.
fn trips(store: &Store, writer: &str) -> Vec<(u64, usize)> {
    let mut trips = std::collections::BTreeMap::new();
    let visited = store.visit(|_, key, entry| {
        if let Entry::Handover(one, _) = entry
            && store.log(key.log).unwrap().id.writer == writer
        {
            *trips.entry(one.trip.0).or_default() += 1;
        }
        Ok::<_, StoreError>(())
    });
    visited.unwrap();
    trips.into_iter().collect()
}

#[test]
fn writer_with_most_entries_loses_its_oldest_trip() {
    let mut store = named("train-1", Limits { events_max: 40, ..Limits::default() });
    store.append_own(&entries(1, 5), NOW).unwrap();
    for trip in 0..3 {
        append(&mut store, &log("train-2", 1), trip, 10);
    }
    append(&mut store, &log("train-3", 1), 9, 8);
    assert_eq!(trips(&store, "train-1"), [(1, 5)]);
    assert_eq!(trips(&store, "train-2"), [(1, 10), (2, 10)], "43 were too many");
    assert_eq!(trips(&store, "train-3"), [(9, 8)]);
    // The newest trip of the node itself stays, whatever its size.
    store.append_own(&entries(2, 100), NOW).unwrap();
    assert_eq!(trips(&store, "train-1"), [(2, 100)]);
    assert_eq!(trips(&store, "train-2"), []);
    // Sequence numbers continue.
    let id = log("train-2", 1);
    assert_eq!(store.log(store.find(&id).unwrap()).unwrap().next, 30);
}

/// One endless trip of another writer displaces only itself.
#[test]
fn one_endless_trip_of_another_writer_is_evicted() {
    let mut store = named("train-1", Limits { events_max: 50, ..Limits::default() });
    store.append_own(&entries(1, 20), NOW).unwrap();
    for _ in 0..20 {
        append(&mut store, &log("mallory", 1), 7, 30);
    }
    assert_eq!(trips(&store, "train-1"), [(1, 20)]);
    assert!(store.stats().unwrap().entries <= 50);
}

#[test]
fn known_entries_and_gaps_change_nothing() {
    let mut store = named("cloud", Limits::default());
    let id = log("train-2", 1);
    assert_eq!(append(&mut store, &id, 1, 10).fresh.len(), 10);
    let all: Vec<_> = (5..).zip(entries(1, 10)).collect();
    let again = store.append(&id, 0, (5, 15), &all, NOW).unwrap();
    assert_eq!((again.fresh.len(), again.known), (5, 5));
    let ahead = store.append(&id, 0, (16, 26), &all[..0], NOW).unwrap();
    assert_eq!(ahead, Appended::default());
    let number = store.find(&id).unwrap();
    assert_eq!(store.log(number).unwrap().next, 15);
    let page = store.since(number, 3, 200).unwrap();
    assert_eq!((page.entries[0].0, page.end, page.entries.len()), (3, 7, 4));
}

#[test]
fn floors_remove_entries_and_are_never_lowered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let mut store = Store::open(&path, Limits::default()).unwrap();
    store.set_own_name("cloud").unwrap();
    let id = log("mallory", 1);
    append(&mut store, &id, 1, 10);
    append(&mut store, &log("train-2", 1), 1, 10);
    assert_eq!(store.purge("mallory").unwrap(), (10, 1));
    drop(store);
    let mut store = Store::open(&path, Limits::default()).unwrap();
    let number = store.find(&id).unwrap();
    assert_eq!(store.raise_floors(&[(number, 4)]).unwrap(), Appended::default());
    let state = store.log(number).unwrap();
    assert_eq!((state.floor, state.next, state.count), (10, 10, 0));
    // The next upload changes nothing; new entries count.
    let all: Vec<_> = (0..).zip(entries(1, 12)).collect();
    assert_eq!(store.append(&id, 0, (0, 12), &all, NOW).unwrap().fresh.len(), 2);
    assert_eq!(trips(&store, "train-2"), [(1, 10)]);
}

#[test]
fn new_incarnations_replace_the_log_written_longest_ago() {
    let mut store = named("cloud", Limits::default());
    for incarnation in 0..WRITER_LOGS_MAX as u64 {
        append(&mut store, &log("train-2", incarnation), incarnation, 2);
    }
    append(&mut store, &log("train-2", 0), 50, 1);
    let appended = append(&mut store, &log("train-2", 99), 99, 2);
    assert_eq!(appended.forgotten.len(), 1);
    assert_eq!(store.find(&log("train-2", 1)), None);
    assert!(store.find(&log("train-2", 0)).is_some());
    assert_eq!(store.logs().filter(|(_, log)| log.id.writer == "train-2").count(), 8);
    // No room for another writer.
    let mut store = named("cloud", Limits { logs_max: 3, ..Limits::default() });
    append(&mut store, &log("a", 1), 1, 1);
    append(&mut store, &log("b", 1), 1, 1);
    assert_eq!(append(&mut store, &log("c", 1), 1, 1).refused, 1);
    store.purge("a").unwrap();
    assert_eq!(append(&mut store, &log("c", 1), 1, 1).fresh.len(), 1, "an empty log is replaced");
}

#[test]
fn a_purged_log_is_replaced_last_so_that_its_floor_stays() {
    let mut store = named("cloud", Limits { logs_max: 4, ..Limits::default() });
    append(&mut store, &log("purged", 1), 1, 1);
    store.purge("purged").unwrap();
    append(&mut store, &log("empty", 1), 1, 0);
    append(&mut store, &log("a", 1), 1, 1);
    assert_eq!(append(&mut store, &log("b", 1), 1, 1).fresh.len(), 1);
    assert_eq!(store.find(&log("empty", 1)), None);
    assert!(store.find(&log("purged", 1)).is_some());
}

#[test]
fn another_name_begins_another_own_log() {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    store.append_own(&entries(1, 3), NOW).unwrap();
    store.set_own_name("train-1").unwrap();
    assert_eq!(trips(&store, "train-1"), [(1, 3)], "imported before the first start");
    store.set_own_name("train-2").unwrap();
    store.append_own(&entries(2, 1), NOW).unwrap();
    assert_eq!((trips(&store, "train-1"), trips(&store, "train-2")), (vec![(1, 3)], vec![(2, 1)]));
    assert_eq!(store.writer(store.own_log()), WriterNumber::OWN);
    assert_ne!(store.writer_named("train-1"), Some(WriterNumber::OWN));
}

#[test]
fn old_entries_are_swept_if_the_clock_is_plausible() {
    let year = Duration::from_secs(365 * 86_400);
    let mut store = named("train-1", Limits::default());
    for day in 0..60 {
        let at = NOW + day * DAY;
        store.append_own(&[entry(day, 0, at), entry(day, 1, at)], at).unwrap();
    }
    let last = NOW + 59 * DAY;
    let before = store.stats().unwrap().entries;
    assert_eq!(store.sweep(last, year).unwrap(), None);
    assert_eq!(store.stats().unwrap().entries, before);
    let ten = Duration::from_secs(10 * 86_400);
    let far = last + 20 * 365 * DAY;
    assert_eq!(store.sweep(far, ten).unwrap(), Some(last / HOUR_MS * HOUR_MS));
    assert_eq!(store.sweep(last, ten).unwrap(), None);
    assert_eq!(store.stats().unwrap().entries, before - 49 * 2);
}

/// A transaction that is not committed leaves nothing; committed ones survive.
#[test]
fn failed_transaction_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let mut store = Store::open(&path, Limits::default()).unwrap();
    store.set_own_name("train-1").unwrap();
    store.append_own(&entries(1, 3), NOW).unwrap();
    let failed = store.write(|batch| {
        batch.append_own(&entries(2, 3), NOW)?;
        Err::<(), _>(StoreError::damaged("a test"))
    });
    assert!(failed.is_err());
    assert_eq!((trips(&store, "train-1"), store.stats().unwrap().entries), (vec![(1, 3)], 3));
    store.append_own(&entries(3, 3), NOW).unwrap();
    drop(store);
    let store = Store::open(&path, Limits::default()).unwrap();
    assert_eq!(trips(&store, "train-1"), [(1, 3), (3, 3)]);
    assert_eq!(store.log(store.own_log()).unwrap().next, 6);
}

/// Evictions do not look at the same pieces again and again.
#[test]
fn evictions_pass_over_pieces_of_tracks_once() {
    let mut store = named("train-1", Limits { events_max: 400, ..Limits::default() });
    let track = crate::track::Track::begun(crate::track::LatLon::from_degrees(50.0, 8.0).unwrap());
    let piece = Entry::Track(track.pieces(polyrail_model::RouteId(7))[0].clone());
    let id = log("train-2", 1);
    let pieces: Vec<_> = (0..300).map(|number| (number, piece.clone())).collect();
    store.append(&id, 0, (0, 300), &pieces, NOW).unwrap();
    for trip in 0..30 {
        append(&mut store, &id, trip, 10);
    }
    assert_eq!(trips(&store, "train-2").len(), 10);
    let number = store.find(&id).unwrap();
    assert_eq!(store.log(number).unwrap().trips_from, 300 + 190, "the trip that was last evicted");
    assert_eq!(store.log(number).unwrap().count, 400, "all pieces stay");
}

/// What a cloud observes of a gateway weighs, and is purged, like that gateway's entries.
#[test]
fn observations_of_another_belong_to_it() {
    let mut store = named("cloud", Limits { events_max: 10, ..Limits::default() });
    store.append_own(&entries(1, 5), NOW).unwrap();
    for trip in 0..4 {
        let appended = store.append_of("mallory", &entries(trip, 4), NOW).unwrap();
        assert_eq!(store.writer(appended.fresh[0].0.log), store.writer_named("mallory").unwrap());
    }
    assert_eq!(trips(&store, "cloud"), [(1, 5)]);
    assert_eq!(trips(&store, "mallory"), [(3, 4)]);
    assert_eq!(store.purge("mallory").unwrap(), (4, 1));
    assert_eq!(store.append_of("mallory", &entries(9, 1), NOW).unwrap().fresh.len(), 1);
}
