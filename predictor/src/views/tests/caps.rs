//! Bounds of views, shared fairly.

use polyrail_model::{Bitrate, CellId, Direction, NodeRole, Position, RouteId, TripId};

use super::fleet::{self, Train, line, name};
use crate::entry::{Entry, EntryKey, Link, LogNumber, RateSample, Rates, WriterNumber};
use crate::history::{CellHistory, CellKey, PASSAGES_MAX, Passage};
use crate::record::tests::handover;
use crate::views::{
    CELLS_MAX, Cells, PLACE_TRIPS_MAX, PLACES_MAX, PlaceKey, Views, creator_hash, new_route,
};

fn passage(writer: u32, trip: u64) -> Passage {
    let entry = EntryKey { log: LogNumber(writer), sequence: trip };
    let passage = Passage::of(WriterNumber(writer), entry, &handover()).unwrap();
    Passage { trip: TripId(trip), ..passage }
}

fn key(cell: u64) -> CellKey {
    CellKey { cell: CellId(cell), ..CellKey::of(&handover()) }
}

fn count(history: &CellHistory, writer: u32) -> usize {
    history.passages().filter(|one| one.writer == WriterNumber(writer)).count()
}

#[test]
fn full_history_drops_the_oldest_of_the_writer_that_has_most() {
    let mut history = CellHistory::default();
    (0..20).for_each(|trip| assert!(history.insert(passage(1, trip)).added));
    (0..10).for_each(|trip| assert!(history.insert(passage(0, trip)).added));
    for trip in 0..1_000 {
        let inserted = history.insert(passage(2, trip));
        let dropped = inserted.dropped.map(|one| (one.writer.0, one.trip.0));
        let full = PASSAGES_MAX as u64 - 30;
        assert_eq!(dropped, trip.checked_sub(full).map(|oldest| (2, oldest)));
        assert!(inserted.added);
    }
    assert_eq!([0, 1, 2].map(|writer| count(&history, writer)), [10, 20, 98]);
    (20..200).for_each(|trip| assert!(history.insert(passage(1, trip)).added));
    assert_eq!([0, 1, 2].map(|writer| count(&history, writer)), [10, 59, 59]);
    // Another writer's trip numbers are its own trips.
    assert!(history.insert(passage(0, 199)).added && history.insert(passage(3, 199)).added);
}

#[test]
fn no_other_writer_weighs_more_than_the_median_of_the_others() {
    let cases: [(&[usize], [usize; 4]); 6] = [
        (&[0, 20, 20, 20], [0, 20, 20, 20]),
        (&[0, 10, 10, 60], [0, 10, 10, 10]),
        (&[60, 10, 10, 0], [60, 10, 10, 0]),
        (&[4, 0, 0, 100], [4, 0, 0, 4]),
        (&[1, 2, 100, 0], [1, 2, 2, 0]),
        (&[0, 0, 0, 100], [0, 0, 0, 100]),
    ];
    for (counts, wanted) in cases {
        let mut history = CellHistory::default();
        for (writer, count) in (0..).zip(counts) {
            (0..*count as u64)
                .for_each(|trip| assert!(history.insert(passage(writer, trip)).added));
        }
        let weighed = history.weighed(WriterNumber::OWN);
        let got = [0, 1, 2, 3].map(|writer| self::count(&weighed, writer));
        assert_eq!(got, wanted, "{counts:?}");
        for writer in weighed.writers() {
            let of = |history: &CellHistory| {
                let all = history.passages().filter(|one| one.writer == writer);
                all.map(|one| one.trip.0).max()
            };
            assert_eq!(of(&weighed), of(&history), "the newest stay");
        }
    }
}

#[test]
fn invented_cells_displace_each_other() {
    let mut cells = Cells::default();
    let honest = 2_000;
    for cell in 0..honest {
        cells.insert(key(cell), passage(1 + cell as u32 % 2, 1));
    }
    for cell in 0..100 {
        cells.insert(key(honest + cell), passage(0, 1));
    }
    for cell in 0..80_000 {
        cells.insert(key(1_000_000 + cell), passage(3, cell));
        assert!(cells.len() <= CELLS_MAX);
    }
    assert!((0..honest + 100).all(|cell| cells.get(&key(cell)).is_some()));
    assert!(cells.get(&key(1_000_000 + 79_999)).is_some(), "the newest stays");
    assert!(cells.get(&key(1_000_000)).is_none(), "the oldest goes");
    assert!(cells.len() > CELLS_MAX - CELLS_MAX / 50);
}

