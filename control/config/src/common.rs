//! What the configurations of both daemons share: mode, log, TLS, session, scheduler, admin.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use polyrail_model::Bytes;
use polyrail_scheduler::{ChainSpec, ChainSpecError};
use serde::{Deserialize, Serialize};

use super::reader::Section;
use super::values::{bytes, choice, duration, integer, parsed, text};

/// How tunnels travel, as the operator wishes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// A word that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a mode: use auto, quic or tls")]
pub struct ModeError(String);

/// The least urgent messages that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What is broken.
    Error,
    /// What is odd as well.
    Warn,
    /// Paths and sessions coming and going as well.
    #[default]
    Info,
    /// Changes of state as well.
    Debug,
    /// Single packets as well.
    Trace,
}

/// A word that is not a log level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a log level: use error, warn, info, debug or trace")]
pub struct LogLevelError(String);

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Readable text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// `[log]`: what is logged, where to and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    /// Default `info`.
    pub level: LogLevel,
    /// The file to append to; standard error when there is none.
    pub file: Option<PathBuf>,
    /// Default `text`.
    pub format: LogFormat,
}

/// `[tls]`: the files that prove who this node is and whom it trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// This node's certificate chain, PEM.
    pub certificate: PathBuf,
    /// This node's private key, PEM, readable by its owner alone.
    pub key: PathBuf,
    /// The operator's certificate authority, PEM.
    pub authority: PathBuf,
    /// The authority's revocation list, PEM.
    pub revocations: Option<PathBuf>,
}

/// `[session]`: bounds of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// How long a session outlives its last path; default 120 s, 1 s to 1 h.
    pub linger: Duration,
    /// What all buffers of a session may hold; default 16 MiB, 1 MiB (what a session
    /// needs at least) to 4 GiB.
    pub memory: Bytes,
    /// How many flows may be open at once; default 16,384, 1 to 1,000,000.
    pub flows_max: usize,
}

/// `[scheduler]`: the chain of schedulerlets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Default `polyrail`.
    pub chain: ChainSpec,
}

/// `[admin]`: the admin socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where the socket is made; at most [`SOCKET_PATH_MAX`] bytes.
    pub socket: PathBuf,
}

/// The longest path of a Unix socket in bytes (`sun_path` without its last zero, unix(7)).
pub const SOCKET_PATH_MAX: usize = 107;

/// The longest list of schedulerlets that a file may hold.
pub const CHAIN_MAX: usize = 16;

/// What the command line says over the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Overrides {
    /// How tunnels travel (auto, quic or tls), instead of the file's `mode`
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// error, warn, info, debug or trace, instead of the file's `log.level`
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
}

