//! The line on the ground: the coordinates of a generated route.
//!
//! It winds like a high-speed line, with radii above 2 km, and never comes near itself.

/// A line, as a place every ten metres.
#[derive(Clone, Debug)]
pub struct Line {
    /// The metres of the first place.
    from: f64,
    /// Degrees north and east.
    places: Vec<[f64; 2]>,
}

impl Line {
    /// The line of a route between two positions in metres.
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

    /// The place at a position in metres, `aside` metres to the right of the line, in degrees north
    /// and east. Beyond its ends the line is straight.
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

/// The place at a distance in metres and a bearing in radians.
fn moved([north, east]: [f64; 2], bearing: f64, metres: f64) -> [f64; 2] {
    let (sine, cosine) = bearing.sin_cos();
    let wide = METRES_PER_DEGREE * north.to_radians().cos();
    [north + metres * cosine / METRES_PER_DEGREE, east + metres * sine / wide]
}

fn bearing(one: [f64; 2], next: [f64; 2]) -> f64 {
    let east = (next[1] - one[1]) * one[0].to_radians().cos();
    east.atan2(next[0] - one[0])
}

/// The beginning of the line, in degrees, and its mean bearing, in degrees from north.
const NORTH: f64 = 50.0;
const EAST: f64 = 8.0;
const BEARING: f64 = 60.0;
/// The amplitude of its bends in degrees, and their length in metres per radian.
const BENDS: [(f64, f64); 2] = [(30.0, 2_500.0), (20.0, 1_600.0)];
const STEP: f64 = 10.0;
/// Of a sphere.
const METRES_PER_DEGREE: f64 = 111_194.93;
