//! A database that has run for years: near its bounds in all that it keeps.
//!
//! Lines of 100 km, each passed up and down with two modems: 125 cells and 1,000 places of each,
//! both ways. What trips left that fell out long ago is imported first: tracks, cells that remember
//! as many handovers as they can, places that remember as many trips; a part of each at a time,
//! because rows that grow leave other pages than rows that come whole. Then the handovers come, in
//! the order of time.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};
use polyrail_predictor::exchange::{self, Format};
use polyrail_predictor::history::PASSAGES_MAX;
use polyrail_predictor::store::{PLACE_TRIPS_MAX, Store};
use polyrail_predictor::track::Track;

use crate::dice::Dice;

/// What a database is filled with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    /// Handovers; a line for each 20,000 of them.
    pub(super) events: u64,
    /// Whether there is more than handovers.
    pub(super) full: bool,
}

impl Filling {
    /// Fills an empty database.
    pub(super) fn pour(self, store: &mut Store) -> Result<()> {
        let mut dice = Dice::new(1);
        if self.full {
            for line in 0..self.lines() {
                store.put_track(route(line), &track(line, &mut dice)?)?;
            }
            for year in 0..YEARS {
                for line in 0..self.lines() {
                    let text = memories(year, line, &mut dice);
                    let imported =
                        exchange::import(store, Format::Ndjson, text.as_bytes(), FIRST_MS)?;
                    ensure!(imported.cells == 4 * CELLS && imported.places == 4 * PLACES);
                }
            }
        }
        let mut batch = Vec::new();
        for trip in 0..self.events / PER_TRIP {
            batch.extend((0..PER_TRIP).map(|sequence| self.handover(&mut dice, trip, sequence)));
            if batch.len() as u64 >= BATCH {
                store.append(&batch, self.now_ms())?;
                batch.clear();
            }
        }
        store.append(&batch, self.now_ms())?;
        Ok(())
    }

    /// One handover of a trip of which there may be more than those that were poured.
    pub(super) fn handover(self, dice: &mut Dice, trip: u64, sequence: u64) -> Handover {
        // A train goes up and down its line for weeks.
        let (line, way) = (trip / TRIPS_TOGETHER / 2 % self.lines(), way(trip / TRIPS_TOGETHER));
        let (modem, number) = ((sequence % 2) as usize, sequence / 2 % CELLS);
        let fails = dice.chance(0.06);
        Handover {
            trip: id(trip + 1),
            sequence: sequence as u32,
            at_ms: FIRST_MS + trip * TRIP_MS + sequence * 4_800,
            carrier: MODEMS[modem].to_owned(),
            route: route(line),
            direction: way,
            position: place(dice, number),
            speed: Speed::from_metres_per_second(83.3),
            from: cell(line, number),
            to: Some(cell(line, number + 1)),
            rsrp: Rsrp::from_dbm(-95.0 + 3.0 * dice.normal()),
            outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
            dark: Duration::from_millis(if fails { 1_500 } else { 60 }),
        }
    }

    /// When all that was poured has been.
    pub(super) fn now_ms(self) -> u64 {
        FIRST_MS + (self.events / PER_TRIP + 1) * TRIP_MS
    }

    fn lines(self) -> u64 {
        (self.events / 20_000).max(1)
    }
}

/// What cells and places of a line remember of a year, as an export has it.
fn memories(year: u64, line: u64, dice: &mut Dice) -> String {
    let old = |number: u64| id(((year + 1) << 32) + number).0;
    let mut text = String::from("{\"linkdb\":{\"version\":1}}\n");
    for (modem, way) in [(0, "up"), (0, "down"), (1, "up"), (1, "down")] {
        let (carrier, route) = (MODEMS[modem], route(line).0);
        let head = format!("\"carrier\":\"{carrier}\",\"route\":\"{route:x}\",\"direction\":");
        for number in 0..CELLS {
            let from = cell(line, number).0;
            let passages = list(PASSAGES_MAX as u64 / YEARS, |passage| {
                let (trip, sequence) = (old(passage), 2 * number + modem as u64);
                let at = place(dice, number).metres();
                let rsrp = -95.0 + 3.0 * dice.normal();
                let outcome = if dice.chance(0.06) { "type2" } else { "success" };
                format!(
                    "{{\"trip\":\"{trip:x}\",\"sequence\":{sequence},\"position_m\":{at:.1},\
                     \"rsrp_dbm\":{rsrp:.1},\"outcome\":\"{outcome}\"}}"
                )
            });
            let row = format!("{head}\"{way}\",\"cell\":\"{from:x}\",\"passages\":[{passages}]");
            let _ = writeln!(text, "{{\"cell\":{{{row}}}}}");
        }
        for number in 0..PLACES {
            let visits = list(PLACE_TRIPS_MAX as u64 / YEARS, |visit| {
                let trip = old(visit);
                let (rate, rates) = (dice.scale(500_000, 80_000_000), dice.between(1, 4));
                let (delay, delays) = (dice.scale(30_000, 400_000), dice.between(1, 4));
                format!(
                    "{{\"trip\":\"{trip:x}\",\"rate_bps\":{rate},\"rate_samples\":{rates},\
                     \"delay_us\":{delay},\"delay_samples\":{delays}}}"
                )
            });
            let row = format!("{head}\"{way}\",\"hectometre\":{number},\"trips\":[{visits}]");
            let _ = writeln!(text, "{{\"place\":{{{row}}}}}");
        }
    }
    text
}

