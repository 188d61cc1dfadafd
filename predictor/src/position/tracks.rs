//! The known tracks.

use polyrail_model::RouteId;

use crate::track::{Track, TrackLearner};

/// Known tracks except the current one, the least recently used first. At most [`TRACKS_MAX`]: the
/// first are dropped, and stay in the store.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownTracks {
    entries: Vec<KnownTrack>,
}

#[derive(Clone, Debug)]
struct KnownTrack {
    route: RouteId,
    track: Track,
    changed: bool,
}

impl KnownTracks {
    pub fn new(tracks: impl IntoIterator<Item = (RouteId, Track)>) -> Self {
        let mut known = Self::default();
        for (route, track) in tracks {
            known.add(KnownTrack { route, track, changed: false });
        }
        known
    }

    pub fn iter(&self) -> impl Iterator<Item = &Track> {
        self.entries.iter().map(|entry| &entry.track)
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
            self.add(KnownTrack { route, track, changed });
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
            self.entries.remove(0);
        }
        self.entries.push(entry);
    }
}

/// Tracks in memory; identification looks at all their points.
pub const TRACKS_MAX: usize = 32;
