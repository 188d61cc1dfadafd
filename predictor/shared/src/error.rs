//! Why the shared database cannot be used.

use std::path::PathBuf;

/// An error of the shared database; the text states the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The URL is invalid.
    #[error("the URL is invalid: {0}")]
    Url(String),
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    File(PathBuf, String),
    /// The server does not answer in time.
    #[error("the server does not answer")]
    Timeout,
    /// The server has become read-only.
    #[error("the server does not allow writes any more")]
    ReadOnly,
    /// The server's schema is of a later version than this program's.
    #[error(
        "the database has schema {0}, this program knows {1}: update the program; until \
         then the cloud goes on alone"
    )]
    Newer(i32, i32),
    /// The database has no schema, or an earlier one than this program's.
    #[error(
        "the database has schema {0}, this program needs {1}: run `polyrail linkdb shared \
         migrate` as the owner of the database"
    )]
    Older(i32, i32),
    /// The server refuses, or cannot be reached.
    #[error("{0}")]
    Server(String),
}

impl From<tokio_postgres::Error> for SharedError {
    fn from(error: tokio_postgres::Error) -> Self {
        let cause = std::error::Error::source(&error);
        // The outer text of an answer is only "db error".
        Self::Server(match (error.as_db_error(), cause) {
            (Some(answer), _) => answer.to_string(),
            (None, Some(cause)) => format!("{error}: {cause}"),
            (None, None) => error.to_string(),
        })
    }
}
