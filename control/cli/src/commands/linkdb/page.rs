//! The page of `polyrail linkdb plot --html`: the data of a [`Picture`], the track and the rate
//! map, as JSON in a fixed template.
//!
//! The template shows names with `textContent` only, and its policy permits no script but its own
//! and no request. Here the JSON is escaped so that no name ends its element.
//!
//! A page is bounded: the constants at the end limit each list. A longer list merges neighbouring
//! places, or omits the smallest items and states their number.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use polyrail_model::Direction;
use polyrail_predictor::track::Track;
use polyrail_predictor::views::{PlaceEstimate, PlaceKey};
use serde::Serialize;

use super::picture::{Cell, Picture};

/// The rate map along the track, in one direction of data.
pub(super) type Rates<'a> = Vec<(&'a PlaceKey, PlaceEstimate)>;

/// The page of a picture: for the named node, on its track if that is known, with the rates from
/// the train and to the train.
///
/// # Errors
/// The data cannot be encoded.
pub(super) fn page(
    picture: &Picture,
    node: &str,
    track: Option<&Track>,
    rates: &[Rates<'_>; 2],
) -> Result<String> {
    let data = serde_json::to_string(&Data::new(picture, node, track, rates))?;
    let (head, tail) = TEMPLATE.split_once(PLACEHOLDER).context("the template has no place")?;
    Ok([head, &escaped(&data), tail].concat())
}

/// JSON that is safe within a `script` element: these characters occur in its strings only.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => out.push(letter),
        }
    }
    out
}

/// The data of a page. Positions are whole metres along the track.
#[derive(Serialize)]
struct Data<'a> {
    route: String,
    direction: Direction,
    /// The node that forecasts; empty if it has no name.
    node: &'a str,
    trips: usize,
    from: i64,
    to: i64,
    /// The points of the track: metres, latitude and longitude in millionths of a degree.
    line: Vec<(i64, i32, i32)>,
    carriers: Vec<Carrier<'a>>,
    carriers_omitted: usize,
    cells_omitted: usize,
    /// The length of the stretches of handovers, and of those of rates.
    stretch: i64,
    rates_stretch: i64,
}

/// A carrier of the page.
#[derive(Serialize)]
struct Carrier<'a> {
    name: &'a str,
    cells: Vec<Row<'a>>,
    /// For each stretch the mean place and the number of its handovers.
    failed: Vec<(i64, usize)>,
    succeeded: Vec<(i64, usize)>,
    /// From the train and to the train.
    rates: [Vec<RateRow>; 2],
}

/// A cell: both ends, name, handovers, failures; place and permille of its forecast.
#[derive(Serialize)]
struct Row<'a>(i64, i64, &'a str, usize, usize, Option<(i64, u16)>);

/// A stretch of the rate map: its middle, Mbit/s and milliseconds.
#[derive(Serialize)]
struct RateRow(i64, Option<f64>, Option<f64>);

impl<'a> Data<'a> {
    fn new(
        picture: &'a Picture,
        node: &'a str,
        track: Option<&Track>,
        rates: &'a [Rates<'_>; 2],
    ) -> Self {
        let (from, to) = range(picture, track, rates);
        let (names, carriers_omitted) = carriers(picture, rates);
        let (mut rows, cells_omitted) = cells(picture, &names, (from, to));
        let stretch = stretch(STRETCH, MARKS_MAX, || {
            names.iter().flat_map(|name| {
                let marks = |failed| marks(picture, name, failed).map(move |at| (failed, at));
                marks(false).chain(marks(true)).map(move |(failed, at)| ((*name, failed), at))
            })
        });
        let rates_stretch = self::stretch(PLACE, RATES_MAX, || {
            let all = rates.iter().enumerate();
            all.flat_map(|(link, all)| {
                let known = all.iter().filter(|(key, _)| names.contains(key.carrier.as_str()));
                known.map(move |(key, _)| ((key.carrier.as_str(), link == 1), middle(key)))
            })
        });
        let carrier = |name: &&'a str| Carrier {
            name,
            cells: rows.remove(*name).unwrap_or_default(),
            failed: summed(marks(picture, name, true), stretch),
            succeeded: summed(marks(picture, name, false), stretch),
            rates: [0, 1].map(|link| profile(&rates[link], name, rates_stretch)),
        };
        let carriers = names.iter().map(carrier).collect();
        let (route, line) = (picture.route.to_string(), line(picture, track));
        let Picture { direction, trips, .. } = *picture;
        Self {
            route,
            direction,
            node,
            trips,
            from,
            to,
            line,
            carriers,
            carriers_omitted,
            cells_omitted,
            stretch,
            rates_stretch,
        }
    }
}

