//! The connection attempts of a carrier, and their transports' state.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

/// The policy's id of a connection; unique for each carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptId(pub(crate) u64);

/// The stage of a connection.
///
/// ```text
///  Dialing ──[Early]──> Greeting ──> Path ──> Dismissed
///     └─────────────────────^
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No answer yet.
    Dialing,
    /// No answer yet; its greeting was sent as early data and may have arrived.
    Early,
    /// The handshake finished.
    Greeting,
    /// The session uses it as the path of this number.
    Path(u64),
    /// The session closes it.
    Dismissed,
}

/// A transport's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Smoothed round-trip time and its variance; `None` before the first measurement.
    pub(crate) rtt: Option<Rtt>,
    /// Bytes that the peer's transport has acknowledged.
    pub(crate) acked: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// This end's address.
    pub(crate) local: Option<IpAddr>,
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
    /// The session reports that the path is stalled.
    pub(crate) stalled: bool,
    /// The factor by which its lifetime exceeds that of other attempts.
    pub(crate) patience: u32,
    /// The generation of the socket options that it was started with.
    pub(crate) generation: u64,
    /// It sent its greeting as early data.
    pub(crate) early: bool,
    /// The policy requested to close it.
    pub(crate) closing: bool,
}

impl Attempt {
    /// Whether it may still become a path.
    pub(crate) fn is_unready(&self) -> bool {
        !self.closing && matches!(self.stage, Stage::Dialing | Stage::Early | Stage::Greeting)
    }

    /// Whether the cloud may already use it as a path, or will soon.
    pub(crate) fn has_greeted(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Greeting)
    }

    /// The number of its path while the session uses it.
    pub(crate) fn path(&self) -> Option<u64> {
        match self.stage {
            Stage::Path(number) if !self.closing => Some(number),
            _ => None,
        }
    }
}

/// The connections of a carrier.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) list: Vec<Attempt>,
    next_id: u64,
    /// The number of changes of the socket options.
    pub(crate) generation: u64,
    /// A lone QUIC connection next to a TLS path.
    pub(crate) probe: Option<AttemptId>,
}

impl Attempts {
    /// Adds a connection that starts now.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        mode: TunnelMode,
        address: SocketAddr,
        patience: u32,
    ) -> AttemptId {
        let id = AttemptId(self.next_id);
        self.next_id += 1;
        self.list.push(Attempt {
            id,
            mode,
            address,
            stage: Stage::Dialing,
            started: now,
            up_at: None,
            reading: Reading::default(),
            stalled: false,
            patience,
            generation: self.generation,
            early: false,
            closing: false,
        });
        id
    }

    pub(crate) fn get(&self, id: AttemptId) -> Option<&Attempt> {
        self.list.iter().find(|attempt| attempt.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: AttemptId) -> Option<&mut Attempt> {
        self.list.iter_mut().find(|attempt| attempt.id == id)
    }

    pub(crate) fn remove(&mut self, id: AttemptId) -> Option<Attempt> {
        let index = self.list.iter().position(|attempt| attempt.id == id)?;
        Some(self.list.remove(index))
    }

    /// The newest path.
    pub(crate) fn current(&self) -> Option<&Attempt> {
        self.list.iter().filter(|attempt| attempt.path().is_some()).max_by_key(|a| a.path())
    }

    /// The connections that may still become paths.
    pub(crate) fn unready(&self) -> impl Iterator<Item = &Attempt> {
        self.list.iter().filter(|attempt| attempt.is_unready())
    }
}

#[test]
fn current_is_the_newest_path() {
    let mut attempts = Attempts::default();
    for number in [2, 3, 1] {
        let address = ([192, 0, 2, 1], 1).into();
        let id = attempts.add(Instant::now(), TunnelMode::Quic, address, 1);
        attempts.get_mut(id).unwrap().stage = Stage::Path(number);
    }
    assert_eq!(attempts.current().and_then(Attempt::path), Some(3));
    attempts.remove(AttemptId(1));
    assert_eq!(attempts.current().and_then(Attempt::path), Some(2));
}
