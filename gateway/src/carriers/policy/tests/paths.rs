//! Interfaces that come and go, addresses of the cloud, and the operator's switch.

use polyrail_admin::PathPhase;
use polyrail_config::Mode;

use super::world::{QUIC, World, address, ms, secs};
use crate::carriers::policy::{Cause, EndingKind, Link, Notice, Pace};

fn restarts(world: &World, wanted: Cause) -> usize {
    world.tells(|notice| matches!(notice, Notice::Restarted { cause, .. } if *cause == wanted))
}

#[test]
fn missing_interface_causes_no_attempts() {
    for link in [Link::Absent, Link::Down, World::up(&[]), World::up(&["2001:db8::1"])] {
        let mut world = World::new(Mode::Auto);
        world.set_link(link.clone());
        world.run(secs(30));
        assert_eq!(world.started.len(), 0, "{link:?}: the cloud has IPv4 alone");
        assert_eq!(world.policy.phase().unwrap().0, PathPhase::NoInterface);
        assert_eq!(world.policy.next_timeout(world.now()), None);
        let begun = world.at();
        world.set_link(World::up(&["10.0.0.2"]));
        world.run(ms(200));
        assert_eq!(world.starts(begun), [(ms(0), QUIC)], "{link:?}: at once");
        assert_eq!(world.carries(), Some(QUIC));
    }
}

#[test]
fn removed_interface_closes_the_path() {
    let mut world = World::new(Mode::Auto);
    world.set_link(World::up(&["10.0.0.2"]));
    world.run(secs(2));
    world.set_link(Link::Absent);
    assert_eq!(world.in_use(), None);
    assert_eq!(world.policy.phase().unwrap().0, PathPhase::NoInterface);
    assert_eq!(world.tells(|notice| matches!(notice, Notice::Down { .. })), 1);
    world.run(secs(5));
    let begun = world.at();
    let Link::Up { addresses, .. } = World::up(&["10.0.0.2"]) else { unreachable!() };
    world.set_link(Link::Up { index: 9, addresses: addresses.clone() });
    world.run(ms(200));
    assert_eq!(world.starts(begun)[0].0, ms(0));
    assert_eq!(world.carries(), Some(QUIC));
    // Replaced under the same name: the old sockets are bound to the interface that is gone.
    let old = world.in_use();
    world.set_link(Link::Up { index: 10, addresses });
    assert_eq!(world.in_use(), None);
    world.run(ms(200));
    assert!(world.in_use() != old && world.carries() == Some(QUIC));
}

#[test]
fn recovered_interface_gets_a_fresh_connection_at_once() {
    let mut world = World::new(Mode::Auto);
    world.set_link(World::up(&["10.0.0.2"]));
    world.run(secs(2));
    let old = world.in_use();
    world.net.dark = true;
    world.set_link(Link::Down);
    world.run(secs(5));
    assert_eq!(world.started.len(), 1, "nothing is begun meanwhile");
    assert_eq!(world.in_use(), old, "the connection may survive it");
    world.net.dark = false;
    world.set_link(World::up(&["10.0.0.2"]));
    world.run(ms(200));
    assert_eq!(restarts(&world, Cause::Interface), 1);
    assert!(world.in_use() != old);
}

#[test]
fn changed_address_restarts_and_additional_address_does_not() {
    let mut world = World::new(Mode::Auto);
    world.set_link(World::up(&["10.0.0.2"]));
    world.run(secs(2));
    world.set_link(World::up(&["10.0.0.2", "10.0.0.3"]));
    world.run(secs(1));
    assert_eq!(world.started.len(), 1);
    world.local = "10.0.0.9".parse().unwrap();
    world.set_link(World::up(&["10.0.0.3"]));
    let took = world.run_until(secs(1), |world| restarts(world, Cause::Address) == 1);
    assert!(took <= ms(150), "{took:?}");
    assert_eq!(world.carries(), Some(QUIC));
}

