//! Trips from recordings instead of seeds: each file is a recorded carrier.
//!
//! Missing columns get defaults, because a simulated carrier needs them: the uplink has the
//! generator's share of the downlink's rate, and a recording without rates or delays gets
//! `RATE_DOWN` or `DELAY`. There are no handovers and no positions: the recording contains the
//! effects of handovers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};

use super::trace::{Trace, TraceError};
use super::trip::{CarrierTrip, Trip, UPLINK};
use crate::link::{LinkSpec, Rate, Schedule, ScheduleError};

/// Why there is no trip.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// A trip needs two to eight recordings.
    #[error("{0} traces; a trip takes 2 to 8")]
    Count(usize),
    /// A file is no recording.
    #[error("trace {}: {error}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why.
        error: TraceError,
    },
    /// A recording has more changes than a schedule holds.
    #[error("trace {}: {error}", path.display())]
    Schedule {
        /// The file.
        path: PathBuf,
        /// Why.
        error: ScheduleError,
    },
    /// The shortest recording is shorter than one trip.
    #[error("trace {}: {} s; a trip takes {} s", path.display(), has.as_secs(), wants.as_secs())]
    Short {
        /// The shortest of the files.
        path: PathBuf,
        /// How long it is.
        has: Duration,
        /// How long a trip is.
        wants: Duration,
    },
}

/// One trip over recordings, from their beginnings to the end of the shortest. The defaults are
/// 12 Mbit/s down, 0.35 of that rate up, and 30 ms each way.
///
/// # Errors
/// Too few or too many files, or a file that is no recording.
pub fn trip_of_traces(paths: &[PathBuf]) -> Result<Trip, RecordedError> {
    let carriers = loaded(paths)?;
    let length = carriers.iter().map(|carrier| carrier.length).min().unwrap_or_default();
    trip(&carriers, 0, Duration::ZERO, length)
}

/// Consecutive trips of this length over recordings: as many as the shortest has room for, at most
/// `count`.
///
/// # Errors
/// Those of [`trip_of_traces`], or a recording shorter than one trip.
pub fn trips_of_traces(
    paths: &[PathBuf],
    length: Duration,
    count: u64,
) -> Result<Vec<Trip>, RecordedError> {
    let carriers = loaded(paths)?;
    let Some(shortest) = carriers.iter().min_by_key(|carrier| carrier.length) else {
        return Ok(Vec::new());
    };
    if shortest.length < length || length.is_zero() {
        let (path, has) = (shortest.path.to_owned(), shortest.length);
        return Err(RecordedError::Short { path, has, wants: length });
    }
    let room = (shortest.length.as_nanos() / length.as_nanos()) as u64;
    (0..room.min(count))
        .map(|number| trip(&carriers, number, length * number as u32, length))
        .collect()
}

/// A recording as a carrier.
struct Recorded<'a> {
    path: &'a Path,
    length: Duration,
    /// Up and down, repeating after its length.
    links: [LinkSpec; 2],
}

fn loaded(paths: &[PathBuf]) -> Result<Vec<Recorded<'_>>, RecordedError> {
    if !(2..=8).contains(&paths.len()) {
        return Err(RecordedError::Count(paths.len()));
    }
    let load = |path: &PathBuf| {
        let [up, down] = Trace::load_both(path)
            .map_err(|error| RecordedError::Trace { path: path.clone(), error })?;
        let length = down.period;
        let rates = match (&up.rate, &down.rate) {
            (Some(up), Some(down)) => [up.clone(), down.clone()],
            (None, Some(down)) => [scaled(down, UPLINK), down.clone()],
            (Some(up), None) => [up.clone(), scaled(up, 1.0 / UPLINK)],
            (None, None) => {
                let down = Schedule::constant(Rate::Limited(RATE_DOWN));
                [scaled(&down, UPLINK), down]
            }
        };
        let [up_rate, down_rate] = rates;
        let links = [(up, up_rate), (down, down_rate)].map(|(trace, rate)| {
            let queue = queue(&rate);
            let delay = Schedule::constant(DELAY);
            trace.on(LinkSpec { rate, delay, queue, ..LinkSpec::default() })
        });
        Ok((length, links))
    };
    paths
        .iter()
        .map(|path| load(path).map(|(length, links)| Recorded { path, length, links }))
        .collect()
}

fn trip(
    carriers: &[Recorded<'_>],
    number: u64,
    from: Duration,
    length: Duration,
) -> Result<Trip, RecordedError> {
    let carrier = |recorded: &Recorded<'_>| {
        let [up, down] = &recorded.links;
        let both = part(up, from, length).and_then(|up| Ok([up, part(down, from, length)?]));
        let links = both.map_err(|error| {
            let path = recorded.path.to_owned();
            RecordedError::Schedule { path, error }
        })?;
        Ok(CarrierTrip { links, handovers: Vec::new() })
    };
    let carriers = carriers.iter().map(carrier).collect::<Result<_, _>>()?;
    Ok(Trip { seed: number, length, carriers, fixes: Vec::new() })
}

