//! Bonding: the sum of the carriers, and never worse than the best one alone.

use crate::lab::{CLOUD, at_least, chain, download, line, ms, s, talk, world, world_with};

const MB: u64 = 1_000_000;

#[test]
fn two_equal_paths_share_a_download() {
    let alone = download(&mut world(&[line("a", 20.0, ms(40))]), 20 * MB, s(20));
    let mut both = world(&[line("a", 20.0, ms(40)), line("b", 20.0, ms(40))]);
    let together = download(&mut both, 20 * MB, s(20));
    let ratio = alone.as_secs_f64() / together.as_secs_f64();
    at_least("two_equal_paths", ratio, 1.7);
    holds("two_equal_paths", ratio, TWO_EQUAL_PATHS);
}

#[test]
fn a_short_download_needs_few_round_trips() {
    let mut world = world(&[line("a", 100.0, ms(100))]);
    download(&mut world, MB, s(5));
    let time = download(&mut world, MB, s(5));
    // 100 ms of round trip, 80 ms for the bytes, and at most one more round trip.
    assert!(time <= ms(280), "{time:?}");
}

#[test]
fn flows_that_are_kept_open_do_not_slow_a_short_download() {
    for users in [1, 20] {
        let mut world = world(&[line("a", 100.0, ms(100))]);
        for flow in 0..20 {
            let flow = talk(&mut world, 1 + flow % users);
            world.write(flow, CLOUD, 10_000);
        }
        world.run_for(s(2));
        download(&mut world, MB, s(5));
        // The transport's window is open by now; the window of the flow is new.
        let time = download(&mut world, MB, s(5));
        assert!(time <= ms(280), "{time:?} beside idle flows of {users} users");
    }
}

#[test]
fn a_slow_path_beside_a_fast_one_does_no_harm() {
    for (rtt, committed) in [(40, FAST_AND_SLOW), (200, FAST_AND_SLOW_AND_FAR)] {
        let alone = download(&mut world(&[line("a", 20.0, ms(40))]), 20 * MB, s(20));
        let mut both = world(&[line("a", 20.0, ms(40)), line("b", 5.0, ms(rtt))]);
        let together = download(&mut both, 20 * MB, s(20));
        let ratio = alone.as_secs_f64() / together.as_secs_f64();
        at_least(&format!("20_and_5_at_{rtt}_ms"), ratio, 0.97);
        holds(&format!("20_and_5_at_{rtt}_ms"), ratio, committed);
    }
}

#[test]
fn every_chain_downloads_over_three_different_paths() {
    for (name, bound) in [("min_rtt", 4), ("round_robin", 8), ("redundant", 12)] {
        let lines = [line("a", 10.0, ms(40)), line("b", 8.0, ms(60)), line("c", 6.0, ms(90))];
        let time = download(&mut world_with(&lines, chain(name)), 5 * MB, s(30));
        assert!(time <= s(bound), "{name} took {time:?}");
    }
}

#[test]
fn a_backup_carries_nothing_while_another_path_lives() {
    let mut backup = line("b", 20.0, ms(20));
    backup.backup = true;
    let mut world = world(&[line("a", 10.0, ms(40)), backup]);
    download(&mut world, 2 * MB, s(5));
    for side in [crate::lab::GATEWAY, crate::lab::CLOUD] {
        let session = &world.status(side).sessions[0];
        let sent: Vec<u64> = session.paths.iter().map(|path| path.sent.0).collect();
        let backup = session.paths.iter().position(|path| path.carrier == "b").unwrap();
        assert_eq!(sent[backup], 0, "{side:?}");
    }
    world.enable(0, false);
    download(&mut world, 2 * MB, s(5));
}

/// Virtual time is exact: a ratio may fall below its committed value by a small share only.
fn holds(name: &str, ratio: f64, committed: f64) {
    let least = committed * (1.0 - DROP_MAX);
    assert!(ratio >= least, "{name}: {ratio:.3} where {committed:.3} was reached before");
}

/// The share by which a change may reduce a committed ratio: differences below 3 % are chance.
const DROP_MAX: f64 = 0.03;

/// Two lines of 20 Mbit/s and 40 ms against one.
const TWO_EQUAL_PATHS: f64 = 1.937;
/// 20 Mbit/s and 5 Mbit/s, both 40 ms, against the fast one alone.
const FAST_AND_SLOW: f64 = 1.172;
/// The same with 200 ms on the slow one.
const FAST_AND_SLOW_AND_FAR: f64 = 1.109;
