//! Tests of the two engines, connected in memory on a simulated line, and of the thread.

#![allow(clippy::disallowed_methods, reason = "the base of a simulated clock")]

mod forecasts;
mod peers;
mod poisoning;
mod store;
mod thread;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::entry::Entry;
use crate::store::{Limits, Store, StoreError};
use polyrail_model::{
    Bitrate, CellId, Handover, Heard, LinkForecast, LinkOutlook, NodeRole, Observation, Odometer,
    RouteId, Serving, SessionKey, Silence,
};

use super::buffered::BufferedStore;
use super::cloud::CloudEngine;
use super::gateway::GatewayEngine;
use super::{Engine, Input, LinkDbSettings, Output, WorkerState};

/// A forecast reported in one session.
#[derive(Clone, Debug, PartialEq)]
struct Reported {
    at: Instant,
    session: SessionKey,
    carrier: String,
    forecast: Option<LinkForecast>,
}

/// A worker and its outputs.
struct Side<W> {
    worker: W,
    reported: Vec<Reported>,
    ahead: Vec<(Instant, String, LinkOutlook)>,
    found: Vec<(Instant, String)>,
}

impl<W> Side<W> {
    fn new(worker: W) -> Self {
        Self { worker, reported: Vec::new(), ahead: Vec::new(), found: Vec::new() }
    }

    /// Keeps outputs for its data plane; returns those for the peer.
    fn keep(&mut self, now: Instant, output: Output) -> Option<Output> {
        match output {
            Output::Forecast { session, carrier, forecast } => {
                self.reported.push(Reported { at: now, session, carrier, forecast });
            }
            Output::Outlook { carrier, outlook, .. } => self.ahead.push((now, carrier, outlook)),
            Output::FoundCell { carrier } => self.found.push((now, carrier)),
            other => return Some(other),
        }
        None
    }

    /// The current forecast of a carrier: the last one that has not expired.
    fn forecast_of(&self, carrier: &str, at: Instant) -> Option<LinkForecast> {
        let reported = self
            .reported
            .iter()
            .rev()
            .find(|reported| reported.carrier == carrier && reported.at <= at);
        reported?.forecast.filter(|forecast| forecast.expires_at > at)
    }

    fn forget(&mut self) {
        self.reported.clear();
        self.ahead.clear();
        self.found.clear();
    }
}

/// A train and its cloud.
struct World {
    now: Instant,
    wall_ms: u64,
    train: Side<GatewayEngine>,
    ground: Side<CloudEngine>,
    /// The current session.
    session: Option<u64>,
    sessions: u64,
    telemetry: u64,
    /// The train's session with a second cloud, and the outputs for it.
    second: Option<SessionKey>,
    to_second: Vec<Output>,
}

/// A failure that the train met.
#[derive(Clone, Copy, Debug)]
struct Met {
    at: Instant,
    found: Instant,
}

impl World {
    /// A world with both databases in memory.
    fn in_memory(settings: LinkDbSettings) -> Self {
        let now = Instant::now();
        Self::new(
            now,
            1,
            train_store(now, None, settings),
            cloud_store(now, None, settings),
            settings,
        )
    }

    /// A world with files in a folder.
    fn on_disk(folder: &Path, settings: LinkDbSettings) -> Self {
        let now = Instant::now();
        let train = train_store(now, Some(folder.join("train")), settings);
        let ground = cloud_store(now, Some(folder.join("ground")), settings);
        Self::new(now, 1, train, ground, settings)
    }

    /// The seed decides the numbers of trips.
    fn new(
        now: Instant,
        seed: u64,
        train: BufferedStore,
        ground: BufferedStore,
        settings: LinkDbSettings,
    ) -> Self {
        Self {
            now,
            wall_ms: WALL_MS,
            train: Side::new(GatewayEngine::new(now, train, settings, seed)),
            ground: Side::new(CloudEngine::new(now, ground, settings)),
            session: None,
            sessions: 0,
            telemetry: 0,
            second: None,
            to_second: Vec::new(),
        }
    }

    fn feed(&mut self, input: Input) {
        self.train.worker.take(self.now, self.wall_ms, input.clone());
        self.ground.worker.take(self.now, self.wall_ms, input);
        self.pump();
    }

    /// Each daemon numbers its sessions itself.
    fn connect(&mut self) {
        self.sessions += 1;
        self.session = Some(self.sessions);
        let up = |session, peer: &str| Input::Up { session, peer: peer.to_owned() };
        let (train, ground) = (self.on_train(), self.on_ground());
        self.train.worker.take(self.now, self.wall_ms, up(train, "cloud"));
        self.ground.worker.take(self.now, self.wall_ms, up(ground, "train-7"));
        self.pump();
    }

    fn disconnect(&mut self) {
        let (train, ground) = (self.on_train(), self.on_ground());
        self.session = None;
        self.train.worker.take(self.now, self.wall_ms, Input::Down(train));
        self.ground.worker.take(self.now, self.wall_ms, Input::Down(ground));
        self.pump();
    }

    fn on_train(&self) -> SessionKey {
        SessionKey(self.sessions)
    }

