//! One flow: its two halves and its control frames that are due.
//!
//! ```text
//!           open/accept          both halves done
//!   (none) ------------> Live ----------------------> closed
//!                         | reset()          RESET arrives
//!                         |                      |
//!                         v                      v
//!                      Resetting             Ending: delivers up to `after`, then Reset
//!          until answered and `after` is acknowledged
//! ```
//!
//! A flow whose data arrives before its OPEN is Live without a target.

mod ahead;
mod ready;
mod recv;
mod runs;
mod send;

use std::time::{Duration, Instant};

use polyrail_model::{BindingId, Destination, FlowId, UserId, Weight};

pub(crate) use recv::{RecvHalf, Run, Violation};
pub(crate) use runs::{Piece, Waiting};
pub(crate) use send::SendHalf;

use crate::carriers::CarrierSet;
use crate::wire::{ResetReason, Target};

/// A flow of a session.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Its name on this side.
    pub id: FlowId,
    /// Its name on the wire; a gateway's flow gets it when its OPEN is first sent.
    pub number: Option<FlowId>,
    pub user: UserId,
    /// Its user's share; the gateway decides it.
    pub weight: Weight,
    /// The server or binding to which it leads; the acceptor learns it from the OPEN.
    pub target: Option<Target>,
    pub send: SendHalf,
    pub recv: RecvHalf,
    pub life: Life,
    /// It is in the queue of flows with data to send.
    pub queued: bool,
    /// The OPEN waits for first data.
    pub hold: bool,
    /// Its part of its user's shares.
    pub shares: Shares,
    /// The caller knows from [`crate::Event::Readable`] that there are unread bytes.
    pub told_readable: bool,
    pub due: Due,
    pub dialed: bool,
    /// The time in which the peer was heard before its first frame.
    pub heard_before: Duration,
    /// When it was created.
    pub begun_at: Instant,
    /// When the caller last wrote or read a byte.
    pub moved_at: Instant,
    /// The carriers that have carried it, in either direction.
    pub carriers: CarrierSet,
    /// Bytes that wait for room in the buffer of sent bytes, if it is a stream.
    pub behind: u64,
    /// The only carriers that may carry the data that this side sends, if it is confined.
    pub only: Option<CarrierSet>,
    /// Bytes sent, with an exponential decay over a second.
    recent: f64,
    recent_at: Instant,
}

/// A flow's part of the shares of its user; maintained by the session's flow control.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shares {
    /// Bytes at the peer.
    pub at_peer: u64,
    /// Bytes at the peer beyond the pace of its reader.
    pub withheld: u64,
    /// Bytes written and never sent.
    pub unsent: u64,
    /// Bytes that the buffer of sent bytes allocates.
    pub allocated: u64,
    /// Runs in flight, and gaps.
    pub runs: usize,
    /// Bytes that the peer's reader took in this period and in the one before.
    pub drained: [u64; 2],
}

impl Shares {
    /// Bytes that the peer's reader took lately.
    pub fn pace(&self) -> u64 {
        self.drained[0] + self.drained[1]
    }
}

/// The state of a flow, see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Open, at least in one direction.
    Live,
    /// Reset by this side: the caller does not know it any more.
    Resetting {
        reason: ResetReason,
        /// Delivered before the reset takes effect.
        after: u64,
        /// The peer has answered.
        answered: bool,
    },
    /// Reset by the peer: data before the reset must still be read.
    Ending { reason: ResetReason, after: u64 },
}

/// Control frames that are due for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// It is in the list of flows with control due.
    pub listed: bool,
    pub ack: bool,
    pub window: bool,
    pub reset: bool,
    /// An acknowledgement is on the delay line.
    pub ack_delayed: bool,
}

impl Flow {
    pub fn new(
        now: Instant,
        id: FlowId,
        user: UserId,
        opens: bool,
        send_limit: u64,
        window: u64,
    ) -> Self {
        Self {
            id,
            number: None,
            user,
            weight: Weight::default(),
            target: None,
            send: SendHalf::new(opens, send_limit),
            recv: RecvHalf::new(window, !opens),
            life: Life::Live,
            queued: false,
            hold: false,
            shares: Shares::default(),
            told_readable: false,
            due: Due::default(),
            dialed: false,
            heard_before: Duration::ZERO,
            begun_at: now,
            moved_at: now,
            carriers: CarrierSet::default(),
            behind: 0,
            only: None,
            recent: 0.0,
            recent_at: now,
        }
    }

    /// The server to which it leads.
    pub fn destination(&self) -> Option<&Destination> {
        match &self.target {
            Some(Target::Server(destination)) => Some(destination),
            _ => None,
        }
    }

    /// The binding whose datagrams it carries, if it is a stream.
    pub fn binding(&self) -> Option<BindingId> {
        match self.target {
            Some(Target::Binding(binding)) => Some(binding),
            _ => None,
        }
    }

    /// Counts bytes sent.
    pub fn charge(&mut self, now: Instant, bytes: u64) {
        self.recent = self.recent(now) + bytes as f64;
        self.recent_at = now;
    }

    /// Bytes sent in about the last second.
    pub fn recent(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.recent_at).as_secs_f64();
        self.recent * (-age).exp()
    }

    /// The caller still knows this flow.
    pub fn is_callers(&self) -> bool {
        !matches!(self.life, Life::Resetting { .. })
    }

    /// Both directions have ended and all data is delivered.
    pub fn is_over(&self) -> bool {
        match self.life {
            Life::Live => self.send.is_done() && self.recv.finished(),
            Life::Resetting { after, answered, .. } => answered && self.send.acked >= after,
            Life::Ending { after, .. } => self.recv.drained() >= after,
        }
    }
}
