//! QUIC or TLS: races, blocked and policed UDP, fixed modes, changes at run time.

use polyrail_config::{Mode, Restart};

use super::world::{QUIC, TLS, World, ms, secs};
use crate::carriers::policy::{Cause, EndingKind, Notice, Pace};

#[test]
fn quic_is_first_and_wins_where_it_works() {
    let mut world = World::new(Mode::Auto);
    world.run(secs(5));
    assert_eq!(world.carries(), Some(QUIC));
    assert_eq!(world.starts(ms(0)), [(ms(0), QUIC)], "no TLS, no second attempt");
    assert_eq!(world.policy.decision().unwrap().reason, "QUIC was answered");
}

#[test]
fn tls_joins_after_300_ms_or_one_and_a_half_round_trips() {
    let mut world = World::new(Mode::Auto);
    world.net.udp = false;
    world.run(ms(500));
    assert_eq!(world.starts(ms(0))[..2], [(ms(0), QUIC), (ms(300), TLS)]);
    world.run(ms(500));
    assert_eq!(world.carries(), Some(TLS));
    assert_eq!(world.policy.decision().unwrap().reason, "TLS was answered before QUIC");

    // With a known round trip of 400 ms: 600 ms after the search began.
    let mut world = World::new(Mode::Auto);
    world.net.rtt = ms(400);
    world.run(secs(2));
    let lost = world.at();
    world.net.udp = false;
    world.kill_paths();
    world.run(secs(1));
    let first_tls = world.starts(lost).into_iter().find(|(_, mode)| *mode == TLS).unwrap();
    assert_eq!(first_tls.0, ms(600));
}

#[test]
fn late_quic_path_replaces_the_tls_path() {
    let mut world = World::new(Mode::Auto);
    world.net.udp = false;
    world.run_until(secs(1), |world| world.carries() == Some(TLS));
    world.net.udp = true;
    world.run_until(secs(3), |world| world.carries() == Some(QUIC));
    assert_eq!(world.demotions(), 0);
    assert_eq!(world.policy.counters().mode_changes, 1);
    world.run(secs(60));
    assert_eq!(world.carries(), Some(QUIC), "and stays");
}

#[test]
fn blocked_udp_demotes_within_seconds_and_retries_back_off() {
    let mut world = World::new(Mode::Auto);
    world.net.udp = false;
    world.run_until(secs(6), |world| world.demotions() == 1);
    assert_eq!(world.carries(), Some(TLS));
    let reason = world.policy.decision().unwrap().reason.clone();
    assert!(reason.starts_with("UDP is blocked"), "{reason}");
    let demoted = world.at();
    world.run(secs(3_000));
    let starts = world.starts(demoted);
    let retries: Vec<u128> = starts.iter().map(|(at, _)| (at.as_millis() + 500) / 1_000).collect();
    // 30 s, then 60, 120, 240, 480, 600 and 600 after the last answer was awaited.
    assert_eq!(retries, [30, 91, 212, 453, 934, 1_535, 2_136, 2_737]);
    assert_eq!(world.demotions(), 1);
    world.net.udp = true;
    world.run_until(secs(601), |world| world.carries() == Some(QUIC));
    assert!(world.policy.demotion().is_none());
    assert_eq!(world.policy.decision().unwrap().reason, "QUIC is answered again");
}

#[test]
fn refused_udp_switches_to_tls_at_once() {
    let mut world = World::new(Mode::Auto);
    (world.net.udp, world.net.udp_ends) = (false, Some(EndingKind::Refused));
    world.run(ms(300));
    let starts = world.starts(ms(0));
    assert_eq!(starts[..2], [(ms(0), QUIC), (ms(60), TLS)], "{starts:?}");
    world.run_until(secs(6), |world| world.demotions() == 1);
    let reason = world.policy.decision().unwrap().reason.clone();
    assert!(reason.starts_with("UDP is refused"), "{reason}");
}

#[test]
fn carrier_without_coverage_is_not_demoted() {
    // Dark at any moment of the search for QUIC, again and again, with and without a TLS path.
    for offset in (0..40).map(|step| ms(step * 50)) {
        let mut world = World::new(Mode::Auto);
        world.run(secs(1));
        world.net.udp = false;
        world.run_until(secs(3), |world| world.carries() == Some(TLS));
        world.run(offset);
        if world.demotions() == 0 {
            world.net.dark = true;
            world.net.udp = true;
            world.run(secs(4));
            world.net.dark = false;
            world.run(secs(4));
            assert_eq!(world.demotions(), 0, "{offset:?}: {:#?}", world.told);
            assert_eq!(world.carries(), Some(QUIC), "{offset:?}");
        }
    }
    let mut world = World::new(Mode::Auto);
    world.run(secs(1));
    for _ in 0..10 {
        world.net.dark = true;
        world.run(secs(5));
        world.net.dark = false;
        world.run(secs(5));
    }
    assert_eq!(world.demotions(), 0);
}

