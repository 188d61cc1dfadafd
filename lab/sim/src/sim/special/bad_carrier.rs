//! A good carrier, alone and together with a bad one.

use std::time::Duration;

use anyhow::Result;
use polyrail_emulator::link::{LinkSpec, Probability, Rate, Schedule};
use polyrail_emulator::rail::Trip;
use polyrail_emulator::results::Goal;
use polyrail_model::{Bitrate, Bytes};

use super::{steady, trip};
use crate::sim::goals::Verdicts;
use crate::sim::metrics::mean;
use crate::sim::runs::{SIZES, parallel};
use crate::sim::{Contestant, Engine, bulk, downloads, messaging, pages, world};

/// `polyrail full` with both carriers, over the same with the good carrier alone, and over
/// `min_rtt` with the good carrier alone.
pub fn judge(seeds: &[u64], threads: usize, verdicts: &mut Verdicts) -> Result<()> {
    let polyrail = Contestant::parse("polyrail", Engine::Full)?;
    let min_rtt = Contestant::parse("min_rtt", Engine::Full)?;
    let kinds = [(&polyrail, true), (&polyrail, false), (&min_rtt, false)];
    let runs = parallel(kinds.len() * seeds.len(), threads, |run| {
        let (contestant, beside) = kinds[run % kinds.len()];
        let mut carriers = vec![steady(20.0, 30)];
        carriers.extend(beside.then(bad));
        Times::of(&trip(seeds[run / kinds.len()], &carriers), contestant)
    });
    let of = |kind: usize, place: usize| -> Vec<f64> {
        runs.iter().skip(kind).step_by(kinds.len()).map(|times| times.0[place]).collect()
    };
    for (base, figure) in
        [(1, "sim_bad_carrier_slowdown"), (2, "sim_bad_carrier_slowdown_over_min_rtt_alone")]
    {
        let mut slowest = 0.0_f64;
        for (place, name) in Times::NAMES.iter().enumerate() {
            let slowdown = mean(&of(0, place)) / mean(&of(base, place));
            slowest = if slowdown.is_nan() { slowdown } else { slowest.max(slowdown) };
            let name = format!("{figure}_{name}");
            verdicts.result(&name, slowdown, "x", Goal::AtMost(1.03), &of(0, place));
        }
        verdicts.result(figure, slowest, "x", Goal::AtMost(1.03), &[]);
    }
    Ok(())
}

/// The mean times of all workloads.
struct Times([f64; 7]);

impl Times {
    const NAMES: [&str; 7] = ["64kb", "256kb", "1mb", "4mb", "messages", "bulk", "pages"];

    fn of(trip: &Trip, contestant: &Contestant) -> Self {
        let all = downloads(world(trip, contestant), trip, &SIZES).list;
        let of_size = |size: u64| {
            let own = all.iter().filter(|download| download.bytes == size);
            mean(&own.map(|download| download.time.as_secs_f64()).collect::<Vec<_>>())
        };
        let [a, b, c, d] = SIZES.map(of_size);
        let messages = messaging(world(trip, contestant), trip, 10).list;
        let rounds: Vec<f64> = messages.iter().map(|message| message.round).collect();
        let bulk = bulk(trip, contestant);
        let pages = pages(world(trip, contestant), trip);
        let loads: Vec<f64> = pages.iter().map(|page| page.time.as_secs_f64()).collect();
        Self([a, b, c, d, mean(&rounds), bulk.seconds / bulk.bytes as f64, mean(&loads)])
    }
}

/// A round trip of 10 s, 5 % loss and 100 kbit/s. The delay is short at first, because a tunnel
/// would not come up with a round trip of 10 s.
fn bad() -> LinkSpec {
    let turns_bad = Duration::from_secs(3);
    let slow = Rate::Limited(Bitrate::from_mbps(0.1));
    let delays = [(turns_bad, Duration::from_secs(5))];
    let late = Schedule::new(Duration::from_millis(40), delays, None);
    LinkSpec {
        rate: Schedule::constant(slow),
        delay: late.unwrap_or_else(|error| panic!("{error}")),
        loss: Probability::new(0.05).unwrap_or_default(),
        queue: Bytes::from_kib(64),
        ..LinkSpec::default()
    }
}
