//! Many random flows while carriers flap.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::bench::fresh_seed;
use polyrail_interop::client::{self, PATIENCE};
use polyrail_interop::exchange::{Exchange, Verdicts};
use polyrail_interop::world::{Plan, World};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::in_both_modes;

const BOUND: Duration = Duration::from_secs(90);
const FLOWS: u64 = 200;
const SIZES: std::ops::Range<u64> = 20_000..300_000;
/// The least peak of simultaneously open flows.
const PEAK_MIN: usize = 150;
const PORT: u16 = 4000;

#[test]
fn two_hundred_flows_with_half_closes_and_resets_while_carriers_flap() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        let mut generator = Pcg64::seed_from_u64(fresh_seed("flapping"));
        let verdicts = Verdicts::default();
        for address in SERVER.both(PORT) {
            verdicts.serve(&world.lab.server, address)?;
        }
        let open = Arc::new(AtomicUsize::new(0));
        let mut flows = Vec::new();
        for index in 0..FLOWS {
            let mut exchange = Exchange::random(&mut generator, SIZES.start);
            exchange.up = generator.random_range(SIZES);
            exchange.down = generator.random_range(SIZES);
            exchange.seed = generator.random::<u64>() << 8 | index;
            let to = SERVER.at(Family::BOTH[index as usize % 2], PORT);
            let open = Arc::clone(&open);
            let flow = client::thread(&world.lab.passenger, move || {
                let stream = std::net::TcpStream::connect_timeout(&to, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                open.fetch_add(1, Ordering::Relaxed);
                let outcome = exchange.perform(stream);
                open.fetch_sub(1, Ordering::Relaxed);
                outcome
            })?;
            flows.push((exchange, flow));
        }
        let done = || flows.iter().all(|(_, flow)| flow.is_finished());
        let peak = flap_until(world, generator.random(), &open, done)?;
        ensure!(peak >= PEAK_MIN, "only {peak} flows were open at once");
        for (exchange, flow) in flows {
            flow.join().ok().context("a client panicked")??;
            verdicts.verdict(&exchange, PATIENCE)?;
        }
        Ok(())
    })
}

/// Darkens each carrier at random and independently until `done`. Returns the peak number of open
/// flows.
fn flap_until(
    world: &World,
    seed: u64,
    open: &AtomicUsize,
    done: impl Fn() -> bool + Sync,
) -> Result<usize> {
    let started = Instant::now();
    let late = || started.elapsed() >= BOUND;
    let flap = |index: usize| -> Result<u32> {
        let mut generator = Pcg64::seed_from_u64(seed.wrapping_add(index as u64));
        let mut flaps = 0;
        while !done() && !late() {
            let dark = Duration::from_millis(generator.random_range(100..1500));
            world.carriers[index].dark_for(&world.lab, dark)?;
            flaps += 1;
            std::thread::sleep(Duration::from_millis(generator.random_range(300..1500)));
        }
        Ok(flaps)
    };
    let mut peak = 0;
    let flaps = std::thread::scope(|scope| -> Result<u32> {
        let flappers: Vec<_> = (0..2).map(|index| scope.spawn(move || flap(index))).collect();
        while !done() && !late() {
            peak = peak.max(open.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(5));
        }
        flappers.into_iter().map(|f| f.join().ok().context("a flapper panicked")?).sum()
    })?;
    println!("{flaps} blackouts in {:?}, at most {peak} flows at once", started.elapsed());
    ensure!(!late(), "flows still run after {BOUND:?}");
    Ok(peak)
}
