//! One connection of a carrier, from its begin until it is forgotten, and what is read off it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, TunnelMode};

/// The policy's name of a connection; never used twice by one carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptId(pub(crate) u64);

/// How far a connection is.
///
/// ```text
///  Dialing ──[Early]──> Greeting ──> Path ──> Dismissed
///     └─────────────────────^
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing came back.
    Dialing,
    /// Nothing came back, but it has greeted the cloud in early data, which may have arrived.
    Early,
    /// The handshake is over.
    Greeting,
    /// The session has it as its path of this number.
    Path(u64),
    /// The session does not want it any more.
    Dismissed,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the cloud.
    Up,
    /// From the cloud.
    Down,
}

/// One of a thing for each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Both<T> {
    pub(crate) up: T,
    pub(crate) down: T,
}

impl<T: Copy> Both<T> {
    /// That of one way.
    pub(crate) fn of(&self, way: Way) -> T {
        match way {
            Way::Up => self.up,
            Way::Down => self.down,
        }
    }
}

/// What the transport tells of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Smoothed round-trip time and its variance; `None` before the first measurement.
    pub(crate) rtt: Option<Rtt>,
    /// Since when data is out without any of it being acknowledged.
    pub(crate) waiting_since: Option<Instant>,
    /// The session has seen no progress for too long, also where the transport has nothing out.
    pub(crate) stalled: bool,
    /// Bytes that the peer's transport has acknowledged.
    pub(crate) acked: u64,
    /// Bytes that came.
    pub(crate) received: u64,
    /// This end's address.
    pub(crate) local: Option<IpAddr>,
}

impl Reading {
    /// The bytes that arrived at the other end, as far as this one knows.
    pub(crate) fn moved(&self) -> Both<u64> {
        Both { up: self.acked, down: self.received }
    }
}

/// A round-trip time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rtt {
    /// Smoothed.
    pub(crate) smoothed: Duration,
    /// Its mean deviation.
    pub(crate) variance: Duration,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) id: AttemptId,
    pub(crate) mode: TunnelMode,
    pub(crate) address: SocketAddr,
    pub(crate) stage: Stage,
    pub(crate) started: Instant,
    /// When the cloud answered.
    pub(crate) up_at: Option<Instant>,
    pub(crate) reading: Reading,
    pub(crate) meter: Meter,
    /// How many times longer than others it may wait for its answer.
    pub(crate) patience: u32,
    /// The policy's generation when it was begun: how it leaves this machine.
    pub(crate) generation: u64,
    /// It greeted the cloud in early data.
    pub(crate) early: bool,
    /// The policy has asked to close it.
    pub(crate) closing: bool,
}

impl Attempt {
    /// Whether it may still become a path.
    pub(crate) fn is_unready(&self) -> bool {
        !self.closing && matches!(self.stage, Stage::Dialing | Stage::Early | Stage::Greeting)
    }

    /// Whether the cloud may have it as a path, or will in a moment.
    pub(crate) fn has_greeted(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Greeting)
    }

    /// The number of its path while the session has it.
    pub(crate) fn path(&self) -> Option<u64> {
        match self.stage {
            Stage::Path(number) if !self.closing => Some(number),
            _ => None,
        }
    }
}

/// The bytes that moved over a connection lately, each way.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// When, and all bytes until then; [`METER_EVERY`] apart, the newest last.
    marks: VecDeque<(Instant, Both<u64>)>,
    total: Both<u64>,
}

impl Meter {
    /// Takes the sums of bytes until now.
    pub(crate) fn feed(&mut self, now: Instant, total: Both<u64>) {
        self.total = total;
        let due =
            |(at, _): &(Instant, Both<u64>)| now.saturating_duration_since(*at) >= METER_EVERY;
        if !self.marks.back().is_none_or(due) {
            return;
        }
        if self.marks.len() >= MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back((now, total));
    }

    /// All bytes so far.
    pub(crate) fn total(&self) -> Both<u64> {
        self.total
    }

    /// The mean rates of the last `window`, or of what is known of it.
    pub(crate) fn rates(&self, now: Instant, window: Duration) -> Both<Bitrate> {
        Both { up: self.rate(now, window, Way::Up), down: self.rate(now, window, Way::Down) }
    }

    fn rate(&self, now: Instant, window: Duration, way: Way) -> Bitrate {
        let age = |at: Instant| now.saturating_duration_since(at);
        let before = self.marks.iter().rev().find(|(at, _)| age(*at) >= window);
        let Some((at, total)) = before.or(self.marks.front()) else { return Bitrate::from_bps(0) };
        let seconds = age(*at).max(METER_EVERY).as_secs_f64();
        let bytes = self.total.of(way).saturating_sub(total.of(way)) as f64;
        Bitrate::from_bytes_per_second((bytes / seconds) as u64)
    }
}

/// How often the meter takes a mark.
const METER_EVERY: Duration = Duration::from_millis(100);
/// Marks that are kept: 4 s.
const MARKS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meter_knows_the_last_seconds() {
        let begin = Instant::now();
        let mut meter = Meter::default();
        assert_eq!(meter.rates(begin, Duration::from_secs(1)), Both::default());
        // 1,000 bytes every 10 ms for 2 s, then 500.
        let mut total = Both::default();
        for step in 0..400u32 {
            let now = begin + Duration::from_millis(10) * step;
            total.down += if step < 200 { 1_000 } else { 500 };
            meter.feed(now, total);
        }
        let now = begin + Duration::from_millis(3_990);
        let second = meter.rates(now, Duration::from_secs(1)).down.as_bps();
        assert!((390_000..=410_000).contains(&second), "{second}");
        let longer = meter.rates(now, Duration::from_secs(3)).down.as_bps();
        assert!((510_000..=560_000).contains(&longer), "{longer}");
        assert!(meter.marks.len() <= MARKS_MAX);
        assert_eq!(meter.rates(now, Duration::from_secs(1)).up, Bitrate::from_bps(0));
        assert_eq!(meter.total(), total);
    }
}
