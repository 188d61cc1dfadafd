//! The random faults of a link, all from one seeded generator.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;

/// A probability between 0 and 1, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Deserialize, Serialize)]
#[serde(try_from = "f64")]
pub struct Probability(f64);

/// Loss in bursts after Gilbert and Elliott: a good and a bad state, which may change before each
/// packet. The share of packets in the bad state is `enter / (enter + leave)`, and the mean burst
/// has `1 / leave` packets.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BurstLoss {
    /// From good to bad.
    pub enter: Probability,
    /// From bad to good.
    pub leave: Probability,
    /// Loss in the bad state. Default in a scenario: always.
    #[serde(default = "always")]
    pub loss: Probability,
    /// Loss in the good state. Default in a scenario: never.
    #[serde(default)]
    pub loss_good: Probability,
}

/// The generator and the state of the bursts.
#[derive(Debug)]
pub(super) struct Chance {
    dice: Dice,
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

impl TryFrom<f64> for Probability {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        Self::new(value).ok_or_else(|| format!("{value} is not a share between 0 and 1"))
    }
}

fn always() -> Probability {
    Probability::ALWAYS
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), in_burst: false }
    }

    /// Draws; a probability of zero takes nothing from the dice.
    pub(super) fn happens(&mut self, probability: Probability) -> bool {
        probability.0 > 0.0 && self.dice.chance(probability.0)
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
