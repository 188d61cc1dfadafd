//! Reads certificates: who they are for, what for, and for how long.

use std::path::Path;

use polyrail_model::Identity;
use ring::digest::{SHA256, digest};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

use super::files;
use super::{PkiError, Serial};

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It signs other certificates.
    Authority,
    /// A gateway: client authentication alone.
    Gateway,
    /// A cloud: server authentication alone.
    Cloud,
    /// None of these; neither daemon takes it.
    Other,
}

/// A certificate that was read; its signature is another matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The node it is for: its common name, when that is a node name and the only DNS name too.
    pub identity: Option<Identity>,
    /// Its subject as text.
    pub subject: String,
    /// What it may be used for.
    pub role: Role,
    /// Its serial number.
    pub serial: Serial,
    /// When its life begins.
    pub not_before: OffsetDateTime,
    /// When its life ends.
    pub not_after: OffsetDateTime,
    /// SHA-256 over its DER encoding.
    pub fingerprint: [u8; 32],
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
        authority.role == Role::Authority
            && this.issuer() == other.subject()
            && this.verify_signature(Some(other.public_key())).is_ok()
    }

    /// Whether `key` is the private key that belongs to it.
    pub fn belongs_to(&self, key: &rcgen::KeyPair) -> bool {
        use rcgen::PublicKeyData;
        parse(&self.der).is_ok_and(|this| this.public_key().raw == key.subject_public_key_info())
    }
}

/// The certificates of a PEM file, in order; at least one.
///
/// # Errors
/// The file cannot be read, or something in it is not a certificate.
pub fn read_certificates(path: &Path) -> Result<Vec<Certificate>, PkiError> {
    let bytes = files::read("read the certificate", path)?;
    let mut certificates = Vec::new();
    for block in Pem::iter_from_buffer(&bytes) {
        let block = block.map_err(|error| PkiError::content(path, format!("bad PEM: {error}")))?;
        if block.label != "CERTIFICATE" {
            let reason = format!("a {} among the certificates", block.label);
            return Err(PkiError::content(path, reason));
        }
        let certificate = Certificate::from_der(&block.contents);
        certificates.push(certificate.map_err(|reason| PkiError::content(path, reason))?);
    }
    if certificates.is_empty() {
        return Err(PkiError::content(path, "there is no certificate in it"));
    }
    Ok(certificates)
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, String> {
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

fn role(certificate: &X509Certificate<'_>) -> Result<Role, String> {
    let bad = |error| format!("a bad extension: {error}");
    if certificate.basic_constraints().map_err(bad)?.is_some_and(|found| found.value.ca) {
        return Ok(Role::Authority);
    }
    let Some(usage) = certificate.extended_key_usage().map_err(bad)? else {
        return Ok(Role::Other);
    };
    let usage = usage.value;
    let more = usage.any
        || usage.code_signing
        || usage.email_protection
        || usage.time_stamping
        || usage.ocsp_signing
        || !usage.other.is_empty();
    Ok(match (usage.client_auth, usage.server_auth, more) {
        (true, false, false) => Role::Gateway,
        (false, true, false) => Role::Cloud,
        _ => Role::Other,
    })
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Authority => "authority",
            Self::Gateway => "gateway",
            Self::Cloud => "cloud",
            Self::Other => "none of Polyrail's",
        })
    }
}
