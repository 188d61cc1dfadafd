//! Schedulers on a simulated rail: the real session over simulated tunnels, in virtual time.

pub mod compare;
mod downloads;
mod oracle;
mod table;

use std::time::Duration;

use polyrail_emulator::rail::Trip;
use polyrail_scheduler::ChainSpec;
use polyrail_session::Settings;

use crate::congestion::Algorithm;
use crate::world::{CarrierSpec, Habits, World};

pub use downloads::{Download, downloads};
pub use oracle::Oracle;
pub use table::{Column, table};

/// How much of the engine works beside the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// What the paper has: no restart of paths, no withdrawal, take-back by the chain's handlers
    /// alone.
    Paper,
    /// All that there is.
    Full,
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// As it is called in tables.
    pub name: String,
    /// The scheduler, on both sides.
    pub chain: ChainSpec,
    /// The engine around it.
    pub engine: Engine,
    /// The congestion control of all tunnels.
    pub congestion: Algorithm,
    /// Who foresees handovers that fail, if anybody.
    pub oracle: Option<Oracle>,
}

impl Contestant {
    /// A ready-made chain with bbr.
    ///
    /// # Panics
    /// There is no such chain.
    pub fn named(chain: &str, engine: Engine) -> Self {
        let spec = ChainSpec::named(chain).unwrap_or_else(|error| panic!("{error}"));
        let suffix = if engine == Engine::Full { "full" } else { "paper" };
        let name = format!("{chain} {suffix}");
        Self { name, chain: spec, engine, congestion: Algorithm::Bbr, oracle: None }
    }
}

/// The world of a trip for a contestant, once its carriers are up.
pub fn world(trip: &Trip, contestant: &Contestant) -> World {
    let full = contestant.engine == Engine::Full;
    let carrier = |(number, carrier): (usize, &polyrail_emulator::rail::CarrierTrip)| CarrierSpec {
        name: format!("c{number}"),
        links: carrier.links.clone(),
        stream: !full,
        backup: false,
        room: ROOM,
        congestion: contestant.congestion,
    };
    let carriers: Vec<CarrierSpec> = trip.carriers.iter().enumerate().map(carrier).collect();
    let settings = Settings {
        chain: contestant.chain.clone(),
        stall: full,
        withdrawal: full,
        ..Settings::default()
    };
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
        oracle.tell(trip, trip.fixes.first().map_or(0.0, |fix| fix.speed), &mut world);
    }
    world
}

/// What a tunnel takes ahead of its transport, in bytes.
const ROOM: usize = 24 * 1_024;
