//! Congestion control of simulated transports: windows and pacing as the kernel's and quiche's have
//! them.
//!
//! The transport detects losses and timeouts; the reaction is decided here. All sizes
//! are in bytes, one segment is [`SEGMENT`].

mod bbr;
mod bbr2;
mod cubic;
mod policer;
mod reno;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

pub use bbr::Bbr;
pub use bbr2::Bbr2;
pub use cubic::Cubic;
pub use reno::Reno;

use crate::world::transport::SEGMENT;

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Slow start, a segment a round trip, half on loss. For worlds that test correctness.
    Reno,
    /// As Linux has it: RFC 9438 with the delay part of HyStart.
    Cubic,
    /// As Linux has it: version 1.
    Bbr,
    /// As the QUIC tunnels have it: quiche's, with their parameters.
    Bbr2,
}

impl Algorithm {
    /// A fresh one.
    pub fn begin(self) -> Box<dyn Control> {
        match self {
            Self::Reno => Box::new(Reno::default()),
            Self::Cubic => Box::new(Cubic::default()),
            Self::Bbr => Box::new(Bbr::default()),
            Self::Bbr2 => Box::new(Bbr2::new(bbr2::OF_TUNNELS)),
        }
    }
}

/// A congestion control.
pub trait Control: Debug {
    /// A segment leaves, while so much is in flight without it.
    fn on_sent(&mut self, _now: Instant, _bytes: u64, _in_flight: u64) {}

    /// New data was acknowledged.
    fn on_ack(&mut self, ack: &Ack);

    /// Something was lost that was sent after the last reduction: a recovery begins.
    fn on_loss(&mut self, loss: &Loss);

    /// Nothing was acknowledged for a retransmission timeout; `first` when it is not one of a row
    /// in which nothing new was acknowledged.
    fn on_timeout(&mut self, now: Instant, first: bool);

    /// The timeout was spurious: the segments in flight arrive after all.
    fn on_undo(&mut self) {}

    /// Sending restarts after `idle` without anything to send.
    fn on_restart(&mut self, _now: Instant, _idle: Duration) {}

    /// What may be in flight.
    fn window(&self) -> u64;

    /// How fast it leaves; `None`: at once.
    fn pacing(&self) -> Option<Bitrate>;

    /// It has not left its first growth.
    fn in_slow_start(&self) -> bool;
}

/// An acknowledgement of new data.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// When.
    pub now: Instant,
    /// How much is acknowledged by it.
    pub bytes: u64,
    /// All that was acknowledged so far, with it.
    pub delivered: u64,
    /// Bytes acknowledged when the newest of these segments was sent.
    pub prior_delivered: u64,
    /// A round-trip time, of a segment that was sent once.
    pub rtt: Option<Duration>,
    /// Rate of delivery over the flight of the newest segment, if it can be told.
    pub rate: Option<Bitrate>,
    /// The application, not the path, limited that rate.
    pub application_limited: bool,
    /// Bytes in flight after it.
    pub in_flight: u64,
    /// Bytes in flight before it.
    pub prior_in_flight: u64,
    /// Bytes it showed to be lost.
    pub lost: u64,
    /// All that was sent so far, each time counted.
    pub sent: u64,
    /// Where the sender is after it.
    pub phase: Phase,
    /// The flight of the newest of these segments, if it is the copy that left last.
    pub flight: Option<Flight>,
    /// The same of the oldest, if they are several.
    pub oldest_flight: Option<Flight>,
}

/// How a segment was sent and acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// Bytes in flight when it was sent, itself included.
    pub in_flight: u64,
    /// All that had been sent then, with it.
    pub sent: u64,
    /// Bytes sent, itself included, after the segment last acknowledged at that time.
    pub sent_since: u64,
    /// How long that took.
    pub sending: Duration,
    /// Bytes acknowledged since it was sent, up to it.
    pub acked_since: u64,
    /// How long it is since the last acknowledgement before it left.
    pub acking: Duration,
    /// The application, not the path, limited these rates.
    pub application_limited: bool,
}

/// Where a sender is (Linux: `icsk_ca_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// No segment is known to be lost.
    Open,
    /// Segments in flight at a loss are not all acknowledged.
    Recovery,
    /// The same after a timeout.
    Loss,
}

/// A loss.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// When.
    pub now: Instant,
    /// All that was acknowledged so far.
    pub delivered: u64,
    /// All that was sent so far.
    pub sent: u64,
}

/// The first window (RFC 6928).
const WINDOW_FIRST: u64 = 10 * SEGMENT as u64;
/// The least one.
const WINDOW_MIN: u64 = 2 * SEGMENT as u64;
