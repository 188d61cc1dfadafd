//! A line as one run saw it, and how far along it a point is.

/// A polyline in metres around its first point.
#[derive(Clone, Debug)]
pub struct Line {
    origin: [f64; 2],
    /// Points, and how far along each is.
    points: Vec<([f64; 2], f64)>,
}

impl Line {
    /// From degrees north and east in the order of travel; `None` when it goes nowhere. What moves
    /// less than [`STEP`] metres on is left out: a standing receiver wanders.
    pub fn new(track: &[[f64; 2]]) -> Option<Self> {
        let origin = *track.first()?;
        let mut line = Self { origin, points: vec![([0.0; 2], 0.0)] };
        for point in track {
            let point = line.flat(*point);
            let Some((last, along)) = line.points.last().copied() else { continue };
            let step = distance(last, point);
            if step >= STEP {
                line.points.push((point, along + step));
            }
        }
        (line.points.len() > 1).then_some(line)
    }

    /// How long it is.
    pub fn metres(&self) -> f64 {
        self.points.last().map_or(0.0, |(_, along)| *along)
    }

    /// How far along the nearest point of the line is.
    pub fn along(&self, point: [f64; 2]) -> f64 {
        let point = self.flat(point);
        let mut best = (f64::INFINITY, 0.0);
        for pair in self.points.windows(2) {
            let ((from, start), (to, end)) = (pair[0], pair[1]);
            let way = [to[0] - from[0], to[1] - from[1]];
            let off = [point[0] - from[0], point[1] - from[1]];
            let length = end - start;
            let share = ((off[0] * way[0] + off[1] * way[1]) / (length * length)).clamp(0.0, 1.0);
            let foot = [from[0] + share * way[0], from[1] + share * way[1]];
            let away = distance(foot, point);
            if away < best.0 {
                best = (away, start + share * length);
            }
        }
        best.1
    }

    fn flat(&self, [north, east]: [f64; 2]) -> [f64; 2] {
        let narrow = self.origin[0].to_radians().cos();
        [(north - self.origin[0]) * DEGREE, (east - self.origin[1]) * DEGREE * narrow]
    }
}

fn distance(a: [f64; 2], b: [f64; 2]) -> f64 {
    (a[0] - b[0]).hypot(a[1] - b[1])
}

/// Metres of a degree of latitude.
const DEGREE: f64 = 111_195.0;
const STEP: f64 = 30.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_beside_the_line_is_as_far_along_as_its_foot() {
        let metre = 1.0 / DEGREE;
        let line = Line::new(&[[0.0, 0.0], [0.0, 100.0 * metre], [100.0 * metre, 100.0 * metre]]);
        let line = line.unwrap();
        assert!((line.metres() - 200.0).abs() < 0.1);
        for (point, wanted) in [([10.0, 50.0], 50.0), ([50.0, 110.0], 150.0), ([-20.0, -30.0], 0.0)]
        {
            let along = line.along(point.map(|metres| metres * metre));
            assert!((along - wanted).abs() < 0.1, "{point:?}: {along}");
        }
        assert!(Line::new(&[]).is_none() && Line::new(&[[25.0, 121.0]; 9]).is_none());
    }
}
