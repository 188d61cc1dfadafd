//! The judgement of a certificate chain: the one place that decides whether a node is accepted.
//!
//! The same code runs inside the handshake, so that the peer receives the fitting alert, and again
//! after it: a resumed handshake presents no certificate, so the certificate of the first handshake
//! is judged by the current time and the current revocation lists. In this order: present and
//! readable, the role's key usage alone, valid now, issued by the authority (webpki), not revoked,
//! one name, the expected name.

use std::time::Duration;

use polyrail_model::Identity;
use rustls::CertificateError;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;

use crate::certificate::shortened;
use crate::{Certificate, CertificateFault, CertificateRole, NodeRole, TlsIdentity};

/// The node that an accepted certificate names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node's name.
    pub name: Identity,
    /// The certificate's serial number, in lower-case hexadecimal digits.
    pub serial: String,
    /// When the first certificate of its chain expires, since 1970.
    pub expires: Duration,
}

impl TlsIdentity {
    /// Judges a certificate chain, the node's own certificate first, at the time `now` (since
    /// 1970).
    ///
    /// # Errors
    /// The first check that failed.
    pub fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        role: NodeRole,
        expected: Option<&Identity>,
        now: Duration,
    ) -> Result<Peer, CertificateFault> {
        let malformed = |detail| CertificateFault::Malformed { detail };
        let read = chain.iter().map(|der| Certificate::from_der(der));
        let read: Vec<_> = read.collect::<Result<_, _>>().map_err(malformed)?;
        let leaf = read.first().ok_or(CertificateFault::Missing)?;
        if leaf.role != CertificateRole::Node(role) {
            let name = leaf.shown_name();
            return Err(CertificateFault::WrongRole { name, wanted: role.as_str() });
        }
        check_validity(leaf, now)?;
        self.check_chain(chain, role, now)?;
        if let Some(revoked) = read.iter().find(|link| self.revoked_since(link).is_some()) {
            let (name, serial) = (revoked.shown_name(), revoked.serial.to_string());
            return Err(CertificateFault::Revoked { name, serial });
        }
        let Some(name) = leaf.identity.clone() else {
            let subject = shortened(&leaf.subject);
            return Err(CertificateFault::NoIdentity { subject });
        };
        if let Some(expected) = expected.filter(|&expected| *expected != name) {
            return Err(CertificateFault::WrongName {
                expected: expected.to_string(),
                presented: name.to_string(),
            });
        }
        let ends = read.iter().map(|link| link.not_after.unix_timestamp());
        let expires = ends.min().and_then(|end_s| end_s.try_into().ok()).unwrap_or_default();
        let expires = Duration::from_secs(expires);
        Ok(Peer { name, serial: leaf.serial.to_string(), expires })
    }

    /// Checks signatures, validity and usage from the leaf up to an authority, by webpki.
    fn check_chain(
        &self,
        chain: &[CertificateDer<'_>],
        role: NodeRole,
        now: Duration,
    ) -> Result<(), CertificateFault> {
        let [leaf, between @ ..] = chain else { return Err(CertificateFault::Missing) };
        let time = UnixTime::since_unix_epoch(now);
        let verdict = match role {
            NodeRole::Gateway => {
                self.gateway_verifier().verify_client_cert(leaf, between, time).map(|_| ())
            }
            NodeRole::Cloud => ParsedCertificate::try_from(leaf).and_then(|parsed| {
                let algorithms = self.provider().signature_verification_algorithms.all;
                let roots = self.roots();
                verify_server_cert_signed_by_trust_anchor(&parsed, roots, between, time, algorithms)
            }),
        };
        verdict.map_err(|error| match error {
            // The signature of an authority with the same name and another key does not verify.
            rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => CertificateFault::UnknownAuthority,
            other => CertificateFault::Malformed { detail: other.to_string() },
        })
    }
}

fn check_validity(certificate: &Certificate, now: Duration) -> Result<(), CertificateFault> {
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let from_now = |time_s: i64| Duration::from_secs(time_s.abs_diff(now_s));
    let begin_s = certificate.not_before.unix_timestamp();
    let end_s = certificate.not_after.unix_timestamp();
    if now_s > end_s {
        let (name, ago) = (certificate.shown_name(), from_now(end_s));
        return Err(CertificateFault::Expired { name, ago });
    }
    if now_s < begin_s {
        let (name, ahead) = (certificate.shown_name(), from_now(begin_s));
        return Err(CertificateFault::NotYetValid { name, ahead });
    }
    Ok(())
}
