//! Reads certificate revocation lists.

use std::collections::BTreeMap;
use std::path::Path;

use time::OffsetDateTime;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::certificate::parse as parse_certificate;
use crate::{Certificate, IdentityError, Serial, files};

/// The contents of a revocation list. Reading it does not verify its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationList {
    /// The authority's subject as text.
    pub issuer: String,
    /// The list's number, which rises from issue to issue; 0 if it states none, at most 64 bits.
    pub number: u64,
    /// When it was issued.
    pub this_update: OffsetDateTime,
    /// When a newer one is due.
    pub next_update: Option<OffsetDateTime>,
    /// The revoked serial numbers and the time of each revocation.
    pub entries: BTreeMap<Serial, OffsetDateTime>,
    /// The issuer's name in DER.
    issuer_der: Vec<u8>,
    der: Vec<u8>,
}

impl RevocationList {
    /// Reads the lists of a PEM file; at least one.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is not a revocation list.
    pub fn read(path: &Path) -> Result<Vec<Self>, IdentityError> {
        files::read_pem(path, "revocation list", "X509 CRL", Self::from_der)
    }

    fn from_der(der: &[u8]) -> Result<Self, String> {
        let list = parse(der)?;
        let number = list.crl_number().map_or(0, |n| u64::try_from(n).unwrap_or(u64::MAX));
        let entries = list.iter_revoked_certificates().map(|entry| {
            (Serial::from_bytes(entry.raw_serial()), entry.revocation_date.to_datetime())
        });
        Ok(Self {
            issuer: list.issuer().to_string(),
            number,
            this_update: list.last_update().to_datetime(),
            next_update: list.next_update().map(|time| time.to_datetime()),
            entries: entries.collect(),
            issuer_der: list.issuer().as_raw().to_owned(),
            der: der.to_vec(),
        })
    }

    /// When a certificate was revoked, if its issuer also issued this list.
    pub fn revoked_since(&self, certificate: &Certificate) -> Option<OffsetDateTime> {
        let since = self.entries.get(&certificate.serial).copied();
        since.filter(|_| self.issuer_der == certificate.issuer)
    }

    /// Whether `authority` issued and signed it and may sign lists.
    pub fn is_signed_by(&self, authority: &Certificate) -> bool {
        let issuer = parse_certificate(authority.der());
        let (Ok(list), Ok(issuer)) = (parse(&self.der), issuer) else { return false };
        let usage = issuer.key_usage();
        usage.is_ok_and(|usage| usage.is_none_or(|usage| usage.value.crl_sign()))
            && list.issuer().as_raw() == issuer.subject().as_raw()
            && list.verify_signature(issuer.public_key()).is_ok()
    }
}

fn parse(der: &[u8]) -> Result<CertificateRevocationList<'_>, String> {
    match CertificateRevocationList::from_der(der) {
        Ok(([], list)) => Ok(list),
        Ok(_) => Err("bytes after the revocation list".to_owned()),
        Err(error) => Err(format!("not a revocation list: {error}")),
    }
}
