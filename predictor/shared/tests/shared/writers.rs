//! Logs: duplicates, late commits, purges, quotas, backups.

use polyrail_model::{Bitrate, Direction, Position, RouteId, TripId};
use polyrail_predictor::entry::{Entry, Link, RateSample, Rates};
use polyrail_predictor::store::{Limits, Store};

use super::*;

/// An append of the entries `first..end` of train 1, all with the data of its entry 0.
fn append(first: u64, end: u64) -> String {
    let incarnation = INCARNATION.cast_signed();
    format!(
        "SELECT added FROM polyrail.append(ARRAY['train-1'], ARRAY[{incarnation}], ARRAY[0],
            ARRAY[{first}], ARRAY[{end}], ARRAY[{end} - {first}],
            ARRAY(SELECT generate_series({first}, {end} - 1)::bigint),
            ARRAY(SELECT (SELECT data FROM polyrail.entry WHERE sequence = 0 LIMIT 1)
                FROM generate_series({first}, {end} - 1)));"
    )
}

/// Another cloud appends entry 1 in a transaction that begins before others and ends after them.
/// `repeats`: a cloud here has the same entry.
#[track_caller]
fn assert_late_end(end: &str, repeats: bool) {
    let Some(fleet) = Fleet::start() else { return };
    let (mut a, b) = (fleet.cloud("a").unwrap(), fleet.cloud("b").unwrap());
    a.send(&log("train-1"), 0, handovers(1, 0, 1, NOW_MS));
    settle(&b, 1);
    let late = format!("BEGIN; {} SELECT pg_sleep(3); {end}", append(1, 2));
    std::thread::scope(|scope| {
        let late = scope.spawn(|| fleet.postgres.sql_as("c", &late));
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        while fleet.postgres.sql(held).unwrap() == "0" {}
        if repeats {
            // Of the same log, which is busy.
            a.send(&log("train-1"), 1, handovers(1, 1, 2, NOW_MS));
        }
        a.send(&log("train-2"), 0, handovers(2, 0, 5, NOW_MS));
        b.wait(SOON, |entries, _| entries == 6).unwrap();
        assert!(!late.is_finished(), "too slow: the transaction has ended");
        let (_, shared) = a.state().unwrap();
        assert_eq!(shared.refused > 0, repeats, "{shared:?}");
        late.join().unwrap().unwrap();
    });
    if !repeats {
        // Nobody appends to the log afterwards: that would list it once more.
        settle(&a, 7);
        settle(&b, 7);
        a.send(&log("train-1"), 1, handovers(1, 1, 2, NOW_MS));
    }
    settle(&a, 8);
    settle(&b, 8);
    assert_eq!(fleet.rows(), 8);
    let contents = b.stop().unwrap();
    assert_eq!(numbers(&contents, &log("train-1")), [0, 1, 2]);
    assert_eq!(numbers(&contents, &log("train-2")), [0, 1, 2, 3, 4]);
    // An empty cloud reads the same.
    let c = fleet.cloud("c").unwrap();
    settle(&c, 8);
    assert_eq!(c.stop().unwrap(), contents);
}

#[test]
fn late_commit_is_not_skipped() {
    assert_late_end("COMMIT", false);
}

#[test]
fn late_commit_of_known_entries_leaves_no_gap() {
    assert_late_end("COMMIT", true);
}

#[test]
fn late_rollback_leaves_no_gap() {
    assert_late_end("ROLLBACK", true);
}

#[test]
fn duplicates_and_replays_change_nothing() {
    let Some(fleet) = Fleet::start() else { return };
    let (mut a, mut b) = (fleet.cloud("a").unwrap(), fleet.cloud("b").unwrap());
    // A train moves from one cloud to the other, which learns its log from both sides.
    a.send(&log("train-1"), 0, handovers(1, 0, 300, NOW_MS));
    b.send(&log("train-1"), 0, handovers(1, 0, 200, NOW_MS));
    b.send(&log("train-1"), 200, handovers(1, 200, 300, NOW_MS));
    a.send(&log("train-1"), 0, handovers(1, 0, 300, NOW_MS));
    settle(&a, 500);
    settle(&b, 500);
    assert_eq!(fleet.rows(), 500);
    assert_eq!(fleet.postgres.sql_as("c", &append(0, 500)).unwrap(), "0");
    assert_eq!(fleet.postgres.sql_as("c", &append(400, 501)).unwrap(), "1");
    // A span that begins above the mark would leave a gap.
    assert_eq!(fleet.postgres.sql_as("c", &append(502, 520)).unwrap(), "");
    assert_eq!(fleet.rows(), 501);
    settle(&b, 501);
    settle(&a, 501);
    assert_eq!(a.stop().unwrap(), b.stop().unwrap());
}