impl Default for SessionConfig {
    fn default() -> Self {
        let linger = Duration::from_secs(120);
        Self { linger, memory: Bytes::from_mib(16), flows_max: 16_384 }
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        let named = |mode: &Mode| mode.as_str() == text;
        let found = [Self::Auto, Self::Quic, Self::Tls].into_iter().find(named);
        found.ok_or_else(|| ModeError(text.to_owned()))
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

impl LogLevel {
    /// Its name in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl FromStr for LogLevel {
    type Err = LogLevelError;

    fn from_str(text: &str) -> Result<Self, LogLevelError> {
        match text {
            "error" => Ok(Self::Error),
            "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            "trace" => Ok(Self::Trace),
            _ => Err(LogLevelError(text.to_owned())),
        }
    }
}

impl Overrides {
    /// Puts the command line's wishes over what the file said.
    pub(super) fn apply(&self, mode: &mut Mode, log: &mut LogConfig) {
        *mode = self.mode.unwrap_or(*mode);
        log.level = self.log_level.unwrap_or(log.level);
    }
}

/// The parts that stand in both files.
pub(super) struct Common {
    pub(super) mode: Mode,
    pub(super) log: LogConfig,
    pub(super) tls: Option<TlsConfig>,
    pub(super) session: SessionConfig,
    pub(super) scheduler: SchedulerConfig,
    /// The outer `None` is a table that is there and bad.
    pub(super) admin: Option<Option<Admin>>,
}

/// Reads what both files share from the top table.
pub(super) fn read(root: &mut Section<'_, '_>) -> Common {
    Common {
        mode: root.get("mode", parsed(Mode::from_str)).unwrap_or_default(),
        log: root.table("log").map(read_log).unwrap_or_default(),
        tls: root.need_table("tls").and_then(read_tls),
        session: root.table("session").map(read_session).unwrap_or_default(),
        scheduler: root.table("scheduler").map(read_scheduler).unwrap_or_default(),
        admin: root.optional("admin", read_admin),
    }
}

fn read_admin(mut section: Section<'_, '_>) -> Option<Admin> {
    let socket = path(&mut section, "socket", true);
    let fits = |path: &PathBuf| path.as_os_str().as_bytes().len() <= SOCKET_PATH_MAX;
    if socket.as_ref().is_some_and(|path| !fits(path)) {
        let reason = format!("the path of a socket has at most {SOCKET_PATH_MAX} bytes");
        section.source().blame(&section.key("socket"), reason);
    }
    section.finish();
    Some(Admin { socket: socket? })
}

fn read_log(mut section: Section<'_, '_>) -> LogConfig {
    let level = section.get("level", parsed(LogLevel::from_str)).unwrap_or_default();
    let file = path(&mut section, "file", false);
    let format = section.get("format", choice(FORMATS)).unwrap_or_default();
    section.finish();
    LogConfig { level, file, format }
}

fn read_tls(mut section: Section<'_, '_>) -> Option<TlsConfig> {
    let certificate = path(&mut section, "certificate", true);
    let key = path(&mut section, "key", true);
    let authority = path(&mut section, "authority", true);
    let revocations = path(&mut section, "revocations", false);
    section.finish();
    Some(TlsConfig { certificate: certificate?, key: key?, authority: authority?, revocations })
}

fn read_session(mut section: Section<'_, '_>) -> SessionConfig {
    let usual = SessionConfig::default();
    let seconds = Duration::from_secs(1)..=Duration::from_secs(3600);
    let linger = section.get("linger", duration(seconds)).unwrap_or(usual.linger);
    let amounts = Bytes::from_mib(1)..=Bytes::from_mib(4096);
    let memory = section.get("memory", bytes(amounts)).unwrap_or(usual.memory);
    let flows = section.get("flows_max", integer(1..=1_000_000));
    let flows_max = flows.and_then(|n| usize::try_from(n).ok()).unwrap_or(usual.flows_max);
    section.finish();
    SessionConfig { linger, memory, flows_max }
}

fn read_scheduler(mut section: Section<'_, '_>) -> SchedulerConfig {
    let chain = match section.is_list("chain") {
        true => {
            let names = section.list("chain", 1..=CHAIN_MAX, parsed(schedulerlet));
            let chain = |names: Vec<String>| match ChainSpec::of(&names) {
                Ok(chain) => Some(chain),
                // Each rule is right; the chain as a whole is not.
                Err(error) => {
                    section.source().blame(&section.key("chain"), error.to_string());
                    None
                }
            };
            names.and_then(chain)
        }
        false => section.get("chain", parsed(ChainSpec::named)),
    };
    section.finish();
    SchedulerConfig { chain: chain.unwrap_or_default() }
}

/// A name that may stand in a list.
fn schedulerlet(name: &str) -> Result<String, ChainSpecError> {
    ChainSpec::parts(&[name]).map(|_| name.to_owned())
}

/// A path, from the file's own folder when it is relative.
pub(super) fn path(
    section: &mut Section<'_, '_>,
    key: &'static str,
    needed: bool,
) -> Option<PathBuf> {
    let source = section.source();
    let parse = |value: &toml::de::DeValue<'_>| match text(value)? {
        "" => Err("an empty path".to_owned()),
        path if path.contains('\0') => Err("a path with a zero byte".to_owned()),
        path => Ok(source.resolve(path)),
    };
    if needed { section.need(key, parse) } else { section.get(key, parse) }
}

const FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];
