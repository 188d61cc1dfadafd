//! The end of a tunnel, in words that the operator can act on.

use std::net::SocketAddr;
use std::time::Duration;

use polyrail_identity::CertificateFault;
use rustls::AlertDescription;

/// Why a tunnel ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// This side closed it.
    #[error("closed by this side")]
    Local,
    /// The peer closed it with notice.
    #[error("closed by the peer")]
    PeerClosed,
    /// The stream ended without a close notice from the peer.
    #[error("the connection ended without notice: the peer's process died or a middlebox cut it")]
    Cut,
    /// The connection was reset after it was up.
    #[error("connection reset by the peer or a middlebox")]
    Reset,
    /// The connection timed out after it was up.
    #[error("the peer stopped answering: the connection timed out")]
    TimedOut,

    /// Nobody listens at the peer's address.
    #[error("{peer} refuses connections: is polyrail-cloud running and listening there?")]
    Refused {
        /// The address that was dialled.
        peer: SocketAddr,
    },
    /// No route leads to the peer.
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
        /// The timeout.
        after: Duration,
    },
    /// The carrier cannot be used on this host: its interface, its source address or a permission
    /// is missing.
    #[error("{0}")]
    Unusable(String),
    /// The kernel does not have the congestion control, or does not let us use it.
    #[error("congestion control {wanted:?} cannot be used here; available are: {available}")]
    CongestionControl {
        /// The name from the configuration.
        wanted: String,
        /// The names that the kernel offers.
        available: String,
    },

    /// The peer was reached but did not complete the handshake in time.
    #[error("the peer did not complete the TLS handshake within {after:?}")]
    HandshakeTimedOut {
        /// The timeout.
        after: Duration,
    },
    /// The peer closed or reset the connection during the handshake.
    #[error("the peer closed the connection during the TLS handshake, without saying why")]
    ClosedInHandshake,
    /// The peer sent something else than a TLS handshake.
    #[error("the peer does not speak TLS: wrong port, or a middlebox answers in its place")]
    NotTls,
    /// The peer's TLS and ours have no version or algorithm in common.
    #[error("the peer's TLS and ours have nothing in common: {detail}")]
    Incompatible {
        /// The missing feature.
        detail: String,
    },
    /// The peer does not speak `polyrail/1`.
    #[error("the peer does not speak polyrail/1: another version of Polyrail, or another service")]
    WrongProtocol,
    /// The peer's certificate did not pass our checks.
    #[error("peer certificate rejected: {0}")]
    PeerCertificate(CertificateFault),
    /// The peer rejects us and sent the reason.
    #[error("rejected by the peer: {0}")]
    PeerRefused(String),
    /// A record of the established connection was invalid or forged.
    #[error("invalid record from the peer in the established connection")]
    BadRecord,
    /// The peer broke the TLS protocol.
    #[error("the peer broke the TLS protocol: {detail}")]
    ProtocolError {
        /// The violation.
        detail: String,
    },

    /// Another failure of this machine.
    #[error("{action}: {detail}")]
    Internal {
        /// The attempted operation.
        action: String,
        /// The error.
        detail: String,
    },
}

impl CloseReason {
    /// Whether the cause is on this machine: its configuration, interfaces or kernel.
    pub fn is_local_fault(&self) -> bool {
        matches!(self, Self::Unusable(_) | Self::CongestionControl { .. } | Self::Internal { .. })
    }
}

/// The reason of a peer that rejects us, from its TLS alert (RFC 8446 6.2).
pub(crate) fn complaint(alert: u8) -> String {
    use AlertDescription as A;
    let text = match AlertDescription::from(alert) {
        A::CertificateRequired | A::NoCertificate => "we presented no certificate",
        A::UnknownCA => "our certificate is not from the authority configured there",
        // RFC 8446 has this one alert for both.
        A::CertificateExpired => "our certificate has expired or is not valid yet by its clock",
        A::CertificateRevoked => "our certificate is revoked",
        A::UnsupportedCertificate => "our certificate is for the other role",
        A::AccessDenied => "our certificate does not carry the name that is expected there",
        A::BadCertificate | A::CertificateUnknown => "our certificate is not acceptable there",
        A::NoApplicationProtocol => "it does not speak polyrail/1",
        other => return format!("TLS alert {other:?}"),
    };
    text.to_owned()
}
