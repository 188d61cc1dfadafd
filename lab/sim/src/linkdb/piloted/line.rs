//! The line on the ground: where the metres of a generated route are, in degrees.
//!
//! It winds as fast lines do, with radii above 2 km, and never comes near itself.

/// A line, by its places each ten metres.
#[derive(Clone, Debug)]
pub struct Line {
    /// The metres of the first place.
    from: f64,
    /// Degrees north and east.
    places: Vec<[f64; 2]>,
}

impl Line {
    /// The line of a route, from these metres to those.
    pub fn new(seed: u64, from: f64, to: f64) -> Self {
        let turned = seed as f64;
        let mut place = [NORTH, EAST];
        let mut places = vec![place];
        for step in 0..((to - from) / STEP).ceil() as usize {
            let metres = step as f64 * STEP;
            let [wide, narrow] = BENDS.map(|(angle, way)| angle * (metres / way + turned).sin());
            place = moved(place, (BEARING + wide + narrow).to_radians(), STEP);
            places.push(place);
        }
        Self { from, places }
    }

    /// The place at these metres, so far to the right of the line, in degrees north and east. What
    /// is beyond an end lies straight ahead.
    pub fn place(&self, metres: f64, aside: f64) -> [f64; 2] {
        let steps = (metres - self.from) / STEP;
        let at = (steps.max(0.0) as usize).min(self.places.len().saturating_sub(2));
        let (Some(&one), Some(&next)) = (self.places.get(at), self.places.get(at + 1)) else {
            return [NORTH, EAST];
        };
        let bearing = bearing(one, next);
        let along = moved(one, bearing, (steps - at as f64) * STEP);
        moved(along, bearing + std::f64::consts::FRAC_PI_2, aside)
    }
}

/// The place so many metres away, by a bearing in radians.
fn moved([north, east]: [f64; 2], bearing: f64, metres: f64) -> [f64; 2] {
    let (sine, cosine) = bearing.sin_cos();
    let wide = METRES_PER_DEGREE * north.to_radians().cos();
    [north + metres * cosine / METRES_PER_DEGREE, east + metres * sine / wide]
}

fn bearing(one: [f64; 2], next: [f64; 2]) -> f64 {
    let east = (next[1] - one[1]) * one[0].to_radians().cos();
    east.atan2(next[0] - one[0])
}

/// Where the line begins, in degrees, and where it leads in the mean, in degrees from north.
const NORTH: f64 = 50.0;
const EAST: f64 = 8.0;
const BEARING: f64 = 60.0;
/// How far its bends turn it, in degrees, and how long they are, in metres for a radian.
const BENDS: [(f64, f64); 2] = [(30.0, 2_500.0), (20.0, 1_600.0)];
const STEP: f64 = 10.0;
/// Of a sphere.
const METRES_PER_DEGREE: f64 = 111_194.93;
