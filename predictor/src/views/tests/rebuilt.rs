//! Views that were kept current equal views built from the same logs.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{Bitrate, NodeRole, RouteId, TripId};

use super::fleet::{CELLS, Train, Written, line, name, place_of};
use crate::entry::{Entry, EntryKey, Link, LogNumber, RateSample, Rates, WriterNumber};
use crate::simulated::{Dice, Line};
use crate::views::{Views, creator_hash, new_route};

/// Trains with a track; the last one invents tracks.
const TRAINS: u32 = 5;

/// Views, and the logs that they come from.
struct World {
    line: Line,
    dice: Dice,
    trains: Vec<Train>,
    views: Views,
    stored: BTreeMap<EntryKey, (WriterNumber, Entry)>,
    trips: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let line = line();
        let trains = (0..TRAINS).map(|one| Train::new(one, &line)).collect();
        let (dice, stored) = (Dice::new(seed), BTreeMap::new());
        Self { line, dice, trains, views: empty(), stored, trips: 0 }
    }

    fn below(&mut self, end: usize) -> usize {
        (self.dice.share() * end as f64) as usize % end
    }

    fn append(&mut self, (writer, key, entry): Written) {
        self.stored.insert(key, (writer, entry.clone()));
        for useless in self.views.apply(writer, key, &entry) {
            self.stored.remove(&useless);
        }
    }

    fn step(&mut self) {
        let at = self.below(self.trains.len());
        let cell = 1 + self.below(CELLS as usize) as u64;
        self.trips += 1;
        let trip = self.trips;
        match self.below(100) {
            0..45 => {
                let handover =
                    self.trains[at].handover(&self.line, trip, cell, place_of(cell), true);
                self.append(handover);
            }
            45..60 => {
                let rates = self.rates(at, trip, place_of(cell));
                self.append(rates);
            }
            60..85 => {
                let pieces = self.trains[at].track.pieces(self.trains[at].route);
                let mut piece = pieces[self.below(pieces.len())].clone();
                let first = self.below(piece.points.len());
                let count = 1 + self.below(piece.points.len() - first);
                piece.points = piece.points[first..first + count].to_vec();
                let piece = self.trains[at].write(Entry::Track(piece));
                self.append(piece);
            }
            85..90 => {
                let number = self.below(50) as u32;
                let forger = self.trains.last_mut().unwrap();
                forger.route = new_route(creator_hash(&name(forger.writer)), number);
                forger.pieces().into_iter().for_each(|piece| self.append(piece));
            }
            90..93 => {
                let log = LogNumber(self.trains[at].writer.0);
                let end = self.trains[at].key().sequence;
                self.stored.retain(|key, _| key.log != log || key.sequence >= end);
                self.views.forget_below(log, end);
            }
            _ => self.settle(),
        }
    }

    fn rates(&mut self, at: usize, trip: u64, metres: f64) -> Written {
        let train = &mut self.trains[at];
        let (position, direction) = train.at(&self.line, metres);
        let rate = Some(Bitrate::from_mbps(trip as f64));
        let spot = train.track.spot(position, direction);
        let samples = vec![RateSample { position, spot, rate, delay: None }];
        let (carrier, route) = ("a".to_owned(), train.route);
        let rates =
            Rates { trip: TripId(trip), carrier, route, direction, link: Link::Up, samples };
        train.write(Entry::Rates(rates))
    }

    /// Counts stored entries on the tracks that have changed.
    fn settle(&mut self) {
        self.views.begin_derivation();
        for (key, (writer, entry)) in &self.stored {
            self.views.derive(*writer, *key, entry);
        }
        self.views.end_derivation();
    }

    fn check(&self, why: &str) {
        let mut rebuilt = empty();
        let visit = |take: &mut dyn FnMut(WriterNumber, EntryKey, &Entry)| {
            self.stored.iter().for_each(|(key, (writer, entry))| take(*writer, *key, entry));
            Ok::<_, ()>(())
        };
        let useless = rebuilt.rebuild(visit).unwrap();
        assert_eq!(useless, [], "{why}: those are reported when they become useless");
        let routes: BTreeSet<RouteId> =
            self.stored.values().filter_map(|(_, entry)| route_of(entry)).collect();
        for route in routes {
            assert_eq!(self.views.track(route), rebuilt.track(route), "{why}: {route}");
        }
        let tracks = |views: &Views| [views.own_tracks().len(), views.shared_tracks(999).len()];
        assert_eq!(tracks(&self.views), tracks(&rebuilt), "{why}");
        assert_eq!(passages(&self.views), passages(&rebuilt), "{why}");
        assert_eq!(self.views.visits(), rebuilt.visits(), "{why}");
    }
}

fn empty() -> Views {
    let mut views = Views::new(NodeRole::Gateway);
    (0..TRAINS).map(WriterNumber).for_each(|writer| views.introduce(writer, &name(writer)));
    views
}

fn route_of(entry: &Entry) -> Option<RouteId> {
    match entry {
        Entry::Track(piece) => Some(piece.route),
        _ => None,
    }
}

fn passages(views: &Views) -> BTreeSet<String> {
    let cells = views.cells().iter();
    let all = cells.flat_map(|(key, history)| history.passages().map(move |one| (key, one)));
    all.map(|(key, one)| format!("{key:?} {:?} {} {:?}", one.entry, one.projected, one.position))
        .collect()
}

#[test]
fn kept_views_equal_rebuilt_ones() {
    for seed in 0..40 {
        let mut world = World::new(seed);
        (0..150).for_each(|_| world.step());
        world.settle();
        world.check(&format!("seed {seed}"));
    }
}
