//! Translates the end of a QUIC connection for the operator.

use polyrail_identity::CertificateFault;
use quiche::ConnectionError;

use super::verify::CRYPTO_ERROR;
use crate::CloseReason;
use crate::close::complaint;

/// Translates the peer's close code.
pub(super) fn of_peer(error: &ConnectionError, handshaking: bool) -> CloseReason {
    if error.is_app {
        return match error.error_code {
            BYE => CloseReason::PeerClosed,
            ABANDONED => CloseReason::Cut,
            code => CloseReason::PeerRefused(format!("error {code}")),
        };
    }
    match error.error_code {
        NO_ERROR | APPLICATION_ERROR if handshaking => CloseReason::ClosedInHandshake,
        NO_ERROR | APPLICATION_ERROR => CloseReason::PeerClosed,
        code @ CRYPTO_ERROR..=CRYPTO_ERROR_LAST => {
            CloseReason::PeerRefused(complaint((code - CRYPTO_ERROR) as u8))
        }
        code => CloseReason::PeerRefused(name_of(code)),
    }
}

/// Translates the error for which `quiche` closed the connection.
pub(super) fn of_local(error: &ConnectionError, fault: Option<CertificateFault>) -> CloseReason {
    if let Some(fault) = fault {
        return CloseReason::PeerCertificate(fault);
    }
    let code = error.error_code;
    match code.checked_sub(CRYPTO_ERROR) {
        Some(CERTIFICATE_REQUIRED) => CloseReason::PeerCertificate(CertificateFault::Missing),
        Some(NO_APPLICATION_PROTOCOL) => CloseReason::WrongProtocol,
        Some(alert @ (HANDSHAKE_FAILURE | PROTOCOL_VERSION)) => {
            CloseReason::Incompatible { detail: format!("TLS alert {alert}") }
        }
        Some(alert) => CloseReason::ProtocolError { detail: format!("TLS alert {alert}") },
        None if code == INTERNAL_ERROR => CloseReason::Internal {
            action: "go on with QUIC".to_owned(),
            detail: "TLS failed".to_owned(),
        },
        None => CloseReason::ProtocolError { detail: name_of(code) },
    }
}

/// An error code of RFC 9000 20.1.
fn name_of(code: u64) -> String {
    match code {
        0x2 => "CONNECTION_REFUSED".to_owned(),
        0x3 => "FLOW_CONTROL_ERROR".to_owned(),
        0xa => "PROTOCOL_VIOLATION".to_owned(),
        0xb => "INVALID_TOKEN".to_owned(),
        _ => format!("QUIC error {code:#x}"),
    }
}

/// The application's code of an orderly end.
pub(super) const BYE: u64 = 0;
/// The application's code if the peer violated the rules of units and streams.
pub(super) const BAD_UNITS: u64 = 1;
/// The application's code of a dropped tunnel.
pub(super) const ABANDONED: u64 = 2;

const NO_ERROR: u64 = 0x0;
const INTERNAL_ERROR: u64 = 0x1;
const APPLICATION_ERROR: u64 = 0xc;
const CRYPTO_ERROR_LAST: u64 = 0x1ff;
const HANDSHAKE_FAILURE: u64 = 40;
const PROTOCOL_VERSION: u64 = 70;
const CERTIFICATE_REQUIRED: u64 = 116;
const NO_APPLICATION_PROTOCOL: u64 = 120;
