//! How much of each carrier a download uses in its first 1.5 s, by the carrier's load before.
//!
//! The share is low if congestion control begins too slowly after an idle time, or if the
//! scheduler leaves a carrier unused.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::link::{LinkSpec, Rate, Schedule, ScheduleError};
use crate::rail::{CarrierTrip, Trip, Workload, aggregated};
use crate::record::{CarrierSample, Run, Transferred};
use crate::statistics::mean;

/// The upper edges of the bins of the context; the last bin has none.
pub const EDGES: [f64; 5] = [0.10, 0.25, 0.50, 0.80, 1.20];

/// By bin: the shares of all examined downloads and carriers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bins([Vec<f64>; EDGES.len() + 1]);

/// The capacity of a link over time: bit/s from each time on, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity(pub Vec<(f64, f64)>);

/// The carriers of a trip, and the aggregated link.
#[derive(Clone, Debug)]
pub struct Carriers {
    named: Vec<(String, Carrier)>,
    ideal: Option<Carrier>,
}

#[derive(Clone, Debug)]
struct Carrier {
    up: Schedule<Duration>,
    down: Schedule<Duration>,
    capacity: Capacity,
}

impl Bins {
    /// Adds the downloads of a run.
    pub fn add(&mut self, run: &Run, carriers: &Carriers) {
        for (context, share) in shares(run, carriers) {
            self.0[EDGES.iter().filter(|edge| context >= **edge).count()].push(share);
        }
    }

    /// By bin: all shares.
    pub fn shares(&self) -> &[Vec<f64>] {
        &self.0
    }

    /// By bin: the mean share, NaN without downloads, and the number of downloads and carriers.
    pub fn table(&self) -> Vec<(f64, usize)> {
        self.0.iter().map(|shares| (mean(shares), shares.len())).collect()
    }
}

impl Carriers {
    /// The carriers of a trip under these names.
    ///
    /// # Errors
    /// A schedule cannot hold the aggregated link.
    pub fn of(trip: &Trip, names: &[&str]) -> Result<Self, ScheduleError> {
        let carrier = |trip: &CarrierTrip| Carrier {
            up: trip.links[0].delay.clone(),
            down: trip.links[1].delay.clone(),
            capacity: Capacity::of(&trip.links[1]),
        };
        let named = names.iter().map(|name| (*name).to_owned());
        Ok(Self {
            named: named.zip(trip.carriers.iter().map(carrier)).collect(),
            ideal: aggregated(trip)?.carriers.first().map(carrier),
        })
    }

    fn find(&self, contender: &str, name: &str) -> Option<&Carrier> {
        if contender == IDEAL {
            return self.ideal.as_ref();
        }
        self.named.iter().find(|carrier| carrier.0 == name).map(|carrier| &carrier.1)
    }
}

impl Capacity {
    /// The rate of a link, zero while it is dark.
    pub fn of(link: &LinkSpec) -> Self {
        let rates = link.rate.steps().map(|step| step.0);
        let times: BTreeSet<Duration> =
            rates.chain(link.blackouts.steps().map(|step| step.0)).collect();
        let rate = |at: Duration| match (link.blackouts.at(at).value, link.rate.at(at).value) {
            (None, Rate::Limited(rate)) => rate.as_mbps() * 1e6,
            (None, Rate::Unlimited) => f64::INFINITY,
            (Some(_), _) => 0.0,
        };
        Self(times.into_iter().map(|at| (at.as_secs_f64(), rate(at))).collect())
    }

    /// The bits that the link can serve within a time, and the seconds in which it serves none.
    pub fn within(&self, from: f64, to: f64) -> (f64, f64) {
        let (mut bits, mut dark) = (0.0, 0.0);
        let ends = self.0.iter().skip(1).map(|next| next.0).chain([f64::INFINITY]);
        for ((begin, rate), end) in self.0.iter().zip(ends) {
            let length = (end.min(to) - begin.max(from)).max(0.0);
            if length > 0.0 {
                bits += rate * length;
                dark += if *rate > 0.0 { 0.0 } else { length };
            }
        }
        (bits, dark)
    }
}

