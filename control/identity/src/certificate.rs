//! Reads certificates: the node they name, their role and their validity.

use std::path::Path;

use polyrail_model::{Identity, NodeRole};
use ring::digest::{SHA256, digest};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::{IdentityError, Serial, files};

/// The permitted use of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateRole {
    /// It signs other certificates.
    Authority,
    /// A node of Polyrail.
    Node(NodeRole),
    /// None of these; neither daemon accepts it.
    Other,
}

/// The contents of a certificate. Reading it does not verify its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The node's name: its one common name, if that is a node name and its one DNS name, too.
    pub identity: Option<Identity>,
    /// Its subject as text.
    pub subject: String,
    /// Its permitted use.
    pub role: CertificateRole,
    /// Its serial number.
    pub serial: Serial,
    /// The begin of its validity.
    pub not_before: OffsetDateTime,
    /// The end of its validity.
    pub not_after: OffsetDateTime,
    /// SHA-256 over its DER encoding.
    pub fingerprint: [u8; 32],
    /// The issuer's name in DER.
    pub(crate) issuer: Vec<u8>,
    der: Vec<u8>,
}

impl Certificate {
    /// Reads a certificate from its DER encoding.
    ///
    /// # Errors
    /// It is not a certificate; in words.
    pub fn from_der(der: &[u8]) -> Result<Self, String> {
        let parsed = parse(der)?;
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest(&SHA256, der).as_ref());
        Ok(Self {
            identity: identity(&parsed),
            subject: parsed.subject().to_string(),
            role: role(&parsed)?,
            serial: Serial::from_bytes(parsed.raw_serial()),
            not_before: parsed.validity().not_before.to_datetime(),
            not_after: parsed.validity().not_after.to_datetime(),
            fingerprint,
            issuer: parsed.issuer().as_raw().to_owned(),
            der: der.to_vec(),
        })
    }

    /// The DER encoding.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// The fingerprint as hexadecimal pairs with colons.
    pub fn fingerprint_text(&self) -> String {
        let pairs: Vec<_> = self.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        pairs.join(":")
    }

    /// Whether `authority` issued and signed it. Says nothing about time or revocation.
    pub fn is_signed_by(&self, authority: &Certificate) -> bool {
        let (Ok(this), Ok(other)) = (parse(&self.der), parse(&authority.der)) else {
            return false;
        };
        authority.role == CertificateRole::Authority
            && this.issuer() == other.subject()
            && this.verify_signature(Some(other.public_key())).is_ok()
    }

    /// Whether `key` is the private key that belongs to it.
    #[cfg(feature = "issue")]
    pub(crate) fn belongs_to(&self, key: &rcgen::KeyPair) -> bool {
        use rcgen::PublicKeyData;
        parse(&self.der).is_ok_and(|this| this.public_key().raw == key.subject_public_key_info())
    }

    /// The common name for messages, whether it is a node name or not; shortened.
    pub(crate) fn shown_name(&self) -> String {
        let Ok(parsed) = parse(&self.der) else { return String::new() };
        let name = parsed.subject().iter_common_name().next().and_then(|cn| cn.as_str().ok());
        shortened(name.unwrap_or_default())
    }
}

/// At most 64 characters, none of them a control character.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// The certificates of a PEM file, in order; at least one.
///
/// # Errors
/// The file cannot be read, or something in it is not a certificate.
pub fn read_certificates(path: &Path) -> Result<Vec<Certificate>, IdentityError> {
    files::read_pem(path, "certificate", "CERTIFICATE", Certificate::from_der)
}

/// Parses a certificate, which must be all of `der`.
pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, String> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err("bytes after the certificate".to_owned()),
        Err(error) => Err(format!("not a certificate: {error}")),
    }
}

fn identity(certificate: &X509Certificate<'_>) -> Option<Identity> {
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?;
    let alternatives = certificate.subject_alternative_name().ok()??;
    match alternatives.value.general_names.as_slice() {
        [GeneralName::DNSName(dns)] if *dns == name && names.next().is_none() => {
            Identity::new(name).ok()
        }
        _ => None,
    }
}

fn role(certificate: &X509Certificate<'_>) -> Result<CertificateRole, String> {
    let bad = |error| format!("a bad extension: {error}");
    if certificate.basic_constraints().map_err(bad)?.is_some_and(|found| found.value.ca) {
        return Ok(CertificateRole::Authority);
    }
    let Some(usage) = certificate.extended_key_usage().map_err(bad)? else {
        return Ok(CertificateRole::Other);
    };
    let usage = usage.value;
    let more = usage.any
        || usage.code_signing
        || usage.email_protection
        || usage.time_stamping
        || usage.ocsp_signing
        || !usage.other.is_empty();
    Ok(match (usage.client_auth, usage.server_auth, more) {
        (true, false, false) => CertificateRole::Node(NodeRole::Gateway),
        (false, true, false) => CertificateRole::Node(NodeRole::Cloud),
        _ => CertificateRole::Other,
    })
}

impl std::fmt::Display for CertificateRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Authority => "authority",
            Self::Node(role) => role.as_str(),
            Self::Other => "none of Polyrail's",
        })
    }
}
