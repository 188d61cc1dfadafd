//! A daemon's configuration, and how the text of its file becomes one.
//!
//! `serde` checks each table, [`Tables::rules`] the relations between tables. A mistake is reported
//! with its place. Keys of [`DELETED_KEYS`] are removed before, with a warning.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use polyrail_identity::NodeRole;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use crate::common::{Common, Overrides};
use crate::error::{Broken, ConfigError, Problem};

/// Keys of earlier versions, each with the reason why it no longer has a meaning. A file may hold
/// them for one release.
pub(crate) const DELETED_KEYS: &[(&str, &str)] = &[(
    "log.file",
    "this key is ignored: logs go to standard error, which systemd hands to its journal",
)];

/// The largest configuration file that is read, in bytes.
pub const FILE_MAX: u64 = 1024 * 1024;

/// A daemon's configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config<T> {
    /// The keys and tables that both daemons have.
    #[serde(flatten)]
    pub common: Common,
    /// Those of one daemon alone.
    #[serde(flatten)]
    pub own: T,
    /// Deleted keys that the file still holds.
    #[serde(skip)]
    pub ignored: Vec<Problem>,
}

/// The keys and tables of one daemon alone.
pub trait Tables:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The daemon.
    const ROLE: NodeRole;

    /// Keys and tables that a running daemon cannot change.
    const NEEDS_RESTART: &'static [&'static str];

    /// The interfaces of its carriers; `None` for all interfaces, if a carrier is bound only to an
    /// address.
    fn interfaces(&self) -> Option<Vec<String>>;

    /// The paths in it, which start at the file's folder when they are relative.
    fn paths(&mut self) -> Vec<&mut PathBuf>;

    /// Checks the relations between keys.
    ///
    /// # Errors
    /// The first broken rule.
    fn rules(&self, common: &Common) -> Result<(), Broken>;
}

impl<T> Deref for Config<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.own
    }
}

impl<T: Tables> Config<T> {
    /// Reads and checks a file; `overrides` replace some of its values.
    ///
    /// # Errors
    /// The file cannot be read, or it has a mistake.
    pub fn load(file: impl AsRef<Path>, overrides: &Overrides) -> Result<Self, ConfigError> {
        let mut config = Self::parse(&read_text(file.as_ref())?, file.as_ref())?;
        let Common { mode, log, .. } = &mut config.common;
        *mode = overrides.mode.unwrap_or(*mode);
        log.level = overrides.log_level.unwrap_or(log.level);
        Ok(config)
    }

    /// Checks `text`, the contents of `file`: relative paths start at its folder.
    ///
    /// # Errors
    /// The text has a mistake.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let problem = |span: Range<usize>, key: String, reason: String| {
            let (line, column) = place(text, span.start);
            Problem { file: file.to_owned(), line, column, key, reason }
        };
        let refuse = |error: toml::de::Error| {
            let span = error.span().unwrap_or_default();
            let (key, reason) = explain(text, &span, error.message());
            ConfigError::Invalid(problem(span, key, reason))
        };
        let mut table = DeTable::parse(text).map_err(refuse)?;
        let deleted = |&(key, reason): &(&str, &str)| {
            let span = take(table.get_mut(), key)?;
            Some(problem(span, key.to_owned(), reason.to_owned()))
        };
        let ignored = DELETED_KEYS.iter().filter_map(deleted).collect();
        let mut common = Spanned::new(table.span(), DeTable::new());
        for key in Common::KEYS {
            common.get_mut().extend(table.get_mut().remove_entry(key));
        }
        let mut common = Common::deserialize(Deserializer::from(common)).map_err(refuse)?;
        let mut own = T::deserialize(Deserializer::from(table)).map_err(refuse)?;
        let folder = file.parent().unwrap_or(Path::new(""));
        for path in common.paths().into_iter().chain(own.paths()) {
            *path = folder.join(&path);
        }
        if let Err(Broken { key, reason }) = own.rules(&common).and_then(|()| common.rules()) {
            let span = Keys::of(text).span(&key);
            return Err(ConfigError::Invalid(problem(span, key, reason)));
        }
        Ok(Self { common, own, ignored })
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

/// The key that an error of `toml` is about, and the reason.
fn explain(text: &str, span: &Range<usize>, message: &str) -> (String, String) {
    let mut reason = message.lines().collect::<Vec<_>>().join(", ");
    let mut key = Keys::of(text).at(span);
    let missing = reason.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    if let Some(field) = missing {
        key = if key.is_empty() { field.to_owned() } else { format!("{key}.{field}") };
    } else if reason.starts_with("unknown field") && !key.contains('.') {
        // The own tables were read alone.
        Common::KEYS.iter().for_each(|key| reason += &format!(", `{key}`"));
    }
    (key, reason)
}

/// Removes `table.key` from the document; returns its place, if it was there.
fn take(document: &mut DeTable<'_>, key: &str) -> Option<Range<usize>> {
    let (table, key) = key.split_once('.')?;
    let DeValue::Table(table) = document.get_mut(table)?.get_mut() else { return None };
    table.remove_entry(key).map(|(key, _)| key.span())
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
