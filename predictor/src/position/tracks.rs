//! The known tracks.

use polyrail_model::RouteId;

use crate::creator::creator_of;
use crate::track::{Course, Match, Track, TrackLearner, on_track};

/// Known tracks except the current one, the least recently used first. At most [`TRACKS_MAX`]: the
/// first are dropped, those of other writers before those of earlier trips.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownTracks {
    entries: Vec<KnownTrack>,
    /// The hash of this node's name; without a name, all tracks of earlier trips are its own.
    creator: Option<u32>,
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

    /// Names this node, by the hash of its name.
    pub fn name(&mut self, creator: u32) {
        self.creator = Some(creator);
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

    /// The track of a course: one that this node began, else another writer's, so that nobody leads
    /// the train off a track that it knows. Of others' tracks, one that goes on as another writer's
    /// track does, so that no single writer leads it off the line; of equal ones, one that it has
    /// been on before, then the nearest.
    pub fn identify(&self, course: &Course) -> Option<(usize, Match)> {
        let entries = self.entries.iter().enumerate();
        let found = entries.filter_map(|(at, known)| Some((at, on_track(course, &known.track)?)));
        let (own, others): (Vec<_>, Vec<_>) =
            found.partition(|(at, _)| self.is_own(&self.entries[*at]));
        let nearest = |one: &Match, other: &Match| other.off_track.total_cmp(&one.off_track);
        if let Some(found) = own.into_iter().max_by(|one, other| nearest(&one.1, &other.1)) {
            return Some(found);
        }
        let rank = |(at, one): &(usize, Match)| {
            let known = &self.entries[*at];
            let support = others.iter().map(|(other, there)| {
                let other = &self.entries[*other];
                let is_other = creator_of(known.route) != creator_of(other.route);
                if is_other { known.track.goes_with(one, &other.track, there) } else { 0 }
            });
            (support.max().unwrap_or(0), !known.shared)
        };
        let ranked = others.iter().map(|one| (rank(one), one));
        let best = ranked
            .max_by(|one, other| one.0.cmp(&other.0).then_with(|| nearest(&one.1.1, &other.1.1)));
        best.map(|(_, found)| *found)
    }

    fn is_own(&self, known: &KnownTrack) -> bool {
        !known.shared && self.creator.is_none_or(|own| own == creator_of(known.route))
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
