//! Files that are damaged, foreign or inaccessible.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use redb::TableDefinition;

use super::*;
use crate::store::FORMAT;

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    (folder, path)
}

fn names(folder: &tempfile::TempDir) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn damaged_file_is_renamed_and_replaced() {
    let (folder, path) = scratch();
    let damages: [fn(Vec<u8>) -> Vec<u8>; 4] = [
        |bytes| bytes[..9_000].to_vec(),
        |bytes| vec![0; bytes.len()],
        |bytes| bytes[..5].to_vec(),
        |mut bytes| {
            bytes[64..].fill(0xa5);
            bytes
        },
    ];
    for damage in damages {
        let mut store = Store::open(&path, Limits::default()).unwrap();
        store.append_own(&entries(1, 9), NOW).unwrap();
        drop(store);
        let damaged = damage(fs::read(&path).unwrap());
        fs::write(&path, &damaged).unwrap();
        let error = Store::open(&path, Limits::default()).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
        let (store, text) = Store::open_or_replace(&path, Limits::default()).unwrap();
        assert!(text.unwrap().contains("linkdb.redb.damaged"));
        assert_eq!(store.stats().unwrap().entries, 0);
        drop(store);
        assert_eq!(names(&folder), ["linkdb.redb", "linkdb.redb.damaged"]);
        assert_eq!(fs::read(folder.path().join("linkdb.redb.damaged")).unwrap(), damaged);
    }
    let database = Database::open(&path).unwrap();
    let writing = database.begin_write().unwrap();
    assert!(writing.delete_table(ENTRIES).unwrap());
    writing.commit().unwrap();
    drop(database);
    let (_, text) = Store::open_or_replace(&path, Limits::default()).unwrap();
    assert!(text.unwrap().contains("a table is missing"));
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "positions are private");
    // An empty file is a new database.
    fs::write(&path, "").unwrap();
    drop(Store::open(&path, Limits::default()).unwrap());
}

#[test]
fn foreign_file_stays_as_it_is() {
    let (folder, path) = scratch();
    let refused = |wanted: &str| {
        for error in [
            Store::open(&path, Limits::default()).unwrap_err(),
            Store::open_or_replace(&path, Limits::default()).unwrap_err(),
        ] {
            assert!(error.to_string().contains(wanted), "{error}");
        }
    };
    fs::write(&path, "[carriers]\n").unwrap();
    refused("is not a LinkDB");
    assert_eq!(fs::read(&path).unwrap(), b"[carriers]\n");
    fs::remove_file(&path).unwrap();

    let other: TableDefinition<'_, u64, u64> = TableDefinition::new("other");
    let database = Database::create(&path).unwrap();
    let writing = database.begin_write().unwrap();
    writing.open_table(other).unwrap().insert(1, 2).unwrap();
    writing.commit().unwrap();
    drop(database);
    refused("is not a LinkDB");

    fs::remove_file(&path).unwrap();
    drop(Store::open(&path, Limits::default()).unwrap());
    let database = Database::open(&path).unwrap();
    let writing = database.begin_write().unwrap();
    writing.open_table(META).unwrap().insert("format", FORMAT + 1).unwrap();
    writing.commit().unwrap();
    drop(database);
    refused("has format 3, this program knows 2");

    let database = Database::open(&path).unwrap();
    let writing = database.begin_write().unwrap();
    writing.open_table(META).unwrap().insert("format", 1).unwrap();
    writing.commit().unwrap();
    drop(database);
    refused("has format 1, this program knows 2: export it with `polyrail linkdb export");
    refused("import the export with `polyrail linkdb import`");

    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused("is no ordinary file");
    fs::remove_dir(&path).unwrap();

    let store = Store::open(&path, Limits::default()).unwrap();
    refused("is open in another process");
    drop(store);
    assert_eq!(names(&folder), ["linkdb.redb"]);

    let nowhere = folder.path().join("none/linkdb.redb");
    let error = Store::open(nowhere, Limits::default()).unwrap_err();
    assert!(error.to_string().contains("its folder exists"), "{error}");
}

#[test]
fn system_errors_are_distinguished() {
    use std::io::{Error, ErrorKind};
    let classified = |kind: ErrorKind| StoreError::from(Error::from(kind));
    assert!(matches!(classified(ErrorKind::StorageFull), StoreError::NoSpace(_)));
    assert!(matches!(classified(ErrorKind::QuotaExceeded), StoreError::NoSpace(_)));
    assert!(matches!(classified(ErrorKind::PermissionDenied), StoreError::Permission(_)));
    assert!(matches!(classified(ErrorKind::ReadOnlyFilesystem), StoreError::Permission(_)));
    assert!(matches!(classified(ErrorKind::UnexpectedEof), StoreError::Damaged(_)));
    assert!(matches!(classified(ErrorKind::TimedOut), StoreError::Io(_)));
}
