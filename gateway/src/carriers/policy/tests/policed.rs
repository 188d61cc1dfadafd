//! Policed UDP: trials over TLS, what they measure, and what becomes of carriers after them.

use polyrail_config::Mode;
use polyrail_model::{Bitrate, TunnelMode};

use super::world::{QUIC, TLS, World, ms, secs};
use crate::carriers::policy::{Link, Notice, TrialResult, Way};

#[test]
fn policed_udp_is_tried_over_tls_and_demoted_when_that_is_faster() {
    let mut world = World::new(Mode::Auto);
    world.net.udp_rate = 125_000;
    world.run(secs(2));
    world.report_policed(125_000);
    let took = world.run_until(secs(3), |world| world.demotions() == 1);
    assert!(took <= secs(2), "{took:?}");
    assert_eq!(world.carries(), Some(TLS));
    assert_eq!(world.policy.counters().trials, 1);
    let reason = &world.policy.decision().unwrap().reason;
    assert!(reason.contains("QUIC passed at 1.0 Mbit/s"), "{reason}");
    // The retry shows that nothing has changed, and costs two seconds at most.
    let before = world.moved[0];
    world.run(secs(36));
    assert_eq!((world.carries(), world.demotions()), (Some(TLS), 2), "{:#?}", world.told);
    let slow = world.moved[0] - before;
    assert!(slow <= 125_000 * 22 / 10, "{slow} bytes at the policed rate");
    let wait = world.policy.demotion().unwrap().wait;
    assert_eq!(wait, secs(60));
    // When the policer is gone the retry stays.
    world.net.udp_rate = 2_500_000;
    world.run(secs(70));
    assert_eq!(world.carries(), Some(QUIC));
    assert_eq!(world.demotions(), 2);
}

#[test]
fn a_trial_without_gain_goes_back_to_quic_and_is_not_repeated_soon() {
    let mut world = World::new(Mode::Auto);
    (world.net.udp_rate, world.net.tcp_rate) = (500_000, 700_000);
    world.run(secs(2));
    world.report_policed(500_000);
    world.run_until(secs(4), |world| world.carries() == Some(TLS));
    world.run_until(secs(4), |world| world.carries() == Some(QUIC));
    assert_eq!(world.demotions(), 0);
    for _ in 0..25 {
        world.report_policed(500_000);
        world.run(secs(1));
    }
    assert_eq!(world.policy.counters().trials, 1);
    world.run(secs(6));
    world.report_policed(500_000);
    assert_eq!(world.policy.counters().trials, 2);
}

#[test]
fn a_trial_without_tls_ends() {
    let mut world = World::new(Mode::Auto);
    world.run(secs(2));
    world.net.tcp = false;
    world.report_policed(125_000);
    world.run(secs(6));
    assert_eq!((world.carries(), world.demotions()), (Some(QUIC), 0));
    let over = Notice::TrialOver {
        rate: Bitrate::from_bytes_per_second(125_000),
        result: TrialResult::Unknown,
    };
    assert_eq!(world.tells(|notice| *notice == over), 1);
}

#[test]
fn without_tls_to_try_the_connection_is_renewed_and_not_again_soon() {
    let mut world = World::new(Mode::Quic);
    world.run(secs(2));
    let first = world.in_use_since();
    world.report_policed_way(7_000, Way::Down);
    let took = world.run_until(secs(3), |world| world.in_use_since() > first);
    assert!(took <= secs(1), "{took:?}");
    assert_eq!((world.policy.counters().restarts, world.policy.counters().trials), (1, 0));
    for _ in 0..25 {
        world.report_policed_way(7_000, Way::Down);
        world.run(secs(1));
    }
    assert_eq!(world.policy.counters().restarts, 1);
    world.run(secs(6));
    world.report_policed_way(7_000, Way::Up);
    world.run(secs(2));
    assert_eq!(world.policy.counters().restarts, 2);
}

#[test]
fn a_trial_measures_the_way_that_looks_policed_and_wants_twice_the_rate() {
    // The rates of QUIC and TLS to the cloud, and from it; which way looks policed; the verdict.
    for (up, down, way, wanted) in [
        ((500_000, 850_000), (0, 0), Way::Up, 0),
        ((500_000, 1_050_000), (0, 0), Way::Up, 1),
        ((125_000, 2_500_000), (125_000, 125_000), Way::Down, 0),
        ((125_000, 125_000), (125_000, 2_500_000), Way::Up, 0),
        ((10_000, 10_000), (125_000, 2_500_000), Way::Down, 1),
        ((125_000, 200_000), (100_000, 200_000), Way::Up, 0),
    ] {
        let mut world = World::new(Mode::Auto);
        (world.net.udp_rate, world.net.tcp_rate) = up;
        (world.net.udp_down, world.net.tcp_down) = down;
        world.run(secs(2));
        let rate = if way == Way::Up { up.0 } else { down.0 };
        world.report_policed_way(rate, way);
        world.run(secs(5));
        assert_eq!(world.demotions(), wanted, "{up:?} {down:?} {way:?}: {:#?}", world.told);
        assert_eq!(world.carries(), Some(if wanted == 1 { TLS } else { QUIC }));
    }
}

