//! The bridge between BoringSSL's certificate hook and our judgement of certificates.
//!
//! The hook runs inside `quiche`'s `recv` and `send`, in full handshakes only, and decides the
//! alert that the peer sees. The exact fault is kept aside for this side's log, in a slot of the
//! thread that the caller empties when the call returns. Resumed handshakes show no certificate:
//! there [`handshake`](super::handshake) judges the one of the session.

use std::cell::RefCell;
use std::sync::Arc;

use boring::ssl::{SslAlert, SslContextBuilder, SslRef, SslVerifyError, SslVerifyMode};
use boring::x509::X509;
use polyrail_identity::{CertificateFault, PeerVerifier};
use rustls::pki_types::CertificateDer;

thread_local! {
    static FAULT: RefCell<Option<CertificateFault>> = const { RefCell::new(None) };
}

/// The fault that made the hook refuse since the last call, on this thread.
pub(super) fn take_fault() -> Option<CertificateFault> {
    FAULT.take()
}

/// Has peers judged in the handshake; a peer without a certificate is refused.
pub(super) fn install(builder: &mut SslContextBuilder, judge: Arc<PeerVerifier>) {
    let mode = SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT;
    builder.set_custom_verify_callback(mode, move |ssl| {
        let chain =
            presented(ssl).map_err(|_| SslVerifyError::Invalid(SslAlert::INTERNAL_ERROR))?;
        judge.judge(&chain).map(|_| ()).map_err(|fault| {
            let alert = alert_of(&fault);
            FAULT.replace(Some(fault));
            SslVerifyError::Invalid(alert)
        })
    });
}

/// The chain that the peer shows, its own certificate first.
fn presented(ssl: &SslRef) -> Result<Vec<CertificateDer<'static>>, boring::error::ErrorStack> {
    let Some(leaf) = ssl.peer_certificate() else { return Ok(Vec::new()) };
    let mut chain = vec![CertificateDer::from(leaf.to_der()?)];
    for certificate in ssl.peer_cert_chain().into_iter().flatten() {
        let der = CertificateDer::from(certificate.to_der()?);
        // On the client's side the chain holds the peer's own certificate once more.
        if der != chain[0] {
            chain.push(der);
        }
    }
    Ok(chain)
}

/// The alert that tells the peer what is wrong (RFC 8446 6.2), as the TLS tunnel has it.
fn alert_of(fault: &CertificateFault) -> SslAlert {
    match fault {
        CertificateFault::Missing => SslAlert::CERTIFICATE_REQUIRED,
        CertificateFault::UnknownAuthority => SslAlert::UNKNOWN_CA,
        CertificateFault::Expired { .. } | CertificateFault::NotYetValid { .. } => {
            SslAlert::CERTIFICATE_EXPIRED
        }
        CertificateFault::WrongRole { .. } => SslAlert::UNSUPPORTED_CERTIFICATE,
        CertificateFault::Revoked { .. } => SslAlert::CERTIFICATE_REVOKED,
        CertificateFault::WrongName { .. } | CertificateFault::NoIdentity { .. } => {
            SslAlert::ACCESS_DENIED
        }
        CertificateFault::Malformed { .. } => SslAlert::BAD_CERTIFICATE,
    }
}

/// The same as the code of a CONNECTION_CLOSE (RFC 9001 4.8).
pub(super) fn close_code_of(fault: &CertificateFault) -> u64 {
    let alert = match fault {
        CertificateFault::Missing => 116,
        CertificateFault::UnknownAuthority => 48,
        CertificateFault::Expired { .. } | CertificateFault::NotYetValid { .. } => 45,
        CertificateFault::WrongRole { .. } => 43,
        CertificateFault::Revoked { .. } => 44,
        CertificateFault::WrongName { .. } | CertificateFault::NoIdentity { .. } => 49,
        CertificateFault::Malformed { .. } => 42,
    };
    CRYPTO_ERROR + alert
}

/// Where TLS alerts begin among QUIC's error codes (RFC 9000 20.1).
pub(super) const CRYPTO_ERROR: u64 = 0x100;

/// Reads DER as a certificate of BoringSSL's.
pub(super) fn certificate(der: &[u8]) -> Result<X509, boring::error::ErrorStack> {
    X509::from_der(der)
}
