//! One carrier between gateway and cloud: an emulated link, or a bare wire.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polyrail_emulator::control::Client;
use polyrail_emulator::guest;
use polyrail_emulator::link::{LinkSpec, Probability};
use polyrail_emulator::namespace::Namespace;
use polyrail_emulator::scenario::{End, LinkScenario, Scenario};
use polyrail_model::{Bitrate, Bytes};
use serde_json::Value;

use crate::lab::Lab;
use crate::process::{Process, Program};
use crate::programs::Programs;

/// How long the emulator may take to create its devices.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The emulator's control socket, in the folder of its files.
pub const CONTROL_SOCKET: &str = "emulator.sock";

/// The properties of an emulated carrier, equal in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Rate, Mbit/s.
    pub mbit_s: f64,
    /// Round-trip time without load, ms.
    pub round_trip_ms: u32,
    /// Random loss in each direction, percent.
    pub loss_percent: f64,
    /// Queue, KiB.
    pub queue_kib: u32,
}

/// The parameters of a carrier.
#[derive(Clone, Debug, PartialEq)]
pub struct CarrierPlan {
    /// The operator's name for it.
    pub name: String,
    /// Its link.
    pub medium: Medium,
}

/// The medium of a carrier.
#[derive(Clone, Debug, PartialEq)]
pub enum Medium {
    /// A bare wire without limit or delay.
    Wire,
    /// A bare wire behind a USB modem that is a router ([`Lab::wire_modem`]).
    Modem,
    /// An emulated link.
    Link(Link),
    /// Emulated links that change, from the gateway to the cloud and back.
    Course(Box<[LinkSpec; 2]>),
}

/// The running emulator.
#[derive(Debug)]
pub struct Emulator {
    /// The running program.
    pub process: Process,
    /// When the schedules of its links began, to some milliseconds.
    pub epoch: Instant,
}

/// A carrier between the namespaces.
#[derive(Debug)]
pub struct Carrier {
    name: String,
    index: u8,
    modem: Option<Namespace>,
}

impl Link {
    /// A link of this rate and unloaded round-trip time, with the usual queue and no loss.
    pub fn new(mbit_s: f64, round_trip_ms: u32) -> Link {
        Link { mbit_s, round_trip_ms, loss_percent: 0.0, queue_kib: 256 }
    }

    /// Sets the random loss in each direction.
    pub fn loss_percent(mut self, percent: f64) -> Link {
        self.loss_percent = percent;
        self
    }

    /// Sets the queue's capacity (default 256 KiB).
    pub fn queue_kib(mut self, kib: u32) -> Link {
        self.queue_kib = kib;
        self
    }

    fn direction(&self) -> Result<LinkSpec> {
        let rate = Bitrate::from_bps((self.mbit_s * 1e6).round() as u64);
        let delay = Duration::from_micros(u64::from(self.round_trip_ms) * 500);
        let loss = Probability::new(self.loss_percent / 100.0).context("a share of losses")?;
        let queue = Bytes::from_kib(u64::from(self.queue_kib));
        Ok(LinkSpec { loss, ..LinkSpec::steady(rate, delay, queue) })
    }
}

impl Medium {
    /// Both directions of an emulated medium.
    fn directions(&self) -> Result<Option<[LinkSpec; 2]>> {
        Ok(match self {
            Medium::Wire | Medium::Modem => None,
            Medium::Link(link) => Some([link.direction()?, link.direction()?]),
            Medium::Course(links) => Some(*links.clone()),
        })
    }
}

/// Creates all carriers between gateway and cloud with their routes. Starts an emulator if one of
/// them is emulated.
pub fn start(
    lab: &Lab,
    programs: &Programs,
    plans: &[CarrierPlan],
) -> Result<(Vec<Carrier>, Option<Emulator>)> {
    let is_wire = |plan: &CarrierPlan| matches!(plan.medium, Medium::Wire | Medium::Modem);
    let emulated = !plans.iter().all(is_wire);
    let ends = [&lab.gateway, &lab.cloud];
    let emulator = if emulated {
        Some(Emulator::start(programs, lab.folder(), ends, &scenario(plans)?)?)
    } else {
        None
    };
    let mut carriers = Vec::new();
    for (index, plan) in plans.iter().enumerate() {
        let index = u8::try_from(index).context("too many carriers")?;
        let mut modem = None;
        match plan.medium {
            Medium::Wire => lab.wire_carrier(index)?,
            Medium::Modem => modem = Some(lab.wire_modem(index)?),
            Medium::Link(_) | Medium::Course(_) => lab.route_carrier(index)?,
        }
        carriers.push(Carrier { name: plan.name.clone(), index, modem });
    }
    Ok((carriers, emulator))
}

impl Carrier {
    /// The operator's name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The gateway's interface.
    pub fn interface(&self) -> String {
        format!("wan{}", self.index)
    }

    /// The USB modem, if the carrier has one.
    pub fn modem(&self) -> Option<&Namespace> {
        self.modem.as_ref()
    }

    /// Starts a blackout: queued and arriving packets are dropped silently.
    pub fn darken(&self, lab: &Lab) -> Result<()> {
        command(lab, &format!("down {} drop", self.name)).map(|_| ())
    }

    /// Ends a blackout.
    pub fn brighten(&self, lab: &Lab) -> Result<()> {
        command(lab, &format!("up {}", self.name)).map(|_| ())
    }

