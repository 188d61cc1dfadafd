//! The position along a track at any moment, from readings of receivers and odometers.
//!
//! A fix is projected on the track near the expected position, and filtered together with its
//! speed. Between fixes and in tunnels the position follows from the speed, with a growing error,
//! for at most a minute. A fix far from the expected position is rejected. After several such fixes
//! the train is elsewhere: on the same track, on another known one, or on a new one, which is
//! learned from there on. Only the monotonic time of a reading counts. A reading older than the
//! last is ignored, as are NaN and implausible values.
//!
//! ```text
//! searching --course on a known track, or long enough for a new one--> following
//! following --lasting jump--> following (elsewhere on the track, another track, a new one)
//! following --ten minutes without a fix--> searching
//! any --odometer--> following (its track) --ten seconds without--> following or searching
//! ```
//!
//! A train that leaves a known track by a branch begins a new track there, and recognises it on the
//! next trip. A train that passes the end of a track extends it. A train on a new track moves to a
//! known one when it comes near; so does a train that began its trip some hundred metres beyond the
//! end of a track.
//!
//! Several receivers may report alternately: their noise is averaged. If two differ by more than
//! their noise (both ends of a train), the first one wins.

mod journal;
mod motion;
#[cfg(test)]
mod tests;
mod tracks;
mod train;

use std::time::{Duration, Instant};

use polyrail_model::{Direction, Fix, METRES_MAX, Odometer, Position, RouteId, VELOCITY_MAX};

pub use train::TrainPosition;

use crate::entry::Spot;
use crate::track::{
    Course, Hint, LatLon, Match, Projection, Reading, SPEED_MAX, Track, TrackLearner, on_track,
};
use journal::Journal;
use motion::Motion;
use tracks::KnownTracks;

/// Positions from fixes and odometers.
#[derive(Clone, Debug, Default)]
pub struct Positioner {
    tracks: KnownTracks,
    following: Option<Following>,
    /// Fixes since the last one that fitted the track.
    course: Course,
    /// The last fixes on a new part of the track; they may be on a known track again.
    new_course: Course,
    journal: Journal,
    /// The time of the newest reading.
    read_at: Option<Instant>,
    odometer: OdometerState,
}

#[derive(Clone, Debug)]
struct Following {
    route: RouteId,
    /// `None` for an odometer's track without fixes.
    learner: Option<TrackLearner>,
    motion: Motion,
}

#[derive(Clone, Copy, Debug, Default)]
struct OdometerState {
    at: Option<Instant>,
    /// Its last readings in a row that did not fit: number, time of the first, last position.
    strays: usize,
    since: Option<Instant>,
    stray: f64,
}

impl Positioner {
    /// A positioner with the tracks of earlier trips, the least recent first; only the last
    /// [`TRACKS_MAX`] are used.
    pub fn new(tracks: impl IntoIterator<Item = (RouteId, Track)>) -> Self {
        Self { tracks: KnownTracks::new(tracks), ..Self::default() }
    }

    /// Names this node, by the hash of its name: tracks of its own have that in their numbers.
    pub(crate) fn name(&mut self, creator: u32) {
        self.tracks.name(creator);
    }

    /// How many tracks of other writers it uses: as many as its own leave room for.
    pub fn room(&self) -> usize {
        self.tracks.room()
    }

    /// Takes the tracks of other writers, in place of earlier ones: the train finds itself on one
    /// of them as on a known one, and its fixes change only this node's copy. The current track
    /// does not change.
    pub fn offer(&mut self, mut tracks: Vec<(RouteId, Track)>) {
        let current = self.following.as_ref().map(|one| one.route);
        tracks.retain(|(route, _)| Some(*route) != current);
        self.tracks.offer(tracks);
    }

    /// The spot of a train at a position on a known track.
    pub fn spot(&self, route: RouteId, position: Position, direction: Direction) -> Option<Spot> {
        let current = self.following.as_ref().filter(|one| one.route == route);
        let track = match current {
            Some(current) => current.learner.as_ref()?.track(),
            None => self.tracks.get(route)?,
        };
        track.spot(position, direction)
    }

    /// Takes a fix. `fresh` numbers a new track.
    pub fn observe_fix(&mut self, now: Instant, fix: &Fix, fresh: &mut dyn FnMut() -> RouteId) {
        let Some(reading) = reading(now, fix) else { return };
        let recent = |at: Instant| reading.at.saturating_duration_since(at) < ODOMETER_RECENT;
        if self.odometer.at.is_some_and(recent) || !self.is_next(reading.at) {
            return;
        }
        let quiet = |one: &Following| reading.at.saturating_duration_since(one.motion.at);
        let learned = |one: &Following| one.learner.is_some();
        if self.following.as_ref().is_some_and(|one| quiet(one) > LOST || !learned(one)) {
            self.leave();
        }
        match self.find(&reading) {
            Some(found) => {
                self.course.clear();
                self.accept(&reading, fix, &found);
                self.rejoin(&reading);
            }
            None => {
                self.course.add(reading);
                self.resolve(fresh);
            }
        }
        self.note();
    }

