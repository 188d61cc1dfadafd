//! Fair shares: a full collection drops what belongs to the writer that has most, and of the rest
//! no writer counts more than the others.
//!
//! So a writer that invents entries displaces its own, and outweighs nobody.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::entry::WriterNumber;

/// The first item of the writer that has most, from the writers of all items; of equal writers, the
/// one with the highest number, so the node's own items last. `None` without items.
pub(crate) fn crowded_out(writers: impl Iterator<Item = WriterNumber>) -> Option<usize> {
    // A few writers, in most collections one.
    let mut counts: Vec<(WriterNumber, usize, usize)> = Vec::new();
    for (place, writer) in writers.enumerate() {
        match counts.iter_mut().find(|(known, ..)| *known == writer) {
            Some((_, count, _)) => *count += 1,
            None => counts.push((writer, 1, place)),
        }
    }
    let heaviest = counts.into_iter().max_by_key(|(writer, count, _)| (*count, *writer));
    heaviest.map(|(_, _, first)| first)
}

/// The writer that alone holds an item on a track in a full collection: the only one whose records
/// it has, or else the only one that recorded something on this track itself. If all were recorded
/// elsewhere, it is the track's creator, because that track alone brings them here. `None`: several
/// writers recorded something on it. Records come as writers, and whether they are projections.
pub(crate) fn holder(
    records: impl Iterator<Item = (WriterNumber, bool)> + Clone,
    creator: Option<WriterNumber>,
) -> Option<WriterNumber> {
    let all = records.clone().map(|(writer, _)| writer);
    let recorders = records.filter(|(_, is_projected)| !is_projected).map(|(writer, _)| writer);
    let is_projection = recorders.clone().next().is_none();
    only(all).or(if is_projection { creator } else { only(recorders) })
}

/// The only writer, if there is just one.
pub(crate) fn only(mut writers: impl Iterator<Item = WriterNumber>) -> Option<WriterNumber> {
    let first = writers.next()?;
    writers.all(|writer| writer == first).then_some(first)
}

/// Chooses `count` items to evict from a full collection. Each item comes with the only writer that
/// holds it, if there is just one, and the number of its last write.
///
/// The other writer with most items that it alone holds loses the one written longest ago, again
/// and again; then the node itself; then items of several writers go, the oldest first.
pub(crate) fn victims<K>(
    items: impl Iterator<Item = (Option<WriterNumber>, u64, K)>,
    count: usize,
) -> Vec<K> {
    let mut by_writer: BTreeMap<Option<WriterNumber>, Vec<(u64, K)>> = BTreeMap::new();
    for (sole, written, key) in items {
        by_writer.entry(sole).or_default().push((written, key));
    }
    let sorted = |mut items: Vec<(u64, K)>| -> VecDeque<K> {
        items.sort_by_key(|(written, _)| *written);
        items.into_iter().map(|(_, key)| key).collect()
    };
    let shared = sorted(by_writer.remove(&None).unwrap_or_default());
    let own = sorted(by_writer.remove(&Some(WriterNumber::OWN)).unwrap_or_default());
    let mut others: Vec<VecDeque<K>> = by_writer.into_values().map(sorted).collect();
    let mut heaviest: BinaryHeap<(usize, usize)> =
        others.iter().enumerate().map(|(writer, items)| (items.len(), writer)).collect();
    let mut gone = Vec::with_capacity(count);
    while gone.len() < count
        && let Some((_, writer)) = heaviest.pop()
    {
        gone.extend(others[writer].pop_front());
        if !others[writer].is_empty() {
            heaviest.push((others[writer].len(), writer));
        }
    }
    let rest = own.into_iter().chain(shared);
    gone.extend(rest.take(count.saturating_sub(gone.len())));
    gone
}

/// How many items of each writer count for the node `own`, from the writers of all items: of its
/// own all, of another no more than the median of the others' numbers, the higher one of two. So a
/// writer with few items lowers nobody's. A single writer counts in full.
fn weights(
    writers: impl Iterator<Item = WriterNumber>,
    own: WriterNumber,
) -> BTreeMap<WriterNumber, usize> {
    let mut counts: BTreeMap<WriterNumber, usize> = BTreeMap::new();
    writers.for_each(|writer| *counts.entry(writer).or_default() += 1);
    let mut sorted: Vec<usize> = counts.values().copied().collect();
    sorted.sort_unstable();
    let median = sorted.len().saturating_sub(1) / 2;
    for (_, count) in counts.iter_mut().filter(|(writer, _)| **writer != own) {
        // The median of the others: this one is not counted.
        let place = sorted.partition_point(|one| one < count);
        let most = sorted.get(median + usize::from(place <= median));
        *count = most.map_or(*count, |most| (*most).min(*count));
    }
    counts
}

