//! Figures of rows of outcomes: means, percentiles and ratios.

use super::messaging::Messages;
use super::metrics::{interval, mean, quantile, variation};
use super::runs::{Measured, Row, Workload};
use super::{Bulk, Download, Message};

/// Rows, found by name.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a>(pub &'a [Row]);

/// A ratio with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The ratio of the means over all trips.
    pub value: f64,
    /// 95 % of the bootstrap's draws lie between these.
    pub between: [f64; 2],
}

impl<'a> Rows<'a> {
    /// The row of this name in a workload.
    pub fn find(self, name: &str, workload: Workload) -> Option<&'a Row> {
        self.of(workload).find(|row| row.name() == name)
    }

    /// All rows of a workload.
    pub fn of(self, workload: Workload) -> impl Iterator<Item = &'a Row> {
        self.0.iter().filter(move |row| row.workload == workload)
    }

    /// The breaches, in words.
    pub fn broken(self) -> Vec<String> {
        let mut list = Vec::new();
        for row in self.0 {
            for (trip, outcome) in row.outcomes.iter().enumerate() {
                if let Measured::Broken(why) = outcome {
                    list.push(format!("{} {:?} trip {trip}: {why}", row.name(), row.workload));
                }
            }
        }
        list
    }
}

/// Downloads of one size, by trip.
pub fn downloads(row: &Row, bytes: u64) -> Vec<Vec<Download>> {
    let of_trip = |outcome: &Measured| match outcome {
        Measured::Downloads(all) => {
            all.list.iter().filter(|download| download.bytes == bytes).copied().collect()
        }
        _ => Vec::new(),
    };
    row.outcomes.iter().map(of_trip).collect()
}

/// The goodputs of one size, by trip.
pub fn goodputs(row: &Row, bytes: u64) -> Vec<Vec<f64>> {
    let of_trip = |list: &Vec<Download>| list.iter().map(Download::goodput).collect();
    downloads(row, bytes).iter().map(of_trip).collect()
}

/// The completion times of one size in seconds, by trip.
pub fn times(row: &Row, bytes: u64) -> Vec<Vec<f64>> {
    let of_trip = |list: &Vec<Download>| list.iter().map(|it| it.time.as_secs_f64()).collect();
    downloads(row, bytes).iter().map(of_trip).collect()
}

/// Downloads, messages or pages that did not finish.
pub fn unfinished(row: &Row) -> usize {
    let of_trip = |outcome: &Measured| match outcome {
        Measured::Downloads(all) => all.list.iter().filter(|download| !download.ended).count(),
        Measured::Messaging(all) => all.list.iter().filter(|message| !message.ended).count(),
        Measured::Pages(list) => list.iter().filter(|page| !page.ended).count(),
        Measured::Bulk(_) | Measured::Broken(_) => 0,
    };
    row.outcomes.iter().map(of_trip).sum()
}

/// Bytes sent more than once, over the wanted bytes that arrived; NaN for pages.
pub fn resent_share(row: &Row) -> f64 {
    let (mut resent, mut wanted) = (0, 0);
    for outcome in &row.outcomes {
        match outcome {
            Measured::Downloads(all) => {
                resent += all.resent;
                wanted += all.list.iter().map(|download| download.read).sum::<u64>();
            }
            Measured::Messaging(all) => {
                resent += all.resent;
                let ended = all.list.iter().filter(|message| message.ended).count();
                wanted += ended as u64 * Message::BYTES;
            }
            Measured::Bulk(bulk) => {
                resent += bulk.resent;
                wanted += bulk.bytes;
            }
            Measured::Pages(_) | Measured::Broken(_) => {}
        }
    }
    resent as f64 / wanted as f64
}

