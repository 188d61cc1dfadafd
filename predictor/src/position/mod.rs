//! From readings to a position along a track, at any moment.
//!
//! A fix is looked for on the track near to where the train ought to be, and filtered together
//! with its speed; between fixes and through tunnels the position follows from the speed, less and
//! less surely, and after a minute not at all. A fix far from where the train ought to be is
//! refused; when several follow each other, the train is elsewhere: on the same track, on another
//! known one, or on one that is new and is learned from there on. Only the monotonic time of a
//! reading counts; an older one than the last is ignored, and so is what is no number or absurd.
//!
//! ```text
//! searching --course on a known track, or long enough for a new one--> following
//! following --lasting jump--> following (elsewhere on the track, another track, a new one)
//! following --ten minutes without a fix--> searching
//! any --odometer--> following (its track) --ten seconds without--> following or searching
//! ```
//!
//! A train that leaves a known track by a branch begins a new one there; from the next trip on it
//! goes over to it at the branch. A train that passes the end of a track makes it longer. A train
//! on a new track that comes to a known one goes over to it; so does one that began its trip some
//! hundred metres beyond the end of a track.
//!
//! Several receivers may speak by turns: their noise is averaged. Of two that are farther apart
//! than their noise (both ends of a train), the first to be heard wins.

mod along;
mod book;
mod journal;
#[cfg(test)]
mod tests;
mod train;

use std::time::{Duration, Instant};

use polyrail_model::{Direction, Fix, METRES_MAX, Odometer, RouteId, VELOCITY_MAX};

pub use train::TrainPosition;

use crate::track::{
    Course, Found, Hint, Match, Place, Reading, SPEED_MAX, Track, TrackLearner, identify,
};
use along::Along;
use book::Book;
use journal::Journal;

/// Where the train is, from fixes and odometers.
#[derive(Clone, Debug)]
pub struct Positioner {
    book: Book,
    following: Option<Following>,
    /// Fixes that did not fit, or that wait for a track, since the last that did.
    course: Course,
    /// The last fixes on a part of the track that is new: they may be on a known track again.
    new_course: Course,
    journal: Journal,
    /// When the last reading held that was not older than those before it.
    read_at: Option<Instant>,
    odometer: OdometerState,
}

#[derive(Clone, Debug)]
struct Following {
    route: RouteId,
    /// None for the track of an odometer that no fix has shown.
    learner: Option<TrackLearner>,
    along: Along,
}

#[derive(Clone, Copy, Debug, Default)]
struct OdometerState {
    at: Option<Instant>,
    /// Its last readings that did not fit: how many, since when, and the last position.
    strays: usize,
    since: Option<Instant>,
    stray: f64,
}

impl Positioner {
    /// With the tracks of earlier trips, the least recently used first; of more than
    /// [`TRACKS_MAX`] the first are not used.
    pub fn new(tracks: impl IntoIterator<Item = (RouteId, Track)>) -> Self {
        Self {
            book: Book::new(tracks),
            following: None,
            course: Course::default(),
            new_course: Course::default(),
            journal: Journal::default(),
            read_at: None,
            odometer: OdometerState::default(),
        }
    }

