//! Opens database files, rejects foreign ones and renames damaged ones.
//!
//! Opening verifies the checksum of every page, because redb trusts later reads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::InMemoryBackend;
use redb::{Builder, Database, ReadableDatabase, TableHandle};

use super::FORMAT;
use super::error::StoreError;
use super::tables::{META, TABLES, Tables};

/// Opens a file, or creates one. redb may panic on a damaged file.
pub(super) fn open(path: &Path) -> Result<Database, StoreError> {
    let opened = catch_unwind(AssertUnwindSafe(|| {
        reject_foreign(path)?;
        // Positions are private.
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let database = builder().create(path)?;
        prepare(&database)?;
        Ok(database)
    }));
    opened.unwrap_or_else(|_| Err(StoreError::damaged("redb panicked")))
}

pub(super) fn in_memory() -> Result<Database, StoreError> {
    let database = builder().create_with_backend(InMemoryBackend::new())?;
    prepare(&database)?;
    Ok(database)
}

/// Renames a damaged file to `<name>.damaged`, replacing an earlier one.
pub(super) fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let mut to = path.as_os_str().to_owned();
    to.push(".damaged");
    fs::rename(path, &to)?;
    Ok(to.into())
}

/// Distinguishes other programs' files, which stay where they are, from damaged ones.
fn reject_foreign(path: &Path) -> Result<(), StoreError> {
    let mut begin = Vec::new();
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(found) if !found.is_file() => {
            return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
        }
        _ => File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut begin)?,
    };
    // File systems leave zeros behind after a crash.
    if begin.is_empty() || begin == MAGIC {
        Ok(())
    } else if begin.iter().all(|byte| *byte == 0) || MAGIC.starts_with(&begin) {
        Err(StoreError::damaged("its header is missing"))
    } else {
        Err(StoreError::Foreign)
    }
}

/// Creates the tables of an empty database; checks the format of any other.
fn prepare(database: &Database) -> Result<(), StoreError> {
    let reading = database.begin_read()?;
    let names: Vec<String> = reading.list_tables()?.map(|table| table.name().to_owned()).collect();
    if names.is_empty() {
        let writing = database.begin_write()?;
        let mut tables = Tables::open(&writing)?;
        tables.meta.insert("format", FORMAT)?;
        drop(tables);
        return Ok(writing.commit()?);
    }
    if !names.iter().any(|name| name == META.name()) {
        return Err(StoreError::Foreign);
    }
    let format = reading.open_table(META)?.get_owned("format")?.map(|format| format.value());
    match format {
        None => Err(StoreError::Foreign),
        Some(found) if found > FORMAT => Err(StoreError::TooNew(found)),
        Some(FORMAT) if names.len() < TABLES => Err(StoreError::damaged("a table is missing")),
        Some(FORMAT) => Ok(()),
        Some(found) => Err(StoreError::TooOld(found)),
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

/// The beginning of each redb file (its design document, "Database header").
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
/// Pages in memory; redb's default is 1 GiB.
const CACHE_BYTES: usize = 32 << 20;