/// The mean of a over the mean of b, over all values of all trips.
pub fn ratio(a: &[Vec<f64>], b: &[Vec<f64>]) -> Ratio {
    let sums = |lists: &[Vec<f64>]| -> Vec<(f64, f64)> {
        lists.iter().map(|list| (list.iter().sum(), list.len() as f64)).collect()
    };
    let (a, b) = (sums(a), sums(b));
    let mean_of = |sums: &[(f64, f64)], drawn: &[usize]| {
        let (sum, count) = drawn
            .iter()
            .filter_map(|trip| sums.get(*trip))
            .fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        sum / count
    };
    let of = |drawn: &[usize]| mean_of(&a, drawn) / mean_of(&b, drawn);
    let trips = a.len().min(b.len());
    Ratio { value: of(&(0..trips).collect::<Vec<_>>()), between: interval(trips, of) }
}

/// A percentile of a over the same of b, over all values of all trips.
pub fn quantile_ratio(a: &[Vec<f64>], b: &[Vec<f64>], share: f64) -> Ratio {
    let trips = a.len().min(b.len());
    let of_drawn = |lists: &[Vec<f64>], drawn: &[usize]| {
        quantile(&drawn.iter().flat_map(|trip| lists[*trip].clone()).collect::<Vec<_>>(), share)
    };
    let of = |drawn: &[usize]| of_drawn(a, drawn) / of_drawn(b, drawn);
    Ratio { value: of(&(0..trips).collect::<Vec<_>>()), between: interval(trips, of) }
}

/// The mean over trips of the ratio of their means.
pub fn trip_ratio(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let ratios: Vec<f64> =
        a.iter().zip(b).map(|(a, b)| mean(a) / mean(b)).filter(|ratio| ratio.is_finite()).collect();
    mean(&ratios)
}

/// The mean ratio over several sizes of downloads.
pub fn ratio_over(a: &Row, b: &Row, sizes: &[u64]) -> Ratio {
    let lists: Vec<_> = sizes.iter().map(|s| (goodputs(a, *s), goodputs(b, *s))).collect();
    let mean_of = |list: &[Vec<f64>], drawn: &[usize]| {
        let values = drawn.iter().filter_map(|trip| list.get(*trip)).flatten().copied();
        mean(&values.collect::<Vec<_>>())
    };
    let of = |drawn: &[usize]| {
        let each = lists.iter().map(|(a, b)| mean_of(a, drawn) / mean_of(b, drawn));
        mean(&each.collect::<Vec<_>>())
    };
    let trips = a.outcomes.len();
    Ratio { value: of(&(0..trips).collect::<Vec<_>>()), between: interval(trips, of) }
}

/// The messages of a row, by trip.
fn messages(row: &Row) -> Vec<&[Message]> {
    let of_trip = |outcome| match outcome {
        &Measured::Messaging(Messages { ref list, .. }) => &list[..],
        _ => &[],
    };
    row.outcomes.iter().map(of_trip).collect()
}

/// Delivery times of all messages in seconds, by trip: to the server, and there and back.
pub fn delivery(row: &Row) -> [Vec<Vec<f64>>; 2] {
    let all = messages(row);
    let of = |figure: fn(&Message) -> f64| {
        all.iter().map(|list| list.iter().map(figure).collect()).collect()
    };
    [of(|message| message.up), of(|message| message.round)]
}

/// The variation between users of their mean round trips within a trip, by trip; none where it is
/// NaN.
pub fn unfairness(row: &Row) -> Vec<Vec<f64>> {
    let of_trip = |list: &&[Message]| {
        let users = list.iter().map(|message| message.user).max().map_or(0, |most| most + 1);
        let of_user = |user| {
            let own = list.iter().filter(|message| message.user == user);
            mean(&own.map(|message| message.round).collect::<Vec<_>>())
        };
        variation(&(0..users).map(of_user).filter(|mean| mean.is_finite()).collect::<Vec<_>>())
    };
    let all = messages(row);
    let finite = |value: f64| Some(value).filter(|value| value.is_finite()).into_iter().collect();
    all.iter().map(of_trip).map(finite).collect()
}

/// The bulk outcome of each trip.
pub fn bulks(row: &Row) -> Vec<Bulk> {
    let of_trip = |outcome: &Measured| match outcome {
        Measured::Bulk(bulk) => bulk.clone(),
        _ => Bulk::default(),
    };
    row.outcomes.iter().map(of_trip).collect()
}

