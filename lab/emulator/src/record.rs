//! The form in which the rail bench writes its runs: a line of JSON a run.
//!
//! `polyrail-lab rail` writes these lines and makes its report of them; `polyrail-sim rail` reads
//! them to play the same trips in virtual time.

use serde::{Deserialize, Serialize};

use crate::rail::{Course, Workload};

/// The version of [`Run`]; lines of other versions are refused.
pub const VERSION: u32 = 1;

/// One contender on one trip.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`VERSION`].
    pub version: u32,
    /// The trip.
    pub course: Course,
    /// The load.
    pub workload: Workload,
    /// The contender's name.
    pub contender: String,
    /// The number of the run among those of the same trip, workload and contender, from 0.
    pub repeat: u32,
    /// The transfers in the order of their plan.
    pub transfers: Vec<Transferred>,
    /// The round-trip times of the messages in the order of their plan, in seconds; `None` for
    /// those whose answer did not arrive within the trip.
    pub messages: Vec<Option<f64>>,
    /// The call, if the workload has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallRun>,
    /// Copies of users' datagrams that both daemons sent: up, down.
    #[serde(default)]
    pub copies: [u64; 2],
    /// The carriers, in the order of the trip's; the ideal link is a single one.
    pub carriers: Vec<CarrierRun>,
    /// Events of the gateway and its forecasts, in the order of their times.
    pub events: Vec<Event>,
    /// A digest of the daemons' programs.
    pub build: String,
    /// The machine's load.
    pub machine: Machine,
    /// Why the run does not count, if it does not.
    pub starved: Option<String>,
}

/// One transfer as the user saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transferred {
    /// When the user's program connected, in seconds since the links' epoch.
    pub at_s: f64,
    /// The wanted bytes; `u64::MAX` for an endless transfer.
    pub bytes: u64,
    /// From the user to the server.
    pub up: bool,
    /// Checked bytes that arrived at the receiver by the end.
    pub received: u64,
    /// The time until the last byte, or until the user gave up.
    pub took_s: f64,
    /// All bytes arrived.
    pub finished: bool,
    /// Bytes received so far, every [`SAMPLE_S`] from `at_s` on.
    pub progress: Vec<u64>,
}

/// One call: the one-way delay of each packet in milliseconds, `None` if it did not arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallRun {
    /// From the user to the server.
    pub up: Vec<Option<f32>>,
    /// From the server to the user.
    pub down: Vec<Option<f32>>,
}

/// The interval of [`Transferred::progress`] and of [`CarrierRun::samples`], in seconds.
pub const SAMPLE_S: f64 = 0.1;

/// One carrier of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CarrierRun {
    /// Its name.
    pub name: String,
    /// All bytes of IP packets offered to the downlink and to the uplink, from the first transfer
    /// or message to the end of the last.
    pub offered: [u64; 2],
    /// Readings in the order of their times.
    pub samples: Vec<CarrierSample>,
}

/// The counters of a carrier at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CarrierSample {
    /// Seconds since the links' epoch.
    pub at_s: f64,
    /// Bytes delivered by the downlink so far.
    pub down: u64,
    /// Bytes delivered by the uplink so far.
    pub up: u64,
}

/// An event that the gateway reported, or the beginning or end of a forecast as the bench saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since the links' epoch.
    pub at_s: f64,
    /// Its name in the admin API, such as `path_stalled`; `forecast_begin` or `forecast_end`.
    pub kind: String,
    /// The carrier, if it is about one.
    pub carrier: Option<String>,
}

/// The load of the machine during a run, and the accuracy of the emulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The busy share of all processors, without programs of a positive nice value.
    pub busy: f64,
    /// The share of seconds in which this busy share is above 0.95.
    pub full: f64,
    /// How late a thread that sleeps for 5 ms wakes, 99th percentile, in milliseconds.
    pub late_p99_ms: f64,
    /// The same, maximum.
    pub late_most_ms: f64,
    /// How late the emulator's packets depart, 99th percentile of the worst link, in milliseconds.
    pub emulator_p99_ms: f64,
    /// The same, 99.9th percentile.
    pub emulator_p999_ms: f64,
}

impl Transferred {
    /// Mbit/s until the end, or until the user gave up.
    pub fn goodput(&self) -> f64 {
        self.received as f64 * 8e-6 / self.took_s
    }
}
