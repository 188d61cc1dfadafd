//! Views that were kept current equal views built from the same logs.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{Bitrate, NodeRole, RouteId, TripId};

use super::fleet::{CELLS, Train, Written, line, name, place_of};
use crate::entry::{Entry, EntryKey, Link, LogNumber, RateSample, Rates, WriterNumber};
use crate::simulated::{Dice, Line};
use crate::views::{PROJECTIONS_MAX, Views, WRITER_TRACKS_MAX, creator_hash, new_route};

/// Trains with a track; the last one invents tracks.
const TRAINS: u32 = 5;

/// Worlds; two thousand were tried.
const SEEDS: u64 = 40;

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
            0..40 => {
                let handover =
                    self.trains[at].handover(&self.line, trip, cell, place_of(cell), true);
                self.append(handover);
            }
            40..50 => {
                let ridden = self.below(self.trains.len());
                let route = self.trains[ridden].route;
                self.views.ride(&name(self.trains[at].writer), route);
                let mut written = self.rates(ridden, trip, place_of(cell));
                (written.0, written.1) = (self.trains[at].writer, self.trains[at].key());
                self.append(written);
            }
            50..60 => {
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
                // With the others', no more than entries count on.
                let number = self.below(10) as u32;
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
            93..95 => self.views = self.rebuilt(),
            95..97 => self.begin(),
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

    /// Counts some of the stored entries again on the tracks that have changed.
    fn begin(&mut self) {
        if self.views.next_derived().is_none() {
            self.views.begin_derivation();
        }
        let count = self.below(self.stored.len() + 1);
        self.derive(count);
    }

    /// Counts all of them.
    fn settle(&mut self) {
        while self.views.next_derived().is_some() || self.views.needs_derivation() {
            self.begin();
            self.derive(usize::MAX);
            self.views.end_derivation();
        }
    }

    fn derive(&mut self, count: usize) {
        let Some(from) = self.views.next_derived() else { return };
        for (key, (writer, entry)) in self.stored.range(from..).take(count) {
            self.views.derive(*writer, *key, entry);
            self.views.derived_below(EntryKey { sequence: key.sequence + 1, ..*key });
        }
    }

    /// Views as after a restart.
    fn rebuilt(&self) -> Views {
        let mut rebuilt = empty();
        let visit = |take: &mut dyn FnMut(WriterNumber, EntryKey, &Entry)| {
            self.stored.iter().for_each(|(key, (writer, entry))| take(*writer, *key, entry));
            Ok::<_, ()>(())
        };
        let useless = rebuilt.rebuild(visit).unwrap();
        assert_eq!(useless, [], "they are reported when they become useless");
        rebuilt
    }

    fn check(&self, why: &str) {
        let rebuilt = self.rebuilt();
        let routes: BTreeSet<RouteId> =
            self.stored.values().filter_map(|(_, entry)| route_of(entry)).collect();
        for route in routes {
            assert_eq!(self.views.track(route), rebuilt.track(route), "{why}: {route}");
        }
        let tracks = |views: &Views| [views.own_tracks().len(), views.shared_tracks(999).len()];
        assert_eq!(tracks(&self.views), tracks(&rebuilt), "{why}");
        let differ = |one: BTreeSet<String>, other: BTreeSet<String>| -> Vec<String> {
            one.symmetric_difference(&other).cloned().collect()
        };
        let none: [String; 0] = [];
        assert_eq!(differ(passages(&self.views), passages(&rebuilt)), none, "{why}");
        assert_eq!(differ(self.views.visits(), rebuilt.visits()), none, "{why}");
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
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        (0..150).for_each(|_| world.step());
        world.settle();
        world.check(&format!("seed {seed}"));
    }
}

#[test]
fn nothing_stays_on_tracks_that_are_gone() {
    let mut world = World::new(1);
    let forger = TRAINS as usize - 1;
    for number in 0..3 * WRITER_TRACKS_MAX as u32 {
        let route = new_route(creator_hash(&name(WriterNumber(TRAINS - 1))), number);
        world.trains[forger].route = route;
        world.trains[forger].pieces().into_iter().for_each(|piece| world.append(piece));
        for cell in 1..=3 {
            world.trips += 1;
            let (trip, metres) = (world.trips, place_of(cell));
            let handover = world.trains[1].handover(&world.line, trip, cell, metres, true);
            world.append(handover);
            let rates = world.rates(1, trip, metres);
            world.append(rates);
        }
    }
    world.settle();
    let cells = world.views.cells().iter();
    let routes: BTreeSet<RouteId> = cells.map(|(key, _)| key.route).collect();
    assert!(routes.len() > PROJECTIONS_MAX);
    let known = |route: &&RouteId| world.views.track(**route).is_some();
    assert_eq!(routes.iter().filter(|route| !known(route)).count(), 1, "its own track");
    assert!(world.views.sizes().places <= 3 * routes.len());
}
