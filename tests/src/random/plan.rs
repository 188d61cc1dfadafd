//! The plan of a seed: carriers, settings, and the weight of each operation.

use std::time::Duration;

use polyrail_emulator::link::{BurstLoss, LinkSpec, Probability, Reorder};
use polyrail_model::{Bitrate, Bytes};
use polyrail_scheduler::{ChainSpec, chain_names};
use polyrail_session::Settings;

use polyrail_sim::congestion::Algorithm;
use polyrail_sim::dice::Dice;
use polyrail_sim::world::{CarrierSpec, Habits, Verbosity};

/// One random world before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The habits of the world.
    pub habits: Habits,
    /// The gateway's settings.
    pub gateway: Settings,
    /// The cloud's settings.
    pub cloud: Settings,
    /// The carriers.
    pub carriers: Vec<CarrierSpec>,
    /// How many operations there are.
    pub operations: u64,
    /// The longest usual pause between two.
    pub pause: Duration,
    /// The weight of each operation.
    pub weights: Vec<u64>,
    /// Bytes that may be written in all.
    pub volume: u64,
    /// The largest single write.
    pub write_max: u64,
    /// How many users there are.
    pub users: u64,
    /// The probability that a new flow's readers begin stalled.
    pub stalls: f64,
}

impl Plan {
    /// The plan of a seed. An operation is its usual weight, and whether it may end sessions.
    pub fn new(seed: u64, verbosity: Verbosity, operations: &[(u64, bool)]) -> Self {
        let mut dice = Dice::new(seed ^ PLAN);
        let dice = &mut dice;
        let calm = dice.chance(0.15);
        // Many unread flows in little memory.
        let crowded = dice.chance(0.1);
        let linger = Duration::from_secs(dice.scale(3, 120));
        let chain = chain(dice);
        let settings = |dice: &mut Dice| Settings {
            linger,
            memory: Bytes::from_mib(if crowded { 1 } else { dice.pick(&[1, 1, 2, 16]) }),
            flows_max: if crowded { 1_000 } else { dice.pick(&[3, 10, 100, 1_000]) },
            chain: chain.clone(),
            stall: dice.chance(0.85),
            ..Settings::default()
        };
        let (gateway, cloud) = (settings(dice), settings(dice));
        let count = dice.pick(&[1, 1, 2, 2, 2, 3, 4]);
        let carriers = (0..count).map(|i| carrier(dice, i, calm)).collect();
        let restarts = dice.chance(0.4);
        let weights = operations.iter().map(|&(weight, ends_sessions)| {
            let part = dice.pick(&[0, 1, 1, 2, 4]);
            weight * if ends_sessions && !restarts { 0 } else { part }
        });
        let weights = weights.collect();
        Self {
            habits: Habits {
                seed: dice.number(),
                drains_at_once: dice.chance(0.7),
                repeats: dice.pick(&[0.0, 0.0, 0.05]),
                patience: dice.millis(5_000, 40_000),
                early: dice.pick(&[0.0, 0.5, 1.0]),
                early_accepted: dice.pick(&[0.0, 0.5, 1.0]),
                restarts: dice.chance(0.5),
                verbosity,
            },
            gateway,
            cloud,
            carriers,
            operations: dice.scale(30, 400),
            pause: Duration::from_millis(dice.scale(20, 2_000)),
            weights,
            volume: if crowded { 20_000_000 } else { dice.scale(100_000, 20_000_000) },
            write_max: if crowded { 300_000 } else { dice.scale(10_000, 300_000) },
            users: if crowded { 40 } else { dice.scale(1, 40) },
            stalls: if crowded { 0.7 } else { 0.0 },
        }
    }
}

fn carrier(dice: &mut Dice, index: usize, calm: bool) -> CarrierSpec {
    let link = |dice: &mut Dice| {
        let rate = Bitrate::from_bps(dice.scale(500_000, 50_000_000));
        let delay = Duration::from_micros(dice.scale(500, 300_000));
        let queue = Bytes::from_kib(dice.scale(16, 512));
        let steady = LinkSpec::steady(rate, delay, queue);
        if calm { steady } else { spoil(dice, steady) }
    };
    CarrierSpec {
        name: format!("c{index}"),
        links: [link(dice), link(dice)],
        stream: dice.chance(0.6),
        backup: dice.chance(0.1),
        room: dice.scale(8_000, 64_000) as usize,
        congestion: dice.pick(&[Algorithm::Reno, Algorithm::Cubic, Algorithm::Bbr]),
    }
}

fn spoil(dice: &mut Dice, spec: LinkSpec) -> LinkSpec {
    let some = |dice: &mut Dice, most: f64| {
        let share = if dice.chance(0.4) { dice.unit() * most } else { 0.0 };
        Probability::new(share).unwrap_or_default()
    };
    let burst = dice.chance(0.2).then(|| BurstLoss {
        enter: some(dice, 0.02),
        leave: Probability::new(0.2).unwrap_or_default(),
        loss: Probability::new(0.7).unwrap_or_default(),
        loss_good: Probability::NEVER,
    });
    let delay = dice.millis(1, 60);
    LinkSpec {
        loss: some(dice, 0.05),
        burst_loss: burst,
        duplicate: some(dice, 0.05),
        reorder: Some(Reorder { share: some(dice, 0.05), delay }),
        ..spec
    }
}

const PLAN: u64 = 0x706c_616e;

/// A ready-made chain, optionally with another handler of timeouts.
pub fn chain(dice: &mut Dice) -> ChainSpec {
    let names: Vec<&str> = chain_names().collect();
    let chain = ChainSpec::named(dice.pick(&names)).unwrap_or_default();
    let Some(more) = dice.pick(&[None, Some(1), Some(3)]) else { return chain };
    let handler = format!("extended_reinjection(timeouts={more})");
    let rules: Vec<&str> = chain.names().iter().map(String::as_str).chain([&*handler]).collect();
    ChainSpec::of(&rules).unwrap_or_default()
}
