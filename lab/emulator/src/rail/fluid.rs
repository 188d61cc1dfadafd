//! The aggregated single link: the sum of the carriers' rates with the least of their delays.
//!
//! As a fluid without congestion control it bounds what any scheduler can do; as one carrier with
//! the real session and transport it shows the result of one ideal link.

use std::collections::BTreeSet;
use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};

use super::trip::{CarrierTrip, Trip};
use crate::link::{LinkSpec, Rate, Schedule, ScheduleError};

/// A stretch of time in which nothing changes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// When it begins, in seconds from the trip's beginning.
    from: f64,
    /// Bits a second; zero when all carriers are dark.
    rate: f64,
    /// The least delay of a carrier that is not dark, in seconds; `None` when all are.
    delay: Option<f64>,
}

/// One direction of the aggregated link as a fluid.
#[derive(Clone, Debug, PartialEq)]
pub struct Fluid {
    /// In their order; the last one holds for ever.
    pieces: Vec<Piece>,
}

impl Fluid {
    /// The sum of these links.
    pub fn of<'a>(links: impl Iterator<Item = &'a LinkSpec> + Clone, length: Duration) -> Self {
        let mut times = BTreeSet::from([Duration::ZERO]);
        for link in links.clone() {
            changes(&link.rate, length, &mut times);
            changes(&link.delay, length, &mut times);
            changes(&link.blackouts, length, &mut times);
        }
        let piece = |at: Duration| {
            let live = links.clone().filter(|link| link.blackouts.at(at).value.is_none());
            let live = live.filter(|link| bits(link.rate.at(at).value) > 0.0);
            let delays = live.clone().map(|link| link.delay.at(at).value);
            Piece {
                from: at.as_secs_f64(),
                rate: live.map(|link| bits(link.rate.at(at).value)).sum(),
                delay: delays.min().map(|delay| delay.as_secs_f64()),
            }
        };
        Self { pieces: times.into_iter().map(piece).collect() }
    }

    /// When something that is sent at `from` and takes no time to serialise arrives; infinite when
    /// all stays dark.
    pub fn arrival(&self, from: f64) -> f64 {
        for (piece, _) in self.from(from) {
            if let Some(delay) = piece.delay {
                return piece.from.max(from) + delay;
            }
        }
        f64::INFINITY
    }

    /// When the last of so many bytes has left, if they begin to leave at `from`.
    pub fn served(&self, from: f64, bytes: u64) -> f64 {
        let mut left = bytes as f64 * 8.0;
        for (piece, end) in self.from(from) {
            let begin = piece.from.max(from);
            if piece.rate * (end - begin) >= left {
                return begin + left / piece.rate;
            }
            left -= piece.rate * (end - begin);
        }
        f64::INFINITY
    }

    /// When the last of so many bytes arrives, if they begin to leave at `from`.
    pub fn delivered(&self, from: f64, bytes: u64) -> f64 {
        self.arrival(self.served(from, bytes))
    }

    /// The bytes that leave within a time.
    pub fn volume(&self, from: f64, to: f64) -> f64 {
        let part = |(piece, end): (Piece, f64)| {
            piece.rate * (end.min(to) - piece.from.max(from)).max(0.0) / 8.0
        };
        self.from(from).take_while(|(piece, _)| piece.from < to).map(part).sum()
    }

    /// The pieces from a time on, each with its end.
    fn from(&self, from: f64) -> impl Iterator<Item = (Piece, f64)> + '_ {
        let first = self.pieces.partition_point(|piece| piece.from <= from).saturating_sub(1);
        let ends = self.pieces[first..].iter().skip(1).map(|next| next.from);
        self.pieces[first..].iter().copied().zip(ends.chain([f64::INFINITY]))
    }

    /// As a link that a carrier can have.
    fn link(&self, queue: Bytes, like: &LinkSpec) -> Result<LinkSpec, ScheduleError> {
        let rate = |piece: &Piece| Rate::Limited(Bitrate::from_mbps(piece.rate / 1e6));
        let time = |piece: &Piece| Duration::from_secs_f64(piece.from);
        let mut last = Duration::ZERO;
        let delays: Vec<Duration> = self
            .pieces
            .iter()
            .map(|piece| {
                last = piece.delay.map_or(last, Duration::from_secs_f64);
                last
            })
            .collect();
        let later = || self.pieces.iter().zip(&delays).skip(1);
        Ok(LinkSpec {
            rate: Schedule::new(
                rate(&self.pieces[0]),
                later().map(|(piece, _)| (time(piece), rate(piece))),
                None,
            )?,
            delay: Schedule::new(
                delays[0],
                later().map(|(piece, delay)| (time(piece), *delay)),
                None,
            )?,
            queue,
            loss: like.loss,
            ..LinkSpec::default()
        })
    }
}

