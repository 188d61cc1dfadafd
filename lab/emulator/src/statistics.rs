//! Means, quantiles, variation between users, and intervals.

use crate::dice::Dice;

/// The mean; NaN for an empty list.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The quantile by the nearest rank: the least value that at least this share of the values does
/// not exceed; NaN for an empty list.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    let rank = (share * values.len() as f64).ceil().max(1.0) as usize;
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    *values.select_nth_unstable_by((rank - 1).min(last), f64::total_cmp).1
}

/// The coefficient of variation: the standard deviation of a population over its mean.
pub fn variation(values: &[f64]) -> f64 {
    let middle = mean(values);
    let squares: Vec<f64> = values.iter().map(|value| (value - middle).powi(2)).collect();
    mean(&squares).sqrt() / middle
}

/// The 95 % interval of a statistic over groups, by the bootstrap: groups are drawn with
/// repetition. The groups are trips, because events within one trip are not independent.
pub fn interval(groups: usize, statistic: impl Fn(&[usize]) -> f64) -> [f64; 2] {
    let mut dice = Dice::new(BOOTSTRAP_SEED);
    let mut draws = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        let drawn: Vec<usize> =
            (0..groups).map(|_| dice.between(0, groups as u64) as usize).collect();
        let value = statistic(&drawn);
        if value.is_finite() {
            draws.push(value);
        }
    }
    [quantile(&draws, 0.025), quantile(&draws, 0.975)]
}

const BOOTSTRAP_SEED: u64 = 4;
const DRAWS: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_the_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        for (values, share, expected) in [
            (&hundred[..], 0.5, 50.0),
            (&hundred, 0.95, 95.0),
            (&hundred, 0.99, 99.0),
            (&hundred, 1.0, 100.0),
            (&hundred, 0.0, 1.0),
            (&[3.0, 1.0, 2.0], 0.95, 3.0),
            (&[3.0, 1.0, 2.0], 0.34, 2.0),
            (&[7.0], 0.5, 7.0),
        ] {
            assert_eq!(quantile(values, share), expected, "{share} of {}", values.len());
        }
        assert!(quantile(&[], 0.5).is_nan() && mean(&[]).is_nan());
    }

    #[test]
    fn equal_users_do_not_vary() {
        assert_eq!(variation(&[2.0, 2.0, 2.0]), 0.0);
        // The mean is 3, the deviation 2.
        assert!((variation(&[1.0, 5.0]) - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn interval_contains_the_mean_and_shrinks_with_more_groups() {
        let width = |groups: usize| {
            // Half of the groups are 0, half are 1: one deviation of the mean is 0.5 / sqrt(n).
            let [low, high] = interval(groups, |drawn| {
                mean(&drawn.iter().map(|group| (group % 2) as f64).collect::<Vec<_>>())
            });
            assert!(low < 0.5 && high > 0.5, "{low} {high}");
            high - low
        };
        let (few, many) = (width(16), width(400));
        // Four deviations: 0.49 and 0.098.
        assert!((0.35..0.6).contains(&few), "{few}");
        assert!((0.08..0.12).contains(&many), "{many}");
        assert_eq!(interval(3, |_| 5.0), [5.0, 5.0]);
    }
}
