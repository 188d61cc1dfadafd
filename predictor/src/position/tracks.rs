//! The known tracks.

use polyrail_model::RouteId;

use crate::creator::creator_of;
use crate::track::{Course, Match, Track, TrackLearner, matches};

/// Known tracks except the current one, the least recently used first. At most [`TRACKS_MAX`]: the
/// first are dropped, those of other writers before those of earlier trips.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownTracks {
    entries: Vec<KnownTrack>,
}

#[derive(Clone, Debug)]
struct KnownTrack {
    route: RouteId,
    track: Track,
    changed: bool,
    /// Another writer's track, which this train has not been on.
    shared: bool,
}

impl KnownTracks {
    pub fn new(tracks: impl IntoIterator<Item = (RouteId, Track)>) -> Self {
        let mut known = Self::default();
        for (route, track) in tracks {
            known.add(KnownTrack { route, track, changed: false, shared: false });
        }
        known
    }

    /// How many tracks of other writers there is room for.
    pub fn room(&self) -> usize {
        let own = self.entries.iter().filter(|known| !known.shared).count();
        TRACKS_MAX.saturating_sub(own)
    }

    /// Takes the tracks of other writers, in place of earlier ones.
    pub fn offer(&mut self, tracks: Vec<(RouteId, Track)>) {
        self.entries.retain(|known| !known.shared);
        for (route, track) in tracks {
            let is_full = self.len() >= TRACKS_MAX;
            match self.entries.iter_mut().find(|known| known.route == route) {
                Some(known) if known.changed => {}
                Some(known) => known.track = track,
                None if is_full => {}
                None => self.add(KnownTrack { route, track, changed: false, shared: true }),
            }
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, route: RouteId) -> Option<&Track> {
        self.entries.iter().find(|known| known.route == route).map(|known| &known.track)
    }

    pub fn at(&self, at: usize) -> Option<&Track> {
        self.entries.get(at).map(|known| &known.track)
    }

    /// The track of a course: one of earlier trips, else another writer's, so that nobody leads
    /// the train off a track that it knows. Of others' tracks, one that goes on as another writer's
    /// track does, so that no single writer leads it off the line.
    pub fn identify(&self, course: &Course) -> Option<(usize, Match)> {
        let entries = self.entries.iter().enumerate();
        let earlier = entries.clone().filter(|(_, known)| !known.shared);
        let found = matches(course, earlier.map(|(at, known)| (at, &known.track)));
        let nearest = |one: &Match, other: &Match| one.off_track.total_cmp(&other.off_track);
        if let Some(found) = found.into_iter().min_by(|one, other| nearest(&one.1, &other.1)) {
            return Some(found);
        }
        let shared = entries.filter(|(_, known)| known.shared);
        let found = matches(course, shared.map(|(at, known)| (at, &known.track)));
        let support = |(at, one): &(usize, Match)| {
            let known = self.entries.get(*at);
            let others = found.iter().filter_map(|(other, there)| {
                let (known, other) = (known?, self.entries.get(*other)?);
                let is_other = creator_of(known.route) != creator_of(other.route);
                is_other.then(|| known.track.goes_with(one, &other.track, there))
            });
            others.max().unwrap_or(0)
        };
        let ranked = found.iter().map(|one| (support(one), one));
        let best = ranked
            .max_by(|one, other| one.0.cmp(&other.0).then_with(|| nearest(&other.1.1, &one.1.1)));
        best.map(|(_, found)| *found)
    }

    pub fn take(&mut self, route: RouteId) -> Option<Track> {
        let at = self.entries.iter().position(|entry| entry.route == route)?;
        self.take_at(at).map(|(_, track)| track)
    }

    pub fn take_at(&mut self, at: usize) -> Option<(RouteId, Track)> {
        (at < self.entries.len()).then(|| self.entries.remove(at)).map(|one| (one.route, one.track))
    }

    /// Returns a track after a trip; discards a very short one.
    pub fn put(&mut self, route: RouteId, mut learner: TrackLearner) {
        let changed = learner.changed();
        if changed {
            learner.settle();
        }
        let track = learner.track().clone();
        if track.length() >= super::WORTH {
            self.add(KnownTrack { route, track, changed, shared: false });
        }
    }

    /// The tracks that have changed since the last call.
    pub fn take_changed(&mut self) -> Vec<(RouteId, Track)> {
        let changed = self.entries.iter_mut().filter(|entry| entry.changed);
        let taken = changed.map(|entry| {
            entry.changed = false;
            (entry.route, entry.track.clone())
        });
        taken.collect()
    }

    fn add(&mut self, entry: KnownTrack) {
        self.entries.retain(|known| known.route != entry.route);
        if self.entries.len() >= TRACKS_MAX {
            let shared = self.entries.iter().position(|known| known.shared);
            self.entries.remove(shared.unwrap_or(0));
        }
        self.entries.push(entry);
    }
}

/// Tracks in memory; identification looks at all their points.
pub const TRACKS_MAX: usize = 32;
