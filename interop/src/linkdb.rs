//! LinkDB in the lab: the databases of both daemons, and the train's telemetry.

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::rail::{HandoverResult, Route, Sighting, Trip};
use serde_json::{Value, json};

use crate::lab::{Lab, Side};
use crate::programs::Programs;

/// The longest delay until a modem's report is read (POLYCORN, section 3).
const REPORT: Duration = Duration::from_millis(200);
/// The time of the first trip of a history, and the interval between trips.
pub(crate) const EPOCH_MS: u64 = 1_790_000_000_000;
pub(crate) const DAY_MS: u64 = 86_400_000;

/// The write timeout of a listener that does not read.
const LISTENER_PATIENCE: Duration = Duration::from_secs(1);

/// A train on its track: both daemons have a LinkDB, and the gateway receives telemetry.
#[derive(Clone, Debug, Default)]
pub struct Rail {
    /// The initial records of gateway and cloud, as NDJSON for `polyrail linkdb import`. Those of
    /// [`records`] count as the daemon's own; a gateway's reach the cloud by replication.
    pub records: [String; 2],
    /// Telemetry lines, each with its time since the emulator's epoch. `World::train` sends more.
    pub telemetry: Vec<(Duration, String)>,
}

/// A handover of an earlier trip, in the direction `up` on the default track of telemetry.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The trip's number.
    pub trip: u64,
    /// The number of the handover within the trip.
    pub sequence: usize,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The carrier's name.
    pub carrier: &'a str,
    /// The position where it began.
    pub metres: f64,
    /// The speed of the train.
    pub metres_per_second: f64,
    /// The old cell.
    pub from: u64,
    /// The new cell.
    pub to: u64,
    /// The signal strength of the old cell, if the modem reported it.
    pub rsrp_dbm: Option<f64>,
    /// `success`, `type1`, `type2` or `type3`.
    pub outcome: &'a str,
    /// How long the carrier passed no packet.
    pub dark: Duration,
}

/// Sends telemetry to every client of its socket.
#[derive(Clone, Debug)]
pub struct Announcer {
    listeners: Arc<Mutex<Vec<UnixStream>>>,
}

/// The database file of a daemon.
pub fn database(lab: &Lab, side: Side) -> PathBuf {
    lab.folder().join(format!("{}-linkdb.redb", side.name()))
}

/// The socket from which the gateway receives telemetry.
pub fn socket(lab: &Lab) -> PathBuf {
    lab.folder().join("telemetry.sock")
}

/// Records in the format of `polyrail linkdb import`.
pub fn records<'a>(records: impl IntoIterator<Item = Record<'a>>) -> String {
    let head = json!({ "linkdb": { "version": 1 } }).to_string();
    let lines = records.into_iter().map(|record| record.line().to_string());
    std::iter::once(head).chain(lines).map(|line| line + "\n").collect()
}

/// The same as the log of another writer.
pub fn records_of<'a>(writer: &str, records: impl IntoIterator<Item = Record<'a>>) -> String {
    let head = json!({ "linkdb": { "version": 2 } }).to_string();
    let lines = records.into_iter().enumerate().map(|(sequence, record)| {
        let mut entry = record.line();
        entry["writer"] = json!(writer);
        entry["incarnation"] = json!("1");
        entry["sequence"] = json!(sequence);
        json!({ "entry": entry }).to_string()
    });
    std::iter::once(head).chain(lines).map(|line| line + "\n").collect()
}

/// The handovers of a route's earlier trips as a gateway recorded them ([`Trip::sightings`]), one
/// trip a day, for `polyrail linkdb import`.
pub fn history(route: &Route, trips: &[Trip]) -> String {
    records(trips.iter().zip(0_u64..).flat_map(|(trip, number)| {
        let (seen, signals) = (trip.sightings(REPORT), trip.signals(route));
        seen.into_iter().enumerate().map(move |(sequence, sighting)| {
            let rsrp_dbm = sighting.handover.heard(&signals[sighting.carrier]);
            seen_record(route, number, sequence, &sighting, rsrp_dbm)
        })
    }))
}

fn seen_record<'a>(
    route: &'a Route,
    number: u64,
    sequence: usize,
    sighting: &Sighting,
    rsrp_dbm: Option<f64>,
) -> Record<'a> {
    let Sighting { carrier, handover, at, metres } = *sighting;
    Record {
        trip: number + 1,
        sequence,
        at_ms: EPOCH_MS + number * DAY_MS + at.as_millis() as u64,
        carrier: route.carriers[carrier].name,
        metres,
        metres_per_second: route.speed.metres_per_second(),
        from: handover.from.into(),
        to: handover.to.into(),
        rsrp_dbm,
        outcome: match handover.outcome {
            HandoverResult::Success => "success",
            HandoverResult::FailureHeld => "type2",
            HandoverResult::FailureDropped => "type3",
        },
        dark: handover.dark,
    }
}

/// The telemetry of a trip: one line per second, each with its time.
pub fn telemetry(route: &Route, trip: &Trip) -> Vec<(Duration, String)> {
    let lines = trip.telemetry_lines(route);
    let at = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_default();
        Duration::from_secs_f64(value["time_s"].as_f64().unwrap_or(0.0))
    };
    lines.lines().map(|line| (at(line), line.to_owned())).collect()
}

/// Fills both databases and starts to send telemetry.
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

/// Imports records into a database that no daemon has open.
pub fn import(lab: &Lab, programs: &Programs, records: &str, database: &Path) -> Result<()> {
    let file = lab.folder().join("learned.ndjson");
    std::fs::write(&file, records)?;
    let files = [database, &file];
    offline(programs, "import", &files).map(drop)
}

/// The handovers of a database that no daemon has open, one per line, sorted.
pub fn export(programs: &Programs, database: &Path) -> Result<Vec<String>> {
    let text = offline(programs, "export --format csv --coarsen 0", &[database])?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
}

/// Removes a writer's entries from a database that no daemon has open.
pub fn purge(programs: &Programs, writer: &str, database: &Path) -> Result<()> {
    offline(programs, &format!("purge --writer {writer}"), &[database]).map(drop)
}

/// Runs a command of `polyrail linkdb` on a database and optionally a file.
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
            "rsrp_dbm": self.rsrp_dbm.map(tenths),
            "outcome": self.outcome,
            "dark_ms": self.dark.as_millis() as u64,
        } })
    }
}

impl Announcer {
    /// Creates the socket.
    fn open(socket: &Path) -> Result<Announcer> {
        let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
        let listeners = Arc::<Mutex<Vec<UnixStream>>>::default();
        let accepted = listeners.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stream.set_write_timeout(Some(LISTENER_PATIENCE)).is_ok() {
                    accepted.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
                }
            }
        });
        Ok(Announcer { listeners })
    }

    /// Sends a line to the connected clients and returns their number.
    pub fn say(&self, line: &str) -> usize {
        let line = format!("{line}\n");
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain_mut(|listener| listener.write_all(line.as_bytes()).is_ok());
        listeners.len()
    }
}

/// The id of the replay's default track: the first 8 bytes of the SHA-256 of its name.
fn route_id() -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, b"replay");
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.as_ref()[..8]);
    u64::from_be_bytes(bytes)
}
