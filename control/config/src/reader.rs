//! Walks a TOML document table by table, remembers where each key stands, and collects mistakes.
//!
//! A mistake does not stop the walk: the caller gets `None` or a default for the bad key and the
//! whole document is refused at the end, with everything that was found. Every key that nobody
//! asked for is a mistake too.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, PROBLEMS_MAX, Problem};

/// The text of one configuration file with what was found in it so far.
pub(super) struct Source<'t> {
    text: &'t str,
    file: &'t Path,
    spots: RefCell<BTreeMap<String, Range<usize>>>,
    problems: RefCell<Vec<Problem>>,
}

/// One table of the document, from which keys are taken one by one.
pub(super) struct Section<'s, 't> {
    source: &'s Source<'t>,
    path: String,
    span: Range<usize>,
    entries: BTreeMap<String, Entry<'t>>,
    known: Vec<&'static str>,
}

/// A value's mistake in words, or the value.
pub(super) type Parsed<T> = Result<T, String>;

struct Entry<'t> {
    key: Range<usize>,
    value: Spanned<DeValue<'t>>,
}

impl<'t> Source<'t> {
    pub(super) fn new(text: &'t str, file: &'t Path) -> Self {
        Self { text, file, spots: RefCell::default(), problems: RefCell::default() }
    }

    /// The document's top table; `None` when the text is not TOML, which is then on record.
    pub(super) fn root(&self) -> Option<Section<'_, 't>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            let reason = error.message().lines().collect::<Vec<_>>().join(", ");
            let reason = if reason.is_empty() { "this is not TOML".to_owned() } else { reason };
            self.record(error.span().unwrap_or(0..0), String::new(), reason);
        }
        errors.is_empty().then(|| Section::new(self, String::new(), 0..0, table.into_inner()))
    }

    /// Puts a mistake on record at the place of `key`, or of the nearest table around it.
    pub(super) fn blame(&self, key: &str, reason: impl Into<String>) {
        let span = self.spot(key);
        self.record(span, key.to_owned(), reason.into());
    }

    /// The file's mistakes, or what the walk made of it.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, ConfigError> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        match value {
            Some(value) if problems.is_empty() => Ok(value),
            _ => Err(ConfigError::Invalid { file: self.file.to_owned(), problems }),
        }
    }

    /// A path of the file, taken from the file's own folder when it is relative.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }

    fn spot(&self, key: &str) -> Range<usize> {
        let spots = self.spots.borrow();
        let mut key = key;
        loop {
            if let Some(span) = spots.get(key) {
                return span.clone();
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = &key[..end],
                None => return 0..0,
            }
        }
    }

    fn record(&self, span: Range<usize>, key: String, reason: String) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() < PROBLEMS_MAX {
            let (line, column) = self.place(span.start);
            problems.push(Problem { line, column, key, reason });
        }
    }

    fn place(&self, offset: usize) -> (usize, usize) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
    }
}

impl<'s, 't> Section<'s, 't> {
    fn new(source: &'s Source<'t>, path: String, span: Range<usize>, table: DeTable<'t>) -> Self {
        if !path.is_empty() {
            source.spots.borrow_mut().insert(path.clone(), span.clone());
        }
        let entry = |(key, value): (Spanned<_>, _)| {
            let span = key.span();
            let name: std::borrow::Cow<'t, str> = key.into_inner();
            (name.into_owned(), Entry { key: span, value })
        };
        let entries = table.into_iter().map(entry).collect();
        Self { source, path, span, entries, known: Vec::new() }
    }

    /// The file that the section belongs to.
    pub(super) fn source(&self) -> &'s Source<'t> {
        self.source
    }

