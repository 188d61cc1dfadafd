//! A standby server, which takes over.

use std::net::TcpListener;

use super::*;

/// The servers for a user, in this order.
fn server(user: &str, hosts: [&Postgres; 2]) -> Server {
    let host = |server: &Postgres| {
        let folder = server.folder().display().to_string().replace('/', "%2F");
        format!("{folder}:{}", server.port())
    };
    let url = format!("postgres://{user}@{},{}/polyrail", host(hosts[0]), host(hosts[1]));
    Server { url, password_file: None, ca: None }
}

/// Waits until a query has this result.
#[track_caller]
fn until(server: &Postgres, sql: &str, result: &str) {
    let mut found = String::new();
    for _ in 0..600 {
        found = server.sql(sql).unwrap();
        if found == result {
            return;
        }
        std::thread::sleep(SOON / 600);
    }
    panic!("{sql}: {found}");
}

/// The primary dies while two clouds append, and its standby is promoted. `lags`: the standby has
/// lost the primary before, and lacks entries that both clouds have.
#[track_caller]
fn assert_failover(lags: bool) {
    let Some(mut fleet) = Fleet::start() else { return };
    let standby = fleet.postgres.standby().unwrap();
    // The standby is the first, so clouds must find the one that accepts writes.
    let start = |fleet: &Fleet, name: &str| {
        let cloud = fleet.cloud_with(name, server(name, [&standby, &fleet.postgres])).unwrap();
        cloud.wait(SOON, |_, shared| shared.connected).unwrap();
        cloud
    };
    let (mut a, mut b) = (start(&fleet, "a"), start(&fleet, "b"));
    let send = |a: &mut Cloud, b: &mut Cloud, first, count| {
        a.send(&log("train-1"), first, handovers(1, first, count, NOW_MS));
        b.send(&log("train-2"), first, handovers(2, first, count, NOW_MS));
    };
    send(&mut a, &mut b, 0, 500);
    settle(&a, 1_000);
    settle(&b, 1_000);
    until(&standby, "SELECT count(*) FROM polyrail.entry", "1000");
    if lags {
        standby.sql("ALTER SYSTEM SET primary_conninfo = ''").unwrap();
        standby.sql("SELECT pg_reload_conf()").unwrap();
        until(&standby, "SELECT count(*) FROM pg_stat_wal_receiver", "0");
    }
    send(&mut a, &mut b, 500, ALL - 1_000);
    let at = if lags { 2 * (ALL - 500) } else { 5_000 };
    b.wait(SOON, |_, shared| shared.sent + shared.received >= at).unwrap();
    send(&mut a, &mut b, ALL - 500, 250);
    fleet.postgres.stop();
    for cloud in [&a, &b] {
        cloud.wait(SOON, |_, shared| !shared.connected).unwrap();
    }
    send(&mut a, &mut b, ALL - 250, 250);
    let there = standby.sql("SELECT count(*) FROM polyrail.entry").unwrap();
    println!("the standby has {there} entries");
    assert!(there.parse::<u64>().unwrap() < 2 * ALL, "the primary died too late");
    assert!(there == "1000" || !lags, "{there}");
    standby.sql("SELECT pg_promote()").unwrap();
    for cloud in [&a, &b] {
        cloud.wait(SOON, |_, shared| shared.connected).unwrap();
        settle(cloud, 2 * ALL);
        // It has received each entry of the other once.
        assert_eq!(cloud.state().unwrap().1.received, ALL);
    }
    fleet.postgres = standby;
    assert_eq!(fleet.rows(), 2 * ALL);
    let contents = a.stop().unwrap();
    for train in ["train-1", "train-2"] {
        assert!(numbers(&contents, &log(train)).into_iter().eq(0..ALL), "{train}");
    }
    assert_eq!(contents, b.stop().unwrap());
}

#[test]
fn promoted_standby_takes_over_while_clouds_append() {
    assert_failover(false);
}

#[test]
fn entries_that_a_standby_lacks_are_appended_again() {
    assert_failover(true);
}

#[test]
fn clouds_leave_a_server_that_becomes_read_only() {
    let Some(fleet) = Fleet::start() else { return };
    let standby = fleet.postgres.standby().unwrap();
    let start = |name| fleet.cloud_with(name, server(name, [&fleet.postgres, &standby])).unwrap();
    let (mut a, b) = (start("a"), start("b"));
    a.send(&log("train-1"), 0, handovers(1, 0, 10, NOW_MS));
    settle(&b, 10);
    until(&standby, "SELECT count(*) FROM polyrail.entry", "10");
    standby.sql("SELECT pg_promote()").unwrap();
    fleet.postgres.sql("ALTER SYSTEM SET default_transaction_read_only = on").unwrap();
    fleet.postgres.sql("SELECT pg_reload_conf()").unwrap();
    until(&fleet.postgres, "SHOW default_transaction_read_only", "on");
    a.send(&log("train-1"), 10, handovers(1, 10, 10, NOW_MS));
    // This one appends nothing.
    b.wait(SOON, |entries, _| entries == 20).unwrap();
    settle(&a, 20);
    assert_eq!(fleet.rows(), 10);
    assert_eq!(a.stop().unwrap(), b.stop().unwrap());
}

#[test]
fn host_that_does_not_answer_leaves_time_for_the_next() {
    let Some(fleet) = Fleet::start() else { return };
    // It accepts no connection, but the system does.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let Server { url, .. } = fleet.postgres.server("a");
    let url = url.replace('@', &format!("@{},", silent.local_addr().unwrap()));
    let a = fleet.cloud_with("a", Server { url, password_file: None, ca: None }).unwrap();
    a.wait(SOON, |_, shared| shared.connected).unwrap();
}

/// Entries of each of two trains.
const ALL: u64 = 20_000;
