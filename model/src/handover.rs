//! What is known of a train on its track and of its modems: positions, cells, handovers.
//!
//! All quantities are whole numbers of small units, so that a record is the same on both sides of a
//! session, in a database and in a file. Positions are along a learned track, never on a map.

use std::fmt;
use std::time::Duration;

/// A cell as its modem names it (LTE's ECI, NR's NCI): unique within a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(pub u64);

/// A track along which positions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u64);

/// One journey of one train along one route, numbered at random when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TripId(pub u64);

macro_rules! display_hex_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }
    )*};
}
display_hex_number!(CellId, RouteId, TripId);

/// Which way a train goes along a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Positions grow.
    Up,
    /// Positions shrink.
    Down,
}

impl Direction {
    /// 1 or -1.
    pub fn sign(self) -> f64 {
        match self {
            Self::Up => 1.0,
            Self::Down => -1.0,
        }
    }
}

/// A position along a track, in tenths of a metre from where the track was begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Tenths of a metre; less than zero before the beginning.
    pub decimetres: i32,
}

impl Position {
    /// The position so many metres from the beginning; what is no number is the beginning.
    pub fn from_metres(metres: f64) -> Self {
        Self { decimetres: (metres * 10.0).round() as i32 }
    }

    /// Metres from the beginning.
    pub fn metres(self) -> f64 {
        f64::from(self.decimetres) / 10.0
    }
}

/// A speed along a track, without its direction, in centimetres a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Speed {
    /// Centimetres a second.
    pub centimetres_per_second: u16,
}

impl Speed {
    /// So many metres a second; at most 655, at least 0.
    pub fn from_metres_per_second(speed: f64) -> Self {
        Self { centimetres_per_second: (speed * 100.0).round() as u16 }
    }

    /// Metres a second.
    pub fn metres_per_second(self) -> f64 {
        f64::from(self.centimetres_per_second) / 100.0
    }
}

/// The received power of a cell's reference signal, in tenths of a dBm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rsrp {
    /// Tenths of a dBm.
    pub deci_dbm: i16,
}

impl Rsrp {
    /// So many dBm; `None` for what no receiver reports (outside -200 to 0).
    pub fn from_dbm(dbm: f64) -> Option<Self> {
        (-200.0..=0.0).contains(&dbm).then(|| Self { deci_dbm: (dbm * 10.0).round() as i16 })
    }

    /// In dBm.
    pub fn dbm(self) -> f64 {
        f64::from(self.deci_dbm) / 10.0
    }
}

/// How a handover ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HandoverOutcome {
    /// The next cell was joined at once: under 100 ms of silence.
    Success,
    /// It failed, and the carrier found a cell again soon (type I).
    TypeI,
    /// The cell was lost before the next was joined; what was queued was kept (type II).
    TypeII,
    /// The same, and what was queued was lost (type III).
    TypeIII,
}

impl HandoverOutcome {
    /// Whether it is a failure.
    pub fn is_failure(self) -> bool {
        self != Self::Success
    }
}

/// A handover as it was, once it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The trip on which it happened.
    pub trip: TripId,
    /// Counts the trip's handovers, of all carriers, from 0.
    pub sequence: u32,
    /// When it began, in milliseconds since 1970 by the gateway's clock.
    pub at_ms: u64,
    /// The carrier's name, at most 32 bytes.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// Which way the train went.
    pub direction: Direction,
    /// Where it began.
    pub position: Position,
    /// How fast the train was.
    pub speed: Speed,
    /// The cell that was left.
    pub from: CellId,
    /// The cell that was joined, where it is known.
    pub to: Option<CellId>,
    /// How strong the cell that was left was, where it is known.
    pub rsrp: Option<Rsrp>,
    /// How it ended.
    pub outcome: HandoverOutcome,
    /// For how long nothing passed.
    pub dark: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_keep_what_they_hold() {
        assert_eq!(Position::from_metres(-12.34).metres(), -12.3);
        assert_eq!(Position::from_metres(f64::NAN), Position::default());
        assert_eq!(Speed::from_metres_per_second(83.33).metres_per_second(), 83.33);
        assert_eq!(Speed::from_metres_per_second(-1.0), Speed::default());
        assert_eq!(Rsrp::from_dbm(-101.26).map(Rsrp::dbm), Some(-101.3));
        for dbm in [f64::NAN, 1.0, -201.0, f64::INFINITY] {
            assert_eq!(Rsrp::from_dbm(dbm), None);
        }
    }

    #[test]
    fn names_print_as_hex() {
        assert_eq!(CellId(0x1a2b).to_string(), "1a2b");
        assert_eq!((Direction::Up.sign(), Direction::Down.sign()), (1.0, -1.0));
    }
}
