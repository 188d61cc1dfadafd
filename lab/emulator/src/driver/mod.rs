//! The drivers that carry real packets through a scenario's links, and the choice between them.

mod choice;
mod netem;
mod outside;
mod tun;

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::control::Command;
use crate::namespace::Namespace;
use crate::report::LinkReport;
use crate::scenario::{End, Scenario};

pub use choice::Choice;

/// A way to carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// TUN devices and the link model, in this process.
    Tun,
    /// veth pairs and the kernel's `netem`.
    Netem,
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tun => "tun",
            Self::Netem => "netem",
        })
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which driver.
    pub driver: Choice,
    /// The gateway side's namespace, before the one that the scenario names.
    pub near: Option<PathBuf>,
    /// The cloud side's namespace, before the one that the scenario names.
    pub far: Option<PathBuf>,
    /// Where to listen for commands.
    pub control: Option<PathBuf>,
    /// The interval of statistics; `None`: only at the end.
    pub report: Option<Duration>,
    /// The core to stay on.
    pub core: Option<usize>,
    /// Ask for real-time priority, so that a busy machine does not delay packets.
    pub realtime: bool,
}

/// Why a scenario does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A namespace cannot be held.
    #[error("cannot open the network namespace {}: {error}", path.display())]
    Namespace {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// An interface cannot be made or configured.
    #[error("link {link}: cannot set up {interface} (root is needed): {error}")]
    Interface {
        /// The link.
        link: String,
        /// The interface.
        interface: String,
        /// Why.
        error: std::io::Error,
    },
    /// The control socket cannot be made.
    #[error("cannot listen on the control socket {}: {error}", path.display())]
    Control {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The driver asked for cannot run this scenario here.
    #[error("the {driver} driver cannot run this: {reason}")]
    Unsuitable {
        /// The driver.
        driver: Driver,
        /// Why.
        reason: String,
    },
    /// A device of the run was deleted.
    #[error("interface {interface} was deleted while the emulator ran")]
    Gone {
        /// The interface.
        interface: String,
    },
    /// A system call failed unexpectedly.
    #[error("{doing}: {error}")]
    System {
        /// The failed operation.
        doing: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
}

/// The running links of a scenario.
trait LiveLinks {
    /// Executes a command; the error is for the client.
    fn apply(&mut self, now: Instant, command: &Command) -> Result<(), String>;
    /// The statistics of all links.
    fn report(&mut self, now: Instant) -> Vec<LinkReport>;
}

/// Runs a scenario until its duration is over or a signal ends it. Prints the ready line, the
/// statistics and nothing else to standard output, each as one JSON line.
///
/// # Errors
/// Something of the system is missing or refused; the error says what.
pub fn run(scenario: &Scenario, options: &Options) -> Result<(), RunError> {
    let sides = Sides::open(scenario, options)?;
    let (driver, why) = choice::choose(options.driver, scenario)?;
    tracing::info!(%driver, why, "driver chosen");
    match driver {
        Driver::Tun => tun::run(scenario, options, &sides, &why),
        Driver::Netem => netem::run(scenario, options, &sides, &why),
    }
}

/// The namespaces that a scenario's interfaces go to.
struct Sides {
    near: Namespace,
    far: Namespace,
}

impl Sides {
    fn open(scenario: &Scenario, options: &Options) -> Result<Self, RunError> {
        let side = |flag: &Option<PathBuf>, file: &Option<PathBuf>| {
            open(flag.as_ref().or(file.as_ref()).cloned())
        };
        Ok(Self {
            near: side(&options.near, &scenario.near)?,
            far: side(&options.far, &scenario.far)?,
        })
    }

    /// The namespace of one end.
    fn of(&self, end: &End, is_far: bool) -> Result<Namespace, RunError> {
        match &end.namespace {
            Some(path) => open(Some(path.clone())),
            None => Ok(if is_far { &self.far } else { &self.near }.clone()),
        }
    }
}

fn open(path: Option<PathBuf>) -> Result<Namespace, RunError> {
    let path = path.unwrap_or_else(|| "/proc/thread-self/ns/net".into());
    Namespace::open(&path).map_err(|error| RunError::Namespace { path, error })
}

/// Gives an interface its MTU and addresses and brings it up.
fn bring_up(namespace: &Namespace, end: &End, mtu: u16) -> std::io::Result<()> {
    let name = &end.interface;
    // No link-local address, so that only the test's traffic is on the link.
    let quiet = namespace.ip(&format!("link set dev {name} addrgenmode none"));
    if let Err(error) = quiet {
        tracing::debug!(interface = name, %error, "no IPv6 here");
    }
    namespace.ip(&format!("link set dev {name} mtu {mtu} txqueuelen 1000"))?;
    for address in &end.addresses {
        let nodad = if address.addr().is_ipv6() { "nodad" } else { "" };
        namespace.ip(&format!("address add {address} dev {name} {nodad}"))?;
    }
    namespace.ip(&format!("link set dev {name} up"))
}

/// Prints the ready line.
fn print_ready(scenario: &Scenario, options: &Options, driver: Driver, why: &str, realtime: bool) {
    let links: Vec<_> = scenario
        .links
        .iter()
        .map(|link| {
            json!({
                "link": link.name, "near": link.near.interface, "far": link.far.interface,
                "mtu": link.mtu,
            })
        })
        .collect();
    let line = json!({
        "ready": true, "driver": driver.to_string(), "why": why, "seed": scenario.seed,
        "control": options.control, "realtime": realtime, "links": links,
    });
    outside::print_line(&line);
}
