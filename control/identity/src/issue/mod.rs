//! The operator's authority: creates certificates and revocation lists.
//!
//! One authority (ECDSA P-256) signs one certificate for each gateway and cloud, and one
//! revocation list. All of it is in a folder of files: `ca.crt`, `ca.key`, `revoked.crl`, the
//! records `issued.list` and `revoked.list`, and `NAME.crt` with `NAME.key` for each node. A file
//! appears whole or not at all, and an existing one is replaced only on request.

mod authority;
mod publish;
mod record;

#[cfg(test)]
mod tests;

pub use authority::{Authority, DAYS_MAX, IssueRequest, Issued};
