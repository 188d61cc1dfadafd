//! Random processes and distributions of the rail.

use crate::dice::Dice;

/// A standard normal process with exponential memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wander {
    value: f64,
    keep: f64,
}

impl Wander {
    /// A process with this step and memory, both in seconds.
    pub fn new(dice: &mut Dice, step: f64, memory: f64) -> Self {
        Self { value: dice.normal(), keep: (-step / memory).exp() }
    }

    /// The next value.
    pub fn next(&mut self, dice: &mut Dice) -> f64 {
        self.value = self.keep * self.value + (1.0 - self.keep * self.keep).sqrt() * dice.normal();
        self.value
    }
}

/// The quantile of the standard normal distribution (Acklam's approximation, relative error under
/// 1.2e-9).
pub(super) fn normal_quantile(probability: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
    ];
    let polynomial = |factors: &[f64], x: f64| factors.iter().fold(0.0, |sum, f| sum * x + f);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / (polynomial(&D, q) * q + 1.0)
    };
    let p = probability.clamp(1e-12, 1.0 - 1e-12);
    if p < 0.024_25 {
        tail(p)
    } else if p > 1.0 - 0.024_25 {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        polynomial(&A, r) * q / (polynomial(&B, r) * r + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (p, x) in [(0.5, 0.0), (0.975, 1.959_964), (0.01, -2.326_348), (0.75, 0.674_490)] {
            assert!((normal_quantile(p) - x).abs() < 1e-5, "{p}");
        }
    }

    #[test]
    fn wander_stays_standard_normal() {
        let mut dice = Dice::labelled(1, 1);
        let mut wander = Wander::new(&mut dice, 0.1, 1.0);
        let values: Vec<f64> = (0..100_000).map(|_| wander.next(&mut dice)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.05 && (square - 1.0).abs() < 0.05, "{mean} {square}");
    }
}