    /// Takes a position along a track. Fixes are ignored for ten seconds after it.
    pub fn observe_odometer(&mut self, now: Instant, odometer: &Odometer) {
        let Odometer { route, metres, velocity, error, .. } = *odometer;
        let at = odometer.at.min(now);
        let valid = metres.abs() <= METRES_MAX && velocity.abs() <= VELOCITY_MAX && error >= 0.0;
        if !valid || error > ERROR_REFUSED || !self.is_next(at) {
            return;
        }
        let error = error.max(1.0);
        self.odometer.at = Some(at);
        self.course.clear();
        if self.following.as_ref().is_none_or(|one| one.route != route) {
            // Before the other one is put back, which could evict this one.
            let learner = self.tracks.take(route).map(TrackLearner::resume);
            self.leave();
            let mut motion = Motion::new(at, metres, error);
            motion.velocity = velocity;
            if velocity.abs() > 1.0 {
                let way = if velocity < 0.0 { Direction::Down } else { Direction::Up };
                motion = motion.moving(way, velocity.abs(), VELOCITY_ERROR);
            }
            self.following = Some(Following { route, learner, motion });
            self.odometer.strays = 0;
        }
        let Some(Following { motion, .. }) = &mut self.following else { return };
        let later = motion.at(at);
        if (metres - later.metres).abs() <= later.gate(error) {
            *motion = later;
            self.odometer.strays = 0;
            motion.read_velocity(velocity, VELOCITY_ERROR);
            motion.read_position(metres, error);
        } else {
            let near = (metres - self.odometer.stray).abs() < STRAY_NEAR;
            if !near || self.odometer.strays == 0 {
                self.odometer.strays = 0;
                self.odometer.since = Some(at);
            }
            self.odometer.strays += 1;
            self.odometer.stray = metres;
            let lasting = |since: Instant| at.saturating_duration_since(since) >= LASTING;
            if self.odometer.strays >= STRAYS && self.odometer.since.is_some_and(lasting) {
                *motion = later;
                motion.jump(metres, error);
                motion.read_velocity(velocity, VELOCITY_ERROR);
                self.odometer.strays = 0;
            }
        }
        self.note();
    }

    /// The position now. `None` before the train has been located and has moved, if the last
    /// reading is a minute old, if the error is above 500 metres, and while the train reverses and
    /// has not turned, because then its direction is unknown.
    pub fn place(&self, now: Instant) -> Option<TrainPosition> {
        self.whereabouts(now).filter(|_| !self.reverses())
    }

    /// The same, also while the train reverses: then with its previous direction.
    pub(crate) fn whereabouts(&self, now: Instant) -> Option<TrainPosition> {
        let Following { route, motion, .. } = self.following.as_ref()?;
        let later = motion.at(now);
        let error = later.error();
        let known = now.saturating_duration_since(motion.at) <= RECKONED_MAX && error <= ERROR_MAX;
        let direction = motion.direction.filter(|_| known)?;
        let (metres, speed) = (later.metres, motion.velocity.abs());
        Some(TrainPosition { at: later.at, route: *route, direction, metres, speed, error })
    }

    /// The position at a time in the last two minutes; `None` while the train reversed.
    pub fn place_at(&self, then: Instant) -> Option<TrainPosition> {
        self.journal.at(then)
    }

    /// The current track, if it has changed since the last call of [`Positioner::settle`].
    pub fn learned(&self) -> Option<(RouteId, Track)> {
        let following = self.following.as_ref()?;
        let learner = following.learner.as_ref().filter(|learner| learner.changed())?;
        Some((following.route, learner.settled())).filter(|(_, track)| track.length() >= WORTH)
    }

    /// Ends a trip: settles the tracks and returns the changed ones, including those left during
    /// the trip. Positions do not change.
    pub fn settle(&mut self) -> Vec<(RouteId, Track)> {
        let mut changed = self.tracks.take_changed();
        if let Some(Following { route, learner: Some(learner), .. }) = &mut self.following
            && learner.changed()
        {
            learner.settle();
            changed.push((*route, learner.track().clone()));
        }
        changed.retain(|(_, track)| track.length() >= WORTH);
        changed
    }

    fn is_next(&mut self, at: Instant) -> bool {
        let next = self.read_at.is_none_or(|last| at >= last);
        if next {
            self.read_at = Some(at);
        }
        next
    }

