//! Errors of a database, each with its remedy for the operator.

use std::io;

use polyrail_model::codec::FieldError;

use super::FORMAT;

/// Why LinkDB cannot be opened or used, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The path is a folder, a socket or a device.
    #[error("the path is no ordinary file; name a file that does not exist yet")]
    NotAFile,
    /// The file or its folder is not readable or writable.
    #[error("no permission ({0}); let the daemon's user write the file and its folder")]
    Permission(io::Error),
    /// The disk or a quota is full.
    #[error("no space is left ({0}); free some: nothing is recorded until then")]
    NoSpace(io::Error),
    /// Reading or writing failed otherwise.
    #[error("the file cannot be read or written ({0}); check its disk and that its folder exists")]
    Io(io::Error),
    /// Another process has it open.
    #[error("the file is open in another process; stop that one, or ask it by its admin socket")]
    InUse,
    /// Another program's file.
    #[error("the file is not a LinkDB and was left unchanged; name another file, or move it away")]
    Foreign,
    /// A later version of the program wrote it.
    #[error(
        "the file has format {0}, this program knows {FORMAT}; update it, or move the file away"
    )]
    TooNew(u64),
    /// An earlier version of the program wrote it.
    #[error(
        "the file has format {0}, this program knows {FORMAT}: export it with `polyrail linkdb \
         export --coarsen 0` of the version that wrote it, move it away, and import the export \
         with `polyrail linkdb import`"
    )]
    TooOld(u64),
    /// The file was changed or cut by something other than this program.
    #[error("the file is damaged ({0}); move it away and start over, or import an export")]
    Damaged(String),
}

impl StoreError {
    pub(super) fn damaged(reason: &str) -> Self {
        Self::Damaged(reason.to_owned())
    }
}

impl From<redb::Error> for StoreError {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Io(source) => source.into(),
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => Self::InUse,
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
                Self::Io(io::Error::other("an earlier error closed it"))
            }
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<io::Error> for StoreError {
    fn from(source: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match source.kind() {
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Self::NoSpace(source),
            Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Self::Permission(source),
            Kind::IsADirectory => Self::NotAFile,
            // redb reads only its own pages.
            Kind::UnexpectedEof | Kind::InvalidData => Self::Damaged(source.to_string()),
            _ => Self::Io(source),
        }
    }
}

/// A stored value does not decode.
impl From<FieldError> for StoreError {
    fn from(error: FieldError) -> Self {
        Self::Damaged(error.to_string())
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for StoreError {
            fn from(error: redb::$error) -> Self {
                redb::Error::from(error).into()
            }
        }
    )*};
}
from_redb!(StorageError, TableError, TransactionError, CommitError, DatabaseError, CompactionError);
