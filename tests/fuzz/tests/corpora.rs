//! Replays the corpora: what the fuzzer found once is tested for ever.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use polyrail_fuzz::{SURFACES, Surface};

/// The files of a folder, in order.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder).into_iter().flatten();
    let paths: BTreeSet<PathBuf> = listed.map(|entry| entry.unwrap().path()).collect();
    paths.into_iter().collect()
}

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Runs all inputs of a surface and returns their number and those that fail.
fn replay(surface: &Surface) -> (usize, Vec<PathBuf>) {
    let inputs = entries(&corpora().join(surface.name));
    let count = inputs.len();
    let fails = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        catch_unwind(|| (surface.run)(&bytes)).is_err()
    };
    (count, inputs.into_iter().filter(fails).collect())
}

#[test]
fn fuzz_corpora_are_replayed() {
    let results: Vec<_> = std::thread::scope(|scope| {
        let start = |surface| (surface, scope.spawn(move || replay(surface)));
        let threads: Vec<_> = SURFACES.iter().map(start).collect();
        threads.into_iter().map(|(of, thread)| (of.name, thread.join().unwrap())).collect()
    });
    for (name, (count, failed)) in results {
        println!("{name}: {count} inputs");
        assert!(count > 0, "{name} has no corpus");
        assert!(failed.is_empty(), "{name} fails with {failed:?}");
    }
}

#[test]
fn fuzz_corpora_are_small_and_have_a_surface() {
    let (mut files, mut bytes) = (0, 0);
    for folder in entries(&corpora()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(SURFACES.iter().any(|surface| surface.name == name), "{name} is no surface");
        for input in entries(&folder) {
            files += 1;
            bytes += fs::metadata(input).unwrap().len();
        }
    }
    assert!(files <= FILES_MAX && bytes <= BYTES_MAX, "{files} files, {bytes} bytes");
}

/// Bounds of all corpora together, so that the tree and the gate stay small.
const FILES_MAX: usize = 300;
const BYTES_MAX: u64 = 1 << 20;