#[test]
fn each_trial_is_told_with_its_end_and_what_it_showed() {
    type Act = fn(&mut World);
    let cases: [(u64, Act, &str); 7] = [
        (2_500_000, |world| world.run(secs(4)), "1 Mbit/s, faster: 20"),
        (125_000, |world| world.run(secs(4)), "1 Mbit/s, no faster: 1"),
        // A stall, other modes, the operator's switch, an interface that goes.
        (2_500_000, |world| world.net.dark = true, "1 Mbit/s, unknown"),
        (2_500_000, |world| world.policy.set_mode(world.now(), Mode::Quic), "1 Mbit/s, unknown"),
        (2_500_000, |world| world.policy.set_mode(world.now(), Mode::Tls), "1 Mbit/s, unknown"),
        (2_500_000, |world| world.policy.set_enabled(world.now(), false), "1 Mbit/s, unknown"),
        (2_500_000, |world| world.set_link(Link::Absent), "1 Mbit/s, unknown"),
    ];
    for (place, (tcp_rate, act, wanted)) in cases.into_iter().enumerate() {
        let mut world = World::new(Mode::Auto);
        (world.net.udp_rate, world.net.tcp_rate) = (125_000, tcp_rate);
        world.run(secs(2));
        world.report_policed(125_000);
        world.run_until(secs(2), |world| world.carries() == Some(TLS));
        act(&mut world);
        world.run(ms(400));
        let told = world.told.iter().filter_map(|(_, notice)| trial(notice));
        assert_eq!(told.collect::<Vec<_>>(), ["begun", wanted], "{place}: {:#?}", world.told);
        assert_eq!(world.policy.counters().trials, 1);
    }
}

/// What is told of a trial, in short.
fn trial(notice: &Notice) -> Option<String> {
    Some(match notice {
        Notice::Trial { .. } => "begun".to_owned(),
        Notice::TrialOver { rate, result } => {
            let result = match result {
                TrialResult::Faster(tls) => format!("faster: {:.0}", tls.as_mbps()),
                TrialResult::NoFaster(tls) => format!("no faster: {:.0}", tls.as_mbps()),
                TrialResult::Unknown => "unknown".to_owned(),
            };
            format!("{:.0} Mbit/s, {result}", rate.as_mbps())
        }
        _ => return None,
    })
}

fn trial_over(world: &World) -> bool {
    world.tells(|notice| matches!(notice, Notice::TrialOver { .. })) == 1
}

#[test]
fn quic_is_tried_again_when_a_trial_ends_on_tls_without_a_demotion() {
    // UDP falls silent when the carrier is to go back, for longer than that is tried.
    let mut world = World::new(Mode::Auto);
    (world.net.udp_rate, world.net.tcp_rate) = (500_000, 700_000);
    world.run(secs(2));
    world.report_policed(500_000);
    world.run_until(secs(4), trial_over);
    world.net.udp = false;
    world.run(ms(11_500));
    assert_eq!((world.carries(), world.demotions()), (Some(TLS), 0));
    world.net.udp = true;
    world.run_until(secs(4), |world| world.carries() == Some(QUIC));

    // The TLS path stalls in the trial, and recovers.
    let mut world = World::new(Mode::Auto);
    world.run(secs(2));
    world.report_policed(125_000);
    world.run_until(secs(2), |world| world.carries() == Some(TLS));
    (world.nimble, world.net.dark) = (true, true);
    world.run(ms(335));
    world.net.dark = false;
    world.run(ms(50));
    assert!(trial_over(&world));
    assert_eq!(world.tells(|notice| matches!(notice, Notice::Recovered { .. })), 1);
    assert_eq!((world.carries(), world.demotions()), (Some(TLS), 0));
    world.run_until(secs(4), |world| world.carries() == Some(QUIC));
}

/// A carrier that was demoted for policing, and runs over TLS.
fn policed() -> World {
    let mut world = World::new(Mode::Auto);
    world.net.udp_rate = 125_000;
    world.run(secs(2));
    world.report_policed(125_000);
    world.run_until(secs(3), |world| world.demotions() == 1);
    world.run(secs(2));
    assert_eq!(world.carries(), Some(TLS));
    world
}

