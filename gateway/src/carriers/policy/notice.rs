//! The policy's actions, notices for operators, causes of restarts, and interface states.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

use super::attempt::AttemptId;

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start a connection.
    Start(Start),
    /// Close a connection; its end is reported as usual. `unheard`: the peer has not answered, so
    /// no orderly close is needed.
    Close { attempt: AttemptId, unheard: bool, reason: &'static str },
    /// Report to the operator.
    Tell(Notice),
}

/// The parameters of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) attempt: AttemptId,
    pub(crate) mode: TunnelMode,
    pub(crate) address: SocketAddr,
    /// Whether it may send early data.
    pub(crate) early: bool,
    /// Whether other connections are alive.
    pub(crate) racer: bool,
    /// The expected round-trip time.
    pub(crate) rtt: Option<Duration>,
}

/// An event for the log and the admin interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The carrier has a path again.
    Up { attempt: AttemptId, mode: TunnelMode },
    /// The carrier has lost its last path.
    Down { reason: String },
    /// Its path stalled.
    Stalled { cause: Cause },
    /// Its path recovered without a fresh connection.
    Recovered { after: Duration },
    /// A fresh connection is started for another reason than a stall.
    Restarting { cause: Cause },
    /// A fresh connection replaced the old one.
    Restarted { attempt: AttemptId, mode: TunnelMode, cause: Cause, attempts: u64, took: Duration },
    /// The carrier uses another mode.
    ModeChanged { from: Option<TunnelMode>, to: TunnelMode, reason: String },
    /// QUIC is demoted; `again`: for longer, after a retry.
    Demoted { reason: String, retry_in: Duration, again: bool },
    /// QUIC is retried after a demotion.
    Retry,
    /// No TLS connection replaced a demoted QUIC path, which stays in use.
    Lifted,
    /// A connection failed, and the carrier has no path.
    Failed { reason: String },
    /// The interface is gone, down, or without a usable address.
    LinkLost,
    /// It is back.
    LinkBack,
}

/// Why a carrier searches for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It never had one.
    Start,
    /// The last one ended.
    Lost,
    /// The cloud ended the last one: it has restarted, or closes. The carrier itself works.
    Gone,
    /// The peer acknowledges nothing.
    Stall,
    /// The cloud reports that its data is not acknowledged.
    PeerStall,
    /// The modem is in another cell.
    Cell,
    /// The address that the connection is bound to is gone.
    Address,
    /// The interface came, or came back.
    Interface,
    /// QUIC looks policed, and the mode forbids TLS.
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

    /// Whether the search ends when the old connection makes progress.
    pub(crate) fn ends_with_progress(self) -> bool {
        matches!(self, Self::Stall | Self::PeerStall)
    }

    /// The reason as text.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Start => "the gateway started",
            Self::Lost => "the connection had ended",
            Self::Gone => "the cloud had ended the connection",
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

/// The state of a carrier's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    /// It is not watched: connections are attempted.
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

    /// Whether the interface still has this address.
    pub(crate) fn has(&self, own: IpAddr) -> bool {
        match self {
            Self::Unknown => true,
            Self::Absent => false,
            // An interface that is down keeps its IPv4 addresses, and may come back with them.
            Self::Down => true,
            Self::Up { addresses, .. } => addresses.contains(&own),
        }
    }

    /// Whether this is a new interface of the same name as `before`.
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

/// The kinds of failure that the policy distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndingKind {
    /// No answer.
    Silent,
    /// An ICMP message or RST refused it.
    Refused,
    /// The peer answered, but the handshake failed.
    Rejected,
    /// This machine's routes, addresses, interfaces or permissions prevent it.
    Local,
}

/// Why the carrier uses its mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) mode: TunnelMode,
    pub(crate) reason: String,
    pub(crate) at: Instant,
}
