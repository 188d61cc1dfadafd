//! The operator's certificate authority and the certificates of the nodes.
//!
//! One authority (ECDSA P-256) signs one certificate for each gateway and cloud, and one
//! revocation list. All lives in a folder of files: `ca.crt`, `ca.key`, `revoked.crl`, the lists
//! `issued.list` and `revoked.list`, and `NAME.crt` with `NAME.key` for each node. Files appear
//! whole or not at all, and nothing that exists is replaced unless that is asked for.

mod authority;
mod certificate;
mod files;
mod ledger;
mod revocations;
mod serial;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub use authority::{Authority, DAYS_MAX, IssueRequest, Issued, NodeRole};
pub use certificate::{Certificate, Role, read_certificates};
pub use files::digest;
pub use files::{check_key_file, read_key};
pub use revocations::{RevocationList, RevokedEntry};
pub use serial::Serial;

/// Why an operation on keys and certificates failed.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Group or others can read, write or execute a private key.
    #[error("{} is mode {mode:04o}: run chmod 600 {}", path.display(), path.display())]
    KeyPermissions {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file is there already.
    #[error("{} exists already; --force replaces it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file does not hold what it should.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A request that cannot be fulfilled.
    #[error("{0}")]
    Request(String),
    /// An earlier run was cut short when all was written but not all in place; it is now.
    #[error(
        "an interrupted earlier run was completed: the files of {stem:?} in {} are in place; \
         nothing else was done", dir.display()
    )]
    Completed {
        /// The folder.
        dir: PathBuf,
        /// What the files' names begin with.
        stem: String,
    },
    /// Keys or signatures could not be made.
    #[error("cannot make a key or certificate: {0}")]
    Crypto(#[from] rcgen::Error),
}

impl PkiError {
    fn file(action: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    fn content(path: &std::path::Path, reason: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), reason: reason.into() }
    }
}

/// A time as operators read it: RFC 3339, to the second, in UTC.
pub fn shown(time: OffsetDateTime) -> String {
    let whole = time.replace_nanosecond(0).unwrap_or(time);
    whole.format(&Rfc3339).unwrap_or_else(|_| "a time out of range".to_owned())
}