fn moves_to(world: &World, mode: TunnelMode) -> usize {
    world.tells(|notice| matches!(notice, Notice::ModeChanged { to, .. } if *to == mode))
}

#[test]
fn an_outage_does_not_end_a_demotion_for_policing() {
    let mut quic_first = 0;
    for dark in (2_000..6_000).step_by(150).chain([8_000, 15_000]) {
        let mut world = policed();
        let (quic, retry_at) = (moves_to(&world, QUIC), world.policy.demotion().unwrap().retry_at);
        world.net.dark = true;
        world.run(ms(dark));
        world.net.dark = false;
        world.run_until(secs(1), |world| world.carries().is_some());
        world.run_until(secs(2), |world| world.carries() == Some(TLS));
        world.run(secs(5));
        assert_eq!(world.carries(), Some(TLS), "{dark} ms: {:#?}", world.told);
        assert_eq!(world.demotions(), 1, "{dark} ms");
        assert_eq!(world.policy.demotion().unwrap().retry_at, retry_at, "{dark} ms");
        quic_first += moves_to(&world, QUIC) - quic;
    }
    assert!(quic_first >= 4, "QUIC came first {quic_first} times");
    // TCP is what does not pass any more: QUIC is all there is.
    let mut world = policed();
    world.net.tcp = false;
    world.run_until(secs(5), |world| world.carries() == Some(QUIC));
    world.run(secs(15));
    assert_eq!(world.carries(), Some(QUIC));
    assert!(world.policy.demotion().is_none(), "{:#?}", world.told);
}

#[test]
fn a_retry_that_falls_into_an_outage_is_judged_all_the_same() {
    // The path is raced, or recovers by itself.
    for (dark, nimble) in [(5_000, false), (1_000, false), (335, true)] {
        let mut world = policed();
        // Little faster than twice what passes by UDP.
        world.net.tcp_rate = 270_000;
        let left = world.policy.demotion().unwrap().retry_at - world.now();
        world.run(left - ms(dark - 10));
        (world.net.dark, world.nimble) = (true, nimble);
        world.run(ms(dark));
        world.net.dark = false;
        world.run(secs(10));
        assert_eq!((world.carries(), world.demotions()), (Some(TLS), 2), "{dark} ms");
        assert_eq!(world.policy.demotion().unwrap().wait, secs(60), "{dark} ms");
    }
}

/// A carrier whose retry after policing has just shown that nothing changed: QUIC still carries.
fn still_policed() -> World {
    let mut world = policed();
    world.run_until(secs(36), |world| world.demotions() == 2);
    assert_eq!(world.carries(), Some(QUIC));
    world
}

#[test]
fn a_demotion_on_a_quic_path_is_not_lost_over_a_stall() {
    let mut world = still_policed();
    (world.nimble, world.net.dark) = (true, true);
    world.run(ms(335));
    world.net.dark = false;
    world.run(ms(50));
    assert_eq!(world.tells(|notice| matches!(notice, Notice::Recovered { .. })), 1);
    world.run_until(secs(2), |world| world.carries() == Some(TLS));
    assert_eq!(world.demotions(), 2);
}

#[test]
fn a_demotion_that_finds_no_tls_path_is_lifted() {
    let mut world = still_policed();
    world.net.tcp = false;
    let begun = world.at();
    world.run(secs(11));
    assert!(world.policy.demotion().is_none(), "{:#?}", world.told);
    assert_eq!(world.tells(|notice| *notice == Notice::Lifted), 1);
    assert_eq!(world.carries(), Some(QUIC));
    assert!(world.starts(begun).len() <= 11, "{:?}", world.starts(begun));
    let begun = world.started.len();
    world.run(secs(20));
    assert_eq!(world.started.len(), begun);
}

#[test]
fn the_wait_between_trials_grows_while_the_suspicion_lasts_and_no_longer() {
    let mut world = World::new(Mode::Auto);
    (world.net.udp_rate, world.net.tcp_rate) = (500_000, 700_000);
    world.run(secs(2));
    let trials_in = |world: &mut World, time: u64| {
        let before = world.policy.counters().trials;
        for _ in 0..time {
            world.report_policed(500_000);
            world.run(secs(1));
        }
        world.policy.counters().trials - before
    };
    // After 30, 60 and 120 s, besides what the trials take.
    assert_eq!(trials_in(&mut world, 110), 3);
    assert_eq!(trials_in(&mut world, 110), 1, "the next one waits for longer");
    world.run(secs(600));
    assert_eq!(trials_in(&mut world, 45), 2, "that suspicion was over");
}