    /// Takes a fix. `fresh` numbers a track that begins.
    pub fn observe_fix(&mut self, now: Instant, fix: &Fix, fresh: &mut dyn FnMut() -> RouteId) {
        let Some(reading) = reading(now, fix) else { return };
        let recent = |at: Instant| reading.at.saturating_duration_since(at) < ODOMETER_RECENT;
        if self.odometer.at.is_some_and(recent) || !self.is_next(reading.at) {
            return;
        }
        let quiet = |one: &Following| reading.at.saturating_duration_since(one.along.at);
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

    /// Takes a position along a track. Fixes count again ten seconds after the last.
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
            // Before another one is put back: it could fall out for that.
            let learner = self.book.take(route).map(TrackLearner::resume);
            self.leave();
            let mut along = Along::new(at, metres, error);
            along.velocity = velocity;
            if velocity.abs() > 1.0 {
                along = along.moving(way(velocity), velocity.abs(), VELOCITY_ERROR);
            }
            self.following = Some(Following { route, learner, along });
            self.odometer.strays = 0;
        }
        let Some(Following { along, .. }) = &mut self.following else { return };
        let later = along.at(at);
        if (metres - later.metres).abs() <= later.gate(error) {
            *along = later;
            self.odometer.strays = 0;
            along.read_velocity(velocity, VELOCITY_ERROR);
            along.read_position(metres, error);
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
                *along = later;
                along.jump(metres, error);
                along.read_velocity(velocity, VELOCITY_ERROR);
                self.odometer.strays = 0;
            }
        }
        self.note();
    }

    /// Where the train is now; `None` before it has been found and moved, and when the last
    /// reading is a minute old or the error has grown beyond 500 metres. `None` as well while it
    /// goes back, until it has turned for good: nothing is ahead of it then in either direction.
    pub fn place(&self, now: Instant) -> Option<TrainPosition> {
        self.whereabouts(now).filter(|_| !self.reverses())
    }

    /// The same, told of a train that goes back as well: with the direction that it came.
    pub(crate) fn whereabouts(&self, now: Instant) -> Option<TrainPosition> {
        let Following { route, along, .. } = self.following.as_ref()?;
        let later = along.at(now);
        let error = later.error();
        let known = now.saturating_duration_since(along.at) <= RECKONED_MAX && error <= ERROR_MAX;
        let direction = along.direction.filter(|_| known)?;
        let (metres, speed) = (later.metres, along.velocity.abs());
        Some(TrainPosition { at: later.at, route: *route, direction, metres, speed, error })
    }

    /// Where the train was then, in the last two minutes or so; `None` where it went back.
    pub fn place_at(&self, then: Instant) -> Option<TrainPosition> {
        self.journal.at(then)
    }

    /// The track that the train is on, with what was learned of it, when that has changed since
    /// [`Positioner::settle`] was last called.
    pub fn learned(&self) -> Option<(RouteId, Track)> {
        let following = self.following.as_ref()?;
        let learner = following.learner.as_ref().filter(|learner| learner.changed())?;
        Some((following.route, learner.settled())).filter(|(_, track)| track.length() >= WORTH)
    }

    /// Ends a trip: works what was learned into the tracks, and returns those that have changed,
    /// also those that were left since. Positions stay what they are.
    pub fn settle(&mut self) -> Vec<(RouteId, Track)> {
        let mut changed = self.book.take_changed();
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

    /// Where on the track a fix is, if it can be there.
    fn find(&self, reading: &Reading) -> Option<Found> {
        let following = self.following.as_ref()?;
        let later = following.along.at(reading.at);
        let time = reading.at.saturating_duration_since(following.along.at).as_secs_f64();
        let hint = Hint { metres: later.metres, reach: REACH + SPEED_MAX * time };
        let found = following.learner.as_ref()?.find(reading.place, hint)?;
        let fits = (found.metres - later.metres).abs() <= later.gate(reading.error);
        (fits && found.off_track <= BESIDE_MAX).then_some(found)
    }

    fn accept(&mut self, reading: &Reading, fix: &Fix, found: &Found) {
        let Some(Following { learner: Some(learner), along, .. }) = &mut self.following else {
            return;
        };
        *along = along.at(reading.at);
        if let Some(velocity) = velocity(fix, along, found.bearing) {
            along.read_velocity(velocity, VELOCITY_ERROR);
        }
        along.read_position(found.metres, reading.error);
        learner.learn(reading.at, reading.place, reading.error, found);
    }

    /// On a part of a track that is new, looks whether a known one goes there.
    fn rejoin(&mut self, reading: &Reading) {
        let Some(Following { learner: Some(learner), along, .. }) = &self.following else { return };
        if !learner.is_new(along.metres) {
            self.new_course.clear();
            return;
        }
        self.new_course.add(*reading);
        if self.new_course.readings().len() < NEW_COURSE || self.new_course.moved() < MOVED_NEW {
            return;
        }
        let found = identify(&self.new_course, self.book.tracks());
        self.new_course.clear();
        let near = found.filter(|(_, found)| found.off_track < BESIDE_JOINED);
        let Some((at, found)) = near else { return };
        if let Some(Following { learner: Some(learner), along, .. }) = &mut self.following
            && let Some(known) = self.book.tracks().nth(at)
        {
            learner.end_at(along.metres, known, BESIDE_JOINED);
        }
        self.follow(Some(at), found, reading);
    }

    /// Several fixes in a row are not where the train ought to be.
    fn resolve(&mut self, fresh: &mut dyn FnMut() -> RouteId) {
        let lasting = self.course.readings().len() >= STRAYS && self.course.lasted() >= LASTING;
        let Some(last) = self.course.readings().last().copied().filter(|_| lasting) else { return };
        if self.jump(&last) {
            return;
        }
        let learner = self.following.as_ref().and_then(|following| following.learner.as_ref());
        let track = learner.map(TrackLearner::track);
        match identify(&self.course, track.into_iter()) {
            Some((_, found)) => self.follow(None, found, &last),
            None => self.search(&last, fresh),
        }
    }

    /// All fixes of the course are near each other on this track: the train is there.
    fn jump(&mut self, last: &Reading) -> bool {
        let Some(Following { learner: Some(learner), along, .. }) = &mut self.following else {
            return false;
        };
        let later = along.at(last.at);
        let time = last.at.saturating_duration_since(along.at).as_secs_f64();
        let hint = Hint { metres: later.metres, reach: REACH + SPEED_MAX * time };
        let at_speed = |reading: &Reading| {
            let found = learner.find(reading.place, hint).filter(|one| one.off_track <= BESIDE_MAX);
            let before = last.at.saturating_duration_since(reading.at).as_secs_f64();
            found.map(|found| found.metres + along.velocity * before)
        };
        let places: Option<Vec<f64>> = self.course.readings().iter().map(at_speed).collect();
        let Some(places) = places else { return false };
        let mean = places.iter().sum::<f64>() / places.len().max(1) as f64;
        if places.iter().any(|place| (place - mean).abs() > STRAY_NEAR) {
            return false;
        }
        *along = later;
        along.jump(mean, last.error);
        self.course.clear();
        true
    }

    /// Looks for the track of the course, or begins a new one.
    fn search(&mut self, last: &Reading, fresh: &mut dyn FnMut() -> RouteId) {
        if let Some((at, found)) = identify(&self.course, self.book.tracks()) {
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
        let along = Along::new(last.at, metres, last.error);
        let along = along.moving(Direction::Up, (metres / time).min(SPEED_MAX), SPEED_GUESSED);
        self.following = Some(Following { route: fresh(), learner: Some(learner), along });
    }

    /// Goes on at a place that was found: on a known track by its number, or on the same.
    fn follow(&mut self, known: Option<usize>, found: Match, last: &Reading) {
        let along = Along::new(last.at, found.metres, last.error).moving(
            found.direction,
            found.speed.min(SPEED_MAX),
            SPEED_GUESSED,
        );
        self.course.clear();
        match known {
            Some(at) => {
                let Some((route, track)) = self.book.take_at(at) else { return };
                self.leave();
                let learner = Some(TrackLearner::resume(track));
                self.following = Some(Following { route, learner, along });
            }
            None => {
                if let Some(following) = &mut self.following {
                    following.along = along;
                }
            }
        }
    }

    /// Puts the track that the train was on back to the known ones.
    fn leave(&mut self) {
        let Some(following) = self.following.take() else { return };
        self.new_course.clear();
        if let Some(learner) = following.learner {
            self.book.put(following.route, learner);
        }
    }

    fn note(&mut self) {
        let at = self.following.as_ref().map(|following| following.along.at);
        if let Some(placement) = at.and_then(|at| self.whereabouts(at)) {
            self.journal.add(placement, self.reverses());
        }
    }

    fn reverses(&self) -> bool {
        self.following.as_ref().is_some_and(|following| following.along.reverses())
    }
}

fn reading(now: Instant, fix: &Fix) -> Option<Reading> {
    let place = Place::from_degrees(fix.latitude, fix.longitude)?;
    let told = fix.error.filter(|error| error.is_finite() && *error >= 0.0);
    let error = told.unwrap_or(ERROR_USUAL).max(ERROR_LEAST);
    (error <= ERROR_REFUSED).then_some(Reading { at: fix.at.min(now), place, error })
}

/// The velocity along the track that a fix tells. Receivers tell no sign: it comes from the
/// heading, or from the velocity so far when that is sure.
fn velocity(fix: &Fix, along: &Along, bearing: f64) -> Option<f64> {
    let speed = fix.speed.filter(|speed| (0.0..=SPEED_MAX).contains(speed))?;
    if speed < 1.0 {
        return Some(0.0);
    }
    // Slow receivers point anywhere.
    let heading = fix.heading.filter(|heading| heading.is_finite() && speed > 3.0);
    match heading.map(|heading| (heading - bearing).to_radians().cos()) {
        Some(cosine) if cosine.abs() > 0.7 => Some(speed * cosine.signum()),
        _ => along.surely_moves().then(|| speed * along.velocity.signum()),
    }
}

fn way(velocity: f64) -> Direction {
    if velocity < 0.0 { Direction::Down } else { Direction::Up }
}

pub use book::TRACKS_MAX;

/// After so long without a reading there is no position.
pub const RECKONED_MAX: Duration = Duration::from_secs(60);
/// Nor is there one that may be so wrong, in metres.
pub const ERROR_MAX: f64 = 500.0;
/// After so long without a reading that fits, the track is looked for again.
const LOST: Duration = Duration::from_secs(600);
const ODOMETER_RECENT: Duration = Duration::from_secs(10);
/// What a fix errs that does not tell, and the least and most that is believed, in metres.
const ERROR_USUAL: f64 = 10.0;
const ERROR_LEAST: f64 = 3.0;
const ERROR_REFUSED: f64 = 300.0;
/// What a speed errs, in metres a second, when it is told, and when it is taken from positions.
const VELOCITY_ERROR: f64 = 1.0;
const SPEED_GUESSED: f64 = 5.0;
/// Around where the train ought to be it is looked for so far, in metres.
const REACH: f64 = 500.0;
/// A train is so near to its track, in metres; when it comes to a known one from a new one, nearer.
const BESIDE_MAX: f64 = 200.0;
const BESIDE_JOINED: f64 = 100.0;
/// So many readings in a row that do not fit are a lasting jump.
const STRAYS: usize = 5;
/// If they came over so long a time.
const LASTING: Duration = Duration::from_millis(3_500);
/// And so near to each other they are then, in metres.
const STRAY_NEAR: f64 = 200.0;
/// So far a train has moved off all known tracks before a new one begins, in metres.
const MOVED_NEW: f64 = 300.0;
/// Readings on new ground before known tracks are looked at.
const NEW_COURSE: usize = 10;
/// A track that is shorter is forgotten, in metres.
const WORTH: f64 = 1_000.0;
