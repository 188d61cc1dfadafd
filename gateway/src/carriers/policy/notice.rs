//! The policy's vocabulary: actions, notices for operators, causes of restarts, interface states.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

use super::attempt::AttemptId;

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Begin a connection.
    Start(Start),
    /// Close one; its end is reported as that of any other. `unheard`: the peer has not answered,
    /// so no orderly close is needed.
    Close { attempt: AttemptId, unheard: bool, reason: &'static str },
    /// Tell the operator.
    Tell(Notice),
}

/// How a connection is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) attempt: AttemptId,
    pub(crate) mode: TunnelMode,
    pub(crate) address: SocketAddr,
    /// Early data may be tried.
    pub(crate) early: bool,
    /// Others are alive beside it.
    pub(crate) racer: bool,
    /// The round trip to be expected.
    pub(crate) rtt: Option<Duration>,
}

/// An event for the log and the admin interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The carrier has a path again.
    Up { attempt: AttemptId, mode: TunnelMode },
    /// The carrier has lost its last path.
    Down { reason: String },
    /// Its path makes no progress.
    Stalled { cause: Cause },
    /// It makes progress again, without a fresh connection.
    Recovered { after: Duration },
    /// A fresh connection is raced for another reason than a stall.
    Restarting { cause: Cause },
    /// A fresh connection took the place of the old one.
    Restarted { attempt: AttemptId, mode: TunnelMode, cause: Cause, attempts: u64, took: Duration },
    /// The carrier travels in another mode.
    ModeChanged { from: Option<TunnelMode>, to: TunnelMode, reason: String },
    /// QUIC is demoted; `again`: for longer, after a retry.
    Demoted { reason: String, retry_in: Duration, again: bool },
    /// QUIC is tried again after a demotion.
    Retry,
    /// No TLS connection came up in place of a demoted QUIC path, which stays in use.
    Lifted,
    /// A connection failed, and no other carries.
    Failed { reason: String },
    /// The interface is gone, down, or without a usable address.
    LinkLost,
    /// It is back.
    LinkBack,
}

/// Why a carrier searches a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It never had one.
    Start,
    /// The last one ended.
    Lost,
    /// Nothing is acknowledged.
    Stall,
    /// The cloud says that nothing it sends is acknowledged.
    PeerStall,
    /// The modem is in another cell.
    Cell,
    /// The address that the connection is bound to is gone.
    Address,
    /// The interface came, or came back.
    Interface,
    /// Much is lost at a low rate, and there is no TLS to try instead.
    Slow,
    /// An operator asked for it.
    Operator,
    /// The mode was changed.
    Mode,
    /// The carrier's configuration was changed.
    Config,
}

impl Cause {
    /// Whether users may be waiting.
    pub(crate) fn is_urgent(self) -> bool {
        !matches!(self, Self::Start | Self::Mode | Self::Config)
    }

    /// Whether the search ends as soon as the old connection makes progress.
    pub(crate) fn ends_with_progress(self) -> bool {
        matches!(self, Self::Stall | Self::PeerStall)
    }

    /// The reason as text.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Start => "the gateway started",
            Self::Lost => "the connection had ended",
            Self::Stall => "nothing was acknowledged",
            Self::PeerStall => "the cloud saw nothing acknowledged",
            Self::Cell => "the modem changed its cell",
            Self::Address => "the interface's address changed",
            Self::Interface => "the interface came up",
            Self::Slow => "much was lost at a low rate",
            Self::Operator => "an operator asked for it",
            Self::Mode => "the mode was changed",
            Self::Config => "the configuration was changed",
        }
    }
}

/// What happened on a carrier since the daemon's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) mode_changes: u64,
    pub(crate) demotions: u64,
    pub(crate) restarts: u64,
    pub(crate) stalls: u64,
    /// Begun and never answered, of QUIC and TLS.
    pub(crate) quic: Tries,
    pub(crate) tls: Tries,
}

/// Connections of one mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    pub(crate) begun: u64,
    pub(crate) unanswered: u64,
}

impl Counters {
    pub(crate) fn of(&mut self, mode: TunnelMode) -> &mut Tries {
        match mode {
            TunnelMode::Quic => &mut self.quic,
            TunnelMode::Tls => &mut self.tls,
        }
    }
}

/// The state of a carrier's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    /// It is not watched: connections are tried.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists and is down.
    Down,
    /// It is up, with these addresses.
    Up { index: u32, addresses: Vec<IpAddr> },
}

impl Link {
    /// Whether a connection to the address may succeed.
    pub(crate) fn reaches(&self, address: &SocketAddr) -> bool {
        match self {
            Self::Unknown => true,
            Self::Absent | Self::Down => false,
            Self::Up { addresses, .. } => {
                addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4())
            }
        }
    }

    /// Whether an address of ours is still there.
    pub(crate) fn has(&self, own: IpAddr) -> bool {
        match self {
            Self::Unknown => true,
            Self::Absent => false,
            // An interface that is down keeps its IPv4 addresses, and may come back with them.
            Self::Down => true,
            Self::Up { addresses, .. } => addresses.contains(&own),
        }
    }

    /// Whether this is another interface than `before`, though of the same name.
    pub(crate) fn replaces(&self, before: &Self) -> bool {
        match (before, self) {
            (Self::Up { index: old, .. }, Self::Up { index: new, .. }) => old != new,
            _ => false,
        }
    }
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) kind: EndingKind,
    /// The reason as text.
    pub(crate) reason: String,
}

/// The kind of end that the policy distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndingKind {
    /// No answer.
    Silent,
    /// An ICMP message or RST refused it.
    Refused,
    /// The peer answered and the handshake failed.
    Rejected,
    /// This machine cannot do it, by its routes, addresses, interfaces or permissions.
    Local,
}

/// Why the carrier travels as it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) mode: TunnelMode,
    pub(crate) reason: String,
    pub(crate) at: Instant,
}