fn list(count: u64, row: impl FnMut(u64) -> String) -> String {
    (0..count).map(row).collect::<Vec<_>>().join(",")
}

/// A line that winds so that half of its points are needed, as `docs/linkdb.md`, section 5, has
/// tracks: one each 200 m.
fn track(line: u64, dice: &mut Dice) -> Result<Vec<u8>> {
    let points = (PLACES / 2) as u32;
    let mut bytes = vec![1];
    bytes.extend(points.to_be_bytes());
    let (mut latitude, mut longitude, mut turn) = (450_000_000 + line as i32 * 1_000_000, 0, 0.0);
    for point in 0..points {
        for number in [latitude, longitude, point as i32 * 2_000] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.push(16);
        turn = 0.9 * turn + 0.1 * dice.normal();
        latitude += (18_000.0 * f64::sin(turn)) as i32;
        longitude += (18_000.0 * f64::cos(turn)) as i32;
    }
    Track::decode(&bytes)?;
    Ok(bytes)
}

/// Trips and lines are numbered at random.
fn id(number: u64) -> TripId {
    TripId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn route(line: u64) -> RouteId {
    RouteId(id(line + 7_919).0)
}

/// As long as the numbers of real cells.
fn cell(line: u64, number: u64) -> CellId {
    CellId(0x0c80_0000 + line * 0x1000 + number * 0x10 + 1)
}

fn place(dice: &mut Dice, number: u64) -> Position {
    Position::from_metres((number + 1) as f64 * CELL_METRES + 80.0 * dice.normal())
}

fn way(number: u64) -> Direction {
    if number.is_multiple_of(2) { Direction::Up } else { Direction::Down }
}

const MODEMS: [&str; 2] = ["modem-one", "modem-two"];
/// Of each modem and direction on a line: a handover each ten seconds or so, a place each 100 m.
const CELLS: u64 = 125;
const CELL_METRES: f64 = 800.0;
const PLACES: u64 = 1_000;
/// Handovers of a trip, of both modems.
pub(super) const PER_TRIP: u64 = 2 * CELLS;
/// Trips on one line, in one direction.
const TRIPS_TOGETHER: u64 = 40;
/// Handovers that are written together.
const BATCH: u64 = TRIPS_TOGETHER * PER_TRIP;
/// What is remembered came in so many parts, each along all lines.
const YEARS: u64 = 4;
/// The first trip, and how far trips are apart.
const FIRST_MS: u64 = 1_780_000_000_000;
const TRIP_MS: u64 = 1_800_000;

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_predictor::store::Limits;

    #[test]
    fn a_line_is_near_the_bounds_of_what_it_remembers() {
        let mut store = Store::in_memory(Limits::default()).unwrap();
        let filling = Filling { events: 20_000, full: true };
        filling.pour(&mut store).unwrap();
        let stats = store.stats().unwrap();
        assert_eq!((stats.events, stats.trips), (20_000, 80));
        assert_eq!((stats.cells, stats.places, stats.tracks), (500, 4_000, 1));
        for (key, history) in store.cells().unwrap() {
            assert_eq!(history.passages().len(), PASSAGES_MAX, "{key:?}");
            let poured = |trip: TripId| (1..=80).any(|number| id(number) == trip);
            assert_eq!(history.passages().filter(|one| poured(one.trip)).count(), 40);
        }
        let at = Position::from_metres(50_000.0);
        for carrier in MODEMS {
            let place = store.place_quantiles(carrier, route(0), Direction::Down, at).unwrap();
            assert_eq!(place.unwrap().trips, PLACE_TRIPS_MAX);
        }
    }

    #[test]
    fn handovers_alone_leave_nothing_else() {
        let mut store = Store::in_memory(Limits::default()).unwrap();
        Filling { events: 1_000, full: false }.pour(&mut store).unwrap();
        let stats = store.stats().unwrap();
        assert_eq!((stats.events, stats.cells, stats.places, stats.tracks), (1_000, 250, 0, 0));
    }
}