/// The ends of everything that is known along the track.
fn range(picture: &Picture, track: Option<&Track>, rates: &[Rates<'_>; 2]) -> (i64, i64) {
    let ends = track.map(Track::ends);
    let ends = ends.into_iter().flat_map(|(first, last)| [first as i64, last.ceil() as i64]);
    let rates = rates.iter().flatten().map(|(key, _)| i64::from(key.hectometre) * PLACE);
    let rates = rates.flat_map(|start| [start, start + PLACE]);
    let all = ends.chain(rates).chain([picture.from as i64, picture.to as i64]);
    all.fold((i64::MAX, i64::MIN), |(from, to), metres| (from.min(metres), to.max(metres)))
}

/// The carriers with most handovers, and the number of the others.
fn carriers<'a>(picture: &'a Picture, rates: &'a [Rates<'_>; 2]) -> (BTreeSet<&'a str>, usize) {
    let names = picture.carriers.keys().map(String::as_str);
    let measured = rates.iter().flatten().map(|(key, _)| key.carrier.as_str());
    let names: BTreeSet<&str> = names.chain(measured).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    let handovers = |name: &&str| -> usize {
        let cells = picture.carriers.get(*name).into_iter().flatten();
        cells.map(|cell| cell.passages.len()).sum()
    };
    names.sort_by_cached_key(|name| Reverse(handovers(name)));
    let omitted = names.len().saturating_sub(CARRIERS_MAX);
    names.truncate(CARRIERS_MAX);
    (names.into_iter().collect(), omitted)
}

/// The cells of these carriers with most failures and handovers, and the number of the others.
fn cells<'a>(
    picture: &'a Picture,
    names: &BTreeSet<&'a str>,
    (from, to): (i64, i64),
) -> (BTreeMap<&'a str, Vec<Row<'a>>>, usize) {
    let of = |name: &&'a str| {
        let name = *name;
        let cells = picture.carriers.get(name).into_iter().flatten();
        cells.map(move |cell| (name, cell))
    };
    let mut all: Vec<(&str, &Cell)> = names.iter().flat_map(of).collect();
    all.sort_by_cached_key(|(_, cell)| Reverse((cell.failures(), cell.passages.len())));
    let omitted = all.len().saturating_sub(CELLS_MAX);
    all.truncate(CELLS_MAX);
    all.sort_by(|(_, one), (_, other)| one.end.total_cmp(&other.end));
    let mut rows: BTreeMap<&str, Vec<Row<'_>>> = BTreeMap::new();
    for (name, cell) in all {
        let [first, last] = [cell.span.0, cell.span.1].map(|end| (end as i64).clamp(from, to));
        let forecast = cell.forecast.as_ref();
        let forecast = forecast.map(|one| (one.metres.round() as i64, one.permille));
        let (handovers, failures) = (cell.passages.len(), cell.failures());
        let row = Row(first, last, &cell.name, handovers, failures, forecast);
        rows.entry(name).or_default().push(row);
    }
    (rows, omitted)
}

/// The places of a carrier's failures, or of its successes.
fn marks(picture: &Picture, name: &str, failed: bool) -> impl Iterator<Item = i64> {
    let passages = picture.carriers.get(name).into_iter().flatten();
    let passages = passages.flat_map(|cell| &cell.passages).filter(move |one| one.1 == failed);
    passages.map(|(metres, _)| metres.round() as i64)
}

/// The least length of stretches, doubled from `shortest`, with which no more than `max` contain a
/// place. Each group of places has its own stretches.
fn stretch<G: Ord, I: Iterator<Item = (G, i64)>>(
    shortest: i64,
    max: usize,
    places: impl Fn() -> I,
) -> i64 {
    let mut length = shortest;
    loop {
        let stretches = places().map(|(group, metres)| (group, metres.div_euclid(length)));
        let mut stretches: Vec<_> = stretches.collect();
        stretches.sort_unstable();
        stretches.dedup();
        if stretches.len() <= max || length >= LONGEST {
            return length;
        }
        length *= 2;
    }
}