fn part(link: &LinkSpec, from: Duration, length: Duration) -> Result<LinkSpec, ScheduleError> {
    let spec = LinkSpec {
        rate: link.rate.part(from, length)?,
        delay: link.delay.part(from, length)?,
        ..link.clone()
    };
    Ok(match &link.loss_steps {
        Some(losses) => spec.with_losses(losses.part(from, length)?),
        None => spec,
    })
}

fn scaled(rates: &Schedule<Rate>, share: f64) -> Schedule<Rate> {
    rates.map(|rate| match rate {
        Rate::Unlimited => Rate::Unlimited,
        Rate::Limited(rate) => Rate::Limited(Bitrate::from_mbps(rate.as_mbps() * share)),
    })
}

/// A queue of about the same duration as those of the generator's carriers.
fn queue(rates: &Schedule<Rate>) -> Bytes {
    let mean = rates.mean_of(|rate| match rate {
        Rate::Unlimited => f64::INFINITY,
        Rate::Limited(rate) => rate.as_mbps(),
    });
    let bytes = QUEUE * mean * 1e6 / 8.0;
    Bytes((bytes as u64).clamp(QUEUE_MIN.0, QUEUE_MAX.0))
}

/// The rate down of a carrier whose recording has none.
const RATE_DOWN: Bitrate = Bitrate::from_bps(12_000_000);
/// The delay of each direction of a carrier whose recording has none.
const DELAY: Duration = Duration::from_millis(30);
/// In seconds of the mean rate.
const QUEUE: f64 = 0.3;
const QUEUE_MIN: Bytes = Bytes::from_kib(32);
const QUEUE_MAX: Bytes = Bytes::from_mib(16);

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sample(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)
    }

    fn mbps(link: &LinkSpec, at: Duration) -> f64 {
        match link.rate.at(at).value {
            Rate::Limited(rate) => rate.as_mbps(),
            Rate::Unlimited => f64::INFINITY,
        }
    }

    #[test]
    fn each_recording_is_a_carrier_for_as_long_as_the_shortest() {
        let paths = ["rates.csv", "delays.csv", "all.csv"].map(sample);
        let trip = trip_of_traces(&paths).unwrap();
        // `all.csv` has 12 s, and its last line another 3.
        assert_eq!((trip.length, trip.carriers.len(), trip.fixes.len()), (s(15), 3, 0));
        assert!(trip.carriers.iter().all(|carrier| carrier.handovers.is_empty()));
        let [rates, delays, all] = &trip.carriers[..] else { panic!("{trip:?}") };
        let of = |carrier: &CarrierTrip, at| [0, 1].map(|side| mbps(&carrier.links[side], s(at)));
        assert_eq!((of(rates, 2), of(rates, 5)), ([3.0, 12.0], [0.0, 0.0]));
        assert_eq!(rates.links[0].delay.at(s(4)).value, DELAY);
        assert_eq!(of(delays, 2), [4.2, 12.0], "there was none, and 0.35 of it");
        assert_eq!(delays.links[1].delay.at(s(4)).value, s(0) + Duration::from_millis(60));
        assert_eq!(delays.links.each_ref().map(|link| link.loss_at(s(9)).get()), [1.0; 2]);
        assert_eq!(of(all, 2), [6.0, 6.0]);
        assert_eq!(rates.links[0].loss_at(s(3)).get(), 0.0);
    }

    #[test]
    fn trips_follow_one_another() {
        let paths = ["rates.csv", "delays.csv"].map(sample);
        let trips = trips_of_traces(&paths, s(6), 9).unwrap();
        assert_eq!(trips.len(), 3, "20 s have room for three");
        assert_eq!(trips.iter().map(|trip| trip.seed).collect::<Vec<_>>(), [0, 1, 2]);
        let whole = trip_of_traces(&paths).unwrap();
        for (trip, number) in trips.iter().zip(0..) {
            assert_eq!(trip.length, s(6));
            for (own, all) in trip.carriers.iter().zip(&whole.carriers) {
                for (own, all) in own.links.iter().zip(&all.links) {
                    for at in 0..6 {
                        let there = s(6 * number + at);
                        assert_eq!(own.rate.at(s(at)).value, all.rate.at(there).value);
                        assert_eq!(own.delay.at(s(at)).value, all.delay.at(there).value);
                        assert_eq!(own.loss_at(s(at)), all.loss_at(there));
                    }
                }
            }
        }
        assert_eq!(trips_of_traces(&paths, s(6), 2).unwrap().len(), 2);
    }

    #[test]
    fn invalid_trip_is_rejected() {
        let error = |paths: &[PathBuf]| trip_of_traces(paths).unwrap_err().to_string();
        assert_eq!(error(&[sample("all.csv")]), "1 traces; a trip takes 2 to 8");
        let missing = error(&[sample("all.csv"), sample("none.csv")]);
        assert!(missing.contains("none.csv: "), "{missing}");
        let short = trips_of_traces(&["all.csv", "rates.csv"].map(sample), s(16), 1).unwrap_err();
        assert!(short.to_string().ends_with("all.csv: 15 s; a trip takes 16 s"), "{short}");
    }
}
