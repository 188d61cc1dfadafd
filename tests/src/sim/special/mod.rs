//! Scenarios beside the rail: steady carriers, one bad carrier beside a good one, and failures
//! foreseen everywhere at once.

use std::time::Duration;

use polyrail_emulator::link::{LinkSpec, Probability, Rate, Schedule};
use polyrail_emulator::rail::{CarrierTrip, Trip};
use polyrail_emulator::results::{Goal, Report};
use polyrail_model::{Bitrate, Bytes, LinkForecast};

use super::metrics::mean;
use super::runs::{SIZES, parallel};
use super::{Contestant, bound, bulk, downloads, messaging, trips, world};

/// Prints what comes out of all of them for a contestant.
pub fn judge(contestant: &Contestant, seeds: u64, threads: usize, report: &mut Report) {
    let shares = parallel(seeds as usize, threads, |seed| {
        let trip = trip(seed as u64, &[steady(7.5, 45), steady(12.0, 55)]);
        bulk(&trip, contestant).bytes as f64 / bound::bulk(&trip).bytes as f64
    });
    report.result("sim_bulk_of_bound_static", mean(&shares), "x", Goal::AtLeast(0.9), &shares);
    bad_carrier(contestant, seeds, threads, report);
    let shares = parallel(seeds as usize, threads, |seed| all_foreseen(contestant, seed as u64));
    report.result("sim_all_predicted_share", mean(&shares), "x", Goal::AtLeast(0.9), &shares);
}

/// A good carrier, alone and with a bad one beside it, which is a good one until its tunnel is up:
/// with 10 s there and back none would come up.
fn bad_carrier(contestant: &Contestant, seeds: u64, threads: usize, report: &mut Report) {
    let runs = parallel(2 * seeds as usize, threads, |run| {
        let (seed, beside) = ((run / 2) as u64, run % 2 == 1);
        let mut carriers = vec![steady(20.0, 30)];
        carriers.extend(beside.then(bad));
        Times::of(&trip(seed, &carriers), contestant)
    });
    let mut slowest = 0.0_f64;
    for (place, name) in Times::NAMES.iter().enumerate() {
        let of = |beside: usize| -> Vec<f64> {
            runs.iter().skip(beside).step_by(2).map(|times| times.0[place]).collect()
        };
        let slowdown = mean(&of(1)) / mean(&of(0));
        slowest = slowest.max(slowdown);
        let name = format!("sim_bad_carrier_slowdown_{name}");
        report.result(&name, slowdown, "x", Goal::AtMost(1.03), &of(1));
    }
    report.result("sim_bad_carrier_slowdown", slowest, "x", Goal::AtMost(1.03), &[]);
}

/// The mean times of everything that people do.
struct Times([f64; 6]);

impl Times {
    const NAMES: [&str; 6] = ["64kb", "256kb", "1mb", "4mb", "messages", "bulk"];

    fn of(trip: &Trip, contestant: &Contestant) -> Self {
        let all = downloads(trip, contestant, &SIZES).list;
        let of_size = |size: u64| {
            let own = all.iter().filter(|download| download.bytes == size);
            mean(&own.map(|download| download.time.as_secs_f64()).collect::<Vec<_>>())
        };
        let [a, b, c, d] = SIZES.map(of_size);
        let messages = messaging(trip, contestant, 10);
        let rounds: Vec<f64> = messages.iter().map(|message| message.round).collect();
        let bulk = bulk(trip, contestant);
        Self([a, b, c, d, mean(&rounds), bulk.seconds / bulk.bytes as f64])
    }
}

/// What goes on while both carriers are said to fail, over what the better one would carry alone.
fn all_foreseen(contestant: &Contestant, seed: u64) -> f64 {
    let trip = trip(seed, &[steady(10.0, 45), steady(10.0, 55)]);
    let mut world = world(&trip, contestant);
    let Ok(flow) = world.open(1) else { return 0.0 };
    world.flow_mut(flow).server = (1 << 40, false);
    world.run_for(FORESEEN.saturating_sub(world.elapsed()));
    let (now, before) = (world.now(), world.flow(flow).legs[0].read);
    for second in 0..FORESEEN_FOR.as_secs() {
        for carrier in 0..2 {
            let tick = Duration::from_secs(second);
            let forecast = LinkForecast {
                fails_at: now + Duration::from_secs(2 + carrier as u64),
                uncertainty: Duration::from_millis(240),
                permille: 500,
                expires_at: now + tick + Duration::from_secs(3),
            };
            world.foresee(tick, carrier, Some(forecast));
        }
    }
    world.run_for(FORESEEN_FOR);
    let bytes = world.flow(flow).legs[0].read - before;
    bytes as f64 * 8e-6 / FORESEEN_FOR.as_secs_f64() / 10.0
}

fn trip(seed: u64, carriers: &[LinkSpec]) -> Trip {
    let carrier = |link: &LinkSpec| CarrierTrip {
        links: [link.clone(), link.clone()],
        handovers: Vec::new(),
    };
    Trip {
        seed,
        length: trips::LENGTH,
        carriers: carriers.iter().map(carrier).collect(),
        fixes: Vec::new(),
    }
}

/// A link with a queue of 250 ms.
fn steady(mbps: f64, delay_ms: u64) -> LinkSpec {
    let queue = Bytes((mbps * 1e6 / 8.0 * 0.25) as u64);
    LinkSpec::steady(Bitrate::from_mbps(mbps), Duration::from_millis(delay_ms), queue)
}

/// 10 s there and back, 5 % loss, 100 kbit/s.
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

const FORESEEN: Duration = Duration::from_secs(20);
const FORESEEN_FOR: Duration = Duration::from_secs(8);