/// The context and the share of each download and carrier; none if downloads overlap, because a
/// carrier's bytes are then of several.
fn shares(run: &Run, carriers: &Carriers) -> Vec<(f64, f64)> {
    let mut list = Vec::new();
    if run.workload == Workload::Train {
        return list;
    }
    for seen in &run.carriers {
        let Some(carrier) = carriers.find(&run.contender, &seen.name) else { continue };
        let delivered: Vec<(f64, f64)> = seen.samples.iter().map(down).collect();
        for download in run.transfers.iter().filter(|one| !one.up && one.bytes >= BYTES_LEAST) {
            list.extend(carrier.share(download, &delivered));
        }
    }
    list
}

impl Carrier {
    /// The context and the share; `None` if the download is too short or the carrier is too weak.
    fn share(&self, download: &Transferred, delivered: &[(f64, f64)]) -> Option<(f64, f64)> {
        let at = download.at_s;
        let delay = |schedule: &Schedule<Duration>, at: f64| {
            let at = Duration::try_from_secs_f64(at).unwrap_or_default();
            schedule.at(at).value.as_secs_f64()
        };
        let served = at + delay(&self.up, at);
        let arrived = served + delay(&self.down, served);
        let window = (download.took_s - (arrived - at)).min(WINDOW_S);
        if window < WINDOW_LEAST_S {
            return None;
        }
        let (bits, dark) = self.capacity.within(served, served + window);
        if dark > window / 3.0 || bits < CAPACITY_LEAST * window {
            return None;
        }
        let moved = |from: f64, to: f64| {
            Some((interpolated(delivered, to)? - interpolated(delivered, from)?) * 8.0)
        };
        let used = moved(arrived, arrived + window)?;
        let steps = ((CONTEXT_S - BEST_S) / STEP_S).round() as u32;
        let ends = (0..=steps).map(|step| at - f64::from(step) * STEP_S);
        let best = ends.filter_map(|end| moved(end - BEST_S, end)).fold(0.0, f64::max) / BEST_S;
        Some((best / (bits / window), used / bits))
    }
}

fn down(sample: &CarrierSample) -> (f64, f64) {
    (sample.at_s, sample.down as f64)
}

/// The value at a time, linear between points in the order of their times; `None` outside.
pub fn interpolated(points: &[(f64, f64)], at: f64) -> Option<f64> {
    let next = points.partition_point(|point| point.0 < at);
    let (end, value) = *points.get(next)?;
    if end == at {
        return Some(value);
    }
    let (begin, before) = *points.get(next.checked_sub(1)?)?;
    Some(before + (value - before) * (at - begin) / (end - begin))
}

/// The contender over the aggregated link.
const IDEAL: &str = "ideal";
const BYTES_LEAST: u64 = 1_000_000;
const WINDOW_S: f64 = 1.5;
/// Of a faster download the time until its end counts, if it is at least this.
const WINDOW_LEAST_S: f64 = 0.5;
/// The best rate over this time, of the time before the download, is its context.
const BEST_S: f64 = 0.5;
const CONTEXT_S: f64 = 12.0;
const STEP_S: f64 = 0.1;
/// In bit/s.
const CAPACITY_LEAST: f64 = 0.5e6;

#[cfg(test)]
mod tests {
    use polyrail_model::{Bitrate, Bytes};

    use super::*;
    use crate::link::{Blackout, BlackoutWindow};
    use crate::rail::Course;
    use crate::record::CarrierRun;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// One carrier with 8 Mbit/s and 50 ms each way, dark in 40..41 s.
    fn trip() -> Trip {
        let link = LinkSpec::steady(
            Bitrate::from_mbps(8.0),
            Duration::from_millis(50),
            Bytes::from_kib(64),
        );
        let window = BlackoutWindow { start: s(40), length: s(1), mode: Blackout::Drop };
        let link = link.with_blackouts(&[window]).unwrap();
        let carrier = CarrierTrip { links: [link.clone(), link], handovers: Vec::new() };
        Trip { seed: 1, length: s(120), carriers: vec![carrier], fixes: Vec::new() }
    }

