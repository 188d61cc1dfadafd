//! Fuzzes the input of a session: for any input nothing panics, memory stays under its bound, and
//! other sessions continue.
//!
//! `POLYRAIL_FUZZ=n` changes the number of sequences, `POLYRAIL_SEED=n` replays one.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

mod frames;
mod rig;

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

use polyrail_model::NodeRole;
use polyrail_sim::dice::Dice;

use rig::Rig;

/// Runs one sequence of hostile input and returns its number of frames.
fn attack(seed: u64) -> u64 {
    let mut dice = Dice::new(seed ^ 0x6675_7a7a);
    let target = dice.pick(&[NodeRole::Gateway, NodeRole::Cloud, NodeRole::Cloud]);
    let mut rig = Rig::new(&mut dice);
    let (mut count, mut allocated) = (0, 0);
    for _ in 0..dice.between(1, 6) {
        let info = allocation_counter::measure(|| {
            let recorded = &rig.recorded[target as usize];
            let (bytes, frames) = frames::hostile(&mut dice, recorded, target);
            count += frames;
            let tunnel = dice.pick(&[rig::ATTACKED, rig::ATTACKED, rig::FRESH]);
            rig.feed(&mut dice, target, tunnel, &bytes);
            rig.act(&mut dice);
            rig.pass_time(&mut dice);
        });
        allocated += info.bytes_current;
        rig.check_bounds();
        let bound = rig.allocation_bound();
        assert!(allocated <= bound, "{allocated} bytes allocated, bound {bound}");
    }
    rig.check_neighbour();
    rig.end(&mut dice);
    rig.check_bounds();
    count
}

#[test]
fn fuzz_no_input_breaks_an_endpoint_or_its_neighbours() {
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = variable("POLYRAIL_SEED") {
        println!("seed {seed}: {} frames", attack(seed));
        return;
    }
    let sequences = variable("POLYRAIL_FUZZ").unwrap_or(SEQUENCES);
    let (next, frames) = (AtomicU64::new(1), AtomicU64::new(0));
    let began = std::time::Instant::now();
    let failed: Vec<u64> = std::thread::scope(|scope| {
        let worker = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed > sequences {
                    return None;
                }
                match catch_unwind(|| attack(seed)) {
                    Ok(count) => frames.fetch_add(count, Ordering::Relaxed),
                    Err(_) => return Some(seed),
                };
            }
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "POLYRAIL_SEED={} replays it: {failed:?}", failed[0]);
    let word = if sequences >= SEQUENCES { "ok" } else { "short" };
    println!("RESULT fuzzed_sequences {sequences} sequences goal >= {SEQUENCES} {word}");
    println!("RESULT fuzzed_session_frames {} frames", frames.load(Ordering::Relaxed));
    println!("{:.1} s", began.elapsed().as_secs_f64());
}

const SEQUENCES: u64 = 30_000;