/// Others' records are projected on them.
#[test]
fn cells_of_invented_tracks_displace_each_other() {
    let line = line();
    let mut honest: Vec<Train> = (1..3).map(|one| Train::new(one, &line)).collect();
    let mut forger = Train::new(8, &line);
    let mut entries = Vec::new();
    honest.iter_mut().for_each(|train| entries.extend(train.pieces()));
    for number in 0..20 {
        forger.route = new_route(creator_hash(&name(forger.writer)), number);
        entries.extend(forger.pieces());
    }
    let mut views = fleet::views(&entries);
    let cells = 4_000;
    for cell in 0..cells {
        for train in &mut honest {
            let metres = 2_000.0 + 7.0 * cell as f64;
            let (writer, key, entry) = train.handover(&line, 1, cell, metres, false);
            let _ = views.take(writer, key, &entry);
        }
    }
    assert!(views.sizes().cells > CELLS_MAX - CELLS_MAX / 50, "it is full");
    let held = |train: &Train| {
        views.cells().iter().filter(|(key, _)| key.route == train.route).count() as u64
    };
    assert_eq!(honest.iter().map(held).collect::<Vec<_>>(), [cells, cells]);
}

fn rates(writer: u32, sequence: u64, hectometre: i32, mbps: f64) -> (EntryKey, Entry) {
    let position = Position { decimetres: hectometre * 1_000 };
    let rate = Some(Bitrate::from_mbps(mbps));
    let sample = RateSample { position, spot: None, rate, delay: None };
    let (trip, route, direction) = (TripId(sequence), RouteId(1), Direction::Up);
    let (carrier, link, samples) = ("a".to_owned(), Link::Down, vec![sample]);
    let rates = Rates { trip, carrier, route, direction, link, samples };
    (EntryKey { log: LogNumber(writer), sequence }, Entry::Rates(rates))
}

#[test]
fn invented_places_displace_each_other() {
    let mut views = Views::new(NodeRole::Cloud);
    let mut put = |writer: u32, sequence: u64, hectometre: i32, mbps: f64| {
        let (key, entry) = rates(writer, sequence, hectometre, mbps);
        assert!(views.apply(WriterNumber(writer), key, &entry).is_empty());
    };
    (0..1_000).for_each(|place| put(1, place as u64, place, 5.0));
    (0..PLACES_MAX as i32 + 10_000).for_each(|place| put(2, place as u64, 5_000 + place, 5.0));
    // A full place: the newest trips of the writer that has most go first.
    (0..10).for_each(|trip| put(0, trip, 7, 10.0));
    (1_000..1_005).for_each(|trip| put(1, trip, 7, 10.0));
    (0..90).for_each(|trip| put(2, trip, 7, 1.0));
    let places = views.sizes().places;
    assert!((PLACES_MAX - PLACES_MAX / 50..=PLACES_MAX).contains(&places), "{places}");
    let at = |own: u32, hectometre: i32| {
        let position = Position { decimetres: hectometre * 1_000 };
        let place = PlaceKey::of("a", RouteId(1), Direction::Up, position);
        views.estimate(WriterNumber(own), &place)
    };
    assert!((0..1_000).all(|place| at(1, place).is_some()));
    assert_eq!(at(2, 5_000), None);
    assert_eq!(at(0, 7).unwrap().rate, Some(Bitrate::from_mbps(10.0)), "no more than its share");
    assert_eq!(PLACE_TRIPS_MAX, 32);
}

#[test]
fn handovers_that_their_cell_dropped_are_reported() {
    let line = line();
    let mut train = Train::new(1, &line);
    let mut views = Views::new(NodeRole::Gateway);
    let mut useless = Vec::new();
    for trip in 0..PASSAGES_MAX as u64 + 10 {
        let (writer, key, entry) = train.handover(&line, trip, 3, 4_000.0, false);
        useless.extend(views.apply(writer, key, &entry));
    }
    let wanted: Vec<_> = (0..10).map(|sequence| EntryKey { log: LogNumber(1), sequence }).collect();
    assert_eq!(useless, wanted);
    // A projection that is dropped is of use on its own track.
    let mut other = Train::new(2, &line);
    for (writer, key, entry) in train.pieces() {
        views.introduce(writer, &super::fleet::name(writer));
        assert!(views.apply(writer, key, &entry).is_empty());
    }
    let mut useless = Vec::new();
    for trip in 0..PASSAGES_MAX as u64 {
        let (writer, key, entry) = other.handover(&line, trip, 3, 4_000.0, false);
        useless.extend(views.apply(writer, key, &entry));
    }
    assert!(useless.iter().all(|key| key.log == LogNumber(1)), "{useless:?}");
    assert_eq!(useless.len(), PASSAGES_MAX / 2);
    assert_eq!(views.sizes().cells, 2);
}