    fn on_ground(&self) -> SessionKey {
        SessionKey(1_000 + self.sessions)
    }

    /// Delivers messages until both sides are quiet.
    fn pump(&mut self) {
        for _ in 0..10_000 {
            let mut any = self.poll_train();
            self.train.worker.write(self.now, self.wall_ms);
            any |= self.poll_train();
            any |= self.poll_ground();
            any |= self.ground.worker.write(self.now, self.wall_ms);
            if !any {
                return;
            }
        }
        panic!("the two sides never become quiet");
    }

    /// Whether there was an output.
    fn poll_train(&mut self) -> bool {
        let (now, mut any) = (self.now, false);
        while let Some(output) = self.train.worker.poll(now) {
            any = true;
            let kept = self.train.keep(now, output);
            if let Some(Output::Telemetry { session, .. } | Output::Sync { session, .. }) = &kept
                && self.second == Some(*session)
            {
                self.to_second.extend(kept);
                continue;
            }
            let input = match kept {
                Some(Output::Telemetry { telemetry, .. }) => {
                    self.telemetry += 1;
                    Input::Telemetry { session: self.on_ground(), at: now, telemetry }
                }
                Some(Output::Sync { session, message, .. }) => {
                    assert_eq!(session, self.on_train());
                    Input::Sync { session: self.on_ground(), message }
                }
                _ => continue,
            };
            if self.session.is_some() {
                self.ground.worker.take(now, self.wall_ms, input);
            }
        }
        any
    }

    fn poll_ground(&mut self) -> bool {
        let (now, mut any) = (self.now, false);
        while let Some(output) = self.ground.worker.poll(now) {
            any = true;
            let Some(output) = self.ground.keep(now, output) else { continue };
            let Output::Sync { session, message, .. } = output else {
                panic!("unexpected output of a cloud: {output:?}");
            };
            if self.session.is_some() && session == self.on_ground() {
                let session = self.on_train();
                self.train.worker.take(now, self.wall_ms, Input::Sync { session, message });
            }
        }
        any
    }

    fn observe(&mut self, observation: Observation) {
        self.train.worker.take(self.now, self.wall_ms, Input::Observed(observation));
        self.train.worker.on_timeout(self.now, self.wall_ms);
        self.pump();
    }

    /// Lets time pass without observations.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.wall_ms = self.wall_ms.saturating_add(time.as_millis() as u64);
        self.train.worker.on_timeout(self.now, self.wall_ms);
        self.ground.worker.on_timeout(self.now, self.wall_ms);
        self.pump();
    }

    fn rest(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| self.pass(Duration::from_secs(1)));
    }

    /// A trip from the beginning of the line, after an hour of rest. Calls `each` at every tick.
    fn ride(&mut self, trip: u64, mut each: impl FnMut(&mut Self, f64)) -> Vec<Met> {
        self.pass(Duration::from_secs(3_600));
        let mut line = Line::new(trip);
        let mut met = Vec::new();
        for tick in 0..(LENGTH / SPEED * 10.0) as u32 {
            let metres = f64::from(tick) / 10.0 * SPEED;
            let (observations, failed) = line.at(self.now, tick, metres);
            observations.into_iter().for_each(|one| self.observe(one));
            if failed {
                met.push(Met { at: self.now, found: self.now + LOST });
            }
            each(self, metres);
            self.pass(TICK);
        }
        // The last handover settles.
        self.rest(4);
        met
    }

    fn ride_on(&mut self, trips: std::ops::Range<u64>) {
        for trip in trips {
            self.ride(trip, |_, _| {});
        }
    }

    /// Feeds a measurement of a carrier to both sides.
    fn measure(&mut self, carrier: &str) {
        for (session, train) in [(self.on_train(), true), (self.on_ground(), false)] {
            let (rate, srtt) = (Bitrate::from_bps(8_000_000), Duration::from_millis(60));
            let measured = Input::Measured { session, carrier: carrier.to_owned(), rate, srtt };
            match train {
                true => self.train.worker.take(self.now, self.wall_ms, measured),
                false => self.ground.worker.take(self.now, self.wall_ms, measured),
            }
        }
    }

    fn states(&self) -> [WorkerState; 2] {
        [self.train.worker.state(self.now), self.ground.worker.state(self.now)]
    }

    fn close(mut self) {
        self.train.worker.close(self.now, self.wall_ms);
        self.ground.worker.close(self.now, self.wall_ms);
    }
}

/// Carrier `a` fails in each third cell, `b` never. The handovers of each trip differ by a few
/// metres.
struct Line {
    trip: u64,
    cells: [u64; 2],
    /// Future observations and their ticks.
    later: Vec<(u32, Observation)>,
}

impl Line {
    fn new(trip: u64) -> Self {
        Self { trip, cells: [u64::MAX; 2], later: Vec::new() }
    }

    /// The cell of a carrier there.
    fn cell(&self, carrier: usize, metres: f64) -> u64 {
        let shift = if carrier == 0 { 0.0 } else { 500.0 };
        let mut cell = 0;
        loop {
            let mixed = (self.trip * 31 + cell * 17 + carrier as u64 * 7) * 2_654_435_761 % 1_000;
            let jitter = mixed as f64 / 1_000.0 * 30.0 - 15.0;
            if metres < (cell + 1) as f64 * CELL + shift + jitter {
                return cell;
            }
            cell += 1;
        }
    }

