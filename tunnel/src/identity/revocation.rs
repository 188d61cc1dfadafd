//! The authority's revocation lists.
//!
//! A list counts only when one of the configured authorities signed it; an expired one still
//! counts (what was revoked stays revoked), with a warning.

use std::collections::BTreeSet;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// What is revoked, by issuer and serial number.
#[derive(Debug, Default)]
pub(super) struct Revocations {
    revoked: BTreeSet<(Vec<u8>, String)>,
    /// The ends of the lists' validity, in seconds since 1970.
    expiries: Vec<i64>,
}

impl Revocations {
    /// Reads lists; the error says what is wrong with them.
    pub(super) fn new(
        lists: &[CertificateRevocationListDer<'_>],
        authorities: &[CertificateDer<'_>],
    ) -> Result<Self, String> {
        let mut all = Self::default();
        for der in lists {
            let (rest, list) = CertificateRevocationList::from_der(der)
                .map_err(|error| format!("not a readable revocation list: {error}"))?;
            if !rest.is_empty() {
                return Err("not a readable revocation list: bytes follow it".to_owned());
            }
            if !authorities.iter().any(|authority| signed_by(&list, authority)) {
                return Err(format!(
                    "the revocation list of {} is not signed by the authority",
                    list.issuer()
                ));
            }
            let issuer = list.issuer().as_raw();
            for entry in list.iter_revoked_certificates() {
                all.revoked.insert((issuer.to_owned(), serial_text(entry.raw_serial())));
            }
            all.expiries.extend(list.next_update().map(|time| time.timestamp()));
        }
        Ok(all)
    }

    /// Whether `issuer` (a DER name) has revoked its certificate `serial`.
    pub(super) fn has(&self, issuer: &[u8], serial: &str) -> bool {
        !self.revoked.is_empty() && self.revoked.contains(&(issuer.to_owned(), serial.to_owned()))
    }

    /// Whether any authority has revoked its certificate `serial`.
    pub(super) fn has_serial(&self, serial: &str) -> bool {
        self.revoked.iter().any(|(_, revoked)| revoked == serial)
    }

    pub(super) fn warnings(&self, now: Duration) -> Vec<String> {
        let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let expired = self.expiries.iter().filter(|&&end| end < now_s);
        expired
            .map(|end| {
                let days = (now_s - end) / 86_400;
                format!(
                    "the revocation list should have been renewed {days} days ago: certificates \
                     revoked since are not known here"
                )
            })
            .collect()
    }
}

/// A serial number as lower-case hexadecimal digits without leading zero bytes.
pub(super) fn serial_text(raw: &[u8]) -> String {
    let start = raw.iter().position(|&byte| byte != 0).unwrap_or(raw.len().saturating_sub(1));
    raw[start..].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn signed_by(list: &CertificateRevocationList<'_>, authority: &CertificateDer<'_>) -> bool {
    let Ok((_, authority)) = X509Certificate::from_der(authority) else { return false };
    let may_sign =
        authority.key_usage().is_ok_and(|usage| usage.is_none_or(|u| u.value.crl_sign()));
    may_sign
        && authority.subject().as_raw() == list.issuer().as_raw()
        && list.verify_signature(authority.public_key()).is_ok()
}