    /// The full name of a key of this section.
    pub(super) fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Whether the key is there and was not taken yet.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether the key holds a list.
    pub(super) fn is_list(&self, key: &str) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.value.get_ref().is_array())
    }

    /// The value of an optional key; `None` when it is absent or bad.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Parsed<T>,
    ) -> Option<T> {
        let entry = self.take(key)?;
        let result = parse(entry.value.get_ref());
        result.map_err(|reason| self.source.blame(&self.key(key), reason)).ok()
    }

    /// The value of a key that must be there; `None`, and on record, when it is not.
    pub(super) fn need<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Parsed<T>,
    ) -> Option<T> {
        if !self.has(key) {
            self.missing(key);
        }
        self.get(key, parse)
    }

    /// The entries of a list that holds as many as `bounds` says; `None` when absent or bad.
    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        bounds: RangeInclusive<usize>,
        parse: impl Fn(&DeValue<'_>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        let entry = self.take(key)?;
        let path = self.key(key);
        let array = match entry.value.into_inner() {
            DeValue::Array(array) => array,
            other => {
                let found = other.type_str();
                self.source.blame(&path, format!("expected a list in [ ], found {found}"));
                return None;
            }
        };
        if !self.count_is_in(&path, array.len(), &bounds) {
            return None;
        }
        let mut values = Vec::with_capacity(array.len());
        let count = array.len();
        for (index, item) in array.iter().enumerate() {
            let item_path = format!("{path}[{}]", index + 1);
            self.source.spots.borrow_mut().insert(item_path.clone(), item.span());
            match parse(item.get_ref()) {
                Ok(value) => values.push(value),
                Err(reason) => self.source.blame(&item_path, reason),
            }
        }
        (values.len() == count).then_some(values)
    }

    /// As [`Self::list`], for a list that must be there.
    pub(super) fn need_list<T>(
        &mut self,
        key: &'static str,
        bounds: RangeInclusive<usize>,
        parse: impl Fn(&DeValue<'_>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        if !self.has(key) {
            self.missing(key);
        }
        self.list(key, bounds, parse)
    }

    /// A table within this one; `None` when absent or not a table.
    pub(super) fn table(&mut self, key: &'static str) -> Option<Section<'s, 't>> {
        let entry = self.take(key)?;
        self.enter(self.key(key), entry.key, entry.value)
    }

    /// A table that may be absent (`Some(None)`) and must be right when it is there.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(Section<'s, 't>) -> Option<T>,
    ) -> Option<Option<T>> {
        let present = self.has(key);
        let value = self.table(key).and_then(read);
        if present { value.map(Some) } else { Some(None) }
    }

    /// A table that must be there.
    pub(super) fn need_table(&mut self, key: &'static str) -> Option<Section<'s, 't>> {
        if !self.has(key) {
            let place = if self.path.is_empty() { key.to_owned() } else { self.key(key) };
            self.source.blame(&place, format!("the table [{place}] is missing"));
        }
        self.table(key)
    }

    /// The tables of a `[[key]]` list, as many as `bounds` says.
    pub(super) fn tables(
        &mut self,
        key: &'static str,
        bounds: RangeInclusive<usize>,
    ) -> Vec<Section<'s, 't>> {
        let path = self.key(key);
        let Some(entry) = self.take(key) else {
            self.count_is_in(&path, 0, &bounds);
            return Vec::new();
        };
        let DeValue::Array(array) = entry.value.into_inner() else {
            self.source.blame(&path, format!("expected tables, each headed [[{path}]]"));
            return Vec::new();
        };
        self.count_is_in(&path, array.len(), &bounds);
        let enter = |(index, item): (usize, Spanned<DeValue<'t>>)| {
            let span = item.span();
            self.enter(format!("{path}[{}]", index + 1), span, item)
        };
        array.into_iter().take(*bounds.end()).enumerate().filter_map(enter).collect()
    }

    /// All entries of a table whose keys the operator chooses, as many as `bounds` says; bad ones
    /// are on record and left out.
    pub(super) fn entries<K, V, E: ToString>(
        mut self,
        bounds: RangeInclusive<usize>,
        key: impl Fn(&str) -> Result<K, E>,
        value: impl Fn(&DeValue<'_>) -> Parsed<V>,
    ) -> Vec<(K, V)> {
        let entries = std::mem::take(&mut self.entries);
        if !self.count_is_in(&self.path, entries.len(), &bounds) {
            return Vec::new();
        }
        let mut read = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            let parsed = key(&name).map_err(|error| error.to_string());
            match parsed.and_then(|key| Ok((key, value(entry.value.get_ref())?))) {
                Ok(pair) => read.push(pair),
                Err(reason) => self.source.record(entry.key, self.key(&name), reason),
            }
        }
        read
    }

    /// Puts every key that nobody asked for on record.
    pub(super) fn finish(mut self) {
        let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
        let place = if self.path.is_empty() {
            "at the top".to_owned()
        } else {
            format!("in [{}]", self.path)
        };
        for (key, entry) in std::mem::take(&mut self.entries) {
            let reason = format!("unknown key {place}; known are: {known}");
            self.source.record(entry.key, self.key(&key), reason);
        }
    }

    fn take(&mut self, key: &'static str) -> Option<Entry<'t>> {
        self.known.push(key);
        let entry = self.entries.remove(key)?;
        self.source.spots.borrow_mut().insert(self.key(key), entry.value.span());
        Some(entry)
    }

    fn enter(
        &self,
        path: String,
        span: Range<usize>,
        value: Spanned<DeValue<'t>>,
    ) -> Option<Section<'s, 't>> {
        match value.into_inner() {
            DeValue::Table(table) => Some(Section::new(self.source, path, span, table)),
            other => {
                let found = other.type_str();
                self.source.blame(&path, format!("expected a table, found {found}"));
                None
            }
        }
    }

    fn missing(&self, key: &str) {
        let reason = format!("the key {key:?} is missing");
        self.source.record(self.span.clone(), self.key(key), reason);
    }

    fn count_is_in(&self, path: &str, count: usize, bounds: &RangeInclusive<usize>) -> bool {
        let (least, most) = (bounds.start(), bounds.end());
        let fits = bounds.contains(&count);
        if !fits {
            let reason = format!("{count} entries; between {least} and {most} are possible");
            self.source.blame(path, reason);
        }
        fits
    }
}
