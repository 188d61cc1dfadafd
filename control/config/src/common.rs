//! The tables of both daemons: mode, log, TLS, session, scheduler, admin socket, metrics.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use polyrail_identity::IdentityPaths;
use polyrail_model::Bytes;
use polyrail_scheduler::ChainSpec;
use serde::{Deserialize, Serialize};

use crate::error::Broken;
use crate::linkdb::{LinkDbConfig, SharedConfig};
use crate::page::PageConfig;
use crate::values::{
    LoopbackAddress, count, displayed, duration, mebibytes, one, path, some_path, with_unit,
};

/// The keys and tables of both daemons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Common {
    /// How tunnels travel; on a gateway, unless a carrier has its own mode.
    #[serde(default)]
    pub mode: Mode,
    /// Logging.
    #[serde(default)]
    pub log: LogConfig,
    /// This node's certificate files.
    pub tls: TlsConfig,
    /// Bounds of each session.
    #[serde(default)]
    pub session: SessionConfig,
    /// The chain of schedulerlets of this node's direction of sending.
    #[serde(default)]
    pub scheduler: SchedulerConfig,
    /// How this node sends passengers' datagrams.
    #[serde(default)]
    pub udp: UdpConfig,
    /// The admin socket, if any.
    pub admin: Option<Admin>,
    /// The database of handovers, if any.
    pub linkdb: Option<LinkDbConfig>,
    /// The status page, if any.
    pub page: Option<PageConfig>,
    /// Metrics for Prometheus, if any.
    pub metrics: Option<MetricsConfig>,
}

/// How tunnels travel, as the operator chooses.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// QUIC where it works, TLS where it does not.
    #[default]
    Auto,
    /// QUIC over UDP alone.
    Quic,
    /// TLS 1.3 over TCP alone.
    Tls,
}

/// The least severe messages that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Something is broken.
    Error,
    /// Something is odd.
    Warn,
    /// Paths and sessions come and go.
    #[default]
    Info,
    /// Changes of state.
    Debug,
    /// Single packets.
    Trace,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Readable text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// `[log]`: which messages are logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Default `info`.
    pub level: LogLevel,
    /// Default `text`.
    pub format: LogFormat,
}

/// `[tls]`: the files that prove this node's identity and name its authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// This node's certificate chain, PEM.
    #[serde(deserialize_with = "path")]
    pub certificate: PathBuf,
    /// This node's private key, PEM, readable by its owner alone.
    #[serde(deserialize_with = "path")]
    pub key: PathBuf,
    /// The operator's certificate authority, PEM.
    #[serde(deserialize_with = "path")]
    pub authority: PathBuf,
    /// The authority's revocation list, PEM.
    #[serde(default, deserialize_with = "some_path")]
    pub revocations: Option<PathBuf>,
    /// How long a tunnel may outlive its peer's certificate; default 1 h, 0 to 1,000 h.
    #[serde(
        default = "expiry_grace",
        deserialize_with = "duration::<_, 0, 3_600_000_000>",
        serialize_with = "with_unit"
    )]
    pub expiry_grace: Duration,
}

fn expiry_grace() -> Duration {
    Duration::from_secs(3_600)
}

/// `[session]`: bounds of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// How long a session outlives its last path; default 120 s, 1 s to 1 h.
    #[serde(deserialize_with = "duration::<_, 1_000, 3_600_000>", serialize_with = "with_unit")]
    pub linger: Duration,
    /// Bound of all buffers of a session; default 16 MiB, 1 MiB (the least that a session needs)
    /// to 4 GiB.
    #[serde(deserialize_with = "mebibytes::<_, 1, 4_096>", serialize_with = "displayed")]
    pub memory: Bytes,
    /// How many flows may be open at once; default 16,384, 1 to 1,000,000.
    #[serde(deserialize_with = "count::<_, _, 1, 1_000_000>")]
    pub flows_max: usize,
    /// How many flows one user may have; default 1,024, 1 to 1,000,000.
    #[serde(deserialize_with = "count::<_, _, 1, 1_000_000>")]
    pub user_flows_max: usize,
    /// How long a flow may be idle; default and least 2 h 4 min (RFC 5382, REQ-5), at most 24 h.
    #[serde(
        deserialize_with = "duration::<_, 7_440_000, 86_400_000>",
        serialize_with = "with_unit"
    )]
    pub flow_idle: Duration,
}

/// `[scheduler]`: the chain of schedulerlets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// Default `polyrail`.
    #[serde(with = "chain")]
    pub chain: ChainSpec,
}

/// `[udp]`: how this node sends passengers' datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UdpConfig {
    /// Which real-time datagrams have a copy on a second carrier; default always.
    pub copies: DatagramCopies,
    /// Bytes of copies a second, in each session; from 0 to 1 GiB, default 64 KiB.
    #[serde(deserialize_with = "count::<_, _, 0, 1_073_741_824>")]
    pub copies_max: u32,
    /// Cloud only: whose datagrams a passenger receives; default address.
    pub filtering: Option<Filtering>,
}

/// Whose datagrams a passenger's endpoint receives (RFC 4787, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filtering {
    /// Those of the addresses to which it has sent (address-dependent).
    #[default]
    Address,
    /// Those of the addresses and ports to which it has sent (address and port-dependent).
    Endpoint,
    /// Those of everybody to whom it may send (endpoint-independent).
    None,
}