#[test]
fn idle_carrier_is_demoted_only_when_tcp_makes_progress() {
    let mut world = World::new(Mode::Auto);
    world.net.udp = false;
    world.traffic = false;
    world.run(secs(120));
    assert_eq!(world.demotions(), 0, "nothing was heard of TCP since");
    let idle = world.starts(ms(0)).len();
    assert!(idle <= 12, "{idle} connections of an idle carrier");
    world.traffic = true;
    world.run_until(secs(40), |world| world.demotions() == 1);
}

#[test]
fn udp_blocked_in_a_transfer_moves_to_tls_within_a_second() {
    let mut world = World::new(Mode::Auto);
    world.run(secs(3));
    world.net.udp = false;
    let took = world.run_until(secs(2), |world| world.carries() == Some(TLS));
    assert!(took <= secs(1), "{took:?}");
    world.run_until(secs(6), |world| world.demotions() == 1);
}

#[test]
fn local_errors_do_not_demote() {
    for kind in [EndingKind::Local, EndingKind::Rejected] {
        let mut world = World::new(Mode::Auto);
        (world.net.udp, world.net.udp_ends) = (false, Some(kind));
        world.run(secs(120));
        assert_eq!((world.carries(), world.demotions()), (Some(TLS), 0), "{kind:?}");
        let begun = world.started.len();
        assert!((4..=20).contains(&begun), "{kind:?}: {begun} connections");
        (world.net.udp, world.net.udp_ends) = (true, None);
        world.run_until(secs(32), |world| world.carries() == Some(QUIC));
    }
}

#[test]
fn refusal_counts_only_while_tcp_makes_progress() {
    let mut world = World::new(Mode::Auto);
    (world.net.udp, world.net.udp_ends) = (false, Some(EndingKind::Refused));
    world.traffic = false;
    world.run(secs(180));
    assert_eq!(world.demotions(), 0);
    world.traffic = true;
    world.run_until(secs(40), |world| world.demotions() == 1);
}

#[test]
fn demoted_carrier_returns_to_quic_if_tcp_is_blocked() {
    let mut world = World::new(Mode::Auto);
    world.net.udp = false;
    world.run_until(secs(6), |world| world.demotions() == 1);
    (world.net.udp, world.net.tcp) = (true, false);
    world.run_until(secs(5), |world| world.carries() == Some(QUIC));
}

#[test]
fn fixed_modes_use_no_other_mode() {
    for (mode, own) in [(Mode::Quic, QUIC), (Mode::Tls, TLS)] {
        let mut world = World::new(mode);
        world.run(secs(2));
        world.net.dark = true;
        world.run(secs(3));
        world.net.dark = false;
        world.report_policed(125_000);
        world.run(secs(2));
        assert_eq!(world.carries(), Some(own));
        assert!(world.starts(ms(0)).iter().all(|(_, mode)| *mode == own));
        assert_eq!(world.policy.decision().unwrap().reason, format!("mode {mode} is set"));
        assert_eq!(world.demotions(), 0);
    }
}

#[test]
fn mode_changes_without_a_gap() {
    let mut world = World::new(Mode::Auto);
    world.run(secs(2));
    for (wish, mode) in [(Mode::Tls, TLS), (Mode::Quic, QUIC), (Mode::Tls, TLS), (Mode::Auto, QUIC)]
    {
        let begun = world.now();
        world.policy.set_mode(begun, wish);
        let old = world.in_use();
        let took = world.run_until(secs(2), |world| {
            assert!(world.carries().is_some(), "a gap");
            world.in_use() != old
        });
        assert!(took <= ms(300), "{wish}: {took:?}");
        assert_eq!(world.carries(), Some(mode), "{wish}");
        world.run(secs(2));
        assert_eq!(world.carries(), Some(mode), "{wish}");
    }
    assert_eq!(world.tells(|notice| matches!(notice, Notice::Down { .. })), 0);
    // A mode that does not work here: the old path stays until the new one is there.
    world.net.tcp = false;
    world.policy.set_mode(world.now(), Mode::Tls);
    world.run(secs(20));
    assert_eq!(world.carries(), Some(QUIC));
    world.net.tcp = true;
    world.run_until(secs(4), |world| world.carries() == Some(TLS));
}

#[test]
fn changed_network_retries_quic_sooner() {
    let mut world = World::new(Mode::Auto);
    world.net.udp = false;
    world.run_until(secs(6), |world| world.demotions() == 1);
    world.run(secs(100));
    world.net.udp = true;
    world.policy.renew(world.now(), Cause::Cell);
    world.run_until(secs(7), |world| world.carries() == Some(QUIC));
}

#[test]
fn disabled_restart_does_not_affect_the_modes() {
    let restart = Restart { enabled: false, ..Restart::default() };
    let mut world = World::with(Mode::Auto, Pace { restart, frugal: false, probing: false }, 1);
    world.net.udp = false;
    world.run_until(secs(6), |world| world.demotions() == 1);
}
