//! Shared by scenarios: lines, connected worlds, downloads and echoes.

use std::time::Duration;

use polyrail_emulator::link::{LinkSpec, Probability};
use polyrail_model::{Bitrate, Bytes};
use polyrail_scheduler::ChainSpec;
use polyrail_session::Settings;
use polyrail_sim::congestion::Algorithm;
use polyrail_sim::world::{CarrierSpec, FlowNo, Habits, LegState, Side, World};

pub const GATEWAY: Side = Side::Gateway;
pub const CLOUD: Side = Side::Cloud;

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A carrier of this rate in both directions, with a queue of one bandwidth-delay product, at
/// least 64 KiB.
pub fn line(name: &str, mbps: f64, rtt: Duration) -> CarrierSpec {
    let rate = Bitrate::from_mbps(mbps);
    let queue = Bytes(rate.bytes_in(rtt).0.max(64 * 1024));
    let link = LinkSpec::steady(rate, rtt / 2, queue);
    CarrierSpec {
        name: name.to_owned(),
        links: [link.clone(), link],
        stream: true,
        backup: false,
        room: 32 * 1024,
        congestion: Algorithm::Reno,
    }
}

/// The same carrier with this share of random loss.
pub fn lossy(carrier: CarrierSpec, share: f64) -> CarrierSpec {
    let links =
        carrier.links.map(|link| LinkSpec { loss: Probability::new(share).unwrap(), ..link });
    CarrierSpec { links, ..carrier }
}

/// A world with these carriers, all of them up.
pub fn world(carriers: &[CarrierSpec]) -> World {
    world_with(carriers, Settings::default())
}

pub fn world_with(carriers: &[CarrierSpec], settings: Settings) -> World {
    make(carriers, settings, Habits::default())
}

/// As [`world`], with another seed.
pub fn seeded_world(carriers: &[CarrierSpec], seed: u64) -> World {
    make(carriers, Settings::default(), Habits { seed, ..Habits::default() })
}

/// As [`world`], with these settings and habits.
pub fn make(carriers: &[CarrierSpec], settings: Settings, habits: Habits) -> World {
    let mut world = World::new(habits, settings.clone(), settings, carriers);
    let up = |world: &World| (0..carriers.len()).all(|carrier| world.is_up(carrier));
    world.run_until(s(10), up).expect("the carriers come up");
    world.run_for(s(1));
    assert_eq!(world.status(GATEWAY).sessions[0].paths.len(), carriers.len());
    world
}

pub fn chain(name: &str) -> Settings {
    Settings { chain: ChainSpec::named(name).unwrap(), ..Settings::default() }
}

/// Opens a flow whose server writes `bytes` and ends.
pub fn begin_download(world: &mut World, user: u64, bytes: u64) -> FlowNo {
    let flow = world.open(user).unwrap();
    world.flow_mut(flow).server = (bytes, true);
    flow
}

/// Whether the passenger has read everything.
pub fn is_downloaded(world: &World, flow: FlowNo) -> bool {
    world.flow(flow).legs[0].end_seen
}

/// Downloads `bytes` within at most this time, and returns the time.
pub fn download(world: &mut World, bytes: u64, most: Duration) -> Duration {
    let flow = begin_download(world, 1, bytes);
    let took = world.run_until(most, |world| is_downloaded(world, flow));
    let took = took.unwrap_or_else(|| panic!("{} of {bytes} bytes", read(world, flow)));
    assert_eq!(read(world, flow), bytes);
    took
}

/// Bytes that the passenger has read.
pub fn read(world: &World, flow: FlowNo) -> u64 {
    world.flow(flow).legs[0].read
}

pub fn state(world: &World, flow: FlowNo, side: Side) -> LegState {
    world.flow(flow).legs[side as usize].state
}

/// A dialled and idle flow.
pub fn talk(world: &mut World, user: u64) -> FlowNo {
    let flow = world.open(user).unwrap();
    world.write(flow, GATEWAY, 1);
    let there = |world: &World| world.flow(flow).legs[1].read == 1;
    world.run_until(s(5), there).expect("the flow opens");
    flow
}

/// The time of a request and its answer, 100 bytes each.
pub fn echo(world: &mut World, flow: FlowNo) -> Duration {
    let [passenger, server] = world.flow(flow).legs.clone();
    world.write(flow, GATEWAY, 100);
    let there = world.run_until(s(20), |w| w.flow(flow).legs[1].read == server.read + 100);
    world.write(flow, CLOUD, 100);
    let back = world.run_until(s(20), |w| w.flow(flow).legs[0].read == passenger.read + 100);
    there.unwrap() + back.unwrap()
}

/// Prints a figure with its goal and checks it.
pub fn at_least(name: &str, value: f64, goal: f64) {
    let word = if value >= goal { "ok" } else { "short" };
    println!("RESULT simulated_{name} {value:.3} x goal >= {goal} {word}");
    assert!(value >= goal, "{name}: {value:.3}");
}

pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
