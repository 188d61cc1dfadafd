//! Reads certificate revocation lists.

use std::path::Path;

use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::files;
use super::{Certificate, PkiError, Serial};

/// A revocation list that was read; its signature is another matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationList {
    /// The authority's subject as text.
    pub issuer: String,
    /// The list's number, which rises from issue to issue; 0 when it states none.
    pub number: u64,
    /// When it was made.
    pub this_update: OffsetDateTime,
    /// When a newer one is due.
    pub next_update: Option<OffsetDateTime>,
    /// What was revoked.
    pub entries: Vec<RevokedEntry>,
    der: Vec<u8>,
}

/// One revoked certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedEntry {
    /// Its serial number.
    pub serial: Serial,
    /// Since when it is revoked.
    pub since: OffsetDateTime,
}

impl RevocationList {
    /// Reads the one list of a PEM file.
    ///
    /// # Errors
    /// The file cannot be read or does not hold exactly one revocation list.
    pub fn read(path: &Path) -> Result<Self, PkiError> {
        let bytes = files::read("read the revocation list", path)?;
        let blocks: Result<Vec<_>, _> = Pem::iter_from_buffer(&bytes).collect();
        let blocks = blocks.map_err(|e| PkiError::content(path, format!("bad PEM: {e}")))?;
        match blocks.as_slice() {
            [block] if block.label == "X509 CRL" => {
                Self::from_der(&block.contents).map_err(|reason| PkiError::content(path, reason))
            }
            _ => Err(PkiError::content(path, "this is not one revocation list (X509 CRL) in PEM")),
        }
    }

    /// Reads a list from its DER encoding.
    ///
    /// # Errors
    /// It is not a revocation list; in words.
    pub fn from_der(der: &[u8]) -> Result<Self, String> {
        let list = parse(der)?;
        let number = list.crl_number().map_or(Some(0), |number| u64::try_from(number).ok());
        let entry = |revoked: &x509_parser::revocation_list::RevokedCertificate<'_>| RevokedEntry {
            serial: Serial::from_bytes(revoked.raw_serial()),
            since: revoked.revocation_date.to_datetime(),
        };
        Ok(Self {
            issuer: list.issuer().to_string(),
            number: number.ok_or("its number is over 64 bits")?,
            this_update: list.last_update().to_datetime(),
            next_update: list.next_update().map(|time| time.to_datetime()),
            entries: list.iter_revoked_certificates().map(entry).collect(),
            der: der.to_vec(),
        })
    }

    /// Since when a serial is revoked.
    pub fn revoked_since(&self, serial: &Serial) -> Option<OffsetDateTime> {
        self.entries.iter().find(|entry| entry.serial == *serial).map(|entry| entry.since)
    }

    /// Whether `authority` issued and signed it.
    pub fn is_signed_by(&self, authority: &Certificate) -> bool {
        let issuer = X509Certificate::from_der(authority.der());
        let (Ok(list), Ok((_, issuer))) = (parse(&self.der), issuer) else { return false };
        list.issuer() == issuer.subject() && list.verify_signature(issuer.public_key()).is_ok()
    }
}

fn parse(der: &[u8]) -> Result<CertificateRevocationList<'_>, String> {
    match CertificateRevocationList::from_der(der) {
        Ok(([], list)) => Ok(list),
        Ok(_) => Err("bytes after the revocation list".to_owned()),
        Err(error) => Err(format!("not a revocation list: {error}")),
    }
}
