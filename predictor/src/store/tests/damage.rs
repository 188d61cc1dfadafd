//! Files that are not as they were written, or not there as they should be.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use redb::TableDefinition;

use super::super::faults::Disk;
use super::*;

/// A small database, with what it holds after each call.
fn small() -> (Vec<u8>, Vec<Dump>) {
    let disk = Disk::default();
    let mut store = Store::from_source(Source::Faulty(disk.clone()), Limits::default()).unwrap();
    let mut states = vec![dump(&store).unwrap()];
    for trip in 0..6 {
        store.append(&events(trip, 0..30, NOW + trip), NOW).unwrap();
        states.push(dump(&store).unwrap());
        store.record_places(&[place(trip, trip as f64 * 50.0, trip)]).unwrap();
        states.push(dump(&store).unwrap());
    }
    drop(store);
    (disk.bytes(), states)
}

/// Opens it and reads everything: an error, or a state that it once had.
fn read(bytes: Vec<u8>, states: &[Dump], what: &str) -> bool {
    let disk = Disk::with(bytes);
    let opened = Store::from_source(Source::Faulty(disk), Limits::default());
    match opened.and_then(|store| dump(&store)) {
        Ok(found) => {
            assert!(states.contains(&found), "{what}: {found:#?}");
            true
        }
        Err(error) => {
            let damaged = matches!(error, StoreError::Damaged { .. } | StoreError::Foreign { .. });
            assert!(damaged, "{what}: {error}");
            false
        }
    }
}

#[test]
fn changed_bytes_are_found_or_do_not_matter() {
    let (bytes, states) = small();
    let used: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let (mut found, cases) = (0, 400);
    for case in 0..cases {
        let mut rng = Pcg64Mcg::seed_from_u64(case);
        let mut changed = bytes.clone();
        let many = if case % 4 == 0 { rng.random_range(1..50) } else { 1 };
        for _ in 0..many {
            // The header, then where something is.
            let at = match case % 8 {
                1 => rng.random_range(0..320),
                _ => used[rng.random_range(0..used.len())],
            };
            changed[at] ^= 1 << rng.random_range(0..8u8);
        }
        found += u64::from(!read(changed, &states, &format!("case {case}")));
    }
    assert!(found > cases / 8, "only {found} of {cases} were noticed");
}

#[test]
fn cut_and_overwritten_files_are_found_or_do_not_matter() {
    let (bytes, states) = small();
    for case in 0..200 {
        let mut rng = Pcg64Mcg::seed_from_u64(5000 + case);
        let mut changed = bytes.clone();
        let at = rng.random_range(0..bytes.len());
        match case % 3 {
            0 => changed.truncate(at),
            1 => changed[at..].fill(0),
            _ => {
                let end = (at + 4096).min(bytes.len());
                rng.fill(&mut changed[at..end]);
            }
        }
        if changed.iter().any(|byte| *byte != 0) {
            read(changed, &states, &format!("case {case}"));
        }
    }
}

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
fn a_damaged_file_is_set_aside_and_few_of_them_are_kept() {
    let (folder, path) = scratch();
    for round in 1..=5 {
        let (mut store, aside) = Store::open_or_begin_anew(&path, Limits::default()).unwrap();
        assert_eq!(aside.is_some(), round > 1);
        if let Some(aside) = aside {
            let wanted = folder.path().join(format!("linkdb.redb.damaged-{}", round - 1));
            assert_eq!(aside.to, wanted);
            assert!(matches!(aside.reason, StoreError::Damaged { .. }), "{}", aside.reason);
        }
        assert_eq!(store.stats().unwrap().events, 0);
        store.append(&events(1, 0..9, NOW), NOW).unwrap();
        drop(store);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(9000).unwrap();
        let error = Store::open(&path, Limits::default()).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
    }
    let (store, _) = Store::open_or_begin_anew(&path, Limits::default()).unwrap();
    let damaged = |number| format!("linkdb.redb.damaged-{number}");
    assert_eq!(names(&folder), ["linkdb.redb".to_owned(), damaged(3), damaged(4), damaged(5)]);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "positions are private");
    drop(store);
}

#[test]
fn what_a_crash_leaves_of_a_new_file_is_made_anew() {
    let (folder, path) = scratch();
    fs::write(folder.path().join("linkdb.redb.new"), vec![0; 5000]).unwrap();
    drop(Store::open(&path, Limits::default()).unwrap());
    assert_eq!(names(&folder), ["linkdb.redb"]);
    // An empty file is none; one of zeros is what a file system leaves after a crash.
    fs::write(&path, "").unwrap();
    drop(Store::open(&path, Limits::default()).unwrap());
    for bytes in [vec![0; 3], vec![0; 70_000], b"redb\x1a".to_vec()] {
        fs::write(&path, bytes).unwrap();
        let (_, aside) = Store::open_or_begin_anew(&path, Limits::default()).unwrap();
        assert!(aside.is_some());
    }
}

#[test]
fn what_is_not_ours_is_left_as_it_is() {
    let (folder, path) = scratch();
    let refused = |wanted: &str| {
        for error in [
            Store::open(&path, Limits::default()).unwrap_err(),
            Store::open_or_begin_anew(&path, Limits::default()).unwrap_err(),
        ] {
            assert!(error.to_string().contains(wanted), "{error}");
            assert!(error.to_string().contains("linkdb.redb"), "{error}");
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
    refused("has format 2, this program knows 1");

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
fn a_panic_of_the_engine_is_a_damaged_file() {
    for text in ["an invariant".to_owned(), String::new()] {
        let result = guarded::<()>(Path::new("/linkdb"), || panic!("{text}"));
        let error = result.unwrap_err();
        assert!(matches!(&error, StoreError::Damaged { reason, .. } if *reason == text), "{error}");
    }
}

#[test]
fn nor_does_it_get_out_where_a_store_is_closed() {
    let disk = Disk::default();
    let mut store = Store::from_source(Source::Faulty(disk.clone()), Limits::default()).unwrap();
    store.append(&events(1, 0..5, NOW), NOW).unwrap();
    disk.panic_next();
    drop(store);
    assert!(!disk.would_panic(), "nothing is done where it is closed");
    // What was written is there.
    let store = Store::from_source(Source::Faulty(disk), Limits::default()).unwrap();
    assert_eq!(store.stats().unwrap().events, 5);
}

#[test]
fn errors_of_the_system_are_told_apart() {
    use std::io::{Error, ErrorKind};
    let told = |kind: ErrorKind| Fault::Io(Error::from(kind)).at(Path::new("/linkdb"));
    assert!(matches!(told(ErrorKind::StorageFull), StoreError::NoSpace { .. }));
    assert!(matches!(told(ErrorKind::QuotaExceeded), StoreError::NoSpace { .. }));
    assert!(matches!(told(ErrorKind::PermissionDenied), StoreError::Permission { .. }));
    assert!(matches!(told(ErrorKind::ReadOnlyFilesystem), StoreError::Permission { .. }));
    assert!(matches!(told(ErrorKind::UnexpectedEof), StoreError::Damaged { .. }));
    assert!(matches!(told(ErrorKind::TimedOut), StoreError::Io { .. }));
}