    /// The observations at a tick, and whether a cell fails now.
    fn at(&mut self, now: Instant, tick: u32, metres: f64) -> (Vec<Observation>, bool) {
        let mut all = Vec::new();
        if tick.is_multiple_of(10) {
            let noise = f64::from(tick / 10 * 7 % 11) - 5.0;
            all.push(odometer(now, metres + noise));
        }
        let mut failed = false;
        for (carrier, name) in CARRIERS.iter().enumerate() {
            let cell = self.cell(carrier, metres);
            let before = std::mem::replace(&mut self.cells[carrier], cell);
            let changed = before != cell;
            if changed && carrier == 0 && fails(before) {
                failed = true;
                all.push(serving(now, name, None));
                let ticks = (LOST.as_millis() / TICK.as_millis()) as u32;
                let since = Some(now);
                let mut later = |ticks: u32, one| self.later.push((tick + ticks, one));
                later(3, silence(now + TICK * 3, since));
                later(ticks, serving(now + LOST, name, Some(cell)));
                later(ticks + 2, silence(now + LOST + TICK * 2, None));
            } else if changed || (tick.is_multiple_of(10) && self.later.is_empty()) {
                all.push(serving(now, name, Some(cell)));
            }
        }
        for (carrier, name) in CARRIERS.iter().enumerate() {
            // Traffic continues except while the carrier is dark.
            let dark = carrier == 0 && (failed || !self.later.is_empty());
            if tick.is_multiple_of(3) && !dark {
                all.push(Observation::Heard(Heard { at: now, carrier: (*name).to_owned() }));
            }
        }
        let due = |(at, _): &mut (u32, Observation)| *at <= tick;
        all.extend(self.later.extract_if(.., due).map(|(_, one)| one));
        (all, failed)
    }
}

fn fails(cell: u64) -> bool {
    cell != u64::MAX && cell % 3 == 1
}

fn odometer(at: Instant, metres: f64) -> Observation {
    Observation::Odometer(Odometer { at, route: ROUTE, metres, velocity: SPEED, error: 4.0 })
}

fn serving(at: Instant, carrier: &str, cell: Option<u64>) -> Observation {
    let (carrier, cell) = (carrier.to_owned(), cell.map(CellId));
    Observation::Serving(Serving { at, carrier, cell, rsrp: None })
}

fn silence(at: Instant, since: Option<Instant>) -> Observation {
    let kept = since.is_none().then_some(false);
    Observation::Silence(Silence { at, carrier: "a".to_owned(), since, kept })
}

fn named_store(
    now: Instant,
    path: Option<PathBuf>,
    settings: LinkDbSettings,
    role: NodeRole,
    name: &str,
) -> BufferedStore {
    BufferedStore::open(now, path, settings, role, name)
}

fn train_store(now: Instant, path: Option<PathBuf>, settings: LinkDbSettings) -> BufferedStore {
    named_store(now, path, settings, NodeRole::Gateway, "train-7")
}

fn cloud_store(now: Instant, path: Option<PathBuf>, settings: LinkDbSettings) -> BufferedStore {
    named_store(now, path, settings, NodeRole::Cloud, "cloud")
}

fn settings() -> LinkDbSettings {
    let retention = Duration::from_secs(365 * 86_400);
    LinkDbSettings { events_max: 1_000_000, retention, forecast: true, share: true }
}

/// All handovers of a closed database, by trip and number.
fn handovers(path: impl AsRef<Path>) -> BTreeMap<(u64, u32), Handover> {
    let store = Store::open(path, Limits::default()).unwrap();
    let mut all = BTreeMap::new();
    let visited = store.visit(|_, _, entry| {
        if let Entry::Handover(handover, _) = entry {
            all.insert((handover.trip.0, handover.sequence), handover);
        }
        Ok::<_, StoreError>(())
    });
    visited.unwrap();
    all
}

/// A database with this many trips of a train without a session.
fn learned(folder: &Path, name: &str, trips: u64) -> PathBuf {
    let path = folder.join(name);
    let now = Instant::now();
    let store = named_store(now, Some(path.clone()), settings(), NodeRole::Gateway, name);
    let nothing = cloud_store(now, None, settings());
    let mut world = World::new(now, 99, store, nothing, settings());
    world.ride_on(0..trips);
    world.close();
    path
}

const CARRIERS: [&str; 2] = ["a", "b"];
const ROUTE: RouteId = RouteId(7);
/// In metres.
const LENGTH: f64 = 9_000.0;
const CELL: f64 = 1_000.0;
/// Metres per second.
const SPEED: f64 = 80.0;
const TICK: Duration = Duration::from_millis(100);
/// How long a failing cell is lost.
const LOST: Duration = Duration::from_secs(2);
/// Autumn 2026, in milliseconds since 1970.
const WALL_MS: u64 = 1_790_000_000_000;
/// There are forecasts after this many trips.
const TRIPS: u64 = 4;
