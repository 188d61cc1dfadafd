//! What can go wrong with a database, in words for the operator.

use std::io;
use std::path::{Path, PathBuf};

use crate::record::RecordError;

/// Why LinkDB cannot be opened or used, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A folder, a socket or a device is in the place.
    #[error("{path} is no ordinary file; name a file for LinkDB that is not there yet")]
    NotAFile {
        /// The place.
        path: PathBuf,
    },
    /// The file or its folder may not be read or written.
    #[error("no permission for {path} ({source}); let the daemon's user write it and its folder")]
    Permission {
        /// The place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk or a quota is full.
    #[error("no space is left for {path} ({source}); free some: nothing is recorded until then")]
    NoSpace {
        /// The place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Reading or writing failed otherwise.
    #[error(
        "{path} cannot be read or written ({source}); check its disk and that its folder exists"
    )]
    Io {
        /// The place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{path} is open in another process; stop that one, or ask it through its admin socket")]
    InUse {
        /// The place.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{path} is not a LinkDB; it was left as it is: name another file, or move it away")]
    Foreign {
        /// The place.
        path: PathBuf,
    },
    /// A later version of the program wrote it.
    #[error(
        "{path} has format {found}, this program knows {known}; update it, or move the file away"
    )]
    TooNew {
        /// The place.
        path: PathBuf,
        /// The file's format.
        found: u64,
        /// The newest format that this program knows.
        known: u64,
    },
    /// The file was changed or cut by something other than this program.
    #[error("{path} is damaged ({reason}); move it away and start anew, or import an export")]
    Damaged {
        /// The place.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A track takes more bytes than the limits allow.
    #[error("a track of {bytes} bytes is too large; at most {max} are kept")]
    TrackTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A value that cannot be was to be kept.
    #[error("not recorded: {0}")]
    Refused(RecordError),
}

/// An error within the store, before it is known which file it is about.
#[derive(Debug)]
pub(crate) enum Fault {
    Engine(Box<redb::Error>),
    Io(io::Error),
    /// A stored value does not decode.
    Record(RecordError),
    Store(StoreError),
    Damaged(String),
    Foreign,
    TooNew(u64),
}

impl Fault {
    /// The same for the operator.
    pub(crate) fn at(self, path: &Path) -> StoreError {
        let path = path.to_owned();
        match self {
            Self::Engine(error) => engine(*error, path),
            Self::Io(source) => input_output(source, path),
            Self::Record(error) => StoreError::Damaged { path, reason: error.to_string() },
            Self::Store(error) => error,
            Self::Damaged(reason) => StoreError::Damaged { path, reason },
            Self::Foreign => StoreError::Foreign { path },
            Self::TooNew(found) => StoreError::TooNew { path, found, known: super::FORMAT },
        }
    }
}

fn engine(error: redb::Error, path: PathBuf) -> StoreError {
    match error {
        redb::Error::Io(source) => input_output(source, path),
        redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => {
            StoreError::InUse { path }
        }
        redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
            let source = io::Error::other("an earlier error closed it");
            StoreError::Io { path, source }
        }
        other => StoreError::Damaged { path, reason: other.to_string() },
    }
}

fn input_output(source: io::Error, path: PathBuf) -> StoreError {
    use io::ErrorKind as Kind;
    match source.kind() {
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => {
            StoreError::NoSpace { path, source }
        }
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => {
            StoreError::Permission { path, source }
        }
        Kind::IsADirectory => StoreError::NotAFile { path },
        // redb reads at places that it wrote itself.
        Kind::UnexpectedEof | Kind::InvalidData => {
            StoreError::Damaged { path, reason: source.to_string() }
        }
        _ => StoreError::Io { path, source },
    }
}

macro_rules! from_engine {
    ($($error:ty),*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Self::Engine(Box::new(error.into()))
            }
        }
    )*};
}
from_engine!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::DatabaseError,
    redb::CompactionError
);

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<RecordError> for Fault {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