/// The mean place and the number of the places in each stretch.
fn summed(places: impl Iterator<Item = i64>, stretch: i64) -> Vec<(i64, usize)> {
    let mut sums: BTreeMap<i64, (i64, usize)> = BTreeMap::new();
    for metres in places {
        let (sum, count) = sums.entry(metres.div_euclid(stretch)).or_default();
        *sum += metres;
        *count += 1;
    }
    sums.into_values().map(|(sum, count)| (sum / count as i64, count)).collect()
}

/// The mean rates and delays of a carrier in each stretch.
fn profile(rates: &Rates<'_>, name: &str, stretch: i64) -> Vec<RateRow> {
    let mut known: BTreeMap<i64, [(f64, f64); 2]> = BTreeMap::new();
    for (key, estimate) in rates.iter().filter(|(key, _)| key.carrier == name) {
        let sums = known.entry(middle(key).div_euclid(stretch)).or_default();
        let rate = estimate.rate.map(|rate| rate.as_mbps());
        let delay = estimate.delay.map(|delay| delay.as_secs_f64() * 1e3);
        for (sum, value) in sums.iter_mut().zip([rate, delay]) {
            let Some(value) = value else { continue };
            *sum = (sum.0 + value, sum.1 + 1.0);
        }
    }
    let mean = |(sum, count): (f64, f64)| (count > 0.0).then(|| (sum / count * 1e2).round() / 1e2);
    let known = known
        .into_iter()
        .map(|(at, [rate, delay])| RateRow(at * stretch + stretch / 2, mean(rate), mean(delay)));
    known.collect()
}

/// The middle of a place of the rate map.
fn middle(key: &PlaceKey) -> i64 {
    i64::from(key.hectometre) * PLACE + PLACE / 2
}

/// Points of the track, evenly chosen.
fn line(picture: &Picture, track: Option<&Track>) -> Vec<(i64, i32, i32)> {
    let pieces = track.map(|track| track.pieces(picture.route)).unwrap_or_default();
    let points: Vec<_> = pieces.iter().flat_map(|piece| &piece.points).collect();
    let (count, kept) = (points.len(), points.len().min(POINTS_MAX));
    let chosen = (0..kept).filter_map(|at| points.get(at * (count - 1) / (kept - 1).max(1)));
    let micro = |units: i32| units.div_euclid(10);
    let point = |metres: f64, latitude, longitude| {
        (metres.round() as i64, micro(latitude), micro(longitude))
    };
    chosen.map(|one| point(one.position.metres(), one.latitude, one.longitude)).collect()
}

/// The template and the place of its data.
const TEMPLATE: &str = include_str!("plot.html");
const PLACEHOLDER: &str = "{{data}}";
/// The most items of a page, over all carriers: a line of 1,300 km with four carriers stays below,
/// and a full page is smaller than 4 MB.
const CARRIERS_MAX: usize = 16;
const CELLS_MAX: usize = 10_000;
const MARKS_MAX: usize = 20_000;
const RATES_MAX: usize = 40_000;
const POINTS_MAX: usize = 4_096;
/// The shortest stretch of handovers, a place of the rate map, and a stretch that no track exceeds,
/// in metres.
const STRETCH: i64 = 25;
const PLACE: i64 = 100;
const LONGEST: i64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_nothing_that_ends_its_element() {
        let name = "</script><!--<script>&\u{2028}\u{2029}\"'\\";
        let text = escaped(&serde_json::to_string(name).unwrap());
        assert!(!text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), name);
    }

    #[test]
    fn stretches_grow_until_they_are_few_enough() {
        let places = || (0..1_000).flat_map(|at| [("a", at * 100), ("b", at * 100)]);
        assert_eq!(stretch(100, 2_000, places), 100);
        assert_eq!(stretch(100, 1_999, places), 200);
        assert_eq!(stretch(100, 500, places), 400);
        assert_eq!(stretch(100, 1, places), 100 << 26, "two groups");
        assert_eq!(summed([10, 20, 30, -1].into_iter(), 25), [(-1, 1), (15, 2), (30, 1)]);
    }
}