/// The items that count for the node `own`, from all items, the newest first: of each writer the
/// newest, as many as [`weights`] says.
pub(crate) fn weighed<'a, T: Copy + 'a>(
    newest_first: impl Iterator<Item = &'a T> + Clone,
    writer: impl Fn(&T) -> WriterNumber,
    own: WriterNumber,
) -> Vec<T> {
    let mut left = weights(newest_first.clone().map(&writer), own);
    let counts = |one: &&T| {
        let left = left.get_mut(&writer(*one)).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    };
    newest_first.filter(counts).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of items by writer, how many go, and which: writer and number.
    type Case<'a> = (&'a [(Option<u32>, u64)], usize, &'a [(Option<u32>, u64)]);

    #[test]
    fn heaviest_other_writer_loses_its_oldest_first() {
        let items = |counts: &[(Option<u32>, u64)]| -> Vec<_> {
            let all = counts.iter().flat_map(|&(writer, count)| {
                (0..count).map(move |at| (writer.map(WriterNumber), at, (writer, at)))
            });
            all.collect()
        };
        let cases: [Case<'_>; 4] = [
            (&[(Some(0), 9), (Some(1), 2), (Some(2), 4)], 2, &[(Some(2), 0), (Some(2), 1)]),
            (&[(Some(0), 9), (Some(1), 1)], 2, &[(Some(1), 0), (Some(0), 0)]),
            (&[(None, 5), (Some(0), 1)], 2, &[(Some(0), 0), (None, 0)]),
            (&[(None, 1)], 3, &[(None, 0)]),
        ];
        for (counts, count, gone) in cases {
            assert_eq!(victims(items(counts).into_iter(), count), gone, "{counts:?}");
        }
    }

    #[test]
    fn track_holds_what_was_recorded_elsewhere() {
        type Held<'a> = (&'a [(u32, bool)], Option<u32>);
        let cases: [Held<'_>; 6] = [
            (&[(1, false), (1, true)], Some(1)),
            (&[(1, true), (1, true)], Some(1)),
            (&[(1, true), (2, true)], Some(9)),
            (&[(1, true), (2, false), (3, true)], Some(2)),
            (&[(1, false), (2, false)], None),
            (&[], Some(9)),
        ];
        for (records, wanted) in cases {
            let records = records.iter().map(|(writer, is)| (WriterNumber(*writer), *is));
            let found = holder(records, Some(WriterNumber(9)));
            assert_eq!(found, wanted.map(WriterNumber));
        }
    }

    #[test]
    fn weight_is_at_most_the_median_of_the_others() {
        let cases: [(&[usize], &[usize]); 9] = [
            (&[0, 20, 20, 20], &[20, 20, 20]),
            (&[0, 12, 12, 12, 1], &[12, 12, 12, 1]),
            (&[0, 12, 12, 1], &[12, 12, 1]),
            (&[0, 10, 10, 60], &[10, 10, 10]),
            (&[0, 8, 9, 10, 60], &[8, 9, 9, 9]),
            (&[60, 10, 10], &[60, 10, 10]),
            (&[4, 100], &[4, 4]),
            (&[1, 2, 100], &[1, 2, 2]),
            (&[0, 100], &[100]),
        ];
        for (counts, wanted) in cases {
            let writers = (0..).zip(counts);
            let writers = writers.flat_map(|(writer, count)| vec![WriterNumber(writer); *count]);
            let got: Vec<usize> = weights(writers, WriterNumber::OWN).into_values().collect();
            assert_eq!(got, wanted, "{counts:?}");
        }
    }

    #[test]
    fn item_of_the_heaviest_writer_is_crowded_out() {
        let cases: [(&[u32], Option<usize>); 5] = [
            (&[], None),
            (&[0, 0, 0], Some(0)),
            (&[0, 1, 1], Some(1)),
            (&[0, 2, 1, 2, 1], Some(1)),
            (&[0, 3], Some(1)),
        ];
        for (writers, wanted) in cases {
            let writers = writers.iter().copied().map(WriterNumber);
            assert_eq!(crowded_out(writers), wanted);
        }
    }
}
