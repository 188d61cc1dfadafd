//! One-way delays, as the session learns them from echoes while its two clocks begin apart.

use std::time::Duration;

use polyrail_emulator::link::Blackout;
use polyrail_sim::world::{CarrierSpec, Side, World};

use crate::lab::{
    CLOUD, GATEWAY, begin_download, chain, download, line, ms, s, talk, world, world_with,
};

/// A line that is slower in one direction than in the other.
fn skewed(name: &str, up: Duration, down: Duration) -> CarrierSpec {
    let links = [up, down].map(|delay| line(name, 20.0, 2 * delay).links[0].clone());
    CarrierSpec { links, ..line(name, 20.0, up + down) }
}

/// How much later a byte that goes over `b` arrives than one over `a`, in microseconds.
fn lead(world: &World, side: Side) -> i128 {
    let session = &world.status(side).sessions[0];
    let owd = |carrier: &str| {
        let path = session.paths.iter().find(|path| path.carrier == carrier).unwrap();
        path.owd.expect("known").as_micros() as i128
    };
    owd("b") - owd("a")
}

#[test]
fn each_direction_knows_its_faster_path_though_round_trips_are_equal() {
    let lines = [skewed("a", ms(10), ms(60)), skewed("b", ms(50), ms(20))];
    let mut world = world(&lines);
    let flow = talk(&mut world, 1);
    download(&mut world, 5_000_000, s(10));
    // The least of the last second holds the queues that a download keeps.
    let laden = lead(&world, CLOUD);
    assert!((-60_000..-20_000).contains(&laden), "on the way down, laden: {laden} us");
    world.run_for(s(1));
    world.write(flow, CLOUD, 100_000);
    world.run_for(s(1));
    world.write(flow, GATEWAY, 100_000);
    world.run_for(s(1));
    let (up, down) = (lead(&world, GATEWAY), lead(&world, CLOUD));
    assert!((35_000..45_000).contains(&up), "b is 40 ms later on the way up: {up} us");
    assert!((-45_000..-35_000).contains(&down), "and earlier on the way down: {down} us");
}

#[test]
fn delays_measured_in_a_blackout_are_forgotten() {
    let lines = [line("a", 20.0, ms(40)), line("b", 20.0, ms(40))];
    let mut world = world_with(&lines, chain("min_rtt"));
    begin_download(&mut world, 1, 50_000_000);
    world.run_for(ms(500));
    world.blackout(0, Some(Blackout::Hold));
    world.run_for(s(5));
    world.blackout(0, None);
    world.run_for(s(2));
    for path in &world.status(CLOUD).sessions[0].paths {
        let owd = path.owd.expect("known");
        assert!(owd <= path.srtt + ms(25) && path.srtt < ms(200), "{owd:?} of {:?}", path.srtt);
    }
}
