//! Removes points that a straight line replaces (Douglas and Peucker 1973).
//!
//! A point is compared with the line at the point's own metres, so positions move by no more than
//! the tolerance, sideways or along.

use std::ops::Range;

use super::{Point, Track};

impl Track {
    /// Removes points inside this range; its ends stay.
    pub(super) fn simplify(&mut self, range: Range<usize>) {
        let range = range.start..range.end.min(self.points.len());
        if range.len() < 3 {
            return;
        }
        let mut kept = vec![true; self.points.len()];
        kept[range.start + 1..range.end - 1].fill(false);
        let mut start = range.start;
        while start + 1 < range.end {
            let end = (start + CHUNK).min(range.end - 1);
            kept[end] = true;
            thin(&self.points, &mut kept, start, end);
            start = end;
        }
        let mut kept = kept.into_iter();
        self.points.retain(|_| kept.next().unwrap_or(true));
    }
}

fn thin(points: &[Point], kept: &mut [bool], first: usize, last: usize) {
    let mut open = vec![(first, last)];
    while let Some((from, to)) = open.pop() {
        let offset = |at: &usize| off_chord(&points[from], &points[to], &points[*at]);
        let farthest = (from + 1..to).map(|at| (at, offset(&at)));
        let Some((at, off)) = farthest.max_by(|one, other| one.1.total_cmp(&other.1)) else {
            continue;
        };
        if off > TOLERANCE {
            kept[at] = true;
            open.extend([(from, at), (at, to)]);
        }
    }
}

fn off_chord(from: &Point, to: &Point, point: &Point) -> f64 {
    let whole = to.mark.metres() - from.mark.metres();
    let share = (point.mark.metres() - from.mark.metres()) / whole.max(0.1);
    let chord = from.place.to(to.place).scaled(share);
    from.place.to(point.place).plus(chord.scaled(-1.0)).length()
}

/// The largest distance of a removed point from the simplified line, in metres.
const TOLERANCE: f64 = 10.0;
/// Points processed together, because the worst case is quadratic.
const CHUNK: usize = 1_024;
