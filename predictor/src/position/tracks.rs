//! The known tracks.

use polyrail_model::RouteId;

use crate::track::{Course, Match, Track, TrackLearner, identify};

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

    /// Takes another writer's track, or a new version of a known one.
    pub fn offer(&mut self, route: RouteId, track: Track) {
        if let Some(known) = self.entries.iter_mut().find(|known| known.route == route) {
            if !known.changed {
                known.track = track;
            }
            return;
        }
        let shared = self.entries.iter().filter(|known| known.shared).count();
        if self.len() < TRACKS_MAX || shared > 0 {
            self.add(KnownTrack { route, track, changed: false, shared: true });
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
    /// the train off a track that it knows.
    pub fn identify(&self, course: &Course) -> Option<(usize, Match)> {
        [false, true].into_iter().find_map(|shared| {
            let entries = self.entries.iter().enumerate();
            let entries = entries.filter(|(_, known)| known.shared == shared);
            let places: Vec<usize> = entries.clone().map(|(at, _)| at).collect();
            let (at, found) = identify(course, entries.map(|(_, known)| &known.track))?;
            Some((*places.get(at)?, found))
        })
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
