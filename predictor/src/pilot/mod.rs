//! A train's own view of its trip: where it is, which cells its modems are in, and the handovers
//! as they end. It owns a [`Positioner`] and a [`Detector`] and numbers trips, tracks and records.
//!
//! A trip begins with the first position, when the train goes over to another track, when it turns
//! for good, and when it moves again after half an hour of rest or without positions. Numbers of
//! trips and of new tracks come from the seed and never from a clock: seed it from the system's
//! randomness.
//!
//! Drain contract: feed one [`Pilot::observe`], or [`Pilot::advance`] at least once a second, then
//! [`Pilot::poll`] until it answers `None`. What is not polled is bounded: the oldest handovers
//! fall out, counted.
//!
//! A handover is recorded where the train was when it began; one that began outside a trip (as all
//! do in a depot at night), where no position is known or while the train went back is counted, not
//! recorded.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::wire::Telemetry;
use polyrail_model::{CellId, Direction, Handover, Observation, Position, RouteId, Speed, TripId};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::detect::{Detected, Detector, DetectorCounts};
use crate::position::{Positioner, TrainPosition};
use crate::track::Track;

/// The state of a train's trip.
#[derive(Clone, Debug)]
pub struct Pilot {
    positioner: Positioner,
    detector: Detector,
    dice: Pcg64Mcg,
    trip: Option<Trip>,
    /// The trip before: handovers are over after they began.
    previous: Option<Trip>,
    /// Since when there is no trip, and where; none while there is one or was none.
    rest: Option<TrainPosition>,
    /// The latest time that was told, and the gateway's clock then.
    now: Option<(Instant, u64)>,
    stored_at: Option<Instant>,
    outputs: VecDeque<PilotOutput>,
    counts: PilotCounts,
}

/// What is to be stored or told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PilotOutput {
    /// A trip has begun, along a track: that was used last of all.
    TripBegan(TripId, RouteId),
    /// A handover is over.
    Handover(Handover),
    /// A track has changed: at the end of a trip, and every five minutes while one is learned.
    Track(RouteId, Track),
}

/// What did not become a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PilotCounts {
    /// Handovers without a trip or a position.
    pub unplaced: u64,
    /// Outputs that nobody polled in time.
    pub dropped: u64,
    /// What the detector left out.
    pub detector: DetectorCounts,
}

#[derive(Clone, Copy, Debug)]
struct Trip {
    id: TripId,
    route: RouteId,
    direction: Direction,
    began: Instant,
    /// None while it lasts.
    ended: Option<Instant>,
    /// When the train last moved, and to where: the speed that follows from fixes is never zero.
    moved: Instant,
    metres: f64,
    /// The number of the next record.
    next: u32,
}

impl Pilot {
    /// With a seed, and the tracks of earlier trips, the least recently used first.
    pub fn new(seed: u64, tracks: impl IntoIterator<Item = (RouteId, Track)>) -> Self {
        Self {
            positioner: Positioner::new(tracks),
            detector: Detector::default(),
            dice: Pcg64Mcg::seed_from_u64(seed),
            trip: None,
            previous: None,
            rest: None,
            now: None,
            stored_at: None,
            outputs: VecDeque::new(),
            counts: PilotCounts::default(),
        }
    }

    /// Takes an observation. `wall_ms` is the gateway's clock in milliseconds since 1970; it dates
    /// records and nothing else.
    pub fn observe(&mut self, now: Instant, wall_ms: u64, observation: &Observation) {
        match observation {
            Observation::Fix(fix) => {
                let dice = &mut self.dice;
                self.positioner.observe_fix(now, fix, &mut || RouteId(dice.next_u64()));
            }
            Observation::Odometer(odometer) => self.positioner.observe_odometer(now, odometer),
            Observation::Serving(serving) => self.detector.serving(serving),
            Observation::Reported(reported) => self.detector.reported(reported),
            Observation::Silence(silence) => self.detector.silence(silence),
            Observation::Heard(heard) => self.detector.heard(heard),
        }
        self.advance(now, wall_ms);
    }

    /// Time has passed.
    pub fn advance(&mut self, now: Instant, wall_ms: u64) {
        self.now = Some((now, wall_ms));
        self.follow_trip(now);
        self.detector.advance(now);
        while let Some(detected) = self.detector.poll() {
            match self.record(now, wall_ms, detected) {
                Some(handover) => self.put(PilotOutput::Handover(handover)),
                None => self.counts.unplaced += 1,
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

    /// Where the train is.
    pub fn place(&self, now: Instant) -> Option<TrainPosition> {
        self.positioner.place(now)
    }

    /// The trip, while there is one.
    pub fn trip(&self) -> Option<TripId> {
        self.trip.map(|trip| trip.id)
    }

    /// The serving cell of a carrier, if it was reported within 30 seconds.
    pub fn serving(&self, carrier: &str) -> Option<CellId> {
        self.detector.cell(self.now?.0, carrier)
    }

    /// What the cloud is to know, while there is a trip and a position.
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

    /// What did not become a record.
    pub fn counts(&self) -> PilotCounts {
        PilotCounts { detector: self.detector.counts(), ..self.counts }
    }

    /// Ends the trip, as when the train is switched off: its track is put out.
    pub fn end_trip(&mut self) {
        if let Some(trip) = self.trip.take() {
            let ended = self.now.map(|(now, _)| now);
            self.previous = Some(Trip { ended, ..trip });
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
        let id = TripId(self.dice.next_u64());
        let (began, ended, moved) = (now, None, now);
        self.trip = Some(Trip { id, route, direction, began, ended, moved, metres, next: 0 });
        self.stored_at = Some(now);
        self.put(PilotOutput::TripBegan(id, route));
    }

    fn record(&mut self, now: Instant, wall_ms: u64, detected: Detected) -> Option<Handover> {
        let place = self.positioner.place_at(detected.at)?;
        // A trip begins with its first position, and a handover may be little older.
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
            self.counts.dropped += 1;
        }
        self.outputs.push_back(output);
    }
}

/// Outputs that wait to be polled.
const OUTPUTS_MAX: usize = 256;
/// Without movement or positions for so long a trip is over.
const REST: Duration = Duration::from_secs(30 * 60);
/// A train has moved when it is so far from where it stood, in metres.
const REST_METRES: f64 = 200.0;
const STORED_EVERY: Duration = Duration::from_secs(300);
const EARLY: Duration = Duration::from_secs(2);