#[test]
fn next_address_is_tried_after_a_failure() {
    for refused in [false, true] {
        let pace = Pace { restart: Default::default(), frugal: false, probing: false };
        let mut world = World::with(Mode::Quic, pace, 3);
        world.net.dead = vec![address(1), address(2)];
        world.run(ms(20));
        if refused {
            let first = world.started[0].1;
            world.end(first.attempt, EndingKind::Refused);
        }
        world.run_until(secs(10), |world| world.carries().is_some());
        assert_eq!(world.started.last().unwrap().1.address, address(3));
        // Where it moves to in a search, it is found, too.
        world.net.dead = vec![address(1), address(3)];
        let begun = world.at();
        world.run_until(secs(5), |world| world.carries().is_some());
        let tried = world.started.iter().filter(|(at, _)| *at > begun).map(|(_, s)| s.address);
        let good = tried.clone().filter(|tried| *tried == address(3)).count();
        assert!(good * 2 >= tried.count(), "what worked is preferred");
    }
}

#[test]
fn refused_attempts_back_off() {
    let mut world = World::new(Mode::Quic);
    world.net.udp_ends = Some(EndingKind::Refused);
    world.run(secs(60));
    let begun = world.started.len();
    assert!(begun <= 60, "{begun} in a minute");
    let failures = world.tells(|notice| matches!(notice, Notice::Failed { .. }));
    assert_eq!(failures, begun, "the policy reports each; the driver logs them once");
}

#[test]
fn operator_disables_and_enables_a_carrier() {
    let mut world = World::new(Mode::Auto);
    world.run(secs(2));
    world.policy.set_enabled(world.now(), false);
    world.run(secs(5));
    assert_eq!((world.in_use(), world.policy.phase().unwrap().0), (None, PathPhase::Disabled));
    assert_eq!(world.policy.next_timeout(world.now()), None);
    let begun = world.at();
    world.policy.set_enabled(world.now(), true);
    world.run(ms(200));
    assert_eq!(world.starts(begun)[0].0, ms(0));
    assert_eq!(world.carries(), Some(QUIC));
}

#[test]
fn other_addresses_of_the_cloud_replace_the_path() {
    let mut world = World::new(Mode::Auto);
    world.run(secs(2));
    let old = world.in_use();
    world.policy.set_addresses(world.now(), vec![address(1), address(2)]);
    world.run(secs(1));
    assert_eq!(world.in_use(), old, "it is still among them");
    world.policy.set_addresses(world.now(), vec![address(2)]);
    world.run_until(secs(1), |world| world.in_use() != old);
    assert_eq!(world.started.last().unwrap().1.address, address(2));
    assert_eq!(world.tells(|notice| matches!(notice, Notice::Down { .. })), 0);
}

#[test]
fn attempts_with_outdated_settings_do_not_satisfy_a_change() {
    // While a race of the old kind has a connection on its way.
    for addresses in [false, true] {
        let mut world = World::new(Mode::Auto);
        world.run(secs(2));
        world.policy.renew(world.now(), Cause::Operator);
        world.run(ms(30));
        assert_eq!(world.started.len(), 2);
        let changed = world.at();
        match addresses {
            true => world.policy.set_addresses(world.now(), vec![address(2)]),
            false => world.policy.respec(world.now()),
        }
        world.run(secs(2));
        assert!(world.in_use_since() >= changed, "{addresses}: {:#?}", world.told);
        assert_eq!(world.tells(|notice| matches!(notice, Notice::Down { .. })), 0);
    }
    // Before there was any path.
    let mut world = World::new(Mode::Auto);
    world.run(ms(30));
    let changed = world.at();
    world.policy.respec(world.now());
    world.run(ms(200));
    assert_eq!(world.in_use_since(), changed, "and at once");
}

#[test]
fn changed_configuration_replaces_a_stalled_path() {
    let mut world = World::new(Mode::Quic);
    world.run(secs(2));
    world.nimble = true;
    world.net.dark = true;
    world.run(ms(320));
    let changed = world.at();
    world.policy.respec(world.now());
    world.run(ms(10));
    world.net.dark = false;
    world.run(ms(30));
    assert_eq!(world.tells(|notice| matches!(notice, Notice::Recovered { .. })), 1);
    world.run(secs(2));
    assert!(world.in_use_since() >= changed, "{:#?}", world.told);
    let begun = world.started.len();
    world.run(secs(10));
    assert_eq!(world.started.len(), begun, "once is enough");
}
