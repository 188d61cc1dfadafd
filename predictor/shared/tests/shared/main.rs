//! Clouds that share a LinkDB in a real PostgreSQL.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

mod faults;
mod server;
mod standby;
mod writers;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use polyrail_predictor::entry::LogId;
use polyrail_shared::Server;
use polyrail_shared::scratch::{Cloud, Contents, Postgres, handovers};

/// A scratch server with the users `a`, `b` and `c`, and a folder for the clouds' files.
struct Fleet {
    postgres: Postgres,
    folder: tempfile::TempDir,
}

impl Fleet {
    /// `None`: the test is skipped.
    fn start() -> Option<Self> {
        let fleet = Self::without_schema()?;
        fleet.postgres.prepare(&["a", "b", "c"]).unwrap();
        Some(fleet)
    }

    fn without_schema() -> Option<Self> {
        let postgres = Postgres::start_or_skip(&["fsync=off"]).unwrap()?;
        Some(Self { postgres, folder: tempfile::tempdir().unwrap() })
    }

    /// Starts a cloud, and waits until it has reached the server.
    fn cloud(&self, name: &str) -> io::Result<Cloud> {
        let cloud = self.cloud_with(name, self.postgres.server(name))?;
        cloud.wait(SOON, |_, shared| shared.connected)?;
        Ok(cloud)
    }

    fn cloud_with(&self, name: &str, server: Server) -> io::Result<Cloud> {
        Cloud::start(self.folder.path(), name, server)
    }

    fn file(&self, cloud: &str) -> PathBuf {
        self.folder.path().join(cloud)
    }

    /// The number of entries in the server.
    fn rows(&self) -> u64 {
        let count = "SELECT count(*), count(DISTINCT (log, sequence)) FROM polyrail.entry";
        let counted = self.postgres.sql(count).unwrap();
        let (rows, distinct) = counted.split_once('|').unwrap();
        assert_eq!(rows, distinct, "entries are there twice");
        rows.parse().unwrap()
    }
}

/// Waits until a cloud has so many entries, and the server lacks none of them.
#[track_caller]
fn settle(cloud: &Cloud, count: u64) {
    cloud
        .wait(SOON, |entries, shared| entries == count && (shared.waiting, shared.behind) == (0, 0))
        .unwrap();
}

fn log(writer: &str) -> LogId {
    LogId { writer: writer.to_owned(), incarnation: INCARNATION }
}

/// The numbers of the entries of a log.
fn numbers(contents: &Contents, log: &LogId) -> Vec<u64> {
    contents.keys().filter(|(of, _)| of == log).map(|(_, number)| *number).collect()
}

#[test]
fn entry_of_one_cloud_reaches_another() {
    let Some(fleet) = Fleet::start() else { return };
    let (mut a, b) = (fleet.cloud("a").unwrap(), fleet.cloud("b").unwrap());
    a.send(&log("train-1"), 0, handovers(1, 0, 1, NOW_MS));
    let took = b.wait(SOON, |entries, _| entries == 1).unwrap();
    println!("visible after {took:?}");
    settle(&a, 1);
    assert_eq!(fleet.rows(), 1);
    assert_eq!(a.stop().unwrap(), b.stop().unwrap());
}

/// Above 2^63, so that the server's signed number is negative.
const INCARNATION: u64 = u64::MAX - 7;
const NOW_MS: u64 = 1_790_000_000_000;
const SOON: Duration = Duration::from_secs(30);
