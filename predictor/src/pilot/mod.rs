//! A train's view of its trip: its position, the cells of its modems, and concluded handovers. It
//! owns a [`Positioner`] and a [`Detector`], and numbers trips, tracks and records.
//!
//! A trip begins with the first position, on another track, and after turning. It also begins when
//! the train moves again after half an hour of rest or without positions. The numbers of trips and
//! new tracks come from the seed and never from a clock, so the seed must be random.
//!
//! Drain contract: call [`Pilot::observe`], or [`Pilot::advance`] at least once a second, then
//! [`Pilot::poll`] until it returns `None`. A full queue drops the oldest output and counts it.
//!
//! A handover is recorded at the train's position when it began. It is counted instead of recorded
//! if it began outside a trip (as in a depot at night), without a position, or in reverse.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::wire::Telemetry;
use polyrail_model::{Direction, Handover, Observation, Position, RouteId, Speed, TripId};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::detect::{Detected, Detector, Unrecorded};
use crate::entry::Spot;
use crate::position::{Positioner, TrainPosition};
use crate::track::Track;
use crate::views::{creator_hash, new_route};

/// The state of a train's trip.
#[derive(Clone, Debug)]
pub struct Pilot {
    positioner: Positioner,
    detector: Detector,
    rng: Pcg64Mcg,
    /// The hash of this node's name, the upper half of the numbers of new tracks.
    creator: u32,
    trip: Option<Trip>,
    /// The trip before, because a handover is concluded after it began.
    previous: Option<Trip>,
    /// Where the train rests since the last trip.
    rest: Option<TrainPosition>,
    now: Option<Instant>,
    stored_at: Option<Instant>,
    outputs: VecDeque<PilotOutput>,
    /// Handovers without a trip or a position.
    unplaced: u64,
    /// Outputs that overflowed the queue.
    dropped: u64,
}

/// An output for the database or the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PilotOutput {
    /// A trip has begun, along a track.
    TripBegan(TripId, RouteId),
    /// A handover is concluded; with its spot, if the track is known there.
    Handover(Handover, Option<Spot>),
    /// A track has changed: at the end of a trip, and every five minutes while it changes.
    Track(RouteId, Track),
}

#[derive(Clone, Copy, Debug)]
struct Trip {
    id: TripId,
    route: RouteId,
    direction: Direction,
    began: Instant,
    /// `None` while it lasts.
    ended: Option<Instant>,
    /// When the train last moved, and to where: a speed estimated from fixes is never zero.
    moved: Instant,
    metres: f64,
    /// The number of the next record.
    next: u32,
}

impl Pilot {
    /// A pilot for a node of this name, which new tracks carry, with the tracks of earlier trips,
    /// the least recent first.
    pub fn new(seed: u64, name: &str, tracks: impl IntoIterator<Item = (RouteId, Track)>) -> Self {
        let (mut positioner, creator) = (Positioner::new(tracks), creator_hash(name));
        positioner.name(creator);
        Self {
            positioner,
            detector: Detector::default(),
            rng: Pcg64Mcg::seed_from_u64(seed),
            creator,
            trip: None,
            previous: None,
            rest: None,
            now: None,
            stored_at: None,
            outputs: VecDeque::new(),
            unplaced: 0,
            dropped: 0,
        }
    }

    /// How many tracks of other writers it uses, as [`Positioner::room`] says.
    pub fn room(&self) -> usize {
        self.positioner.room()
    }

    /// Takes the tracks of other writers, as [`Positioner::offer`] does.
    pub fn offer(&mut self, tracks: Vec<(RouteId, Track)>) {
        self.positioner.offer(tracks);
    }

    /// The spot of the train at a position on a known track.
    pub fn spot(&self, route: RouteId, position: Position, direction: Direction) -> Option<Spot> {
        self.positioner.spot(route, position, direction)
    }

    /// Takes an observation. `wall_ms`, the gateway's clock in milliseconds since 1970, only dates
    /// records.
    pub fn observe(&mut self, now: Instant, wall_ms: u64, observation: &Observation) {
        match observation {
            Observation::Fix(fix) => {
                let Self { rng, creator, .. } = self;
                let fresh = &mut || new_route(*creator, rng.next_u64() as u32);
                self.positioner.observe_fix(now, fix, fresh);
            }
            Observation::Odometer(odometer) => self.positioner.observe_odometer(now, odometer),
            other => self.detector.observe(other),
        }
        self.advance(now, wall_ms);
    }

