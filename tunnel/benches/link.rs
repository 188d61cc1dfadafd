//! How well a QUIC tunnel fills a link of 50 Mbit/s and 60 ms, without loss and with 1 %.
//!
//! `cargo bench -p polyrail-tunnel --bench link` prints RESULT lines: the goodput of 8 s after 2 s,
//! as a share of what the link carries of payload. The link is a thread of this process; figures
//! against TLS over the kernel come from `make bench-tunnel`.

#![allow(clippy::unwrap_used)] // a bench may stop at the first failure

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/quic_world/mod.rs"]
mod quic_world;

use std::time::{Duration, Instant};

use common::TestClock;
use common::pki::Authority;
use polyrail_model::Unit;
use polyrail_tunnel::{CarrierSpec, SocketOptions};
use quic_world::wire::{Faults, Tap};
use quic_world::{World, carrier, client};

const RATE: u64 = 50_000_000 / 8;
/// Large runs, and single segments with their header.
const UNITS: [usize; 2] = [15_000, 1_420];

fn main() {
    for congestion in ["bbr", "cubic"] {
        for unit in UNITS {
            for loss in [0, 10] {
                run(congestion, unit, loss);
            }
        }
    }
}

fn run(congestion: &str, unit: usize, loss: u64) {
    let authority = Authority::new();
    let clock = TestClock::new();
    let (mut world, address) = World::serving(authority.cloud(), &clock);
    let faults = Faults {
        loss,
        delay: Duration::from_millis(30),
        rate: Some((RATE, 375_000)),
        ..Faults::default()
    };
    let tap = Tap::with(address, faults, 1);
    let options = SocketOptions { congestion: Some(congestion.to_owned()), ..Default::default() };
    let spec = CarrierSpec { options, ..carrier("a") };
    let [near, far] = world.pair_by(&mut client(authority.gateway(), &clock), &spec, tap.address());
    world.ends[far].keeping = false;
    let frames = vec![0x5a; unit];
    let begin = Instant::now();
    let (mut at_two, mut rtts, mut unsent) = (None, Vec::new(), Vec::new());
    while begin.elapsed() < Duration::from_secs(10) {
        while world.ends[near].tunnel.room() > 0 {
            let tag = world.tag();
            world.ends[near].tunnel.send(Unit::Data { tag }, &frames);
        }
        world.step();
        if begin.elapsed() > Duration::from_secs(2) {
            at_two.get_or_insert(world.ends[far].bytes);
            let sample = world.ends[near].tunnel.sample(Instant::now()).unwrap();
            rtts.push(sample.srtt);
            unsent.push(sample.unsent.0);
        }
    }
    rtts.sort();
    unsent.sort();
    let bytes = world.ends[far].bytes - at_two.unwrap();
    let share = bytes as f64 / 8.0 / RATE as f64;
    let sample = world.ends[near].tunnel.sample(Instant::now()).unwrap();
    println!(
        "RESULT quic_link congestion={congestion} unit={unit} loss_percent={} share={share:.3} \
         mbit_per_s={:.1} srtt_ms_median={} unsent_bytes_median={} lost={} of {}",
        loss / 10,
        bytes as f64 / 1e6,
        rtts[rtts.len() / 2].as_millis(),
        unsent[unsent.len() / 2],
        sample.lost_packets,
        sample.sent_packets,
    );
}
