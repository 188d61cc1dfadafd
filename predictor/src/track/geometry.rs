//! Points on the earth and vectors between them.
//!
//! A vector is in a plane at the middle of its two ends, because one plane would distort a line of
//! 2,000 km. The earth is a sphere: lengths are up to 0.5 % off, equally on each trip. The last
//! degree at the poles is not supported.

/// A latitude and longitude in ten-millionths of a degree (11 mm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LatLon {
    latitude: i32,
    longitude: i32,
}

/// The way from one point to another, in metres.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Vector {
    pub east: f64,
    pub north: f64,
}

impl LatLon {
    /// From degrees; `None` for NaN, out of range, within a degree of a pole, and for 0, 0, which
    /// receivers report without a fix.
    pub fn from_degrees(latitude: f64, longitude: f64) -> Option<Self> {
        let known = latitude != 0.0 || longitude != 0.0;
        let valid = latitude.abs() <= LATITUDE_MAX && longitude.abs() <= 180.0;
        (known && valid).then(|| Self {
            latitude: (latitude * PER_DEGREE).round() as i32,
            longitude: (longitude * PER_DEGREE).round() as i32,
        })
    }

    /// From ten-millionths of a degree; `None` if out of range.
    pub fn from_units(latitude: i32, longitude: i32) -> Option<Self> {
        let valid = f64::from(latitude).abs() <= LATITUDE_MAX * PER_DEGREE
            && f64::from(longitude).abs() <= 180.0 * PER_DEGREE;
        valid.then_some(Self { latitude, longitude })
    }

    /// In ten-millionths of a degree: north, east.
    pub fn units(self) -> (i32, i32) {
        (self.latitude, self.longitude)
    }

    /// The way to another point.
    pub fn to(self, other: Self) -> Vector {
        let north = f64::from(other.latitude) - f64::from(self.latitude);
        let mut east = f64::from(other.longitude) - f64::from(self.longitude);
        if east.abs() > HALF_TURN {
            east -= 2.0 * HALF_TURN * east.signum();
        }
        let middle = (f64::from(self.latitude) + f64::from(other.latitude)) / 2.0;
        Vector { east: east * METRES_PER_UNIT * cosine(middle), north: north * METRES_PER_UNIT }
    }

    /// The point at the end of a way.
    pub fn moved(self, way: Vector) -> Self {
        let north = way.north / METRES_PER_UNIT;
        let limit = LATITUDE_MAX * PER_DEGREE;
        let latitude = (f64::from(self.latitude) + north).clamp(-limit, limit);
        let middle = (f64::from(self.latitude) + latitude) / 2.0;
        let east = way.east / METRES_PER_UNIT / cosine(middle);
        let turned = f64::from(self.longitude) + east + HALF_TURN;
        let longitude = turned.rem_euclid(2.0 * HALF_TURN) - HALF_TURN;
        Self { latitude: latitude.round() as i32, longitude: longitude.round() as i32 }
    }
}

impl Vector {
    pub fn length(self) -> f64 {
        self.east.hypot(self.north)
    }

    pub fn dot(self, other: Self) -> f64 {
        self.east * other.east + self.north * other.north
    }

    /// The distance of the other to the left of this one, times the length of this one.
    pub fn cross(self, other: Self) -> f64 {
        self.east * other.north - self.north * other.east
    }

    pub fn scaled(self, factor: f64) -> Self {
        Self { east: self.east * factor, north: self.north * factor }
    }

    pub fn plus(self, other: Self) -> Self {
        Self { east: self.east + other.east, north: self.north + other.north }
    }

    /// Degrees clockwise from north.
    pub fn bearing(self) -> f64 {
        self.east.atan2(self.north).to_degrees()
    }
}

fn cosine(units: f64) -> f64 {
    (units / PER_DEGREE).to_radians().cos().max(1e-3)
}

const PER_DEGREE: f64 = 1e7;
const HALF_TURN: f64 = 180.0 * PER_DEGREE;
const LATITUDE_MAX: f64 = 89.0;
/// The mean radius of the earth is 6,371,008.8 m (IUGG).
const METRES_PER_UNIT: f64 = 6_371_008.8 * std::f64::consts::PI / 180.0 / PER_DEGREE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_point_is_at_the_end_of_its_way() {
        for (latitude, longitude) in [(48.1, 11.5), (-33.0, 151.0), (0.5, 179.999), (69.0, -180.0)]
        {
            let place = LatLon::from_degrees(latitude, longitude).unwrap();
            let way = Vector { east: 321.0, north: -123.0 };
            let back = place.to(place.moved(way));
            assert!(back.plus(way.scaled(-1.0)).length() < 0.05, "{back:?}");
        }
        let degree = LatLon::from_degrees(10.0, 5.0).unwrap().to(LatLon::from_units(
            110_000_000,
            50_000_000,
        )
        .unwrap());
        assert!((degree.length() - 111_195.0).abs() < 1.0 && degree.bearing() == 0.0);
    }

    #[test]
    fn invalid_coordinates_are_rejected() {
        let bad = [
            (f64::NAN, 1.0),
            (1.0, f64::INFINITY),
            (90.0, 0.0),
            (0.0, 180.1),
            (0.0, 0.0),
            (-0.0, 0.0),
        ];
        for (latitude, longitude) in bad {
            assert_eq!(LatLon::from_degrees(latitude, longitude), None, "{latitude} {longitude}");
        }
        assert_eq!(LatLon::from_units(i32::MIN, 0), None);
        assert_eq!(LatLon::from_units(0, i32::MAX), None);
    }
}
