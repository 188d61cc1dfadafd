//! Opening the file, or refusing it; moving a damaged one out of the way.
//!
//! A new database is made beside its place (`<name>.new`) and renamed into it when it is whole, so
//! that a crash never leaves half of one. Each opening verifies the checksum of every page: redb
//! trusts what it reads later, and could panic over a file that something else has changed. Where
//! it panics nevertheless, that is caught and the file counts as damaged.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::InMemoryBackend;
use redb::{Builder, Database, ReadableDatabase, TableHandle};

use super::error::{Fault, StoreError};
use super::tables::{self, FORMAT, META};

/// Where a database is.
#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    Memory,
    /// A disk that fails.
    #[cfg(test)]
    Faulty(super::faults::Disk),
}

/// A damaged file that was renamed.
#[derive(Debug)]
pub struct SetAside {
    /// Its new name.
    pub to: PathBuf,
    /// Why.
    pub reason: StoreError,
}

impl Source {
    /// What errors name.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Memory => Path::new("the database in memory"),
            #[cfg(test)]
            Self::Faulty(_) => Path::new("the faulty disk"),
        }
    }

    pub(super) fn open(&self) -> Result<Database, StoreError> {
        guarded(self.path(), || match self {
            Self::File(path) if is_new(path)? => create(path),
            Self::File(path) => {
                look(path)?;
                let database = builder().open(path)?;
                ready(&database)?;
                Ok(database)
            }
            Self::Memory => {
                let database = builder().create_with_backend(InMemoryBackend::new())?;
                ready(&database)?;
                Ok(database)
            }
            #[cfg(test)]
            Self::Faulty(disk) => {
                let database = builder().create_with_backend(disk.clone())?;
                ready(&database)?;
                Ok(database)
            }
        })
    }

    /// Bytes of the file; 0 in memory.
    pub(super) fn file_bytes(&self) -> u64 {
        match self {
            Self::File(path) => fs::metadata(path).map_or(0, |found| found.len()),
            _ => 0,
        }
    }
}

/// Runs what uses redb. A panic there is a damaged file: redb checks its own invariants so.
pub(super) fn guarded<T>(
    path: &Path,
    work: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|fault| fault.at(path)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let reason = text.unwrap_or("the storage engine gave up").to_owned();
            Err(StoreError::Damaged { path: path.to_owned(), reason })
        }
    }
}

/// Renames a damaged file to the next `<name>.damaged-<n>`; of those at most
/// [`DAMAGED_KEPT_MAX`] stay, the oldest are removed.
pub(super) fn set_aside(path: &Path, reason: StoreError) -> Result<SetAside, StoreError> {
    let fault = |error: io::Error| Fault::Io(error).at(path);
    let prefix = with_suffix(path, ".damaged-");
    let folder = folder_of(path);
    let mut numbers = Vec::new();
    for entry in fs::read_dir(&folder).map_err(fault)? {
        let name = entry.map_err(fault)?.file_name();
        let Some(name) = name.to_str() else { continue };
        let wanted = prefix.file_name().and_then(|wanted| wanted.to_str());
        let number = wanted.and_then(|wanted| name.strip_prefix(wanted));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    let numbered = |number: u32| with_suffix(&prefix, &number.to_string());
    let to = numbered(numbers.last().map_or(1, |last| last.saturating_add(1)));
    fs::rename(path, &to).map_err(fault)?;
    let excess = (numbers.len() + 1).saturating_sub(DAMAGED_KEPT_MAX);
    for number in &numbers[..excess] {
        if let Err(error) = fs::remove_file(numbered(*number)) {
            tracing::warn!(%error, number, "an old damaged database cannot be removed");
        }
    }
    Ok(SetAside { to, reason })
}

/// Whether nothing is there yet; an empty file is nothing.
fn is_new(path: &Path) -> Result<bool, Fault> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::from(io::ErrorKind::IsADirectory).into()),
        Ok(found) => Ok(found.len() == 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Tells other people's files from our damaged ones: the latter are moved away, the former never.
fn look(path: &Path) -> Result<(), Fault> {
    let mut begin = Vec::new();
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    if begin == MAGIC {
        return Ok(());
    }
    // File systems leave zeros behind where a crash came before the data.
    if begin.iter().all(|byte| *byte == 0) || MAGIC.starts_with(&begin) {
        return Err(Fault::Damaged("its beginning is missing".to_owned()));
    }
    Err(Fault::Foreign)
}

fn create(path: &Path) -> Result<Database, Fault> {
    let new = with_suffix(path, ".new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    // Positions are nobody else's business.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let made = begin(&new, path);
    if made.is_err() {
        // On a full disk half a database is in the way of whoever makes room. If it cannot be
        // removed now, the next opening does.
        let _ = fs::remove_file(&new);
    }
    made
}

fn begin(new: &Path, path: &Path) -> Result<Database, Fault> {
    let database = builder().create(new)?;
    ready(&database)?;
    fs::rename(new, path)?;
    File::open(folder_of(path))?.sync_all()?;
    Ok(database)
}

/// Makes an empty database ours, and checks that any other is.
fn ready(database: &Database) -> Result<(), Fault> {
    let names: Vec<String> = {
        let reading = database.begin_read()?;
        reading.list_tables()?.map(|table| table.name().to_owned()).collect()
    };
    if names.is_empty() {
        return tables::begin(database);
    }
    if !names.iter().any(|name| name == META.name()) {
        return Err(Fault::Foreign);
    }
    let reading = database.begin_read()?;
    let format = reading.open_table(META)?.get_owned("format")?.map(|format| format.value());
    match format {
        None => Err(Fault::Foreign),
        Some(found) if found > FORMAT => Err(Fault::TooNew(found)),
        Some(FORMAT) => tables::check(&reading),
        Some(found) => Err(Fault::Damaged(format!("it has format {found}"))),
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// How each redb file begins (its design document, "Database header").
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
/// Pages in memory; redb's default is a gigabyte.
const CACHE_BYTES: usize = 32 << 20;
/// Damaged files that are kept for whoever wants to look into them.
pub const DAMAGED_KEPT_MAX: usize = 3;
