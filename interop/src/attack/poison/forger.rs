//! The forger: a gateway with a valid certificate that speaks the protocol itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_model::{CellId, HandoverOutcome, Position, RouteId, TripId};
use polyrail_predictor::entry::{Entry, LogId};
use polyrail_predictor::views::{creator_hash, new_route};
use polyrail_predictor::wire::{self, Mark, Message, SyncMessage};
use rand::Rng as _;

use super::line::{DAY_MS, Kind, Train, cells};
use crate::addresses::{CLOUD_INSIDE, CLOUD_PORT, Family};
use crate::intruder::{ALPN, Intruder, dial, frame, put};
use crate::world::World;

/// The name in the forger's certificate. The hash in the numbers of its tracks is lower than those
/// of the honest trains.
pub(super) const NAME: &str = "train-8";

/// How many forged entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Trips dated tomorrow, each with a handover.
    pub(super) trips: u64,
    /// Invented cells.
    pub(super) invented: u64,
    /// Handovers of each real cell.
    pub(super) each: u64,
}

/// The forged log of a line on which `honest` trains have these logs.
pub(super) fn forged(length: f64, honest: &[(Train, Vec<Entry>)], size: Size, now_ms: u64) -> Log {
    let real = cells(length);
    let mut all = Vec::new();
    all.extend(tracks(honest));
    let any = |number: u64| &honest[number as usize % honest.len()].0;
    let tomorrow = now_ms + DAY_MS;
    for number in 0..size.trips {
        let (cell, fails) = (real[number as usize % real.len()], number % 7 < 4);
        all.push(any(number).handover(cell, (TripId(number), 0), tomorrow, 0.0, fails));
    }
    for number in 0..size.invented {
        let cell = real[number as usize % real.len()];
        let trip = (TripId((1 << 40) + number / 100), (number % 100) as u32);
        let mut entry = any(number).handover(cell, trip, now_ms, 0.0, true);
        if let Entry::Handover(handover, _) = &mut entry {
            handover.from = CellId((1 << 32) + number);
        }
        all.push(entry);
    }
    for entry in honest.iter().flat_map(|(_, log)| log) {
        let Entry::Handover(mut handover, spot) = entry.clone() else { continue };
        let failed = handover.outcome != HandoverOutcome::Success;
        handover.outcome = if failed { HandoverOutcome::Success } else { HandoverOutcome::TypeIII };
        all.push(Entry::Handover(handover, spot));
    }
    for number in 0..size.each {
        for cell in &real {
            let (off, fails) = match (cell.kind(), number % 2) {
                (Kind::Fails, 0) => (-150.0, true),
                (Kind::Fails, _) => (60.0, false),
                _ => (0.0, true),
            };
            let trip = (TripId(1 << 50 | number), cell.id() as u32 % 50_000);
            all.push(any(number).handover(*cell, trip, now_ms, off, fails));
        }
    }
    Log::of(all)
}

/// The tracks of the others, bent, and tracks of the forger over the line with wrong distances.
fn tracks(honest: &[(Train, Vec<Entry>)]) -> Vec<Entry> {
    let pieces = honest.iter().flat_map(|(_, log)| log);
    let pieces = pieces.filter_map(|entry| match entry {
        Entry::Track(piece) => Some(piece.clone()),
        _ => None,
    });
    let pieces: Vec<_> = pieces.collect();
    let bent = pieces.iter().cloned().map(|mut piece| {
        piece.points.iter_mut().for_each(|point| point.longitude += 30_000);
        Entry::Track(piece)
    });
    let over = (0..TRACKS).flat_map(|number| {
        let route: RouteId = new_route(creator_hash(NAME), number);
        let pieces = pieces.iter().filter(|piece| piece.route == pieces[0].route).cloned();
        pieces.map(move |mut piece| {
            piece.route = route;
            for point in &mut piece.points {
                let stretch = polyrail_predictor::entry::TrackPiece::LENGTH;
                let share = point.position.metres().rem_euclid(stretch) / stretch;
                let along = f64::from(piece.piece) + share * (0.6 + 0.4 * share);
                point.position = Position::from_metres(along * stretch);
            }
            piece.points.dedup_by_key(|point| point.position);
            Entry::Track(piece)
        })
    });
    bent.chain(over).collect()
}

