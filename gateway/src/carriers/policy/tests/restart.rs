//! Races after blackouts, reports, new cells and operators' requests.

use std::time::Duration;

use polyrail_admin::PathPhase;
use polyrail_config::{Mode, Restart};

use super::world::{QUIC, TLS, World, ms, secs};
use crate::carriers::policy::{Cause, EndingKind, Notice, Pace};

fn restarts(world: &World, wanted: Cause) -> usize {
    world.tells(|notice| matches!(notice, Notice::Restarted { cause, .. } if *cause == wanted))
}

/// The times until user data flows again after blackouts at 40 different phases.
fn returns(mode: Mode, pace: &Pace, rtt: Duration, dark: Duration, early: bool) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..40)
        .map(|step| {
            let mut world = World::with(mode, pace.clone(), 1);
            world.net.rtt = rtt;
            world.early = early;
            world.run(secs(4));
            let old = world.in_use();
            world.net.dark = true;
            world.run(dark + ms(step * 7));
            world.net.dark = false;
            let took = world
                .run_until(secs(20), |world| world.in_use() != old && world.carries().is_some());
            assert!(world.alive_max <= pace.alive_max(), "{} alive", world.alive_max);
            took
        })
        .collect();
    times.sort_unstable();
    times
}

#[test]
fn after_a_blackout_a_fresh_connection_carries_within_two_round_trips_and_200_ms() {
    let pace = Pace { restart: Restart::default(), frugal: false, probing: false };
    for rtt in [ms(40), ms(60), ms(120), ms(200)] {
        // A path needs a round trip for its handshake (QUIC) or two (TLS) and one for its greeting;
        // early data saves the greeting's.
        for (mode, trips) in [(Mode::Auto, 2), (Mode::Quic, 2), (Mode::Tls, 3)] {
            let times = returns(mode, &pace, rtt, secs(5), false);
            let median = times[times.len() / 2];
            assert!(median <= rtt * trips + ms(200), "{mode} {rtt:?}: {times:?}");
            let worst = times[times.len() - 1];
            assert!(worst <= rtt * (trips + 3) + ms(400), "{mode} {rtt:?}: {times:?}");
        }
    }
}

#[test]
fn after_the_cloud_ended_the_connection_one_attempt_at_a_time_is_alive_for_5_s() {
    let mut world = World::new(Mode::Auto);
    world.run(secs(4));
    let path = world.in_use().unwrap();
    (world.net.dark, world.alive_max) = (true, 0);
    let gone = world.at();
    world.end(path, EndingKind::Rejected);
    world.run(secs(4));
    let starts = world.starts(gone);
    assert!(starts[0].0 <= ms(500) && starts.len() <= 12, "{starts:?}");
    assert_eq!(world.alive_max, 1);
    // The carrier may have failed, too.
    world.run(secs(3));
    assert_eq!(world.alive_max, 3);
    world.net.dark = false;
    world.run_until(secs(1), |world| world.carries().is_some());
}

#[test]
fn one_stall_is_counted_once() {
    let mut world = World::new(Mode::Quic);
    world.run(secs(4));
    let dark = world.at();
    world.net.dark = true;
    world.run(secs(2));
    let (first, _) = world.starts(dark)[0];
    assert!(first >= ms(290) && first <= ms(310), "{first:?}");
    assert_eq!(world.policy.phase().unwrap().0, PathPhase::Stalled);
    assert_eq!(world.policy.counters().stalls, 1);
}

#[test]
fn recovered_path_ends_the_race() {
    let mut world = World::new(Mode::Quic);
    world.run(secs(2));
    let path = world.in_use();
    world.nimble = true;
    world.net.dark = true;
    world.run(ms(335));
    world.net.dark = false;
    world.run(ms(50));
    assert_eq!(world.tells(|notice| matches!(notice, Notice::Recovered { .. })), 1);
    let begun = world.started.len();
    world.run(secs(5));
    assert_eq!(world.in_use(), path, "the old connection stays");
    assert_eq!(world.started.len(), begun);
    assert_eq!(world.policy.phase().unwrap().0, PathPhase::Up);
}

