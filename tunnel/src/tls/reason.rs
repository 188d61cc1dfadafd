//! Translates errors of TLS and of established sockets for the operator.

use std::io;
use std::net::SocketAddr;

use polyrail_identity::CertificateFault;
use rustls::Error;

use crate::carrier::internal;
use crate::close::complaint;
use crate::{CloseReason, fault};

/// Translates an error of `process_new_packets`.
pub(super) fn of_tls(error: Error, handshaking: bool) -> CloseReason {
    let fault = fault::take();
    match error {
        Error::InvalidCertificate(error) => CloseReason::PeerCertificate(
            fault.unwrap_or_else(|| CertificateFault::Malformed { detail: error.to_string() }),
        ),
        Error::NoCertificatesPresented => CloseReason::PeerCertificate(CertificateFault::Missing),
        Error::AlertReceived(alert) => CloseReason::PeerRefused(complaint(alert.into())),
        Error::NoApplicationProtocol => CloseReason::WrongProtocol,
        Error::PeerIncompatible(why) => CloseReason::Incompatible { detail: format!("{why:?}") },
        Error::InvalidMessage(_) if handshaking => CloseReason::NotTls,
        Error::InvalidMessage(_) | Error::DecryptError | Error::PeerSentOversizedRecord => {
            CloseReason::BadRecord
        }
        Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(_) => CloseReason::ProtocolError { detail: error.to_string() },
        other => CloseReason::Internal { action: "TLS".to_owned(), detail: other.to_string() },
    }
}

/// Translates a socket's error after the connect.
pub(super) fn of_socket(error: &io::Error, peer: SocketAddr, handshaking: bool) -> CloseReason {
    match error.raw_os_error() {
        Some(libc::ECONNRESET | libc::EPIPE) if handshaking => CloseReason::ClosedInHandshake,
        Some(libc::ECONNRESET | libc::EPIPE) => CloseReason::Reset,
        Some(libc::ETIMEDOUT) => CloseReason::TimedOut,
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN) => {
            CloseReason::Unreachable { peer, detail: error.to_string() }
        }
        _ => internal("tunnel socket", error),
    }
}