/// A log, divided into messages.
#[derive(Debug)]
pub(super) struct Log {
    id: LogId,
    pub(super) entries: u64,
    /// The end of each message, and its payload.
    messages: Vec<(u64, Vec<u8>)>,
}

impl Log {
    fn of(entries: Vec<Entry>) -> Log {
        let id = LogId { writer: NAME.to_owned(), incarnation: rand::rng().next_u64() };
        let encoded = |first: u64, entries: &[Entry]| {
            let end = first + entries.len() as u64;
            let entries = (first..).zip(entries.iter().cloned()).collect();
            let log = id.clone();
            wire::encode_sync(&SyncMessage::Entries { log, floor: 0, first, end, entries })
        };
        let mut messages = Vec::new();
        let (mut first, mut rest) = (0, &entries[..]);
        let longest = SyncMessage::ENTRIES_BYTES;
        let size = |entry: &Entry| encoded(0, std::slice::from_ref(entry)).len();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |entry: &&Entry| {
                bytes += size(entry);
                bytes <= longest
            };
            let count = rest.iter().take(SyncMessage::ENTRIES_MAX).take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            let end = first + count as u64;
            messages.push((end, encoded(first, now)));
            (first, rest) = (end, later);
        }
        Log { id, entries: entries.len() as u64, messages }
    }
}

/// A session of the forger.
#[derive(Debug)]
pub(super) struct Forger {
    intruder: Intruder,
    began: Instant,
    /// Sent bytes.
    sent: u64,
    serial: u64,
    /// Received bytes that are no complete frame yet.
    received: Vec<u8>,
    /// The cloud's mark of the forger's log.
    next: u64,
}

impl Forger {
    /// Connects as soon as the cloud accepts; the certificate was issued.
    pub(super) fn connect(world: &World) -> Result<Forger> {
        let started = Instant::now();
        loop {
            match Forger::try_connect(world) {
                Err(_) if started.elapsed() < LIMIT => std::thread::sleep(AGAIN),
                connected => return connected,
            }
        }
    }

    fn try_connect(world: &World) -> Result<Forger> {
        let keys = world.keys.folder();
        let cloud = CLOUD_INSIDE.at(Family::V4, CLOUD_PORT);
        let tls = dial(&world.lab.server, cloud, keys, Some((keys, NAME)), ALPN, PATIENCE)?;
        let mut instance = [0; 16];
        rand::rng().fill_bytes(&mut instance);
        let intruder = Intruder::greet(tls, instance)?;
        let began = Instant::now();
        Ok(Forger { intruder, began, sent: 0, serial: 0, received: Vec::new(), next: 0 })
    }

    /// Speaks for other writers: entries in their logs, floors that would remove these, and
    /// garbage.
    pub(super) fn impersonate(&mut self, honest: &[LogId], count: u64) -> Result<()> {
        let Entry::Handover(handover, spot) =
            Train::new(2).handover(cells(1_000.0)[0], (TripId(1), 0), 0, 0.0, true)
        else {
            return Ok(());
        };
        for number in 0..count {
            for log in honest {
                let entry = Entry::Handover(handover.clone(), spot);
                let first = 1_000_000 * (number % 2);
                let entries = SyncMessage::Entries {
                    log: log.clone(),
                    floor: first,
                    first,
                    end: first + 1,
                    entries: vec![(first, entry)],
                };
                let mark = Mark { log: log.clone(), floor: 1 << 40, next: 1 << 40 };
                let marks = SyncMessage::Marks { end: false, heard: false, marks: vec![mark] };
                for message in [entries, marks] {
                    self.say(&wire::encode_sync(&message))?;
                }
            }
            self.say(&[5, 0xff, 0xff])?;
        }
        Ok(())
    }

    /// Impersonates others at the rate of a good uplink until `over`.
    pub(super) fn flood(&mut self, honest: &[LogId], over: &AtomicBool) -> Result<()> {
        let (started, before) = (Instant::now(), self.sent);
        while !over.load(Ordering::Relaxed) {
            let due = Duration::from_secs_f64((self.sent - before) as f64 / BYTES_PER_S);
            std::thread::sleep(due.saturating_sub(started.elapsed()));
            self.impersonate(honest, 10)?;
        }
        Ok(())
    }