/// Which real-time datagrams have a copy on a second carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatagramCopies {
    /// All of them, within a budget.
    #[default]
    Always,
    /// Those whose carrier may be dark: its failure is predicted, or it is silent.
    Forecast,
    /// None.
    Off,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self { copies: DatagramCopies::default(), copies_max: 65_536, filtering: None }
    }
}

impl UdpConfig {
    /// Whose datagrams passengers receive (cloud).
    pub fn filtering(&self) -> Filtering {
        self.filtering.unwrap_or_default()
    }

    /// The chain for datagrams: the one named `datagrams`, whose last rule makes the copies.
    #[expect(clippy::expect_used, reason = "a test builds the chain of each value")]
    pub fn chain(&self) -> ChainSpec {
        let usual = ChainSpec::named("datagrams").expect("it exists");
        let (_, others) = usual.names().split_last().expect("it has rules");
        let max = self.copies_max;
        let rule =
            |forecast| format!("datagram_redundancy(forecast={forecast}, rate={max}, burst={max})");
        let copies = match self.copies {
            DatagramCopies::Always => Some(rule(false)),
            DatagramCopies::Forecast => Some(rule(true)),
            DatagramCopies::Off => None,
        };
        let rules: Vec<String> = others.iter().cloned().chain(copies).collect();
        ChainSpec::of(&rules).expect("its rules exist")
    }
}

/// `[admin]`: the admin socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Where the socket is made; at most [`SOCKET_PATH_MAX`] bytes.
    #[serde(deserialize_with = "path")]
    pub socket: PathBuf,
}

/// `[metrics]`: where Prometheus reads this daemon's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsConfig {
    /// A loopback address, because the metrics have neither encryption nor access control.
    #[serde(deserialize_with = "one::<_, LoopbackAddress, _>")]
    pub listen: SocketAddr,
}

/// The longest path of a Unix socket in bytes (`sun_path` without its last zero, unix(7)).
pub const SOCKET_PATH_MAX: usize = 107;

/// Flags of the command line that override the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Overrides {
    /// How tunnels travel, instead of the file's `mode`
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// The least severe messages to log, instead of the file's `log.level`
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
}

impl Default for SessionConfig {
    fn default() -> Self {
        let linger = Duration::from_secs(120);
        let flow_idle = Duration::from_secs(124 * 60);
        let (flows_max, user_flows_max) = (16_384, 1_024);
        Self { linger, memory: Bytes::from_mib(16), flows_max, user_flows_max, flow_idle }
    }
}

impl Mode {
    /// Its name in configurations and in the admin interface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Quic => "quic",
            Self::Tls => "tls",
        }
    }

    /// Whether QUIC may be used.
    pub fn allows_quic(self) -> bool {
        self != Self::Tls
    }

    /// Whether TLS over TCP may be used.
    pub fn allows_tls(self) -> bool {
        self != Self::Quic
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Common {
    /// The names of its fields.
    pub(crate) const KEYS: [&'static str; 10] =
        ["mode", "log", "tls", "session", "scheduler", "udp", "admin", "linkdb", "metrics", "page"];

    /// The paths in it.
    pub(crate) fn paths(&mut self) -> Vec<&mut PathBuf> {
        let Self { tls: TlsConfig { certificate, key, authority, revocations, .. }, .. } = self;
        let socket = self.admin.as_mut().map(|admin| &mut admin.socket);
        let linkdb = self.linkdb.iter_mut().flat_map(|LinkDbConfig { path, shared, .. }| {
            std::iter::once(path).chain(shared.iter_mut().flat_map(SharedConfig::paths))
        });
        [certificate, key, authority]
            .into_iter()
            .chain(revocations)
            .chain(socket)
            .chain(linkdb)
            .collect()
    }

    pub(crate) fn rules(&self) -> Result<(), Broken> {
        let is_long = |admin: &Admin| admin.socket.as_os_str().as_bytes().len() > SOCKET_PATH_MAX;
        if self.admin.as_ref().is_some_and(is_long) {
            let reason = format!("the path of a socket has at most {SOCKET_PATH_MAX} bytes");
            return Err(Broken::new("admin.socket", reason));
        }
        Ok(())
    }
}

impl TlsConfig {
    /// The files, for loading them.
    pub fn paths(&self) -> IdentityPaths {
        IdentityPaths {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            authority: self.authority.clone(),
            revocations: self.revocations.clone(),
        }
    }
}

/// A chain as its name or as a list of schedulerlets; written as a list.
pub mod chain {
    use polyrail_scheduler::ChainSpec;
    use serde::de::value::SeqAccessDeserializer;
    use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
    use serde::ser::{Serialize, Serializer};

    struct Chain;

    impl<'de> Visitor<'de> for Chain {
        type Value = ChainSpec;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("the name of a chain or a list of schedulerlets")
        }

        fn visit_str<E: Error>(self, name: &str) -> Result<ChainSpec, E> {
            ChainSpec::named(name).map_err(E::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<ChainSpec, A::Error> {
            let rules = Vec::<String>::deserialize(SeqAccessDeserializer::new(list))?;
            ChainSpec::of(&rules).map_err(A::Error::custom)
        }
    }

    /// Reads a chain.
    ///
    /// # Errors
    /// No chain or schedulerlet has that name, or the chain is incomplete.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ChainSpec, D::Error> {
        deserializer.deserialize_any(Chain)
    }

    /// Writes the list.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(chain: &ChainSpec, serializer: S) -> Result<S::Ok, S::Error> {
        chain.names().serialize(serializer)
    }
}