    /// The projection of a fix on the track, if it fits.
    fn find(&self, reading: &Reading) -> Option<Projection> {
        let following = self.following.as_ref()?;
        let later = following.motion.at(reading.at);
        let time = reading.at.saturating_duration_since(following.motion.at).as_secs_f64();
        let hint = Hint { metres: later.metres, reach: REACH + SPEED_MAX * time };
        let found = following.learner.as_ref()?.find(reading.place, hint)?;
        let fits = (found.metres - later.metres).abs() <= later.gate(reading.error);
        (fits && found.off_track <= BESIDE_MAX).then_some(found)
    }

    fn accept(&mut self, reading: &Reading, fix: &Fix, found: &Projection) {
        let Some(Following { learner: Some(learner), motion, .. }) = &mut self.following else {
            return;
        };
        *motion = motion.at(reading.at);
        if let Some(velocity) = velocity(fix, motion, found.bearing) {
            motion.read_velocity(velocity, VELOCITY_ERROR);
        }
        motion.read_position(found.metres, reading.error);
        learner.learn(reading.at, reading.place, reading.error, found);
    }

    /// On a new part of a track, looks for a known track there.
    fn rejoin(&mut self, reading: &Reading) {
        let Some(Following { learner: Some(learner), motion, .. }) = &self.following else {
            return;
        };
        if !learner.is_new(motion.metres) {
            self.new_course.clear();
            return;
        }
        self.new_course.add(*reading);
        if self.new_course.readings().len() < NEW_COURSE || self.new_course.moved() < MOVED_NEW {
            return;
        }
        let found = self.tracks.identify(&self.new_course);
        self.new_course.clear();
        let near = found.filter(|(_, found)| found.off_track < BESIDE_JOINED);
        let Some((at, found)) = near else { return };
        if let Some(Following { learner: Some(learner), motion, .. }) = &mut self.following
            && let Some(known) = self.tracks.at(at)
        {
            learner.end_at(motion.metres, known, BESIDE_JOINED);
        }
        self.follow(Some(at), found, reading);
    }

    /// Locates the train after several fixes in a row that did not fit.
    fn resolve(&mut self, fresh: &mut dyn FnMut() -> RouteId) {
        let lasting = self.course.readings().len() >= STRAYS && self.course.lasted() >= LASTING;
        let Some(last) = self.course.readings().last().copied().filter(|_| lasting) else { return };
        if self.jump(&last) {
            return;
        }
        let learner = self.following.as_ref().and_then(|following| following.learner.as_ref());
        match learner.and_then(|learner| on_track(&self.course, learner.track())) {
            Some(found) => self.follow(None, found, &last),
            None => self.search(&last, fresh),
        }
    }

    /// Moves the train along its track, if all fixes of the course are near each other there.
    fn jump(&mut self, last: &Reading) -> bool {
        let Some(Following { learner: Some(learner), motion, .. }) = &mut self.following else {
            return false;
        };
        let later = motion.at(last.at);
        let time = last.at.saturating_duration_since(motion.at).as_secs_f64();
        let hint = Hint { metres: later.metres, reach: REACH + SPEED_MAX * time };
        let at_speed = |reading: &Reading| {
            let found = learner.find(reading.place, hint).filter(|one| one.off_track <= BESIDE_MAX);
            let before = last.at.saturating_duration_since(reading.at).as_secs_f64();
            found.map(|found| found.metres + motion.velocity * before)
        };
        let places: Option<Vec<f64>> = self.course.readings().iter().map(at_speed).collect();
        let Some(places) = places else { return false };
        let mean = places.iter().sum::<f64>() / places.len().max(1) as f64;
        if places.iter().any(|place| (place - mean).abs() > STRAY_NEAR) {
            return false;
        }
        *motion = later;
        motion.jump(mean, last.error);
        self.course.clear();
        true
    }

    /// Identifies the track of the course, or begins a new one.
    fn search(&mut self, last: &Reading, fresh: &mut dyn FnMut() -> RouteId) {
        if let Some((at, found)) = self.tracks.identify(&self.course) {
            return self.follow(Some(at), found, last);
        }
        if self.course.moved() < MOVED_NEW {
            return;
        }
        self.leave();
        let readings = self.course.readings().to_vec();
        self.course.clear();
        let [first, others @ ..] = readings.as_slice() else { return };
        let mut learner = TrackLearner::begin_at(first.place);
        let mut metres = 0.0;
        for reading in others {
            let hint = Hint { metres, reach: REACH + MOVED_NEW + SPEED_MAX * 60.0 };
            let Some(found) = learner.find(reading.place, hint) else { continue };
            learner.learn(reading.at, reading.place, reading.error, &found);
            metres = found.metres;
        }
        let time = last.at.saturating_duration_since(first.at).as_secs_f64().max(0.1);
        let motion = Motion::new(last.at, metres, last.error);
        let motion = motion.moving(Direction::Up, (metres / time).min(SPEED_MAX), SPEED_GUESSED);
        self.following = Some(Following { route: fresh(), learner: Some(learner), motion });
    }