    /// Advances the time.
    pub fn advance(&mut self, now: Instant, wall_ms: u64) {
        self.now = Some(now);
        self.follow_trip(now);
        for detected in self.detector.advance(now) {
            match self.record(now, wall_ms, detected) {
                Some(handover) => {
                    let Handover { route, position, direction, .. } = handover;
                    let spot = self.positioner.spot(route, position, direction);
                    self.put(PilotOutput::Handover(handover, spot));
                }
                None => self.unplaced += 1,
            }
        }
        let due = |at: Instant| now.saturating_duration_since(at) >= STORED_EVERY;
        if self.stored_at.is_some_and(due) {
            self.stored_at = Some(now);
            if let Some((route, track)) = self.positioner.learned() {
                self.put(PilotOutput::Track(route, track));
            }
        }
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<PilotOutput> {
        self.outputs.pop_front()
    }

    /// The train's position.
    pub fn place(&self, now: Instant) -> Option<TrainPosition> {
        self.positioner.place(now)
    }

    /// The current trip, if any.
    pub fn trip(&self) -> Option<TripId> {
        self.trip.map(|trip| trip.id)
    }

    /// The telemetry for the cloud, during a trip with a position.
    pub fn telemetry(&self, now: Instant) -> Option<Telemetry> {
        let (trip, place) = (self.trip?, self.positioner.place(now)?);
        Some(Telemetry {
            trip: trip.id,
            route: place.route,
            direction: place.direction,
            position: Position::from_metres(place.metres),
            speed: Speed::from_metres_per_second(place.speed),
            error: Position::from_metres(place.error),
            age: now.saturating_duration_since(place.at),
            carriers: self.detector.carriers(now),
        })
    }

    /// Observations that did not become a record.
    pub fn unrecorded(&self) -> Unrecorded {
        let Self { unplaced, dropped, .. } = *self;
        Unrecorded { unplaced, dropped, ..self.detector.unrecorded() }
    }

    /// Ends the trip, as when the train is switched off; outputs its track.
    pub fn end_trip(&mut self) {
        if let Some(trip) = self.trip.take() {
            self.previous = Some(Trip { ended: self.now, ..trip });
        }
        for (route, track) in self.positioner.settle() {
            self.put(PilotOutput::Track(route, track));
        }
    }

    fn follow_trip(&mut self, now: Instant) {
        let place = self.positioner.whereabouts(now);
        if let Some(trip) = &mut self.trip {
            let metres = place.map_or(trip.metres, |place| place.metres);
            if (metres - trip.metres).abs() >= REST_METRES {
                (trip.moved, trip.metres) = (now, metres);
            }
            let same = |place: TrainPosition| {
                place.route == trip.route && place.direction == trip.direction
            };
            let rested = now.saturating_duration_since(trip.moved) >= REST;
            if !rested && place.is_none_or(same) {
                return;
            }
            self.end_trip();
            self.rest = place.filter(|_| rested);
        }
        let Some(place) = place else { return };
        let resting = |rest: TrainPosition| {
            rest.route == place.route && (rest.metres - place.metres).abs() < REST_METRES
        };
        if self.rest.is_some_and(resting) {
            return;
        }
        self.rest = None;
        let TrainPosition { route, direction, metres, .. } = place;
        let id = TripId(self.rng.next_u64());
        let (began, ended, moved) = (now, None, now);
        self.trip = Some(Trip { id, route, direction, began, ended, moved, metres, next: 0 });
        self.stored_at = Some(now);
        self.put(PilotOutput::TripBegan(id, route));
    }

    fn record(&mut self, now: Instant, wall_ms: u64, detected: Detected) -> Option<Handover> {
        let place = self.positioner.place_at(detected.at)?;
        // A trip begins with its first position, and its first handover may be slightly older.
        let during = |trip: &&mut Trip| {
            let begun = trip.began <= detected.at + EARLY;
            begun && trip.ended.is_none_or(|end| detected.at <= end)
        };
        let trip = [&mut self.trip, &mut self.previous].into_iter().flatten().find(during)?;
        let sequence = trip.next;
        trip.next = trip.next.checked_add(1)?;
        let age = now.saturating_duration_since(detected.at).as_millis();
        Some(Handover {
            trip: trip.id,
            sequence,
            at_ms: wall_ms.saturating_sub(u64::try_from(age).unwrap_or(u64::MAX)),
            carrier: detected.carrier,
            route: place.route,
            direction: place.direction,
            position: Position::from_metres(place.metres),
            speed: Speed::from_metres_per_second(place.speed),
            from: detected.from,
            to: detected.to,
            rsrp: detected.rsrp,
            outcome: detected.outcome,
            dark: detected.dark,
        })
    }

    fn put(&mut self, output: PilotOutput) {
        if self.outputs.len() >= OUTPUTS_MAX {
            self.outputs.pop_front();
            self.dropped += 1;
        }
        self.outputs.push_back(output);
    }
}

/// Outputs that wait to be polled.
const OUTPUTS_MAX: usize = 256;
/// A trip ends after this long without movement or positions.
const REST: Duration = Duration::from_secs(30 * 60);
/// A train has moved if it is this far from its place of rest, in metres.
const REST_METRES: f64 = 200.0;
/// Interval at which a changing track is stored.
const STORED_EVERY: Duration = Duration::from_secs(300);
/// How long before its trip's first position a handover may have begun.
const EARLY: Duration = Duration::from_secs(2);
