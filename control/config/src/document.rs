//! Turns the text of a file into a typed configuration, and a mistake into its place.
//!
//! `serde` judges each table, [`Document::rules`] the relations between tables. Keys of
//! [`DELETED_KEYS`] are taken out before, with a warning.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use crate::error::{ConfigError, Problem};

/// Keys of earlier versions, each with the reason why it no longer has a meaning. A file may hold
/// them for one release.
pub(crate) const DELETED_KEYS: &[(&str, &str)] = &[(
    "log.file",
    "this key is ignored: logs go to standard error, which systemd hands to its journal",
)];

/// The largest configuration file that is read, in bytes.
pub const FILE_MAX: u64 = 1024 * 1024;

/// A daemon's configuration.
pub(crate) trait Document: DeserializeOwned {
    /// The paths in it, which start at the file's folder when they are relative.
    fn paths(&mut self) -> Vec<&mut PathBuf>;

    /// Checks the relations between keys.
    fn rules(&self) -> Result<(), Broken>;

    /// Keeps the warnings about deleted keys.
    fn set_ignored(&mut self, ignored: Vec<Problem>);
}

/// A broken rule: the key to blame, and the reason.
pub(crate) struct Broken {
    key: String,
    reason: String,
}

impl Broken {
    pub(crate) fn new(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: key.into(), reason: reason.into() }
    }
}

/// Reads a file of at most [`FILE_MAX`].
///
/// # Errors
/// The file cannot be read, is too large or is not UTF-8.
pub fn read_text(file: &Path) -> Result<String, ConfigError> {
    let refuse = |source| ConfigError::Read { file: file.to_owned(), source };
    let mut text = String::new();
    let opened = File::open(file).map_err(refuse)?;
    opened.take(FILE_MAX + 1).read_to_string(&mut text).map_err(refuse)?;
    if text.len() as u64 > FILE_MAX {
        return Err(refuse(io::Error::new(io::ErrorKind::InvalidData, "it is over 1 MiB")));
    }
    Ok(text)
}

/// Parses `text`, the contents of `file`.
pub(crate) fn parse<T: Document>(text: &str, file: &Path) -> Result<T, ConfigError> {
    let problem = |span: Range<usize>, key: String, reason: String| {
        let (line, column) = place(text, span.start);
        Problem { file: file.to_owned(), line, column, key, reason }
    };
    let refuse = |error: toml::de::Error| {
        let span = error.span().unwrap_or_default();
        let reason = error.message().lines().collect::<Vec<_>>().join(", ");
        let mut key = Keys::of(text).at(&span);
        if let Some(field) = missing_field(&reason) {
            key = if key.is_empty() { field.to_owned() } else { format!("{key}.{field}") };
        }
        ConfigError::Invalid(problem(span, key, reason))
    };
    let mut table = DeTable::parse(text).map_err(refuse)?;
    let deleted = |&(key, reason): &(&str, &str)| {
        let span = take(table.get_mut(), key)?;
        Some(problem(span, key.to_owned(), reason.to_owned()))
    };
    let ignored = DELETED_KEYS.iter().filter_map(deleted).collect();
    let mut config = T::deserialize(Deserializer::from(table)).map_err(refuse)?;
    let folder = file.parent().unwrap_or(Path::new(""));
    for path in config.paths() {
        *path = folder.join(&path);
    }
    if let Err(Broken { key, reason }) = config.rules() {
        let span = Keys::of(text).span(&key);
        return Err(ConfigError::Invalid(problem(span, key, reason)));
    }
    config.set_ignored(ignored);
    Ok(config)
}

/// Removes `table.key` from the document; where it stood, if it was there.
fn take(document: &mut DeTable<'_>, key: &str) -> Option<Range<usize>> {
    let (table, key) = key.split_once('.')?;
    let DeValue::Table(table) = document.get_mut(table)?.get_mut() else { return None };
    table.remove_entry(key).map(|(key, _)| key.span())
}

fn missing_field(reason: &str) -> Option<&str> {
    reason.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Line and column, both from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// The full name of each key and list entry of a document, with its place and that of its value.
struct Keys(Vec<(String, Range<usize>)>);

impl Keys {
    fn of(text: &str) -> Self {
        let mut keys = Self(Vec::new());
        if let Ok(table) = DeTable::parse(text) {
            keys.add_table("", table.get_ref());
        }
        keys
    }

    fn add_table(&mut self, path: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = key.get_ref();
            let name = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
            self.0.push((name.clone(), key.span()));
            self.add_value(name, value);
        }
    }

    fn add_value(&mut self, name: String, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.add_table(&name, table),
            DeValue::Array(array) => {
                for (index, entry) in array.iter().enumerate() {
                    self.add_value(format!("{name}[{}]", index + 1), entry);
                }
            }
            _ => {}
        }
        self.0.push((name, value.span()));
    }

    /// The innermost key at this place.
    fn at(&self, span: &Range<usize>) -> String {
        let around = |found: &&(String, Range<usize>)| {
            found.1.start <= span.start && span.end <= found.1.end
        };
        let innermost = self.0.iter().filter(around).min_by_key(|(_, found)| found.len());
        innermost.map(|(name, _)| name.clone()).unwrap_or_default()
    }

    /// The place of a key, or of the nearest table around it that is there.
    fn span(&self, key: &str) -> Range<usize> {
        let mut key = key;
        loop {
            if let Some((_, span)) = self.0.iter().find(|(name, _)| name == key) {
                return span.clone();
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = &key[..end],
                None => return 0..0,
            }
        }
    }
}
