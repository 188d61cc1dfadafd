//! Connects rustls' certificate hooks to [`PeerVerifier`].
//!
//! The error that a hook returns decides the alert for the peer; [`fault`] keeps the exact fault.

use std::sync::Arc;

use polyrail_identity::{CertificateFault, Clock, PeerVerifier};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::fault;

/// The verifier as rustls calls it.
#[derive(Debug)]
pub(super) struct Verifier(pub(super) Arc<PeerVerifier>);

impl Verifier {
    fn hook(&self, leaf: &CertificateDer<'_>, between: &[CertificateDer<'_>]) -> Result<(), Error> {
        let chain: Vec<_> = std::iter::once(leaf).chain(between).cloned().collect();
        fault::judge(&self.0, &chain, |fault| Error::InvalidCertificate(alerting(fault)))
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let identity = self.0.identity();
        let algorithms = &identity.provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.0.identity().provider().signature_verification_algorithms.supported_schemes()
    }
}

/// The rustls error with the alert for a fault (RFC 8446 6.2).
fn alerting(fault: &CertificateFault) -> CertificateError {
    match fault {
        CertificateFault::UnknownAuthority => CertificateError::UnknownIssuer,
        CertificateFault::Expired { .. } | CertificateFault::NotYetValid { .. } => {
            CertificateError::Expired
        }
        CertificateFault::WrongRole { .. } => CertificateError::InvalidPurpose,
        CertificateFault::Revoked { .. } => CertificateError::Revoked,
        CertificateFault::WrongName { .. } | CertificateFault::NoIdentity { .. } => {
            CertificateError::ApplicationVerificationFailure
        }
        CertificateFault::Missing | CertificateFault::Malformed { .. } => {
            CertificateError::BadEncoding
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.hook(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Only TLS 1.3 is offered.
        self.check_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints: the gateway has one certificate, and strangers learn nothing.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.hook(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

/// Our clock, as rustls calls it.
#[derive(Debug)]
pub(super) struct TlsTime(pub(super) Arc<dyn Clock>);

impl TimeProvider for TlsTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.0.since_epoch()))
    }
}