    /// Blocks for a blackout of this length.
    pub fn dark_for(&self, lab: &Lab, time: Duration) -> Result<()> {
        self.darken(lab)?;
        std::thread::sleep(time);
        self.brighten(lab)
    }

    /// Removes the gateway's interface with its addresses and routes by moving it to `drawer`.
    pub fn remove(&self, lab: &Lab, drawer: &Namespace) -> Result<()> {
        let place = drawer.path();
        Ok(lab.gateway.ip(&format!("link set {} netns {}", self.interface(), place.display()))?)
    }

    /// Restores a removed interface with its addresses and routes.
    pub fn reinsert(&self, lab: &Lab, drawer: &Namespace) -> Result<()> {
        let place = lab.gateway.path();
        drawer.ip(&format!("link set {} netns {}", self.interface(), place.display()))?;
        lab.restore_carrier(self.index)
    }

    /// Removes the gateway's address on this carrier, as a modem's reset does.
    pub fn withdraw_address(&self, lab: &Lab) -> Result<()> {
        Ok(lab.gateway.ip(&format!("addr flush dev {}", self.interface()))?)
    }

    /// Gives the gateway another address on this carrier, with routes.
    pub fn assign_address(&self, lab: &Lab, host: u8) -> Result<()> {
        lab.address_carrier(self.index, host)
    }
}

/// The counters of the emulated carriers, in their order.
pub fn counters(lab: &Lab) -> Result<Vec<Delivered>> {
    let statistics = command(lab, "stats")?;
    let links = statistics.get("links").and_then(Value::as_array).context("no links")?;
    links.iter().map(Delivered::from_json).collect()
}

/// The bytes of one carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The carrier's name.
    pub carrier: String,
    /// Delivered to the cloud.
    pub up_bytes: u64,
    /// Delivered to the gateway.
    pub down_bytes: u64,
    /// Queued towards the gateway.
    pub down_queued_bytes: u64,
    /// In flight towards the gateway: queued or in propagation.
    pub down_inside_bytes: u64,
    /// Whether the carrier is in a blackout.
    pub dark: bool,
}

impl Delivered {
    fn from_json(link: &Value) -> Result<Delivered> {
        let tally = |direction: &str, what: &str| {
            link.pointer(&format!("/{direction}/{what}/bytes")).and_then(Value::as_u64)
        };
        let inside = |what| tally("down", what).unwrap_or(0);
        Ok(Delivered {
            carrier: link.get("link").and_then(Value::as_str).context("link")?.to_string(),
            up_bytes: tally("up", "delivered").context("bytes up")?,
            down_bytes: tally("down", "delivered").context("bytes down")?,
            down_queued_bytes: inside("queued"),
            down_inside_bytes: inside("queued") + inside("in_flight"),
            dark: link.pointer("/down/dark").and_then(Value::as_bool).context("dark")?,
        })
    }
}

/// Sends a command to the emulator's control socket.
pub fn command(lab: &Lab, line: &str) -> Result<Value> {
    let answer = Client::connect(control_path(lab)).and_then(|mut client| client.command(line));
    answer.with_context(|| format!("emulator: {line}"))
}

fn control_path(lab: &Lab) -> PathBuf {
    lab.folder().join(CONTROL_SOCKET)
}

impl Emulator {
    /// Starts the emulator between two namespaces, with its files in `folder`. In a guest it uses
    /// netem, which other kernels may lack.
    pub fn start(
        programs: &Programs,
        folder: &Path,
        [near, far]: [&Namespace; 2],
        scenario: &Scenario,
    ) -> Result<Emulator> {
        let (file, control) = (folder.join("carriers.toml"), folder.join(CONTROL_SOCKET));
        std::fs::write(&file, scenario.to_toml()?)?;
        let log = folder.join("emulator.log");
        let mut process = Program::new("emulator", programs.path("polyrail-emulator"), log)
            .arg("run")
            .arg(&file)
            .args(["--driver", if guest::is_inside() { "netem" } else { "tun" }])
            .arg("--near")
            .arg(near.path())
            .arg("--far")
            .arg(far.path())
            .arg("--control")
            .arg(&control)
            .start(near)?;
        process.wait_for_log("\"ready\":true", START_LIMIT)?;
        let epoch = Instant::now();
        process.wait_until("devices of the carriers", START_LIMIT, |_| {
            let made = |link: &LinkScenario| {
                has_device(near, &link.near.interface) && has_device(far, &link.far.interface)
            };
            control.exists() && scenario.links.iter().all(made)
        })?;
        Ok(Emulator { process, epoch })
    }
}

fn scenario(plans: &[CarrierPlan]) -> Result<Scenario> {
    let mut links = Vec::new();
    for (index, plan) in plans.iter().enumerate() {
        let Some([up, down]) = plan.medium.directions()? else { continue };
        let [near, far] = [format!("wan{index}"), format!("car{index}")].map(|interface| End {
            interface,
            addresses: Vec::new(),
            namespace: None,
        });
        links.push(LinkScenario {
            name: plan.name.clone(),
            mtu: 1_500,
            near,
            far,
            nat: false,
            up,
            down,
        });
    }
    Ok(Scenario { seed: 1, duration: None, near: None, far: None, links })
}

fn has_device(namespace: &Namespace, device: &str) -> bool {
    namespace.ip(&format!("link show {device}")).is_ok()
}
