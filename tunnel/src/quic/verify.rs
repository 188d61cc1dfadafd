//! Connects BoringSSL's certificate hook to [`PeerVerifier`].
//!
//! The hook runs inside `quiche`'s `recv` and `send`, in full handshakes only, and chooses the
//! alert for the peer; [`fault`] keeps the exact fault. Resumed handshakes present no certificate:
//! [`handshake`](super::handshake) judges the session's.

use std::sync::Arc;

use boring::ssl::{SslAlert, SslContextBuilder, SslRef, SslVerifyError, SslVerifyMode};
use boring::x509::X509;
use polyrail_identity::{CertificateFault, PeerVerifier};
use rustls::pki_types::CertificateDer;

use crate::fault;

/// Judges peers in the handshake; a peer without a certificate is rejected.
pub(super) fn install(builder: &mut SslContextBuilder, judge: Arc<PeerVerifier>) {
    let mode = SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT;
    builder.set_custom_verify_callback(mode, move |ssl| {
        let chain =
            presented(ssl).map_err(|_| SslVerifyError::Invalid(SslAlert::INTERNAL_ERROR))?;
        fault::judge(&judge, &chain, |fault| SslVerifyError::Invalid(alert_of(fault).0))
    });
}

/// The chain that the peer presents, its own certificate first.
fn presented(ssl: &SslRef) -> Result<Vec<CertificateDer<'static>>, boring::error::ErrorStack> {
    let Some(leaf) = ssl.peer_certificate() else { return Ok(Vec::new()) };
    let mut chain = vec![CertificateDer::from(leaf.to_der()?)];
    for certificate in ssl.peer_cert_chain().into_iter().flatten() {
        let der = CertificateDer::from(certificate.to_der()?);
        // On the client's side the chain contains the peer's own certificate again.
        if der != chain[0] {
            chain.push(der);
        }
    }
    Ok(chain)
}

/// The alert for a fault (RFC 8446 6.2) and its number, as in the TLS tunnel.
fn alert_of(fault: &CertificateFault) -> (SslAlert, u64) {
    match fault {
        CertificateFault::Missing => (SslAlert::CERTIFICATE_REQUIRED, 116),
        CertificateFault::UnknownAuthority => (SslAlert::UNKNOWN_CA, 48),
        CertificateFault::Expired { .. } | CertificateFault::NotYetValid { .. } => {
            (SslAlert::CERTIFICATE_EXPIRED, 45)
        }
        CertificateFault::WrongRole { .. } => (SslAlert::UNSUPPORTED_CERTIFICATE, 43),
        CertificateFault::Revoked { .. } => (SslAlert::CERTIFICATE_REVOKED, 44),
        CertificateFault::WrongName { .. } | CertificateFault::NoIdentity { .. } => {
            (SslAlert::ACCESS_DENIED, 49)
        }
        CertificateFault::Malformed { .. } => (SslAlert::BAD_CERTIFICATE, 42),
    }
}

/// The alert as the code of a CONNECTION_CLOSE (RFC 9001 4.8).
pub(super) fn close_code_of(fault: &CertificateFault) -> u64 {
    CRYPTO_ERROR + alert_of(fault).1
}

/// The QUIC error code of TLS alert 0 (RFC 9000 20.1).
pub(super) const CRYPTO_ERROR: u64 = 0x100;

/// Reads DER as a certificate of BoringSSL's.
pub(super) fn certificate(der: &[u8]) -> Result<X509, boring::error::ErrorStack> {
    X509::from_der(der)
}
