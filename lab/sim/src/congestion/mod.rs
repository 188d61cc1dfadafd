//! Congestion control of simulated transports: windows and pacing like those of the kernel and of
//! quiche.
//!
//! The transport detects losses and timeouts, and the controls here react. All sizes are in bytes;
//! one segment is [`SEGMENT`].

mod bbr;
mod bbr2;
mod cubic;
mod fixed;
mod lia;
mod plus;
mod policer;
mod rail;
mod reno;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

pub use bbr::Bbr;
pub use bbr2::Bbr2;
pub use cubic::Cubic;
pub use fixed::Fixed;
pub use lia::{Coupling, Lia};
pub use rail::Rail;
pub use reno::Reno;

/// The congestion controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Slow start, one segment per round trip, half on loss. For worlds that test correctness.
    Reno,
    /// The kernel's: RFC 9438 with HyStart.
    Cubic,
    /// The kernel's, version 1.
    Bbr,
    /// Reconstructed from Wang et al., MobiCom 2019, section 7.
    BbrPlus {
        /// The share of the round-trip time's deviation that its window counts, in percent.
        lambda_percent: u32,
    },
    /// TCP NewReno as MPTCP uses it uncoupled.
    NewReno,
    /// MPTCP's default: RFC 6356, coupled with the other subflows of its end.
    Lia,
    /// That of the QUIC tunnels: quiche's, with their parameters and pacing.
    Bbr2,
    /// The tunnels' own.
    Rail,
    /// A constant window in bytes.
    Fixed(u64),
}

impl Algorithm {
    /// A fresh control, coupled with no other.
    pub fn begin(self) -> Box<dyn Control> {
        self.begin_in(&Coupling::default())
    }

    /// A fresh control of one more subflow. Only [`Algorithm::Lia`] couples them.
    pub fn begin_in(self, coupling: &Coupling) -> Box<dyn Control> {
        match self {
            Self::Reno => Box::new(Reno::default()),
            Self::Cubic => Box::new(Cubic::default()),
            Self::Bbr => Box::new(Bbr::default()),
            Self::BbrPlus { lambda_percent } => {
                Box::new(Bbr::plus(f64::from(lambda_percent) / 100.0))
            }
            Self::NewReno => Box::new(Lia::new(&Coupling::default())),
            Self::Lia => Box::new(Lia::new(coupling)),
            Self::Bbr2 => Box::new(Bbr2::new(bbr2::OF_TUNNELS)),
            Self::Rail => Box::new(Rail::new()),
            Self::Fixed(bytes) => Box::new(Fixed(bytes)),
        }
    }
}

/// A congestion control.
pub trait Control: Debug {
    /// A segment is sent; `in_flight` is without it.
    fn on_sent(&mut self, _now: Instant, _bytes: u64, _in_flight: u64) {}

    /// The application has nothing more to send; whether that counts for the rates of the bytes in
    /// flight.
    fn on_limited(&mut self, _in_flight: u64) -> bool {
        true
    }

    /// New data was acknowledged.
    fn on_ack(&mut self, ack: &Ack);

    /// A segment sent after the last reduction was lost: a recovery begins.
    fn on_loss(&mut self, loss: &Loss);

    /// Nothing was acknowledged for a retransmission timeout; `first` if something was acknowledged
    /// since the timeout before.
    fn on_timeout(&mut self, now: Instant, first: bool);

    /// The timeout was spurious: the segments in flight arrive after all.
    fn on_undo(&mut self) {}

    /// Sending restarts after `idle` without anything to send.
    fn on_restart(&mut self, _now: Instant, _idle: Duration) {}

    /// The bytes that may be in flight.
    fn window(&self) -> u64;

    /// The pacing rate; `None`: no pacing.
    fn pacing(&self) -> Option<Bitrate>;

    /// Its model of the path, if it has one.
    fn estimate(&self) -> Option<Estimate> {
        None
    }
}

/// A control's model of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The bottleneck's rate.
    pub bandwidth: Bitrate,
    /// The round-trip time in the window.
    pub round_trip: Duration,
}

/// An acknowledgement of new data.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// When it arrived.
    pub now: Instant,
    /// The bytes that it acknowledges.
    pub bytes: u64,
    /// All bytes acknowledged so far, with it.
    pub delivered: u64,
    /// Bytes acknowledged when the newest of these segments was sent.
    pub prior_delivered: u64,
    /// A round-trip time, of a segment that was sent once.
    pub rtt: Option<Duration>,
    /// The delivery rate over the flight of the newest segment, if it is known.
    pub rate: Option<Bitrate>,
    /// The application, not the path, limited that rate.
    pub application_limited: bool,
    /// Bytes in flight after it.
    pub in_flight: u64,
    /// Bytes in flight before it.
    pub prior_in_flight: u64,
    /// Bytes that it showed to be lost.
    pub lost: u64,
    /// All bytes sent so far, retransmissions included.
    pub sent: u64,
    /// The sender's phase after it.
    pub phase: Phase,
    /// The flight of the newest of these segments, if the copy sent last arrived.
    pub flight: Option<Flight>,
    /// The flight of the oldest, if there are several.
    pub oldest_flight: Option<Flight>,
}

impl Ack {
    /// Whether the sender fills this window, in segments, so that it may grow
    /// (`tcp_is_cwnd_limited`): half of it is enough in slow start, all of it later.
    fn fills(&self, window: f64, slow_start: bool) -> bool {
        let used = self.prior_in_flight as f64 / SEGMENT as f64;
        match slow_start {
            true => window < 2.0 * used + 1.0,
            false => window <= used + 3.0,
        }
    }
}

/// How a segment was sent and acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// Bytes in flight when it was sent, itself included.
    pub in_flight: u64,
    /// All bytes sent by then, with it.
    pub sent: u64,
    /// Bytes sent, itself included, after the segment last acknowledged at that time.
    pub sent_since: u64,
    /// How long sending these took.
    pub sending: Duration,
    /// Bytes acknowledged since it was sent, up to it.
    pub acked_since: u64,
    /// The time since the last acknowledgement before it was sent.
    pub acking: Duration,
    /// The application, not the path, limited these rates.
    pub application_limited: bool,
}

/// The phase of a sender (Linux: `icsk_ca_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// No segment is known to be lost.
    Open,
    /// Segments in flight at a loss are not all acknowledged.
    Recovery,
    /// The same, after a timeout.
    Loss,
}

/// A loss.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// All bytes acknowledged so far.
    pub delivered: u64,
    /// All bytes sent so far.
    pub sent: u64,
}

/// The largest payload of a packet, in bytes.
pub const SEGMENT: usize = 1_448;
/// The first window (RFC 6928).
const WINDOW_FIRST: u64 = 10 * SEGMENT as u64;
/// The least window.
const WINDOW_MIN: u64 = 2 * SEGMENT as u64;
