//! Errors of the admin interface: a code for programs, a message, and a position in a file.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use polyrail_config::{ConfigError, Problem};

use crate::reload::RestartNeeded;

/// A refusal; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", .0.message)]
#[serde(transparent)]
pub struct AdminError(pub Box<ErrorBody>);

/// The object under `error` in a refusal's JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The kind of error.
    pub code: ErrorCode,
    /// The error and its remedy, in words.
    pub message: String,
    /// The file with the first mistake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Its line, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Its column in characters, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// The key of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// All keys that it is about, when a reload would need a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// The mistake of a configuration file again, as a list; none or one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// The kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Invalid request (400).
    BadRequest,
    /// Unknown address (404).
    NotFound,
    /// Unknown path (404).
    UnknownPath,
    /// The address does not support the method (405).
    MethodNotAllowed,
    /// The daemon refuses in its current state (409).
    Refused,
    /// The keys in `keys` need a restart of the daemon (409).
    RestartNeeded,
    /// The request is too large (413).
    TooLarge,
    /// The configuration is invalid or names unusable files (422).
    InvalidConfig,
    /// An internal error of the daemon (500).
    Internal,
    /// Too many requests; try again (503).
    Busy,
    /// The data plane did not answer in time; the request may still take effect (504).
    Timeout,
}

impl AdminError {
    /// A refusal of this kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorBody {
            code,
            message: message.into(),
            file: None,
            line: None,
            column: None,
            key: None,
            keys: Vec::new(),
            problems: Vec::new(),
        }))
    }

    /// The daemon refuses in its current state.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Refused, message)
    }

    /// There is no path of this name.
    pub fn unknown_path(name: &str) -> Self {
        Self::new(ErrorCode::UnknownPath, format!("there is no path {name:?}"))
    }

    /// The key of the configuration that it is about.
    #[must_use]
    pub fn about_key(mut self, key: impl Into<String>) -> Self {
        self.0.key = Some(key.into());
        self
    }

    /// The kind of refusal.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }
}

impl From<&ConfigError> for AdminError {
    fn from(error: &ConfigError) -> Self {
        let mut refusal = Self::new(ErrorCode::InvalidConfig, error.to_string());
        let body = &mut *refusal.0;
        match error {
            ConfigError::Read { file, .. } => body.file = Some(file.clone()),
            ConfigError::Invalid(problem) => {
                body.file = Some(problem.file.clone());
                (body.line, body.column) = (Some(problem.line), Some(problem.column));
                body.key = Some(problem.key.clone()).filter(|key| !key.is_empty());
                body.problems = vec![problem.clone()];
            }
        }
        refusal
    }
}

impl From<RestartNeeded> for AdminError {
    fn from(needed: RestartNeeded) -> Self {
        let mut refusal = Self::new(ErrorCode::RestartNeeded, needed.to_string());
        refusal.0.key = needed.keys.first().cloned();
        refusal.0.keys = needed.keys;
        refusal
    }
}

impl ErrorCode {
    /// The HTTP status that goes with it.
    pub fn http_status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::NotFound | Self::UnknownPath => 404,
            Self::MethodNotAllowed => 405,
            Self::Refused | Self::RestartNeeded => 409,
            Self::TooLarge => 413,
            Self::InvalidConfig => 422,
            Self::Internal => 500,
            Self::Busy => 503,
            Self::Timeout => 504,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
