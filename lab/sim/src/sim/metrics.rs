//! Means, percentiles, spread between users, and how sure a figure is.

use crate::dice::Dice;

/// The mean; not a number for an empty list.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The least value that at least this share of the values does not exceed (the nearest rank); not a
/// number for an empty list.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank.min(sorted.len()).wrapping_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Values with their groups, sorted, to take percentiles of drawn groups again and again.
#[derive(Debug)]
pub struct Sorted {
    values: Vec<(f64, usize)>,
    sizes: Vec<usize>,
}

impl Sorted {
    /// The values of these groups.
    pub fn new(groups: &[Vec<f64>]) -> Self {
        let own = |(group, list): (usize, &Vec<f64>)| {
            list.iter().map(|value| (*value, group)).collect::<Vec<_>>()
        };
        let mut values: Vec<(f64, usize)> = groups.iter().enumerate().flat_map(own).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { values, sizes: groups.iter().map(Vec::len).collect() }
    }

    /// The [`quantile`] of all values of these groups, as often as they were drawn.
    ///
    /// # Panics
    /// There is no such group.
    pub fn quantile(&self, drawn: &[usize], share: f64) -> f64 {
        let mut often = vec![0; self.sizes.len()];
        drawn.iter().for_each(|group| often[*group] += 1);
        let count: usize = often.iter().zip(&self.sizes).map(|(often, size)| often * size).sum();
        let rank = ((share * count as f64).ceil().max(1.0) as usize).min(count);
        // From the top, because callers ask for high percentiles.
        let mut above = count - rank;
        for (value, group) in self.values.iter().rev() {
            if often[*group] > above {
                return *value;
            }
            above -= often[*group];
        }
        f64::NAN
    }
}

/// The coefficient of variation: the deviation of a population over its mean.
pub fn variation(values: &[f64]) -> f64 {
    let middle = mean(values);
    let squares: Vec<f64> = values.iter().map(|value| (value - middle).powi(2)).collect();
    mean(&squares).sqrt() / middle
}

/// Between which values a statistic over groups lies with 95 % confidence: groups are drawn with
/// repetition (the bootstrap's percentiles). Trips are the groups, because what happens within one
/// trip is not independent.
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
    fn a_percentile_is_the_nearest_rank() {
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
    fn a_percentile_of_drawn_groups_is_that_of_their_values() {
        let groups = [vec![5.0, 1.0, 9.0], vec![], vec![2.0, 7.0]];
        let sorted = Sorted::new(&groups);
        for drawn in [&[0, 1, 2][..], &[2, 2, 2], &[0, 2, 0], &[1, 2, 1]] {
            let values: Vec<f64> = drawn.iter().flat_map(|group| groups[*group].clone()).collect();
            for share in [0.0, 0.2, 0.5, 0.95, 1.0] {
                let wanted = quantile(&values, share);
                assert_eq!(sorted.quantile(drawn, share), wanted, "{share} of {drawn:?}");
            }
        }
        assert!(sorted.quantile(&[1], 0.5).is_nan());
    }

    #[test]
    fn users_who_are_served_alike_do_not_vary() {
        assert_eq!(variation(&[2.0, 2.0, 2.0]), 0.0);
        // The mean is 3, the deviation 2.
        assert!((variation(&[1.0, 5.0]) - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn an_interval_holds_the_mean_and_shrinks_with_more_groups() {
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
