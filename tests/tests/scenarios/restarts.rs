//! Either side restarts.

use polyrail_session::ResetReason;
use polyrail_sim::world::LegState;

use crate::lab::{CLOUD, GATEWAY, download, line, ms, s, state, talk, world};

const LOST: LegState = LegState::Reset(ResetReason::SessionLost);

#[test]
fn a_restarted_cloud_resets_flows_within_a_round_trip_of_the_join() {
    let mut world = world(&[line("a", 20.0, ms(80)), line("b", 20.0, ms(60))]);
    let flows: Vec<_> = (1..10).map(|user| talk(&mut world, user)).collect();
    world.tap(GATEWAY).on = true;
    world.restart(CLOUD);
    let all_lost = |world: &polyrail_sim::world::World| {
        flows.iter().all(|&flow| state(world, flow, GATEWAY) == LOST)
    };
    let from = world.now();
    // The gateway detects it with a PING, at the latest after 20 s without packets.
    world.run_until(s(30), all_lost).unwrap();
    let (now, joined) = (world.now(), world.tap(GATEWAY).joins.clone());
    let joined = *joined.iter().find(|at| **at >= from).expect("a JOIN");
    assert!(now - joined <= ms(85), "reset {:?} after the JOIN", now - joined);
    // The next session opens over the same tunnel.
    let opened = world.open(1).unwrap();
    let there = |world: &polyrail_sim::world::World| state(world, opened, CLOUD) == LegState::Open;
    let time = world.run_until(s(5), there).unwrap();
    assert!(time <= ms(250), "the next flow opens after {time:?}");
    download(&mut world, 1_000_000, s(3));
}

#[test]
fn restarted_gateway_resets_old_flows_at_the_servers_at_once() {
    let mut world = world(&[line("a", 20.0, ms(80)), line("b", 20.0, ms(60))]);
    let flows: Vec<_> = (1..10).map(|user| talk(&mut world, user)).collect();
    world.restart(GATEWAY);
    let lost = |world: &polyrail_sim::world::World| {
        flows.iter().all(|&flow| state(world, flow, CLOUD) == LOST)
    };
    let time = world.run_until(s(5), lost).unwrap();
    assert!(time <= ms(1_000), "the servers received resets after {time:?}");
    download(&mut world, 1_000_000, s(3));
    assert!(world.alarms(CLOUD).is_empty(), "{:?}", world.alarms(CLOUD));
    assert_eq!(world.status(CLOUD).sessions.len(), 1);
}
