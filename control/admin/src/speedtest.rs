//! Speed tests of a gateway's carriers: `POST` and `GET /v1/speedtest`.

use serde::{Deserialize, Serialize};

/// The body of `POST /v1/speedtest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedtestOrder {
    /// How long each direction is measured, in seconds: 1 to [`SPEEDTEST_S_MAX`], default
    /// [`SPEEDTEST_S`].
    #[serde(default = "seconds")]
    pub seconds: u64,
    /// The carriers to test; if there are none, all that are neither metered nor have a cap.
    #[serde(default)]
    pub carriers: Vec<String>,
}

/// The default of [`SpeedtestOrder::seconds`].
pub const SPEEDTEST_S: u64 = 5;
/// The maximum of [`SpeedtestOrder::seconds`].
pub const SPEEDTEST_S_MAX: u64 = 30;
/// The maximum of [`SpeedtestOrder::carriers`]: as many as a session has paths.
pub const SPEEDTEST_CARRIERS_MAX: usize = 64;

fn seconds() -> u64 {
    SPEEDTEST_S
}

/// A speed test: the answer of `POST` and `GET /v1/speedtest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeedtestState {
    /// Whether it runs.
    pub state: SpeedtestPhase,
    /// Why it stopped early.
    pub message: Option<String>,
    /// The cloud at the other end.
    pub cloud: String,
    /// How long each direction is measured, in seconds.
    pub seconds: u64,
    /// The measurement under way.
    pub measuring: Option<SpeedtestStep>,
    /// The finished measurements: each carrier alone, then all of them together.
    pub rows: Vec<SpeedtestRow>,
    /// Carriers that are not tested.
    pub skipped: Vec<SkippedCarrier>,
}

/// Whether a speed test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedtestPhase {
    /// It runs.
    Running,
    /// It measured everything.
    Finished,
    /// It stopped early.
    Stopped,
}

/// The measurement under way of a speed test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeedtestStep {
    /// The carriers in use.
    pub carriers: Vec<String>,
    /// Its step.
    pub step: SpeedtestStepKind,
}

/// A step of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedtestStepKind {
    /// Round trips without load.
    Idle,
    /// From the cloud to the gateway.
    Download,
    /// From the gateway to the cloud.
    Upload,
}

/// The measurement of one carrier, or of several together (the bond).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeedtestRow {
    /// The carriers, and the test's bytes on each.
    pub carriers: Vec<CarrierBytes>,
    /// The rate from the cloud to the gateway.
    pub download_bits_per_s: Option<u64>,
    /// The rate from the gateway to the cloud.
    pub upload_bits_per_s: Option<u64>,
    /// The median round-trip time without load, in microseconds.
    pub rtt_idle_us: Option<u64>,
    /// The same during the download.
    pub rtt_download_us: Option<u64>,
    /// The same during the upload.
    pub rtt_upload_us: Option<u64>,
    /// Data packets that the gateway sent meanwhile over these carriers, passengers' included.
    pub sent_packets: u64,
    /// Those of them that were lost.
    pub lost_packets: u64,
    /// Why the measurement is incomplete.
    pub error: Option<String>,
}

impl SpeedtestRow {
    /// The row of these carriers before anything is measured.
    pub fn new(carriers: &[String]) -> Self {
        let unused = |carrier: &String| CarrierBytes {
            carrier: carrier.clone(),
            sent_bytes: 0,
            received_bytes: 0,
        };
        Self { carriers: carriers.iter().map(unused).collect(), ..Self::default() }
    }
}

/// A carrier of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarrierBytes {
    /// Its name.
    pub carrier: String,
    /// Bytes that the test sent over it.
    pub sent_bytes: u64,
    /// Bytes that the test received over it.
    pub received_bytes: u64,
}

/// A carrier that is not tested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedCarrier {
    /// Its name.
    pub carrier: String,
    /// The reason, in words.
    pub reason: String,
}
