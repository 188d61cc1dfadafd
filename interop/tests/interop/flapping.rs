//! Many flows of random shapes while carriers come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::client::{self, PATIENCE};
use polyrail_interop::exchange::{Exchange, Ledger};
use polyrail_interop::world::{Plan, World};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::{scenario, seed};

const BOUND: Duration = Duration::from_secs(90);
const FLOWS: u64 = 200;
const SIZE_MAX: u64 = 400_000;
const PORT: u16 = 4000;

#[test]
fn two_hundred_flows_with_half_closes_and_resets_while_carriers_flap() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let mut generator = Pcg64::seed_from_u64(seed("flapping"));
        let ledger = Ledger::default();
        for address in SERVER.both(PORT) {
            ledger.serve(&world.lab.server, address)?;
        }
        let mut flows = Vec::new();
        for index in 0..FLOWS {
            let mut exchange = Exchange::random(&mut generator, SIZE_MAX);
            exchange.seed = generator.random::<u64>() << 8 | index;
            let to = SERVER.at(Family::BOTH[index as usize % 2], PORT);
            let pause = Duration::from_millis(generator.random_range(0..4000));
            let flow = client::thread(&world.lab.passenger, move || {
                std::thread::sleep(pause);
                let stream = std::net::TcpStream::connect_timeout(&to, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                exchange.perform(stream)
            })?;
            flows.push((exchange, flow));
        }
        flap_until(world, &mut generator, || flows.iter().all(|(_, flow)| flow.is_finished()))?;
        for (exchange, flow) in flows {
            flow.join().ok().context("a client panicked")??;
            ledger.verdict(&exchange, PATIENCE)?;
        }
        Ok(())
    })
}

/// Turns one carrier at a time dark and back at random until `done`.
fn flap_until(world: &World, generator: &mut Pcg64, done: impl Fn() -> bool) -> Result<()> {
    let started = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let mut flaps = 0;
    while !done() && !stop.load(Ordering::Relaxed) {
        ensure!(started.elapsed() < BOUND, "flows still run after {BOUND:?}");
        let carrier = &world.carriers[generator.random_range(0..2)];
        let dark = Duration::from_millis(generator.random_range(100..1500));
        carrier.dark_for(&world.lab, dark)?;
        flaps += 1;
        std::thread::sleep(Duration::from_millis(generator.random_range(50..600)));
    }
    println!("{flaps} blackouts in {:?}", started.elapsed());
    Ok(())
}
