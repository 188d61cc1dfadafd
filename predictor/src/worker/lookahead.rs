//! The expected rates of the next seconds, from the rate map.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, LinkOutlook, OutlookStep, Position};

use super::buffered::BufferedStore;
use crate::entry::WriterNumber;
use crate::position::TrainPosition;
use crate::views::PlaceKey;

/// What earlier trips measured over the next seconds of travel, for the node `own`.
pub(super) fn outlook(
    now: Instant,
    store: &BufferedStore,
    own: WriterNumber,
    carrier: &str,
    train: &TrainPosition,
) -> LinkOutlook {
    let ahead = |step: u32| {
        let from = now + STEP * step;
        let metres = train.metres + train.direction.sign() * train.speed * f64::from(step);
        let (rate, delay) = usual(store, own, carrier, train, metres)?;
        Some(OutlookStep { from, rate, delay })
    };
    LinkOutlook { steps: (0..STEPS).map_while(ahead).collect() }
}

/// The expected rate and delay, each from the nearest place within 200 m that has it.
fn usual(
    store: &BufferedStore,
    own: WriterNumber,
    carrier: &str,
    train: &TrainPosition,
    metres: f64,
) -> Option<(Bitrate, Duration)> {
    let (mut rate, mut delay) = (None, None);
    // The nearer neighbour first.
    let side = if metres.rem_euclid(PLACE) < PLACE / 2.0 { -PLACE } else { PLACE };
    for off in [0.0, side, -side, 2.0 * side, -2.0 * side] {
        let position = Position::from_metres(metres + off);
        let place = PlaceKey::of(carrier, train.route, train.direction, position);
        if let Some(known) = store.views().estimate(own, &place) {
            rate = rate.or(known.rate);
            delay = delay.or(known.delay);
        }
        if rate.is_some() && delay.is_some() {
            break;
        }
    }
    rate.zip(delay)
}

/// Length of a step, and how many an outlook has.
const STEP: Duration = Duration::from_secs(1);
const STEPS: u32 = 4;
/// Length of a place of the rate map, in metres.
const PLACE: f64 = 100.0;