    /// Continues at a match: on a known track by its number, or on the same track.
    fn follow(&mut self, known: Option<usize>, found: Match, last: &Reading) {
        let motion = Motion::new(last.at, found.metres, last.error).moving(
            found.direction,
            found.speed.min(SPEED_MAX),
            SPEED_GUESSED,
        );
        self.course.clear();
        match known {
            Some(at) => {
                let Some((route, track)) = self.tracks.take_at(at) else { return };
                self.leave();
                let learner = Some(TrackLearner::resume(track));
                self.following = Some(Following { route, learner, motion });
            }
            None => {
                if let Some(following) = &mut self.following {
                    following.motion = motion;
                }
            }
        }
    }

    /// Returns the current track to the known ones.
    fn leave(&mut self) {
        let Some(following) = self.following.take() else { return };
        self.new_course.clear();
        if let Some(learner) = following.learner {
            self.tracks.put(following.route, learner);
        }
    }

    fn note(&mut self) {
        let at = self.following.as_ref().map(|following| following.motion.at);
        if let Some(placement) = at.and_then(|at| self.whereabouts(at)) {
            self.journal.add(placement, self.reverses());
        }
    }

    fn reverses(&self) -> bool {
        self.following.as_ref().is_some_and(|following| following.motion.reverses())
    }
}

fn reading(now: Instant, fix: &Fix) -> Option<Reading> {
    let place = LatLon::from_degrees(fix.latitude, fix.longitude)?;
    let reported = fix.error.filter(|error| error.is_finite() && *error >= 0.0);
    let error = reported.unwrap_or(ERROR_USUAL).max(ERROR_LEAST);
    (error <= ERROR_REFUSED).then_some(Reading { at: fix.at.min(now), place, error })
}

/// The velocity along the track from a fix. Its sign comes from the heading, or from the velocity
/// so far if that is certain.
fn velocity(fix: &Fix, motion: &Motion, bearing: f64) -> Option<f64> {
    let speed = fix.speed.filter(|speed| (0.0..=SPEED_MAX).contains(speed))?;
    if speed < 1.0 {
        return Some(0.0);
    }
    // The heading of a slow receiver is random.
    let heading = fix.heading.filter(|heading| heading.is_finite() && speed > 3.0);
    match heading.map(|heading| (heading - bearing).to_radians().cos()) {
        Some(cosine) if cosine.abs() > 0.7 => Some(speed * cosine.signum()),
        _ => motion.surely_moves().then(|| speed * motion.velocity.signum()),
    }
}

pub use tracks::TRACKS_MAX;

/// The position expires this long after the last reading.
pub const RECKONED_MAX: Duration = Duration::from_secs(60);
/// The largest error of a position, in metres.
pub const ERROR_MAX: f64 = 500.0;
/// The track is identified again after this long without a fitting reading.
const LOST: Duration = Duration::from_secs(600);
/// Fixes are ignored for this long after an odometer's reading.
const ODOMETER_RECENT: Duration = Duration::from_secs(10);
/// The error of a fix that reports none, the least error, and the largest accepted one, in metres.
const ERROR_USUAL: f64 = 10.0;
const ERROR_LEAST: f64 = 3.0;
const ERROR_REFUSED: f64 = 300.0;
/// The error of a reported speed, and of one estimated from positions, in metres per second.
const VELOCITY_ERROR: f64 = 1.0;
const SPEED_GUESSED: f64 = 5.0;
/// The reach of the search around the expected position, in metres.
const REACH: f64 = 500.0;
/// The largest distance of a train from its track, in metres, and from a known track that it joins.
const BESIDE_MAX: f64 = 200.0;
const BESIDE_JOINED: f64 = 100.0;
/// Readings in a row that do not fit and show a jump.
const STRAYS: usize = 5;
/// The time that they span at least.
const LASTING: Duration = Duration::from_millis(3_500);
/// The largest distance between them, in metres.
const STRAY_NEAR: f64 = 200.0;
/// How far a train moves off all known tracks before a new one begins, in metres.
const MOVED_NEW: f64 = 300.0;
/// Readings on a new part before known tracks are searched.
const NEW_COURSE: usize = 10;
/// The least length of a track that is kept, in metres.
const WORTH: f64 = 1_000.0;