#[test]
fn long_blackout_starts_few_connections() {
    for (frugal, fast, slow) in [(false, 90, 45), (true, 20, 11)] {
        let mut world = World::with(
            Mode::Auto,
            Pace { restart: Restart::default(), frugal, probing: false },
            1,
        );
        world.run(secs(2));
        let begun = world.at();
        world.net.dark = true;
        world.run(secs(10));
        let first = world.starts(begun).len();
        assert!(first <= fast, "{first} in the first 10 s");
        world.run(secs(20));
        let later = world.starts(begun).len() - first;
        assert!(later <= slow, "{later} in the next 20 s");
        world.run(secs(270));
        let before = world.started.len();
        world.run(secs(60));
        let late = world.started.len() - before;
        assert!(late <= 31, "{late} a minute");
        assert!(world.alive_max <= if frugal { 1 } else { 3 });
        let counters = world.policy.counters();
        assert_eq!(counters.attempts, world.started.len() as u64);
        assert!(counters.quic_attempts_unanswered > 10, "{counters:?}");
        world.net.dark = false;
        world.run_until(secs(6), |world| world.carries().is_some());
    }
}

#[test]
fn longer_round_trip_still_connects() {
    for mode in [Mode::Auto, Mode::Quic, Mode::Tls] {
        for attempts_max in [1, 3] {
            let restart = Restart { attempts_max, ..Restart::default() };
            let mut world = World::with(mode, Pace { restart, frugal: false, probing: false }, 1);
            world.net.rtt = ms(20);
            world.run(secs(2));
            let old = world.in_use();
            world.net.dark = true;
            world.run(secs(1));
            world.net.dark = false;
            world.net.rtt = ms(1_000);
            world.kill_paths();
            world.run_until(secs(20), |world| world.carries().is_some() && world.in_use() != old);
        }
    }
}

#[test]
fn answer_pauses_further_attempts() {
    let mut world = World::new(Mode::Quic);
    world.net.rtt = ms(200);
    world.run(secs(3));
    let begun = world.at();
    world.policy.renew(world.now(), Cause::Operator);
    world.run_until(secs(2), |world| restarts(world, Cause::Operator) == 1);
    let starts = world.starts(begun);
    // The answer to the first attempt arrives with the third, 200 ms later.
    assert!(starts.len() <= 3, "{starts:?}");
}

#[test]
fn stall_reported_by_the_cloud_restarts_the_path() {
    let mut world = World::new(Mode::Quic);
    world.traffic = false;
    world.run(secs(2));
    let path = world.in_use().unwrap();
    world.policy.on_peer_stall(world.now(), path);
    world.run_until(secs(1), |world| restarts(world, Cause::PeerStall) == 1);
    // A report about a replaced path is ignored.
    world.policy.on_peer_stall(world.now(), path);
    world.run(secs(1));
    assert_eq!(restarts(&world, Cause::PeerStall), 1);
}

#[test]
fn new_cell_and_operator_restart_a_healthy_path() {
    let mut world = World::new(Mode::Auto);
    world.run(secs(2));
    for cause in [Cause::Cell, Cause::Operator] {
        let old = world.in_use();
        world.policy.renew(world.now(), cause);
        world.run_until(secs(1), |world| world.in_use() != old);
        assert_eq!(restarts(&world, cause), 1);
        world.run(secs(1));
    }
    // Without an answer, the restart is abandoned and the old path stays.
    world.net.dead = vec![super::world::address(1)];
    world.traffic = false;
    world.policy.renew(world.now(), Cause::Operator);
    world.run(secs(15));
    let begun = world.started.len();
    world.run(secs(15));
    assert_eq!(world.started.len(), begun, "the restart ends after 10 s");
}

#[test]
fn found_cell_keeps_a_connection_that_works() {
    let mut world = World::new(Mode::Quic);
    world.run(secs(2));
    let (path, begun) = (world.in_use(), world.started.len());
    world.policy.on_found_cell(world.now());
    world.run(secs(5));
    assert_eq!((world.in_use(), world.started.len()), (path, begun));
    // After a blackout the search goes on until a connection works.
    world.net.dark = true;
    world.run(secs(2));
    world.net.dark = false;
    world.policy.on_found_cell(world.now());
    world.run_until(secs(2), |world| world.carries().is_some());
}