#[test]
fn purged_writer_stays_purged_in_all_clouds() {
    let Some(fleet) = Fleet::start() else { return };
    let (mut a, mut b) = (fleet.cloud("a").unwrap(), fleet.cloud("b").unwrap());
    a.send(&log("train-1"), 0, handovers(1, 0, 100, NOW_MS));
    a.send(&log("train-2"), 0, handovers(2, 0, 10, NOW_MS));
    settle(&b, 110);
    settle(&a, 110);
    a.stop().unwrap();
    let mut store = Store::open(fleet.file("a"), Limits::default()).unwrap();
    assert_eq!(store.purge("train-1").unwrap(), (100, 1));
    drop(store);
    let a = fleet.cloud("a").unwrap();
    settle(&b, 10);
    assert_eq!(fleet.rows(), 10);
    // The train uploads its log again, to another cloud.
    b.send(&log("train-1"), 0, handovers(1, 0, 100, NOW_MS));
    b.send(&log("train-1"), 100, handovers(1, 100, 5, NOW_MS));
    settle(&b, 15);
    settle(&a, 15);
    assert_eq!(fleet.rows(), 15);
    assert_eq!(numbers(&a.stop().unwrap(), &log("train-1")), [100, 101, 102, 103, 104]);
    // A cloud that returns with its old file loses the entries, too.
    let c = fleet.cloud("c").unwrap();
    settle(&c, 15);
}

#[test]
fn purge_reaches_the_cloud_that_observed_the_writer() {
    let Some(fleet) = Fleet::start() else { return };
    fleet.cloud("a").unwrap().stop().unwrap();
    observe(&fleet, "a", &[1.0, 2.0, 3.0]);
    let (a, b) = (fleet.cloud("a").unwrap(), fleet.cloud("b").unwrap());
    settle(&b, 3);
    b.stop().unwrap();
    let mut store = Store::open(fleet.file("b"), Limits::default()).unwrap();
    assert_eq!(store.purge("train-1").unwrap(), (3, 1));
    drop(store);
    let b = fleet.cloud("b").unwrap();
    settle(&a, 0);
    assert_eq!(fleet.rows(), 0);
    // New observations count again.
    a.stop().unwrap();
    observe(&fleet, "a", &[4.0]);
    let a = fleet.cloud("a").unwrap();
    settle(&a, 1);
    settle(&b, 1);
}

#[test]
fn quota_holds_for_the_fleet_and_delays_nobody_else() {
    let Some(fleet) = Fleet::start() else { return };
    fleet.postgres.sql("UPDATE polyrail.meta SET entries_a_day = 3000").unwrap();
    let (mut a, mut b) = (fleet.cloud("a").unwrap(), fleet.cloud("b").unwrap());
    a.send(&log("train-1"), 0, handovers(1, 0, 5_000, NOW_MS));
    a.wait(SOON, |_, shared| shared.refused > 0).unwrap();
    a.send(&log("train-2"), 0, handovers(2, 0, 1_000, NOW_MS));
    // Another cloud and another disk do not help.
    let other = LogId { incarnation: 5, ..log("train-1") };
    b.send(&other, 0, handovers(1, 0, 1_000, NOW_MS));
    let of_two = "SELECT count(*) FROM polyrail.entry JOIN polyrail.log ON number = log
        WHERE writer = 'train-2'";
    b.wait(SOON, |entries, _| entries > 3_000).unwrap();
    let two: u64 = fleet.postgres.sql(of_two).unwrap().parse().unwrap();
    let rows = fleet.rows();
    // A new log counts as 1,000.
    assert!(two == 1_000 && rows <= two + 2_000, "{two} {rows}");
    fleet.postgres.sql("UPDATE polyrail.meta SET entries_a_day = 200000").unwrap();
    fleet.postgres.sql("UPDATE polyrail.writer SET quota = 200000").unwrap();
    settle(&a, 7_000);
    settle(&b, 7_000);
    assert_eq!(a.stop().unwrap(), b.stop().unwrap());
}

