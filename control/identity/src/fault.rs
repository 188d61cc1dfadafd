//! Why a certificate is rejected.

use std::time::Duration;

/// Why a certificate is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// None was presented.
    #[error("no certificate was presented")]
    Missing,
    /// The operator's authority did not issue it.
    #[error("the certificate was not issued by the authority configured here")]
    UnknownAuthority,
    /// It has expired.
    #[error("the certificate (name {name:?}) expired {ago:?} ago by our clock")]
    Expired {
        /// The name in it.
        name: String,
        /// Time since then, in whole seconds.
        ago: Duration,
    },
    /// It is not valid yet.
    #[error("the certificate (name {name:?}) becomes valid in {ahead:?} by our clock")]
    NotYetValid {
        /// The name in it.
        name: String,
        /// Time until then, in whole seconds.
        ahead: Duration,
    },
    /// Its extended key usage is not that of the expected role.
    #[error("the certificate (name {name:?}) is not one of a {wanted}")]
    WrongRole {
        /// The name in it.
        name: String,
        /// `gateway` or `cloud`.
        wanted: &'static str,
    },
    /// It was revoked.
    #[error("the certificate (name {name:?}, serial {serial}) is revoked")]
    Revoked {
        /// The name in it.
        name: String,
        /// Its serial number, in lower-case hexadecimal digits.
        serial: String,
    },
    /// It names another node than the expected one.
    #[error("the certificate is for {presented:?}, expected was {expected:?}")]
    WrongName {
        /// The name from the configuration.
        expected: String,
        /// The name in the certificate.
        presented: String,
    },
    /// Its one common name and its one DNS name are not the same node name.
    #[error(
        "the certificate ({subject}) names no node: its common name and its one DNS name are not \
         the same node name"
    )]
    NoIdentity {
        /// Its subject as text, shortened.
        subject: String,
    },
    /// It cannot be read, or its chain is invalid in another way.
    #[error("the certificate is not acceptable: {detail}")]
    Malformed {
        /// The reason.
        detail: String,
    },
}
