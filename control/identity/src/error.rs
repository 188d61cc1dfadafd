//! Why an operation on keys and certificates failed.

use std::io;
use std::path::{Path, PathBuf};

/// Why an operation on keys and certificates failed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The attempted operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
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
    /// A file has the wrong contents.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// TLS rejects the certificate, the key or the options.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// A file exists already and may not be replaced.
    #[error("{} exists already; --force replaces it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// An invalid request to the authority.
    #[error("{0}")]
    Request(String),
    /// A key or signature cannot be created.
    #[error("cannot make a key or certificate: {0}")]
    Crypto(String),
}

impl IdentityError {
    /// The file or folder that the error is about.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. }
            | Self::KeyPermissions { path, .. }
            | Self::Content { path, .. }
            | Self::Exists { path } => Some(path),
            Self::Tls(_) | Self::Request(_) | Self::Crypto(_) => None,
        }
    }

    pub(crate) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    pub(crate) fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), reason: reason.into() }
    }
}

#[cfg(feature = "issue")]
impl From<rcgen::Error> for IdentityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Crypto(error.to_string())
    }
}
