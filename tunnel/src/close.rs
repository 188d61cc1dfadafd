//! Why a tunnel ended, in words that the operator can act on.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polyrail_identity::CertificateFault;

/// Why a tunnel is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// We closed it.
    #[error("closed by this side")]
    Local,
    /// The peer closed it in order.
    #[error("closed by the peer")]
    PeerClosed,
    /// The peer's end of stream came without its notice of the end.
    #[error("the connection ended without notice: the peer's process died or a middlebox cut it")]
    Cut,
    /// The connection was reset after it was up.
    #[error("connection reset by the peer or a middlebox")]
    Reset,
    /// The connection went unanswered for too long after it was up.
    #[error("the peer stopped answering: the connection timed out")]
    TimedOut,

    /// Nobody listens at the peer's address.
    #[error("{peer} refuses connections: is polyrail-cloud running and listening there?")]
    Refused {
        /// The address that was dialled.
        peer: SocketAddr,
    },
    /// There is no way to the peer.
    #[error("{peer} cannot be reached: {detail}; check the carrier's addresses and routes")]
    Unreachable {
        /// The address that was dialled.
        peer: SocketAddr,
        /// The kernel's words.
        detail: String,
    },
    /// The peer did not answer the connect.
    #[error("{peer} did not answer within {after:?}: no coverage, or a firewall drops the packets")]
    ConnectTimedOut {
        /// The address that was dialled.
        peer: SocketAddr,
        /// How long we waited.
        after: Duration,
    },
    /// The carrier's interface does not exist.
    #[error("interface {interface:?} does not exist: is the modem there, is the name right?")]
    InterfaceMissing {
        /// The interface of the carrier.
        interface: String,
    },
    /// The carrier's source address is not one of this host's.
    #[error("source address {source_ip} is not on this host: is the carrier up?")]
    SourceMissing {
        /// The source address of the carrier.
        source_ip: IpAddr,
    },
    /// The source address and the peer's address are of different families.
    #[error("source address {source_ip} and {peer} are of different address families")]
    FamilyMismatch {
        /// The source address of the carrier.
        source_ip: IpAddr,
        /// The address that was to be dialled.
        peer: SocketAddr,
    },
    /// The kernel does not have the congestion control, or does not let us use it.
    #[error("congestion control {wanted:?} cannot be used here; available are: {available}")]
    CongestionControl {
        /// The name from the configuration.
        wanted: String,
        /// The names that the kernel offers.
        available: String,
    },
    /// The kernel forbids a socket option.
    #[error("no permission to {action}: the process lacks CAP_NET_ADMIN or CAP_NET_RAW")]
    NotPermitted {
        /// What was tried.
        action: String,
    },

    /// The peer was reached but did not complete the handshake in time.
    #[error("the peer did not complete the TLS handshake within {after:?}")]
    HandshakeTimedOut {
        /// How long we waited.
        after: Duration,
    },
    /// The peer closed or reset the connection during the handshake.
    #[error("the peer closed the connection during the TLS handshake, without saying why")]
    ClosedInHandshake,
    /// What came instead of a handshake is not TLS.
    #[error("the peer does not speak TLS: wrong port, or a middlebox answers in its place")]
    NotTls,
    /// The peer speaks TLS, but none that we have in common.
    #[error("no common ground with the peer's TLS: {detail}")]
    Incompatible {
        /// What is missing.
        detail: String,
    },
    /// The peer does not speak `polyrail/1`.
    #[error("the peer does not speak polyrail/1: another version of Polyrail, or another service")]
    WrongProtocol,
    /// The peer's certificate did not pass our checks.
    #[error("peer certificate rejected: {0}")]
    PeerCertificate(CertificateFault),
    /// The peer told us why it refuses us.
    #[error("the peer refuses us: {0}")]
    PeerRefused(PeerComplaint),
    /// A record of the established connection could not be understood or was forged.
    #[error("garbage from the peer in the established connection")]
    BadRecord,
    /// The peer broke the TLS protocol.
    #[error("the peer broke the TLS protocol: {detail}")]
    ProtocolError {
        /// What it did.
        detail: String,
    },

    /// Another failure of this machine.
    #[error("{action}: {detail}")]
    Internal {
        /// What was tried.
        action: String,
        /// What came of it.
        detail: String,
    },
}

/// Why the peer refuses us, as its TLS alert says (RFC 8446 6.2).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerComplaint {
    /// `certificate_required`.
    #[error("we presented no certificate")]
    CertificateMissing,
    /// `unknown_ca`.
    #[error("our certificate is not from the authority configured there")]
    UnknownAuthority,
    /// `certificate_expired`: RFC 8446 has this one alert for expired and not yet valid.
    #[error("our certificate has expired or is not valid yet by its clock")]
    CertificateExpired,
    /// `certificate_revoked`.
    #[error("our certificate is revoked")]
    CertificateRevoked,
    /// `unsupported_certificate`.
    #[error("our certificate is for the other role")]
    WrongRole,
    /// `access_denied`.
    #[error("our certificate does not carry the name that is expected there")]
    WrongName,
    /// `bad_certificate`, `certificate_unknown`.
    #[error("our certificate is not acceptable there")]
    CertificateMalformed,
    /// `no_application_protocol`.
    #[error("it does not speak polyrail/1")]
    WrongProtocol,
    /// Another alert.
    #[error("TLS alert {0}")]
    Other(String),
}

/// Who can do something about the end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Nobody needs to.
    Nobody,
    /// The operator of this machine.
    Here,
    /// The operator of the peer's machine.
    Peer,
    /// The carrier, or what lies between the two.
    Network,
    /// This side's or the peer's operator: the two disagree.
    Either,
}

impl CloseReason {
    /// Which side can act on it.
    pub fn side(&self) -> Side {
        match self {
            Self::Local | Self::PeerClosed => Side::Nobody,
            Self::Cut
            | Self::Reset
            | Self::TimedOut
            | Self::Unreachable { .. }
            | Self::ConnectTimedOut { .. }
            | Self::HandshakeTimedOut { .. } => Side::Network,
            Self::Refused { .. }
            | Self::ClosedInHandshake
            | Self::NotTls
            | Self::BadRecord
            | Self::ProtocolError { .. } => Side::Peer,
            Self::InterfaceMissing { .. }
            | Self::SourceMissing { .. }
            | Self::FamilyMismatch { .. }
            | Self::CongestionControl { .. }
            | Self::NotPermitted { .. }
            | Self::Internal { .. } => Side::Here,
            Self::Incompatible { .. } | Self::WrongProtocol => Side::Either,
            Self::PeerCertificate(fault) => match fault {
                CertificateFault::UnknownAuthority
                | CertificateFault::Expired { .. }
                | CertificateFault::NotYetValid { .. }
                | CertificateFault::WrongName { .. } => Side::Either,
                _ => Side::Peer,
            },
            Self::PeerRefused(complaint) => complaint.side(),
        }
    }

    /// Whether it is an ordinary end that needs no warning in the log.
    pub fn is_orderly(&self) -> bool {
        self.side() == Side::Nobody
    }
}

impl PeerComplaint {
    /// Which side can act on it.
    pub fn side(&self) -> Side {
        match self {
            Self::CertificateMissing
            | Self::CertificateRevoked
            | Self::WrongRole
            | Self::CertificateMalformed => Side::Here,
            Self::UnknownAuthority
            | Self::CertificateExpired
            | Self::WrongName
            | Self::WrongProtocol
            | Self::Other(_) => Side::Either,
        }
    }
}
