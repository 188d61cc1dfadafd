//! Policed UDP: QUIC is demoted at once, retried with a growing wait, and trusted again.

use polyrail_config::Mode;
use polyrail_model::TunnelMode;

use super::world::{QUIC, TLS, World, ms, secs};
use crate::carriers::policy::{Cause, Notice};

/// A carrier that is policed to 1 Mbit/s over UDP.
fn policed() -> World {
    let mut world = World::new(Mode::Auto);
    world.net.udp_rate = 125_000;
    world.run(secs(2));
    world
}

/// The same, demoted to TLS.
fn demoted() -> World {
    let mut world = policed();
    world.report_policed(125_000);
    world.run_until(secs(3), |world| world.carries() == Some(TLS));
    assert_eq!(world.demotions(), 1);
    world
}

fn moves_to(world: &World, mode: TunnelMode) -> usize {
    world.tells(|notice| matches!(notice, Notice::ModeChanged { to, .. } if *to == mode))
}

#[test]
fn policed_carrier_uses_tls_at_once_with_nine_tenths_of_its_rate() {
    let mut world = policed();
    world.report_policed(125_000);
    let took = world.run_until(secs(3), |world| world.carries() == Some(TLS));
    assert!(took <= ms(500), "{took:?}");
    let reason = &world.policy.decision().unwrap().reason;
    assert!(reason.contains("QUIC passed at 1.0 Mbit/s"), "{reason}");
    // Each retry is suspected again, as late as the detector may be: after 3.2 s.
    let (begun, before, retries) = (world.at(), world.moved, moves_to(&world, QUIC));
    let mut since = None;
    while world.at() < begun + secs(240) {
        world.run(ms(100));
        match (world.carries(), since) {
            (Some(QUIC), None) => since = Some(world.at()),
            (Some(QUIC), Some(at)) if world.at() >= at + ms(3_200) => {
                world.report_policed(125_000);
                since = None;
            }
            _ => {}
        }
    }
    let moved: u64 = (0..2).map(|mode| world.moved[mode] - before[mode]).sum();
    let whole = 240 * world.net.tcp_rate;
    assert!(moved * 10 >= whole * 9, "{moved} of {whole} bytes");
    // After 30, 60 and 120 s.
    assert_eq!(moves_to(&world, QUIC) - retries, 3, "{:#?}", world.told);
    assert_eq!(world.policy.demotion().unwrap().wait, secs(240));
}

#[test]
fn lasting_retry_resets_the_wait() {
    let mut world = demoted();
    world.run_until(secs(31), |world| world.carries() == Some(QUIC));
    assert!(world.policy.demotion().is_none());
    world.run(secs(61));
    world.report_policed(125_000);
    assert_eq!(world.policy.demotion().unwrap().wait, secs(30));
}

#[test]
fn policed_quic_only_carrier_is_renewed_with_backoff() {
    let mut world = World::new(Mode::Quic);
    world.run(secs(2));
    let renewed = |world: &World| {
        let slow = |notice: &Notice| matches!(notice, Notice::Restarted { cause: Cause::Slow, .. });
        world.tells(slow)
    };
    // After 0, 30, 90 and 210 s.
    for (until, wanted) in [(29, 1), (89, 2), (209, 3), (215, 4)] {
        while world.at() < secs(2 + until) {
            world.report_policed(7_000);
            world.run(secs(1));
        }
        assert_eq!(renewed(&world), wanted, "{until} s");
    }
    assert_eq!(world.demotions(), 0);
}

#[test]
fn outage_does_not_end_a_demotion_for_policing() {
    let mut quic_first = 0;
    for dark in (2_000..6_000).step_by(150).chain([8_000, 15_000]) {
        let mut world = demoted();
        world.run(secs(2));
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
    // TCP stops passing: QUIC is all there is.
    let mut world = demoted();
    world.net.tcp = false;
    world.run_until(secs(5), |world| world.carries() == Some(QUIC));
    world.run(secs(15));
    assert_eq!(world.carries(), Some(QUIC));
    assert!(world.policy.demotion().is_none(), "{:#?}", world.told);
}

#[test]
fn stalled_demoted_carrier_leaves_quic() {
    let mut world = policed();
    world.report_policed(125_000);
    (world.nimble, world.net.dark) = (true, true);
    world.run(ms(335));
    world.net.dark = false;
    world.run_until(secs(2), |world| world.carries() == Some(TLS));
    assert_eq!(world.demotions(), 1);
}

#[test]
fn demotion_without_a_tls_path_is_lifted_for_its_wait() {
    let mut world = policed();
    world.net.tcp = false;
    world.report_policed(125_000);
    let begun = world.at();
    world.run(secs(11));
    assert!(world.policy.demotion().is_none(), "{:#?}", world.told);
    assert_eq!(world.tells(|notice| *notice == Notice::Lifted), 1);
    assert_eq!(world.carries(), Some(QUIC));
    assert!(world.starts(begun).len() <= 11, "{:?}", world.starts(begun));
    let begun = world.started.len();
    world.report_policed(125_000);
    world.run(secs(20));
    assert_eq!(world.started.len(), begun);
    world.run(secs(10));
    world.report_policed(125_000);
    assert_eq!(world.demotions(), 2);
}
