//! Why a configuration was refused: every mistake with its place, so that one look mends all.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A configuration that was refused as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {}: {source}", file.display())]
    Read {
        /// The file as it was named.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file was read and has mistakes; one line of text for each.
    #[error("{}", lines(file, problems))]
    Invalid {
        /// The file as it was named.
        file: PathBuf,
        /// The mistakes in the order of the file; at least one, at most [`PROBLEMS_MAX`].
        problems: Vec<Problem>,
    },
}

/// The most mistakes that one refusal lists; later ones are left out.
pub const PROBLEMS_MAX: usize = 50;

/// One mistake in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The key with its tables, such as `carrier[2].role` (list entries count from 1); empty for
    /// a text that is not TOML.
    pub key: String,
    /// What is wrong and what would be right.
    pub reason: String,
}

impl ConfigError {
    /// The mistakes found in the file; empty when it could not even be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } => &[],
            Self::Invalid { problems, .. } => problems,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.reason)
    }
}

fn lines(file: &Path, problems: &[Problem]) -> String {
    let line = |problem: &Problem| format!("{}:{problem}", file.display());
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}
