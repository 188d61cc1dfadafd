//! Builds the parts that both daemons start with.

use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mio::{Interest, Registry, Token, Waker};
use polyrail_admin::{LinkDbProbe, SourceState};
use polyrail_config::{Common, LinkDbConfig};
use polyrail_model::NodeRole;
use polyrail_relay::linkdb::{LinkDbSettings, Options, Worker};
use polyrail_relay::{Foresight, RelaySettings};
use polyrail_session::Settings;
use ring::rand::{SecureRandom, SystemRandom};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
/// The signals that a daemon handles.
pub use signal_hook_mio::v1_0::Signals;

/// Installs the signal handlers and registers them. Call it first: a SIGHUP that arrives earlier
/// ends the process.
///
/// # Errors
/// The system refuses a handler or its registration.
pub fn signals(registry: &Registry, token: Token) -> anyhow::Result<Signals> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    registry.register(&mut signals, token, Interest::READABLE)?;
    Ok(signals)
}

/// No signals, for a worker besides the first.
///
/// # Errors
/// The system has no descriptors left.
pub fn no_signals() -> anyhow::Result<Signals> {
    Ok(Signals::new::<_, i32>([])?)
}

/// Logs panics from now on, raises the limit of open files, and logs kernel settings that need
/// attention. Returns the limit.
pub fn prepare_process() -> u64 {
    std::panic::set_hook(Box::new(on_panic));
    for finding in polyrail_config::kernel::findings() {
        tracing::warn!("{finding}");
    }
    polyrail_relay::raise_descriptor_limit()
}

/// Logs a panic. A panic of the data plane's thread then ends the process, because it unwinds
/// `main`. The threads of [`INTERCEPTION`] and [`WORKER`] serve users' flows as well, so their
/// panics abort the process. The others handle their panics themselves.
fn on_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let reason = text.unwrap_or("unknown reason");
    let place = panic.location().map(tracing::field::display);
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    tracing::error!(thread = name, place, reason, "thread panicked");
    if name.starts_with(INTERCEPTION) || name.starts_with(WORKER) {
        std::process::abort();
    }
}

/// Random bytes from the system.
///
/// # Errors
/// The system has none.
pub fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow::anyhow!("no system randomness"))?;
    Ok(bytes)
}

/// The session settings of a configuration.
pub fn session_settings(config: &Common) -> Settings {
    let session = &config.session;
    Settings {
        linger: session.linger,
        memory: session.memory,
        flows_max: session.flows_max,
        user_flows_max: session.user_flows_max,
        chain: config.scheduler.chain.clone(),
        datagram_chain: config.udp.chain(),
        ..Settings::default()
    }
}

/// The relay's settings of a configuration.
pub fn relay_settings(config: &Common) -> RelaySettings {
    let (idle, buffers) = (config.session.flow_idle, config.session.memory);
    RelaySettings { idle, buffers, ..RelaySettings::default() }
}

/// The settings of LinkDB's worker for a configuration. `share`: gateways receive each other's
/// handovers (cloud).
pub fn linkdb_settings(config: &LinkDbConfig, share: bool) -> LinkDbSettings {
    let LinkDbConfig { events_max, retention_days, forecast, .. } = *config;
    let retention = DAY * retention_days.get();
    LinkDbSettings { events_max, retention, forecast, share }
}

/// Starts LinkDB's worker under the name in the node's certificate.
///
/// # Errors
/// The system cannot start the thread.
pub fn start_linkdb(
    config: &LinkDbConfig,
    settings: LinkDbSettings,
    role: NodeRole,
    name: &str,
    waker: &Arc<Waker>,
) -> anyhow::Result<Foresight> {
    start_linkdb_for(config, settings, (role, name), waker, &[]).map(|(first, _)| first)
}

/// The same for the data planes of several workers (cloud), each with its waker. The first handle
/// must be dropped last.
///
/// # Errors
/// As [`start_linkdb`].
pub fn start_linkdb_for(
    config: &LinkDbConfig,
    settings: LinkDbSettings,
    (role, name): (NodeRole, &str),
    waker: &Arc<Waker>,
    others: &[Arc<Waker>],
) -> anyhow::Result<(Foresight, Vec<Foresight>)> {
    let seed = u64::from_ne_bytes(random()?);
    let notify = polyrail_relay::notify(waker.clone());
    let others = others.iter().map(|waker| polyrail_relay::notify(waker.clone())).collect();
    let (name, path) = (name.to_owned(), Some(config.path.clone()));
    let options = Options { role, name, path, settings, seed, notify };
    let started = Worker::start_with(options, others);
    let (first, others) = started.context("cannot start the LinkDB thread")?;
    Ok((Foresight::new(first), others.into_iter().map(Foresight::new).collect()))
}

/// Answers `GET /v1/linkdb` from LinkDB and the telemetry sources.
pub fn linkdb_probe(
    linkdb: &Foresight,
    sources: impl Fn() -> Vec<SourceState> + Send + Sync + 'static,
) -> LinkDbProbe {
    let worker = linkdb.feeder();
    Arc::new(move || {
        let mut state = serde_json::to_value(worker.state()?).ok()?;
        state["sources"] = serde_json::to_value(sources()).ok()?;
        Some(state)
    })
}

/// The prefix of the names of a gateway's threads without which it does not serve users.
const INTERCEPTION: &str = "interception";
/// The prefix of the names of a cloud's further workers.
pub const WORKER: &str = "worker-";
const DAY: Duration = Duration::from_secs(86_400);
