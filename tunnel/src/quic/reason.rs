//! Translates the end of a QUIC connection for the operator.

use polyrail_identity::CertificateFault;
use quiche::ConnectionError;

use super::verify::CRYPTO_ERROR;
use crate::{CloseReason, PeerComplaint};

/// Translates the peer's close code.
pub(super) fn of_peer(error: &ConnectionError, handshaking: bool) -> CloseReason {
    if error.is_app {
        return match error.error_code {
            BYE => CloseReason::PeerClosed,
            ABANDONED => CloseReason::Cut,
            code => CloseReason::PeerRefused(PeerComplaint::Other(format!("error {code}"))),
        };
    }
    match error.error_code {
        NO_ERROR | APPLICATION_ERROR if handshaking => CloseReason::ClosedInHandshake,
        NO_ERROR | APPLICATION_ERROR => CloseReason::PeerClosed,
        code @ CRYPTO_ERROR..=CRYPTO_ERROR_LAST => {
            CloseReason::PeerRefused(PeerComplaint::of_alert((code - CRYPTO_ERROR) as u8))
        }
        code => CloseReason::PeerRefused(PeerComplaint::Other(name_of(code))),
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

/// The names of RFC 9000 20.1.
fn name_of(code: u64) -> String {
    let name = match code {
        INTERNAL_ERROR => "INTERNAL_ERROR",
        0x2 => "CONNECTION_REFUSED",
        0x3 => "FLOW_CONTROL_ERROR",
        0x4 => "STREAM_LIMIT_ERROR",
        0x5 => "STREAM_STATE_ERROR",
        0x6 => "FINAL_SIZE_ERROR",
        0x7 => "FRAME_ENCODING_ERROR",
        0x8 => "TRANSPORT_PARAMETER_ERROR",
        0x9 => "CONNECTION_ID_LIMIT_ERROR",
        0xa => "PROTOCOL_VIOLATION",
        0xb => "INVALID_TOKEN",
        0xd => "CRYPTO_BUFFER_EXCEEDED",
        0xe => "KEY_UPDATE_ERROR",
        0xf => "AEAD_LIMIT_REACHED",
        0x10 => "NO_VIABLE_PATH",
        _ => return format!("QUIC error {code:#x}"),
    };
    name.to_owned()
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
