//! The judgement of a peer's certificate, after every handshake.
//!
//! The same code runs inside the handshake (so that the peer gets the fitting alert) and again
//! when it is over (a resumed handshake shows no certificate: the one of the first is judged
//! anew, by today's time and today's revocations). In order: present, readable, chain to the
//! authority with usage and validity (webpki), the role's usage alone, validity once more for the
//! whole figures, not revoked, one name, the expected name.

use std::time::{Duration, SystemTime};

use polyrail_model::Identity;
use rustls::CertificateError;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::revocation::serial_text;
use super::{Contents, EXPIRES_SOON};
use crate::{CertificateFault, Early};

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// TLS client.
    Gateway,
    /// TLS server.
    Cloud,
}

/// What the judgement of an acceptable certificate found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspection {
    pub(crate) peer: Identity,
    pub(crate) serial: String,
    pub(crate) valid_until: SystemTime,
}

impl From<Inspection> for Early {
    fn from(Inspection { peer, serial, .. }: Inspection) -> Self {
        Self { peer, serial }
    }
}

impl Contents {
    /// Judges a peer's certificate chain at the time `now` (since 1970).
    pub(crate) fn inspect(
        &self,
        chain: &[CertificateDer<'_>],
        role: Role,
        expected: Option<&Identity>,
        now: Duration,
    ) -> Result<Inspection, CertificateFault> {
        let leaf = chain.first().ok_or(CertificateFault::Missing)?;
        let certificate = parse(leaf)?;
        check_chain(self, chain, role, now)?;
        check_usage(&certificate, role)?;
        check_validity(&certificate, now)?;
        for link in chain {
            self.check_revocation(&parse(link)?)?;
        }
        let peer = node_name(leaf)?;
        if let Some(expected) = expected.filter(|&expected| *expected != peer) {
            return Err(CertificateFault::WrongName {
                expected: expected.to_string(),
                presented: peer.to_string(),
            });
        }
        let end_s = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        Ok(Inspection {
            peer,
            serial: serial_text(certificate.raw_serial()),
            valid_until: SystemTime::UNIX_EPOCH + Duration::from_secs(end_s),
        })
    }

    fn check_revocation(&self, certificate: &X509Certificate<'_>) -> Result<(), CertificateFault> {
        let serial = serial_text(certificate.raw_serial());
        if self.revocations.has(certificate.issuer().as_raw(), &serial) {
            return Err(CertificateFault::Revoked { name: shown_name(certificate), serial });
        }
        Ok(())
    }
}

/// Checks signatures, validity and usage from the leaf up to an authority, by webpki.
pub(super) fn check_chain(
    contents: &Contents,
    chain: &[CertificateDer<'_>],
    role: Role,
    now: Duration,
) -> Result<(), CertificateFault> {
    let [leaf, between @ ..] = chain else { return Err(CertificateFault::Missing) };
    let time = UnixTime::since_unix_epoch(now);
    let verdict = match role {
        Role::Gateway => contents.gateways.verify_client_cert(leaf, between, time).map(|_| ()),
        Role::Cloud => ParsedCertificate::try_from(leaf).and_then(|parsed| {
            let algorithms = contents.provider.signature_verification_algorithms.all;
            let roots = &contents.roots;
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, between, time, algorithms)
        }),
    };
    verdict.map_err(|error| chain_fault(&error, leaf, role, now))
}

fn chain_fault(
    error: &rustls::Error,
    leaf: &CertificateDer<'_>,
    role: Role,
    now: Duration,
) -> CertificateFault {
    let certificate = match parse(leaf) {
        Ok(certificate) => certificate,
        Err(fault) => return fault,
    };
    let rustls::Error::InvalidCertificate(error) = error else {
        return CertificateFault::Malformed { detail: error.to_string() };
    };
    match error {
        // A signature that does not verify is a certificate of an authority of the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            CertificateFault::UnknownAuthority
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            wrong_role(&certificate, role)
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => match check_validity(&certificate, now) {
            Err(fault) => fault,
            Ok(()) => CertificateFault::Malformed {
                detail: "a certificate between it and the authority is not valid now".to_owned(),
            },
        },
        other => CertificateFault::Malformed { detail: other.to_string() },
    }
}

fn check_usage(certificate: &X509Certificate<'_>, role: Role) -> Result<(), CertificateFault> {
    let usage = certificate.extended_key_usage().map_err(malformed)?;
    let fits = usage.is_some_and(|usage| {
        let usage = usage.value;
        !usage.any
            && match role {
                Role::Gateway => usage.client_auth && !usage.server_auth,
                Role::Cloud => usage.server_auth && !usage.client_auth,
            }
    });
    if fits { Ok(()) } else { Err(wrong_role(certificate, role)) }
}

fn wrong_role(certificate: &X509Certificate<'_>, role: Role) -> CertificateFault {
    let wanted = match role {
        Role::Gateway => "gateway",
        Role::Cloud => "cloud",
    };
    CertificateFault::WrongRole { name: shown_name(certificate), wanted }
}

fn check_validity(
    certificate: &X509Certificate<'_>,
    now: Duration,
) -> Result<(), CertificateFault> {
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let (begin_s, end_s) = validity(certificate);
    let name = || shown_name(certificate);
    if now_s > end_s {
        return Err(CertificateFault::Expired { name: name(), ago: seconds(now_s, end_s) });
    }
    if now_s < begin_s {
        return Err(CertificateFault::NotYetValid { name: name(), ahead: seconds(begin_s, now_s) });
    }
    Ok(())
}

/// A sentence when a certificate of ours is not valid now or soon will not be.
pub(super) fn validity_warning(
    what: &str,
    der: &CertificateDer<'_>,
    now: Duration,
) -> Option<String> {
    let certificate = parse(der).ok()?;
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let (begin_s, end_s) = validity(&certificate);
    let name = shown_name(&certificate);
    if now_s < begin_s {
        return Some(format!("{what} ({name}) is not valid yet by our clock"));
    }
    let left = seconds(end_s, now_s);
    match now_s > end_s {
        true => Some(format!("{what} ({name}) has expired by our clock")),
        false if left < EXPIRES_SOON => {
            Some(format!("{what} ({name}) expires in {} days", left.as_secs() / 86_400))
        }
        false => None,
    }
}

fn validity(certificate: &X509Certificate<'_>) -> (i64, i64) {
    let validity = certificate.validity();
    (validity.not_before.timestamp(), validity.not_after.timestamp())
}

fn seconds(later: i64, earlier: i64) -> Duration {
    Duration::from_secs(later.saturating_sub(earlier).try_into().unwrap_or(0))
}

/// The node's name: the one common name, repeated as the one DNS name.
pub(super) fn node_name(der: &CertificateDer<'_>) -> Result<Identity, CertificateFault> {
    let certificate = parse(der)?;
    let refuse = |detail: String| Err(CertificateFault::NoIdentity { detail });
    let names: Vec<_> = certificate.subject().iter_common_name().collect();
    let [name] = names[..] else {
        return refuse(format!("it has {} common names instead of one", names.len()));
    };
    let Ok(name) = name.as_str() else { return refuse("its common name is no text".to_owned()) };
    let alternatives = certificate.subject_alternative_name().map_err(malformed)?;
    let alternatives = alternatives.map_or(&[][..], |extension| &extension.value.general_names);
    match alternatives {
        [GeneralName::DNSName(dns)] if *dns == name => {}
        _ => return refuse(format!("the DNS names beside {name:?} are not exactly that name")),
    }
    Identity::new(name).or_else(|error| refuse(error.to_string()))
}

/// The common name for messages, whatever it is worth; shortened.
fn shown_name(certificate: &X509Certificate<'_>) -> String {
    let name = certificate.subject().iter_common_name().next().and_then(|cn| cn.as_str().ok());
    name.unwrap_or_default().chars().filter(|c| !c.is_control()).take(64).collect()
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertificateFault> {
    let (rest, certificate) = X509Certificate::from_der(der).map_err(malformed)?;
    if rest.is_empty() { Ok(certificate) } else { Err(malformed("bytes follow it")) }
}

fn malformed(error: impl std::fmt::Display) -> CertificateFault {
    CertificateFault::Malformed { detail: error.to_string() }
}
