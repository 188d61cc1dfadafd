//! Certificates: who a node is, whom it trusts, and, with the feature `issue`, the authority.
//!
//! This crate is the only one that reads or judges X.509. [`TlsIdentity`] holds a node's own
//! certificate and key, the operator's authority and its revocation lists; it judges the chains
//! that peers present, and its own. [`PeerVerifier`] does the same for a daemon whose identity can
//! be reloaded. [`Certificate`] and [`RevocationList`] show what a file contains.
//!
//! With the feature `issue`, `Authority` creates an authority, issues certificates and revokes
//! them. The daemons are built without the feature.

#![forbid(unsafe_code)]

mod certificate;
mod clock;
mod error;
mod fault;
mod files;
#[cfg(feature = "issue")]
mod issue;
mod judge;
mod node;
mod revocation;
mod serial;
mod verifier;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub use certificate::{Certificate, CertificateRole, read_certificates};
pub use clock::{Clock, SystemClock};
pub use error::IdentityError;
pub use fault::CertificateFault;
pub use files::{check_key_file, digest};
#[cfg(feature = "issue")]
pub use issue::{Authority, DAYS_MAX, IssueRequest, Issued};
pub use judge::Peer;
pub use node::{IdentityPaths, OwnFindings, TlsIdentity};
pub use polyrail_model::NodeRole;
pub use revocation::RevocationList;
pub use serial::Serial;
pub use verifier::PeerVerifier;

/// A time as operators read it: RFC 3339, to the second, in UTC.
pub fn shown(time: OffsetDateTime) -> String {
    let whole = time.replace_nanosecond(0).unwrap_or(time);
    whole.format(&Rfc3339).unwrap_or_else(|_| "a time out of range".to_owned())
}