    /// A download of 4 MB that takes 4 s.
    fn transfer(at_s: f64) -> Transferred {
        let (bytes, received) = (4_000_000, 4_000_000);
        let (up, finished, progress) = (false, true, Vec::new());
        Transferred { at_s, bytes, up, received, took_s: 4.0, finished, progress }
    }

    /// A run with downloads of 4 MB at these times, over a carrier that delivers 500,000 bytes/s
    /// (half of its capacity) from 20 s to 50 s, and twice as much from 25 s to 26 s.
    fn half(contender: &str, name: &str, downloads: &[f64]) -> Run {
        let sample = |tick: u32| {
            let at_s = f64::from(tick) * 0.1;
            let seconds = at_s.clamp(20.0, 50.0) - 20.0 + at_s.clamp(25.0, 26.0) - 25.0;
            let down = (seconds * 500_000.0).round() as u64;
            CarrierSample { at_s, down, up: 0 }
        };
        let samples = (0..=1_000).map(sample).collect();
        Run {
            course: Course { speed_kmh: 300, failures: 6.0, seed: 1, seconds: 120, carriers: 2 },
            contender: contender.to_owned(),
            transfers: downloads.iter().map(|at| transfer(*at)).collect(),
            carriers: vec![CarrierRun { name: name.to_owned(), offered: [0; 2], samples }],
            ..Run::default()
        }
    }

    fn bins(run: &Run) -> Vec<(f64, usize)> {
        let mut bins = Bins::default();
        bins.add(run, &Carriers::of(&trip(), &["a"]).unwrap());
        bins.table().iter().map(|bin| ((bin.0 * 1e6).round() / 1e6, bin.1)).collect()
    }

    fn count(run: &Run) -> usize {
        bins(run).iter().map(|bin| bin.1).sum()
    }

    #[test]
    fn carrier_at_half_capacity_has_the_share_one_half() {
        // The first begins after an idle time, the second after the burst at full capacity.
        let run = half("quic", "a", &[20.0 - 0.1, 30.0]);
        let table = bins(&run);
        assert_eq!((table[0], table[4]), ((0.5, 1), (0.5, 1)), "{table:?}");
        assert_eq!(count(&run), 2);
        assert_eq!(count(&Run { workload: Workload::Train, ..run }), 0, "its downloads overlap");
    }

    #[test]
    fn dark_carriers_short_downloads_and_unknown_carriers_do_not_count() {
        // 1 s of the window is dark, or 0.3 s.
        assert_eq!(count(&half("quic", "a", &[39.5])), 0);
        assert_eq!(count(&half("quic", "a", &[38.75])), 1);
        assert_eq!(count(&half("quic", "c", &[30.0])), 0);
        assert_eq!(bins(&half("ideal", "c", &[30.0]))[4], (0.5, 1));
        let mut short = half("quic", "a", &[30.0]);
        short.transfers[0].took_s = 0.59;
        assert_eq!(count(&short), 0);
        short.transfers[0].took_s = 0.61;
        assert_eq!(count(&short), 1);
    }

    #[test]
    fn capacity_is_zero_in_a_blackout() {
        let capacity = Capacity::of(&trip().carriers[0].links[1]);
        assert_eq!(capacity.0, [(0.0, 8e6), (40.0, 0.0), (41.0, 8e6)]);
        assert_eq!(capacity.within(39.5, 42.0), (12e6, 1.0));
        assert_eq!(interpolated(&[(1.0, 2.0), (3.0, 6.0)], 2.0), Some(4.0));
        assert_eq!(interpolated(&[(1.0, 2.0), (3.0, 6.0)], 3.1), None);
    }
}