#[test]
fn writer_keeps_eight_logs() {
    let Some(fleet) = Fleet::start() else { return };
    let mut a = fleet.cloud("a").unwrap();
    let log = |incarnation| LogId { writer: "train-1".to_owned(), incarnation };
    let age = || {
        let age = "UPDATE polyrail.log SET written_at = written_at - '25 hours'::interval";
        fleet.postgres.sql(age).unwrap()
    };
    for incarnation in 1..=10 {
        a.send(&log(incarnation), 0, handovers(1, incarnation * 10, 10, NOW_MS));
        let sent = incarnation * 10;
        if incarnation == 9 {
            // All others were written today: it waits.
            a.wait(SOON, |_, shared| shared.refused > 0).unwrap();
            assert_eq!(fleet.rows(), 80);
            age();
        }
        a.wait(SOON, |_, shared| shared.sent == sent).unwrap();
    }
    assert_eq!(fleet.rows(), 80);
    let b = fleet.cloud("b").unwrap();
    settle(&b, 80);
    settle(&a, 80);
    // A log that was emptied is one more when it goes on.
    a.send_above(&log(1), 10, 10, handovers(1, 20, 10, NOW_MS));
    a.wait(SOON, |_, shared| shared.sent == 110).unwrap();
    b.wait(SOON, |entries, shared| (entries, shared.received) == (80, 90)).unwrap();
    assert_eq!(fleet.rows(), 80);
    assert_eq!(numbers(&b.stop().unwrap(), &log(1)), (10..20).collect::<Vec<_>>());
}

/// What a cloud observes of a train, in a file without a daemon.
fn observe(fleet: &Fleet, cloud: &str, metres: &[f64]) {
    let mut store = Store::open(fleet.file(cloud), Limits::default()).unwrap();
    let rates = metres.iter().map(|&metres| {
        let position = Position::from_metres(metres);
        let rate = Some(Bitrate::from_bps(1_000_000));
        Entry::Rates(Rates {
            trip: TripId(metres as u64),
            carrier: "alpha".to_owned(),
            route: RouteId(1),
            direction: Direction::Up,
            link: Link::Down,
            samples: vec![RateSample { position, spot: None, rate, delay: None }],
        })
    });
    store.append_of("train-1", &rates.collect::<Vec<_>>(), NOW_MS).unwrap();
}

#[test]
fn restored_file_of_a_cloud_uses_no_number_again() {
    let Some(fleet) = Fleet::start() else { return };
    let b = fleet.cloud("b").unwrap();
    fleet.cloud("a").unwrap().stop().unwrap();
    observe(&fleet, "a", &[1.0, 2.0]);
    std::fs::copy(fleet.file("a"), fleet.file("backup")).unwrap();
    observe(&fleet, "a", &[3.0]);
    let a = fleet.cloud("a").unwrap();
    settle(&b, 3);
    a.stop().unwrap();
    std::fs::copy(fleet.file("backup"), fleet.file("a")).unwrap();
    let a = fleet.cloud("a").unwrap();
    settle(&a, 3);
    a.stop().unwrap();
    observe(&fleet, "a", &[4.0, 5.0]);
    let a = fleet.cloud("a").unwrap();
    settle(&a, 5);
    settle(&b, 5);
    assert_eq!(fleet.rows(), 5);
    assert_eq!(a.stop().unwrap(), b.stop().unwrap());
}

#[test]
fn cloud_without_room_takes_the_newest_entries() {
    let Some(fleet) = Fleet::start() else { return };
    let mut a = fleet.cloud("a").unwrap();
    for train in 0..5 {
        a.send(&log(&format!("train-{train}")), 0, handovers(train, 0, 1_000, NOW_MS));
    }
    settle(&a, 5_000);
    let server = fleet.postgres.server("b");
    let b = Cloud::with_room(fleet.folder.path(), "b", server, 2_000).unwrap();
    b.wait(SOON, |entries, shared| entries > 0 && shared.behind == 0).unwrap();
    let contents = b.stop().unwrap();
    assert!((1_500..=2_000).contains(&contents.len()), "{}", contents.len());
    assert!(contents.keys().all(|(_, number)| *number >= 600), "{:?}", contents.keys().next());
}
