//! Ratios of paired measures with intervals by the bootstrap.

use polyrail_emulator::statistics::{interval, mean};

/// A measure by trip, and by planned transfer or message of that trip. It is `None` if no run of
/// the trip counts, or if no answer arrived.
pub type Series = Vec<Vec<Option<f64>>>;

/// Two measures of the same transfers: their sums by trip and size.
#[derive(Clone, Debug, PartialEq)]
pub struct Paired(Vec<Vec<[f64; 2]>>);

/// A ratio of means with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The ratio over all paired trips.
    pub value: f64,
    /// 95 % of the bootstrap's draws lie between these.
    pub between: [f64; 2],
    /// The number of paired trips.
    pub trips: usize,
}

impl Paired {
    /// Sums the transfers that both have; `size_of` gives the place of the size of a transfer,
    /// below `sizes`. Trips without such a transfer are left out.
    pub fn new(
        a: &Series,
        b: &Series,
        sizes: usize,
        size_of: impl Fn(usize, usize) -> usize,
    ) -> Self {
        let mut trips = Vec::new();
        for (trip, (a, b)) in a.iter().zip(b).enumerate() {
            let (mut sums, mut any) = (vec![[0.0; 2]; sizes], false);
            for (place, pair) in a.iter().zip(b).enumerate() {
                if let (Some(a), Some(b)) = pair {
                    let sum = &mut sums[size_of(trip, place)];
                    (sum[0], sum[1], any) = (sum[0] + a, sum[1] + b, true);
                }
            }
            if any {
                trips.push(sums);
            }
        }
        Self(trips)
    }

    /// All of these pairs; the bootstrap then draws from the trips of each.
    pub fn joined(parts: impl IntoIterator<Item = Paired>) -> Self {
        Self(parts.into_iter().flat_map(|part| part.0).collect())
    }

    /// The mean of the first over the mean of the second for transfers of one size; for `None` the
    /// mean of the ratios of all sizes. `None` if there are no pairs.
    pub fn ratio(&self, size: Option<usize>) -> Option<Ratio> {
        let trips = self.0.len();
        let value = finite(self.over(size, &(0..trips).collect::<Vec<_>>()))?;
        Some(Ratio { value, between: interval(trips, |drawn| self.over(size, drawn)), trips })
    }

    /// The ratio of each trip, all sizes together, where it is finite.
    pub fn each(&self) -> Vec<f64> {
        let sum = |trip: &Vec<[f64; 2]>, side: usize| trip.iter().map(|it| it[side]).sum::<f64>();
        self.0.iter().filter_map(|trip| finite(sum(trip, 0) / sum(trip, 1))).collect()
    }

    /// The ratio over these trips. The counts of a pair are equal, so the ratio of the sums is that
    /// of the means.
    fn over(&self, size: Option<usize>, trips: &[usize]) -> f64 {
        let sizes = self.0.first().map_or(0, Vec::len);
        let each = size.map_or(0..sizes, |size| size..size + 1).filter_map(|size| {
            let sum = |side: usize| trips.iter().map(|trip| self.0[*trip][size][side]).sum::<f64>();
            finite(sum(0) / sum(1))
        });
        mean(&each.collect::<Vec<_>>())
    }
}

impl Ratio {
    /// Half the width of the interval; `None` with fewer than two trips.
    pub fn half_width(&self) -> Option<f64> {
        (self.trips >= 2).then(|| (self.between[1] - self.between[0]) / 2.0)
    }
}

/// The mean of each place over lists with values at this place.
pub fn averaged(lists: &[Vec<Option<f64>>]) -> Vec<Option<f64>> {
    let places = lists.iter().map(Vec::len).max().unwrap_or_default();
    let values = |place: usize| lists.iter().filter_map(move |list| list.get(place).copied()?);
    (0..places).map(|place| finite(mean(&values(place).collect::<Vec<_>>()))).collect()
}

/// The standard deviation of a sample over its mean; `None` for fewer than two values.
pub fn repeat_variation(values: &[f64]) -> Option<f64> {
    let (middle, freedom) = (mean(values), values.len().saturating_sub(1) as f64);
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    finite((squares / freedom).sqrt() / middle)
}

/// The value if it is finite.
pub fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpaired_transfers_and_trips_do_not_count() {
        let a = vec![vec![Some(4.0), Some(2.0)], vec![Some(9.0), None], vec![], vec![Some(6.0)]];
        let b = vec![
            vec![Some(1.0), Some(4.0)],
            vec![None, Some(9.0)],
            vec![Some(1.0)],
            vec![Some(4.0)],
        ];
        let paired = Paired::new(&a, &b, 2, |_, place| place);
        // Size 0: (4 + 6) / (1 + 4); size 1: 2 / 4.
        let ratio = |size| paired.ratio(size).map(|ratio| (ratio.value, ratio.trips));
        assert_eq!(ratio(Some(0)), Some((2.0, 2)));
        assert_eq!(ratio(Some(1)), Some((0.5, 2)));
        assert_eq!(ratio(None), Some((1.25, 2)));
        assert_eq!(Paired::new(&a, &vec![], 2, |_, place| place).ratio(None), None);
        let joined = Paired::joined([paired.clone(), paired]).ratio(None).unwrap();
        assert_eq!((joined.value, joined.trips), (1.25, 4));
    }

    #[test]
    fn interval_contains_the_ratio_and_is_reproducible() {
        // Half of the trips 0.5, half 1.5: the deviation of the mean is 0.5 / sqrt(trips).
        let series = |trips: usize| -> Series {
            (0..trips).map(|trip| vec![Some(if trip % 2 == 0 { 0.5 } else { 1.5 })]).collect()
        };
        let of = |trips: usize| {
            Paired::new(&series(trips), &vec![vec![Some(1.0)]; trips], 1, |_, _| 0).ratio(None)
        };
        let ratio = of(100).unwrap();
        let [low, high] = ratio.between;
        assert!(low < 1.0 && ratio.value == 1.0 && high > 1.0, "{ratio:?}");
        let half = ratio.half_width().unwrap();
        assert!((0.08..0.12).contains(&half), "1.96 deviations of 0.05: {half}");
        assert_eq!(of(100), Some(ratio));
        assert_eq!(of(1).unwrap().half_width(), None, "one trip has no interval");
    }

    #[test]
    fn repeats_vary_by_the_deviation_of_a_sample() {
        // The mean is 2, the deviation of the sample sqrt(2).
        assert!((repeat_variation(&[1.0, 3.0]).unwrap() - 0.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!(repeat_variation(&[1.0]), None);
        let lists = [vec![Some(1.0), None], vec![Some(3.0), None], vec![Some(5.0), Some(1.0)]];
        assert_eq!(averaged(&lists), [Some(3.0), Some(1.0)]);
    }
}
