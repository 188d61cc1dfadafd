//! Carriers and speeds, by the published figures.

use std::str::FromStr;
use std::time::Duration;

/// The speed of a train, one of those at which carriers were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// Standing.
    Standing,
    /// 200 km/h.
    Kmh200,
    /// 300 km/h.
    Kmh300,
    /// 350 km/h.
    Kmh350,
}

/// A text that names no speed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a speed; there are 0, 200, 300 and 350 km/h")]
pub struct SpeedError(String);

impl FromStr for Speed {
    type Err = SpeedError;

    /// Reads km/h.
    fn from_str(text: &str) -> Result<Self, SpeedError> {
        match text.trim() {
            "0" => Ok(Self::Standing),
            "200" => Ok(Self::Kmh200),
            "300" => Ok(Self::Kmh300),
            "350" => Ok(Self::Kmh350),
            _ => Err(SpeedError(text.to_owned())),
        }
    }
}

/// The properties of one carrier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CarrierProfile {
    /// Its name.
    pub name: &'static str,
    /// The downlink rate at its quartiles, Mbit/s, as one long-lived bbr flow gets it under load
    /// (POLYCORN 2.2).
    pub mbps: [f64; 3],
    /// The round-trip time of that flow at its quartiles, ms (POLYCORN 2.2).
    pub rtt_ms: [f64; 3],
    /// The share of 0.2 s windows whose rate is more than twice or less than half of that of the
    /// second before (POLYCORN 2.2, Fig. 1a).
    pub jumps: f64,
    /// The share of cells whose handovers are seen to fail, of all trips of a campaign
    /// (POLYCORN 2.3).
    pub failing_cells: f64,
    /// The share of all handovers that fail (POLYCORN 2.3).
    pub failures: f64,
    /// Random loss at 350 km/h.
    pub loss: f64,
    /// The constants of its link.
    pub radio: Radio,
    /// The share of cells that fail often, and of those that fail rarely.
    pub(super) often: f64,
    pub(super) rarely: f64,
}

/// The constants of a carrier's link, found with `polyrail-sim calibrate` so that one long-lived
/// bbr flow over it shows the published figures. The link gives more than the flow gets, and its
/// delay is that of an empty queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Radio {
    /// The median rate, Mbit/s.
    pub mbps: f64,
    /// The deviation of the rate's logarithm below and above the median.
    pub sigma: [f64; 2],
    /// The weight of what changes within a second, of 1 for all that changes the rate.
    pub fast: f64,
    /// How long that lasts, in seconds.
    pub fast_memory: f64,
    /// The median round-trip time of an empty link, ms.
    pub rtt_ms: f64,
    /// The deviation of its logarithm.
    pub rtt_sigma: f64,
    /// How long that lasts, in seconds.
    pub rtt_memory: f64,
    /// How long the queue is at the median rate, in seconds.
    pub queue: f64,
}

impl CarrierProfile {
    /// POLYCORN's carrier A.
    pub const A: Self = Self {
        name: "a",
        mbps: [2.56, 6.48, 12.42],
        rtt_ms: [123.0, 185.0, 315.0],
        jumps: 0.264,
        failing_cells: 0.4733,
        failures: 0.0622,
        loss: 0.0021,
        radio: Radio {
            mbps: 7.95,
            sigma: [1.39, 1.07],
            fast: 0.572,
            fast_memory: 0.34,
            rtt_ms: 114.0,
            rtt_sigma: 0.096,
            rtt_memory: 1.0,
            queue: 0.28,
        },
        often: 0.165,
        rarely: 0.64,
    };
    /// POLYCORN's carrier B.
    pub const B: Self = Self {
        name: "b",
        mbps: [4.60, 10.67, 19.73],
        rtt_ms: [147.0, 191.0, 348.0],
        jumps: 0.226,
        failing_cells: 0.4035,
        failures: 0.0547,
        loss: 0.0135,
        radio: Radio {
            mbps: 12.3,
            sigma: [1.15, 1.27],
            fast: 0.546,
            fast_memory: 0.3,
            rtt_ms: 143.7,
            rtt_sigma: 0.097,
            rtt_memory: 1.0,
            queue: 0.32,
        },
        often: 0.143,
        rarely: 0.53,
    };

    /// Two to eight carriers: A, B, and others with scaled rates.
    pub fn mix(count: usize) -> Vec<Self> {
        const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let scales = [1.0, 1.0, 0.8, 1.2, 0.6, 1.4, 0.5, 1.0];
        NAMES
            .iter()
            .zip(scales)
            .take(count.clamp(1, 8))
            .enumerate()
            .map(|(i, (name, scale))| {
                let like = if i % 2 == 0 { Self::A } else { Self::B };
                let radio = Radio { mbps: like.radio.mbps * scale, ..like.radio };
                Self { name, mbps: like.mbps.map(|mbps| mbps * scale), radio, ..like }
            })
            .collect()
    }
}

impl Speed {
    /// In metres a second.
    pub fn metres_per_second(self) -> f64 {
        match self {
            Self::Standing => 0.0,
            Self::Kmh200 => 200.0 / 3.6,
            Self::Kmh300 => 300.0 / 3.6,
            Self::Kmh350 => 350.0 / 3.6,
        }
    }

    /// The mean distance between two handovers: every 31.4 s at 200 km/h, 13.7 s at 300 km/h and
    /// 8.6 s at 350 km/h (Wang et al., MobiCom 2019, section 1 and table 3).
    pub(super) fn cell_metres(self) -> f64 {
        match self {
            Self::Standing | Self::Kmh200 => 31.4 * Self::Kmh200.metres_per_second(),
            Self::Kmh300 => 13.7 * Self::Kmh300.metres_per_second(),
            Self::Kmh350 => 8.6 * Self::Kmh350.metres_per_second(),
        }
    }

    /// The rate as a share of that at 300 km/h (Wang et al., table 3; at 350 km/h section 4.1,
    /// where a bbr flow loses 40.1 %).
    pub(super) fn rate_share(self) -> f64 {
        match self {
            Self::Standing => 1.9,
            Self::Kmh200 => 1.2,
            Self::Kmh300 => 1.0,
            Self::Kmh350 => 0.6,
        }
    }

    /// The rate of failures as a share of that at 300 km/h (Wang et al., table 3).
    pub(super) fn failure_share(self) -> f64 {
        match self {
            Self::Standing | Self::Kmh200 => 0.47,
            Self::Kmh300 => 1.0,
            Self::Kmh350 => 1.19,
        }
    }

    /// The random loss as a share of that at 350 km/h. A standing train loses 0.008 % (Wang et al.,
    /// table 4). For the speeds between, nothing is published for a link without queues: the values
    /// are a choice, explained in `docs/emulation.md`.
    pub(super) fn loss_share(self) -> f64 {
        match self {
            Self::Standing => 0.006,
            Self::Kmh200 => 0.02,
            Self::Kmh300 => 0.033,
            Self::Kmh350 => 1.0,
        }
    }

    /// The time of a trip along a track of this length.
    pub fn time_for(self, metres: f64) -> Option<Duration> {
        let speed = self.metres_per_second();
        (speed > 0.0).then(|| Duration::from_secs_f64(metres / speed))
    }
}
