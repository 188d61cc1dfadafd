//! Schedulers on a simulated rail: the real session over simulated tunnels, in virtual time.
//!
//! A [`Contestant`] drives the [`trips`], once for each workload ([`runs`]). [`compare`] makes
//! tables and RESULT lines of the outcomes.

pub mod bound;
mod bulk;
pub mod calibration;
pub mod compare;
pub mod congestion;
mod contestants;
mod downloads;
mod figures;
mod goals;
mod messaging;
mod oracle;
mod pages;
pub mod rail;
mod report;
pub mod runs;
mod special;
pub mod studies;
mod table;
pub mod traces;
pub mod trips;
pub mod validation;

use std::time::Duration;

use polyrail_emulator::rail::Trip;
use polyrail_session::Settings;

use crate::world::{CarrierSpec, Habits, Side, World};

pub(crate) use bulk::failures;
pub use bulk::{Bulk, bulk, bulk_in};
pub use contestants::{Carriers, Contestant, Engine, PARTS, Tunnels};
pub use downloads::{Download, Downloads, downloads};
pub use messaging::{Message, messaging};
pub use oracle::Oracle;
pub use pages::{Page, pages};
pub(crate) use polyrail_emulator::statistics as metrics;

/// The world of a trip for a contestant, once its carriers are up and [`START`] is over.
pub fn world(trip: &Trip, contestant: &Contestant) -> World {
    world_told(trip, contestant, |_| ())
}

/// As [`world`], with forecasts from the beginning.
pub fn world_told(trip: &Trip, contestant: &Contestant, tell: impl FnOnce(&mut World)) -> World {
    let full = contestant.engine == Engine::Full;
    let trip = contestant.trip(trip);
    let carrier = |(number, carrier): (usize, &polyrail_emulator::rail::CarrierTrip)| CarrierSpec {
        name: carrier_name(number),
        links: carrier.links.clone(),
        stream: contestant.tunnels.stream,
        backup: false,
        room: ROOM,
        congestion: contestant.tunnels.congestion,
    };
    let carriers: Vec<CarrierSpec> = trip.carriers.iter().enumerate().map(carrier).collect();
    let settings = Settings { chain: contestant.chain.clone(), stall: full, ..Settings::default() };
    let habits = Habits {
        seed: trip.seed,
        patience: Duration::from_secs(60),
        early: if full { 1.0 } else { 0.0 },
        restarts: full,
        ..Habits::default()
    };
    let mut world = World::new(habits, settings.clone(), settings, &carriers);
    let up = |world: &World| (0..carriers.len()).any(|carrier| world.is_up(carrier));
    world.run_until(Duration::from_secs(20), up);
    if let Some(oracle) = contestant.oracle {
        oracle.tell(&trip, trip.fixes.first().map_or(0.0, |fix| fix.speed), &mut world);
    }
    tell(&mut world);
    let left = START.saturating_sub(world.elapsed());
    world.run_for(left);
    world
}

/// The name of a carrier in such a world.
fn carrier_name(number: usize) -> String {
    format!("c{number}")
}

/// Bytes that one side has reinjected so far.
fn resent(world: &World, side: Side) -> u64 {
    world.status(side).sessions.iter().map(|session| session.reinjected.0).sum()
}

/// When workloads begin, so that tunnels have time to come up.
pub const START: Duration = Duration::from_secs(4);

/// The bytes that a tunnel accepts ahead of its transport.
const ROOM: usize = 24 * 1_024;
