//! A train on its track in the lab: its databases, and its telemetry as it comes.

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::programs::Programs;
use crate::world::{Rail, Side, World};

/// How long a listener that does not read is waited for.
const LISTENER_PATIENCE: Duration = Duration::from_secs(1);

/// A handover of an earlier trip, upwards on the track that telemetry is about when it names none.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The trip's number.
    pub trip: u64,
    /// Which of the trip's handovers it is.
    pub sequence: usize,
    /// When it was, in milliseconds since 1970.
    pub at_ms: u64,
    /// The carrier's name.
    pub carrier: &'a str,
    /// Where it began along the track.
    pub metres: f64,
    /// How fast the train was.
    pub metres_per_second: f64,
    /// The cell that was left.
    pub from: u64,
    /// The cell that was joined.
    pub to: u64,
    /// The strength of the cell that was left.
    pub rsrp_dbm: f64,
    /// `success`, `type1`, `type2` or `type3`.
    pub outcome: &'a str,
    /// For how long nothing passed.
    pub dark: Duration,
}

/// Says what a train observes to everyone who listens at its socket.
#[derive(Clone, Debug)]
pub struct Announcer {
    listeners: Arc<Mutex<Vec<UnixStream>>>,
}

/// Where a daemon of the lab has its LinkDB.
pub fn database(lab: &Lab, side: Side) -> PathBuf {
    lab.folder().join(format!("{}-linkdb.redb", side.name()))
}

/// Where the gateway of the lab hears its telemetry.
pub fn socket(lab: &Lab) -> PathBuf {
    lab.folder().join("telemetry.sock")
}

/// Records as `polyrail linkdb import` takes them.
pub fn records<'a>(records: impl IntoIterator<Item = Record<'a>>) -> String {
    let head = json!({ "linkdb": { "version": 1 } }).to_string();
    let lines = records.into_iter().map(|record| record.line().to_string());
    std::iter::once(head).chain(lines).map(|line| line + "\n").collect()
}

/// Fills both databases and begins to speak.
///
/// # Errors
/// When the import fails, with its words.
pub fn lay(lab: &Lab, programs: &Programs, rail: &Rail, epoch: Instant) -> Result<Announcer> {
    for (side, records) in [Side::Gateway, Side::Cloud].into_iter().zip(&rail.records) {
        if !records.is_empty() {
            import(lab, programs, records, &database(lab, side))?;
        }
    }
    let announcer = Announcer::open(&socket(lab))?;
    let (speaker, lines) = (announcer.clone(), rail.telemetry.clone());
    std::thread::spawn(move || {
        for (at, line) in lines {
            std::thread::sleep((epoch + at).saturating_duration_since(Instant::now()));
            speaker.say(&line);
        }
    });
    Ok(announcer)
}

/// Takes records into a database that no daemon has open.
///
/// # Errors
/// When the command fails, with its words.
pub fn import(lab: &Lab, programs: &Programs, records: &str, database: &Path) -> Result<()> {
    let file = lab.folder().join("learned.ndjson");
    std::fs::write(&file, records)?;
    let files = [database, &file];
    offline(programs, "import", &files).map(drop)
}

/// The handovers of a database that no daemon has open, one a line, in the order of their trips.
///
/// # Errors
/// When the command fails, with its words.
pub fn export(programs: &Programs, database: &Path) -> Result<Vec<String>> {
    let text = offline(programs, "export --format csv --coarsen 0", &[database])?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
}

/// Runs a command of `polyrail linkdb` on a database and, perhaps, a file.
fn offline(programs: &Programs, arguments: &str, files: &[&Path]) -> Result<String> {
    let output = Command::new(programs.path("polyrail"))
        .arg("linkdb")
        .args(arguments.split_whitespace())
        .arg("--db")
        .args(files)
        .output()
        .context("the command polyrail")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "polyrail linkdb {arguments}: {words}");
    Ok(String::from_utf8(output.stdout)?)
}

impl Record<'_> {
    fn line(&self) -> Value {
        let tenths = |value: f64| (value * 10.0).round() / 10.0;
        json!({ "handover": {
            "trip": format!("{:x}", self.trip),
            "sequence": self.sequence,
            "at_ms": self.at_ms,
            "carrier": self.carrier,
            "route": format!("{:x}", route_id()),
            "direction": "up",
            "position_m": tenths(self.metres),
            "speed_m_s": (self.metres_per_second * 100.0).round() / 100.0,
            "from": format!("{:x}", self.from),
            "to": format!("{:x}", self.to),
            "rsrp_dbm": tenths(self.rsrp_dbm),
            "outcome": self.outcome,
            "dark_ms": self.dark.as_millis() as u64,
        } })
    }
}

impl Announcer {
    /// At a socket that is not there yet.
    fn open(socket: &Path) -> Result<Announcer> {
        let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
        let listeners = Arc::<Mutex<Vec<UnixStream>>>::default();
        let heard = listeners.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stream.set_write_timeout(Some(LISTENER_PATIENCE)).is_ok() {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
                }
            }
        });
        Ok(Announcer { listeners })
    }

    /// Says a line now; returns how many heard it. Who comes later does not.
    pub fn say(&self, line: &str) -> usize {
        let line = format!("{line}\n");
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain_mut(|listener| listener.write_all(line.as_bytes()).is_ok());
        listeners.len()
    }
}

impl World {
    /// A daemon's LinkDB as `GET /v1/linkdb` tells it.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn linkdb(&self, side: Side) -> Result<Value> {
        self.ask_json(side, "linkdb status")
    }

    /// What a daemon foresees of a carrier, if it does.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn foreseen(&self, side: Side, carrier: &str) -> Result<Option<Foreseen>> {
        let state = self.linkdb(side)?;
        let trips = state.get("trips").and_then(Value::as_array).context("no trips")?;
        let carriers = trips.iter().filter_map(|trip| trip.get("carriers")?.as_array()).flatten();
        let mut own = carriers.filter(|one| one["carrier"] == carrier);
        Ok(own.find_map(|one| {
            let permille = one["permille"].as_u64()?;
            Some(Foreseen { fails_in_s: one["fails_in_s"].as_f64()?, permille })
        }))
    }
}

/// A failure that a daemon foresees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Foreseen {
    /// In how many seconds; less than zero: the place was passed.
    pub fails_in_s: f64,
    /// So many of 1,000 such handovers fail.
    pub permille: u64,
}

/// What the replay's default name of a track stands for: the first 8 bytes of its SHA-256.
fn route_id() -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, b"replay");
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.as_ref()[..8]);
    u64::from_be_bytes(bytes)
}