    /// Uploads a log again from its beginning, whatever the cloud's mark is, and gives the cloud
    /// time to take it.
    pub(super) fn repeat(&mut self, log: &Log) -> Result<()> {
        log.messages.iter().try_for_each(|(_, payload)| self.say(payload))?;
        let said = Instant::now();
        while said.elapsed() < TAKEN {
            std::thread::sleep(GLANCE);
            self.send(&[])?;
        }
        Ok(())
    }

    /// Uploads a log until the cloud's mark is at its end.
    pub(super) fn upload(&mut self, log: &Log) -> Result<()> {
        let started = Instant::now();
        let (mut sent, mut moved) = (0, Instant::now());
        while self.next < log.entries {
            let in_time = started.elapsed() < UPLOAD_LIMIT;
            ensure!(in_time, "the cloud knows {} of the forger's entries", self.next);
            let known = log.messages.partition_point(|(end, _)| *end <= self.next);
            if moved.elapsed() > AGAIN {
                (sent, moved) = (known, Instant::now());
            }
            sent = sent.max(known);
            let before = self.next;
            match log.messages.get(sent).filter(|_| sent < known + WINDOW) {
                Some((_, payload)) => {
                    self.say(payload)?;
                    sent += 1;
                }
                None => {
                    std::thread::sleep(GLANCE);
                    self.send(&[])?;
                }
            }
            self.take(&log.id)?;
            if self.next > before {
                moved = Instant::now();
            }
        }
        Ok(())
    }

    /// Takes the cloud's marks of this log out of the received frames, and answers its PINGs, so
    /// that the cloud keeps the path in use.
    fn take(&mut self, log: &LogId) -> Result<()> {
        while let [_, kind, high, low, rest @ ..] = &self.received[..] {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let Some(payload) = rest.get(..length) else { break };
            if *kind == PING {
                let mut pong = payload.to_vec();
                put(&mut pong, self.began.elapsed().as_micros() as u64);
                let bytes = self.intruder.exchange(&frame(PONG, &pong))?;
                self.received.extend(bytes);
            } else if *kind == MESSAGE
                && let Some(sync) = payload.get(2..).map(without_numbers)
                && let Ok(Some(Message::Sync(SyncMessage::Marks { marks, .. }))) =
                    wire::decode(wire::SYNC, sync)
            {
                let own = marks.iter().filter(|mark| mark.log == *log);
                self.next = own.map(|mark| mark.next).fold(self.next, u64::max);
            }
            self.received.drain(..4 + length);
        }
        Ok(())
    }

    /// Sends a payload on LinkDB's channel.
    fn say(&mut self, payload: &[u8]) -> Result<()> {
        let mut message = vec![wire::SYNC.0, 0];
        self.serial += 1;
        put(&mut message, self.serial);
        put(&mut message, 0);
        message.extend_from_slice(payload);
        self.send(&frame(MESSAGE, &message))
    }

    fn send(&mut self, unit: &[u8]) -> Result<()> {
        let bytes = self.intruder.exchange(unit)?;
        self.sent += unit.len() as u64;
        self.received.extend(bytes);
        Ok(())
    }
}

/// The bytes after the serial and `waited`.
fn without_numbers(bytes: &[u8]) -> &[u8] {
    let skipped = |bytes: &'_ [u8]| bytes.first().map_or(0, |first| 1 << (first >> 6));
    let serial = skipped(bytes);
    let waited = skipped(bytes.get(serial..).unwrap_or_default());
    bytes.get(serial + waited..).unwrap_or_default()
}

/// Types of frames.
const PING: u8 = 0x0a;
const PONG: u8 = 0x0b;
const MESSAGE: u8 = 0x11;
/// How long a forger waits that has nothing to send.
const GLANCE: Duration = Duration::from_millis(1);
/// Messages that the cloud may not have answered.
const WINDOW: usize = 64;
/// Without progress for this long the forger sends again.
const AGAIN: Duration = Duration::from_millis(500);
/// How long the cloud may take for messages that it does not answer.
const TAKEN: Duration = Duration::from_secs(1);
/// The rate of a good uplink.
const BYTES_PER_S: f64 = 2e6;
const LIMIT: Duration = Duration::from_secs(120);
/// The whole log has taken 170 s, of which the cloud's database takes the most.
const UPLOAD_LIMIT: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(5);
/// Tracks of the forger over the line: more than a gateway uses.
const TRACKS: u32 = 40;