/// The trip with one carrier in place of all: the aggregated link, with the queues of all and the
/// loss of the carrier that loses least.
///
/// # Errors
/// There are more changes than a schedule holds.
pub fn aggregated(trip: &Trip) -> Result<Trip, ScheduleError> {
    let direction = |side: usize| {
        let links = trip.carriers.iter().map(move |carrier| &carrier.links[side]);
        let queue = Bytes(links.clone().map(|link| link.queue.0).sum());
        let best = links.clone().min_by(|a, b| a.loss.get().total_cmp(&b.loss.get()));
        let fallback = LinkSpec::default();
        Fluid::of(links, trip.length).link(queue, best.unwrap_or(&fallback))
    };
    let links = [direction(0)?, direction(1)?];
    let carrier = CarrierTrip { links, handovers: Vec::new() };
    Ok(Trip { carriers: vec![carrier], ..trip.clone() })
}

/// Both directions of a trip, up and down.
pub fn fluids(trip: &Trip) -> [Fluid; 2] {
    [0, 1].map(|side| {
        Fluid::of(trip.carriers.iter().map(move |carrier| &carrier.links[side]), trip.length)
    })
}

fn bits(rate: Rate) -> f64 {
    match rate {
        Rate::Unlimited => UNLIMITED,
        Rate::Limited(rate) => rate.as_mbps() * 1e6,
    }
}

fn changes<T: Copy>(schedule: &Schedule<T>, length: Duration, times: &mut BTreeSet<Duration>) {
    let mut at = Duration::ZERO;
    while let Some(until) = schedule.at(at).until.filter(|until| *until < length) {
        times.insert(until);
        at = until;
    }
}

/// What a link without a limit counts as, in bits a second.
const UNLIMITED: f64 = 1e12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Blackout, BlackoutWindow};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn link(mbps: f64, delay_ms: u64, dark: &[(u64, u64)]) -> LinkSpec {
        let spec = LinkSpec::steady(
            Bitrate::from_mbps(mbps),
            Duration::from_millis(delay_ms),
            Bytes::from_kib(64),
        );
        let windows: Vec<BlackoutWindow> = dark
            .iter()
            .map(|(start, length)| BlackoutWindow {
                start: s(*start),
                length: s(*length),
                mode: Blackout::Drop,
            })
            .collect();
        spec.with_blackouts(&windows).unwrap()
    }

    fn close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
    }

    #[test]
    fn rates_add_up_and_a_dark_carrier_gives_nothing() {
        // 8 Mbit/s at 50 ms, dark in 2..4 s; 2 Mbit/s at 20 ms, dark in 3..5 s.
        let links = [link(8.0, 50, &[(2, 2)]), link(2.0, 20, &[(3, 2)])];
        let fluid = Fluid::of(links.iter(), s(10));
        // 1 MB is 8 Mbit: 0.8 s at 10 Mbit/s.
        close(fluid.served(0.0, 1_000_000), 0.8);
        // 1.5 s to 2 s: 5 Mbit; to 3 s: 2 Mbit more; the last Mbit at 8 Mbit/s after 4 s.
        close(fluid.served(1.5, 1_000_000), 4.125);
        // Then carrier 1 alone is there, at 50 ms.
        close(fluid.delivered(1.5, 1_000_000), 4.175);
        close(fluid.arrival(0.0), 0.02);
        close(fluid.arrival(3.5), 4.05);
        close(fluid.arrival(5.0), 5.02);
        close(fluid.volume(1.0, 4.0), 1_500_000.0);
        close(fluid.volume(9.0, 11.0), 2_500_000.0);
    }

    #[test]
    fn packets_of_a_permanent_blackout_never_arrive() {
        let links = [link(0.0, 50, &[])];
        let fluid = Fluid::of(links.iter(), s(10));
        assert!(fluid.served(1.0, 1).is_infinite() && fluid.arrival(1.0).is_infinite());
        close(fluid.volume(0.0, 10.0), 0.0);
    }

    #[test]
    fn the_aggregated_link_of_one_carrier_is_that_carrier() {
        let links = [link(8.0, 50, &[(2, 2)])];
        let fluid = Fluid::of(links.iter(), s(10));
        let again = fluid.link(Bytes::from_kib(64), &links[0]).unwrap();
        assert_eq!(again.delay.at(s(3)).value, Duration::from_millis(50));
        let rate = |at| again.rate.at(s(at)).value;
        let mbps = |mbps| Rate::Limited(Bitrate::from_mbps(mbps));
        assert_eq!([rate(1), rate(3), rate(4)], [mbps(8.0), mbps(0.0), mbps(8.0)]);
        assert_eq!(Fluid::of([again].iter(), s(10)), fluid);
    }
}
