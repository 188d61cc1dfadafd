//! Relative one-way delays, as the session measures them while its two clocks differ.

use std::time::Duration;

use polyrail_sim::world::{CarrierSpec, Side, World};

use crate::lab::{CLOUD, GATEWAY, line, ms, s, talk, world};

/// A carrier of 20 Mbit/s with these delays.
fn skewed(name: &str, up: Duration, down: Duration) -> CarrierSpec {
    let links = [up, down].map(|delay| line(name, 20.0, 2 * delay).links[0].clone());
    CarrierSpec { links, ..line(name, 20.0, up + down) }
}

/// How much later a byte over `b` arrives than one over `a`, in microseconds.
fn lag(world: &World, side: Side) -> i128 {
    let session = &world.status(side).sessions[0];
    let delay = |carrier: &str| {
        let path = session.paths.iter().find(|path| path.carrier == carrier).unwrap();
        path.owd.expect("it was measured").as_micros() as i128
    };
    delay("b") - delay("a")
}

#[test]
fn each_direction_measures_its_faster_path() {
    let mut world = world(&[skewed("a", ms(10), ms(60)), skewed("b", ms(50), ms(20))]);
    let flow = talk(&mut world, 1);
    for side in [CLOUD, GATEWAY] {
        world.write(flow, side, 100_000);
        world.run_for(s(1));
    }
    let (up, down) = (lag(&world, GATEWAY), lag(&world, CLOUD));
    assert!((35_000..45_000).contains(&up), "b is 40 ms later on the uplink: {up} us");
    assert!((-45_000..-35_000).contains(&down), "b is 40 ms earlier on the downlink: {down} us");
}
