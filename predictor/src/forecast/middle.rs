//! The median of numbers.

/// The median; of an even number, the mean of the two in the middle. 0 without any.
pub(super) fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let at = |place: usize| sorted.get(place).copied().unwrap_or_default();
    (at(sorted.len() / 2) + at(sorted.len().saturating_sub(1) / 2)) / 2.0
}
