//! Why a configuration was refused, with the place of the mistake.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A configuration that was refused as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {}: {source}", file.display())]
    Read {
        /// The file as it was named.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has a mistake; this is the first one found.
    #[error("{0}")]
    Invalid(Problem),
}

/// A key of a configuration file that is wrong, or no longer has a meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The file as it was named; not part of the JSON.
    #[serde(skip)]
    pub file: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The key with its tables, such as `carrier[2].role` (list entries count from 1); empty for
    /// a text that is not TOML.
    pub key: String,
    /// The mistake, and where possible the allowed values.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file.display(), self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.reason)
    }
}

/// A broken rule: the key to blame, and the reason.
#[derive(Debug)]
pub struct Broken {
    pub(crate) key: String,
    pub(crate) reason: String,
}

impl Broken {
    pub(crate) fn new(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: key.into(), reason: reason.into() }
    }
}