/// Bytes of all trips, over those of another row.
pub fn bulk_share(row: &Row, of: &Row) -> Ratio {
    let lists =
        |row: &Row| bulks(row).iter().map(|bulk| vec![bulk.bytes as f64]).collect::<Vec<_>>();
    ratio(&lists(row), &lists(of))
}

/// The share of trips in which a row moves more than each of the others.
pub fn wins(row: &Row, others: &[&Row]) -> f64 {
    let own = bulks(row);
    let others: Vec<Vec<Bulk>> = others.iter().map(|row| bulks(row)).collect();
    let won = |trip: usize| {
        others.iter().all(|other| other.get(trip).is_some_and(|it| own[trip].bytes > it.bytes))
    };
    (0..own.len()).filter(|trip| won(*trip)).count() as f64 / own.len() as f64
}

/// Load times of all pages in seconds.
pub fn page_times(row: &Row) -> Vec<f64> {
    let of_trip = |outcome: &Measured| match outcome {
        Measured::Pages(list) => list.iter().map(|page| page.time.as_secs_f64()).collect(),
        _ => Vec::new(),
    };
    row.outcomes.iter().flat_map(of_trip).collect()
}

/// Mean, 90th, 95th and 99th percentile.
pub fn spread(values: &[f64]) -> [f64; 4] {
    [mean(values), quantile(values, 0.9), quantile(values, 0.95), quantile(values, 0.99)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sim::Downloads;

    #[test]
    fn ratios_of_means_and_means_of_ratios() {
        let a = vec![vec![4.0, 2.0], vec![6.0]];
        let b = vec![vec![1.0], vec![4.0, 4.0]];
        // 12 / 3 over 9 / 3; (3 / 1 + 6 / 4) / 2.
        assert!((ratio(&a, &b).value - 4.0 / 3.0).abs() < 1e-12);
        assert!((trip_ratio(&a, &b) - 2.25).abs() < 1e-12);
        let [low, high] = ratio(&a, &b).between;
        assert!((1.5 - 1e-12..=3.0 + 1e-12).contains(&high) && low <= 1.5, "{low} {high}");
        assert_eq!(trip_ratio(&[vec![]], &[vec![1.0]]).to_string(), "NaN");
    }

    #[test]
    fn unfinished_download_counts_with_the_bytes_read() {
        let second = Duration::from_secs(1);
        let whole = Download { bytes: 1_000_000, read: 1_000_000, time: second, ended: true };
        let part = Download { read: 250_000, ended: false, time: 2 * second, ..whole };
        let list = vec![whole, part];
        let row = Row {
            contestant: None,
            workload: Workload::Downloads,
            outcomes: vec![Measured::Downloads(Downloads { list, resent: 125_000 })],
        };
        assert_eq!(goodputs(&row, 1_000_000), [[8.0, 1.0]]);
        assert_eq!((resent_share(&row), unfinished(&row)), (0.1, 1));
        let over = quantile_ratio(&times(&row, 1_000_000), &[vec![0.5, 0.5]], 0.95);
        assert_eq!(over, Ratio { value: 4.0, between: [4.0, 4.0] });
    }

    #[test]
    fn users_are_compared_within_a_trip() {
        let message = |user, round| Message { user, up: 0.1, round, ended: true };
        let row = |lists: Vec<Vec<Message>>| Row {
            contestant: None,
            workload: Workload::Messaging(2),
            outcomes: lists
                .into_iter()
                .map(|list| Measured::Messaging(Messages { list, resent: 26 }))
                .collect(),
        };
        // Means 1 and 5: a variation of 2/3; and 7 for all: none.
        let first = vec![message(0, 0.5), message(0, 1.5), message(1, 5.0)];
        let unfair = row(vec![first, vec![message(0, 7.0), message(1, 7.0)]]);
        assert!((mean(&unfairness(&unfair).concat()) - 1.0 / 3.0).abs() < 1e-12);
        let [ups, rounds] = delivery(&unfair);
        assert_eq!((ups.concat().len(), spread(&rounds.concat())[3]), (5, 7.0));
        // 26 bytes a trip, of five messages with 104 bytes.
        assert!((resent_share(&unfair) - 0.1).abs() < 1e-12);
    }
}
