//! A server that is away, clocks that jump, partitions.

use super::*;

#[test]
fn stopped_server_delays_entries_and_loses_none() {
    let Some(mut fleet) = Fleet::start() else { return };
    let (mut a, mut b) = (fleet.cloud("a").unwrap(), fleet.cloud("b").unwrap());
    let mut sent = 0;
    for round in 0..3 {
        a.send(&log("train-1"), sent, handovers(1, sent, 500, NOW_MS));
        if round > 0 {
            b.wait(SOON, |entries, _| entries > sent * 2).unwrap();
        }
        fleet.postgres.stop();
        b.send(&log("train-2"), sent, handovers(2, sent, 500, NOW_MS));
        a.wait(SOON, |_, shared| !shared.connected).unwrap();
        let (_, shared) = a.state().unwrap();
        assert!(shared.error.is_some(), "{shared:?}");
        fleet.postgres.resume().unwrap();
        sent += 500;
        settle(&a, 2 * sent);
        settle(&b, 2 * sent);
    }
    assert_eq!(fleet.rows(), 3_000);
    assert_eq!(a.stop().unwrap(), b.stop().unwrap());
}

/// Two clouds collect a day of four trains while the server is away, one of them restarts, and two
/// trains move to the other cloud.
#[test]
fn outage_of_a_day_is_caught_up_without_gap_or_duplicate() {
    let Some(mut fleet) = Fleet::start() else { return };
    fleet.postgres.stop();
    let mut a = fleet.cloud_with("a", fleet.postgres.server("a")).unwrap();
    let mut b = fleet.cloud_with("b", fleet.postgres.server("b")).unwrap();
    for hour in 0..24 {
        for train in 0..4 {
            let moves = [0, 2].contains(&train);
            let is_on_a = (train < 2) != (moves && hour >= 12);
            // After its move a train repeats its log, because the new cloud lacks it.
            let from = if moves && hour == 12 { 0 } else { hour };
            let entries = (from..=hour).flat_map(|hour| {
                handovers(train, hour * HOURLY, HOURLY, NOW_MS + hour * 3_600_000)
            });
            let cloud = if is_on_a { &mut a } else { &mut b };
            cloud.send(&log(&format!("train-{train}")), from * HOURLY, entries.collect());
        }
        if hour == 6 {
            a.wait(SOON, |entries, _| entries == 2 * 7 * HOURLY).unwrap();
            a.stop().unwrap();
            a = fleet.cloud_with("a", fleet.postgres.server("a")).unwrap();
        }
    }
    let all = 4 * 24 * HOURLY;
    // One train of the whole day, one of half of it, and the one that moved here.
    let here = (24 + 12 + 24) * HOURLY;
    a.wait(SOON, |entries, _| entries == here).unwrap();
    b.wait(SOON, |entries, shared| entries == here && !shared.connected).unwrap();
    fleet.postgres.resume().unwrap();
    settle(&a, all);
    settle(&b, all);
    assert_eq!(fleet.rows(), all);
    let contents = a.stop().unwrap();
    for train in 0..4 {
        let numbers = numbers(&contents, &log(&format!("train-{train}")));
        assert!(numbers.into_iter().eq(0..24 * HOURLY), "train {train}");
    }
    assert_eq!(contents, b.stop().unwrap());
}

#[test]
fn clock_that_jumps_drops_no_partition() {
    let Some(fleet) = Fleet::start() else { return };
    let mut a = fleet.cloud("a").unwrap();
    let parts = || fleet.postgres.sql("SELECT count(*) FROM polyrail.part").unwrap();
    let rotate = || fleet.postgres.sql_as("a", "SELECT polyrail.rotate()").unwrap();
    // The clocks of trains are years off: their entries are as they sent them.
    a.send(&log("train-1"), 0, handovers(1, 0, 10, 1_000));
    a.send(&log("train-2"), 0, handovers(2, 0, 10, 4_102_444_800_000));
    settle(&a, 20);
    // The server's clock was a year ahead when the partition began, and is right again.
    fleet.postgres.sql("UPDATE polyrail.part SET begun_at = now() + '1 year'").unwrap();
    rotate();
    assert_eq!(parts(), "1");
    // It jumps two years ahead, beyond the retention: one new partition, and nothing is dropped.
    fleet
        .postgres
        .sql("UPDATE polyrail.part SET begun_at = begun_at - '2 years'::interval")
        .unwrap();
    rotate();
    rotate();
    assert_eq!(parts(), "2");
    // The writer's quota was last used in the future.
    fleet.postgres.sql("UPDATE polyrail.writer SET quota_at = now() + '1 year'").unwrap();
    a.send(&log("train-1"), 10, handovers(1, 10, 10, NOW_MS));
    settle(&a, 30);
    let b = fleet.cloud("b").unwrap();
    settle(&b, 30);
    assert_eq!(a.stop().unwrap(), b.stop().unwrap());
}

#[test]
fn retention_drops_the_oldest_partition() {
    let Some(fleet) = Fleet::start() else { return };
    fleet.postgres.sql("UPDATE polyrail.meta SET retention_days = 14").unwrap();
    let mut a = fleet.cloud("a").unwrap();
    for week in 0..5 {
        let first = week * 10;
        a.send(&log("train-1"), first, handovers(1, first, 10, NOW_MS));
        settle(&a, first + 10);
        let age = "UPDATE polyrail.part SET begun_at = begun_at - '8 days'::interval";
        fleet.postgres.sql(age).unwrap();
        fleet.postgres.sql_as("a", "SELECT polyrail.rotate()").unwrap();
    }
    assert_eq!(fleet.postgres.sql("SELECT count(*) FROM polyrail.part").unwrap(), "3");
    let b = fleet.cloud("b").unwrap();
    settle(&b, 20);
    assert_eq!(numbers(&b.stop().unwrap(), &log("train-1")), (30..50).collect::<Vec<_>>());
}

/// Entries of a train an hour.
const HOURLY: u64 = 400;