#[test]
fn disabled_restart_reconnects_only_closed_connections() {
    let restart = Restart { enabled: false, early_data: false, ..Restart::default() };
    let mut world = World::with(Mode::Quic, Pace { restart, frugal: false, probing: false }, 1);
    world.run(secs(2));
    let path = world.in_use().unwrap();
    world.net.dark = true;
    world.policy.on_peer_stall(world.now(), path);
    world.policy.renew(world.now(), Cause::Cell);
    world.run(secs(20));
    assert_eq!(world.started.len(), 1);
    world.kill_paths();
    world.net.dark = false;
    world.run_until(secs(1), |world| world.carries().is_some());
    assert!(world.started.iter().all(|(_, start)| !start.early));
}

#[test]
fn backup_or_metered_carrier_races_one_connection_at_a_time() {
    let pace = Pace { restart: Restart::default(), frugal: true, probing: false };
    let mut world = World::with(Mode::Auto, pace, 1);
    world.run(secs(2));
    let dark = world.at();
    world.net.dark = true;
    world.run(secs(5));
    let starts = world.starts(dark);
    for pair in starts.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= ms(500), "{starts:?}");
    }
    assert!(starts.iter().any(|(_, mode)| *mode == TLS), "{starts:?}");
    assert!(starts.iter().any(|(_, mode)| *mode == QUIC), "{starts:?}");
    assert_eq!(world.alive_max, 1);
}

#[test]
fn stall_of_an_idle_path_starts_a_race() {
    let mut world = World::new(Mode::Quic);
    world.traffic = false;
    world.run(secs(2));
    world.stalled = true;
    let begun = world.at();
    world.run(ms(10));
    assert_eq!(world.starts(begun).first(), Some(&(ms(0), QUIC)));
    assert_eq!(world.policy.phase().unwrap().0, PathPhase::Stalled);
    world.run_until(secs(1), |world| restarts(world, Cause::Stall) == 1);
}

#[test]
fn race_does_not_wait_for_a_lost_greeting() {
    let pace = Pace { restart: Restart::default(), frugal: false, probing: false };
    for rtt in [ms(20), ms(40), ms(60), ms(120), ms(200)] {
        for mode in [Mode::Quic, Mode::Auto] {
            let plain = returns(mode, &pace, rtt, secs(5), false);
            let early = returns(mode, &pace, rtt, secs(5), true);
            // A retransmission may bring an answer sooner than the next connection brings a path.
            for (place, later) in [(20, 100), (37, 150), (39, 150)] {
                assert!(early[place] <= plain[place] + ms(later), "{rtt:?}: {early:?}, {plain:?}");
            }
        }
    }
}

#[test]
fn long_stall_is_one_race_until_a_fresh_path_is_up() {
    let restart = Restart { interval: secs(1), ..Restart::default() };
    let mut world = World::with(Mode::Quic, Pace { restart, frugal: false, probing: false }, 1);
    world.run(secs(2));
    let begun = world.at();
    world.net.dark = true;
    world.run(secs(8));
    assert_eq!(world.policy.counters().stalls, 1, "{:#?}", world.told);
    assert!(world.starts(begun).len() <= 8, "{:?}", world.starts(begun));
    world.net.dark = false;
    world.run_until(secs(3), |world| restarts(world, Cause::Stall) == 1);
}

#[test]
fn consecutive_races_keep_the_interval() {
    let mut world = World::new(Mode::Quic);
    world.net.rtt = ms(200);
    world.run(secs(2));
    let begun = world.at();
    for _ in 0..50 {
        world.stalled = true;
        world.run(ms(10));
        world.stalled = false;
        world.run(ms(20));
    }
    let starts = world.starts(begun);
    assert!(world.policy.counters().stalls > 5 && starts.len() > 5, "{starts:?}");
    for pair in starts.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= ms(100), "{starts:?}");
    }
}
