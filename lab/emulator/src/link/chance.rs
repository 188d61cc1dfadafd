//! The random faults of a link, all from one seeded generator.

use std::fmt;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A probability between 0 and 1, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

/// Loss in bursts after Gilbert and Elliott: a good and a bad state, changed before each packet.
/// The share of packets in the bad state is `enter / (enter + leave)`, the mean length of a burst
/// `1 / leave` packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// From good to bad.
    pub enter: Probability,
    /// From bad to good.
    pub leave: Probability,
    /// Loss in the bad state.
    pub loss: Probability,
    /// Loss in the good state.
    pub loss_good: Probability,
}

/// The generator and the state of the bursts.
#[derive(Debug)]
pub(super) struct Chance {
    generator: Pcg64Mcg,
    in_burst: bool,
}

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0.0);
    /// Always.
    pub const ALWAYS: Self = Self(1.0);

    /// The probability of that value; `None` outside 0 to 1.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// The value between 0 and 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self { generator: Pcg64Mcg::seed_from_u64(seed), in_burst: false }
    }

    /// Draws; a probability of zero takes nothing from the generator.
    pub(super) fn happens(&mut self, probability: Probability) -> bool {
        // The 53 upper bits make every double of [0, 1) that is a multiple of 2^-53.
        probability.0 > 0.0
            && ((self.generator.next_u64() >> 11) as f64) / ((1_u64 << 53) as f64) < probability.0
    }

    /// The state of the bursts is good again.
    pub(super) fn end_burst(&mut self) {
        self.in_burst = false;
    }

    /// Whether the next packet is lost, at this random loss and in these bursts.
    pub(super) fn loses(&mut self, loss: Probability, burst_loss: Option<BurstLoss>) -> bool {
        let in_burst = burst_loss.is_some_and(|burst| self.loses_in_burst(burst));
        self.happens(loss) || in_burst
    }

    fn loses_in_burst(&mut self, burst: BurstLoss) -> bool {
        let turn = if self.in_burst { burst.leave } else { burst.enter };
        self.in_burst ^= self.happens(turn);
        self.happens(if self.in_burst { burst.loss } else { burst.loss_good })
    }
}
