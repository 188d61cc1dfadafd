//! A lab in which everything runs: carriers, servers, resolver, cloud and gateway.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use toml::Value;

use crate::addresses::{Family, GATEWAY, SERVER, SERVER_NAME, SOCKS5_PORT, WEB_PORT};
use crate::admin;
use crate::carrier::{self, Carrier, CarrierPlan, Emulator, Link, Medium};
use crate::client;
use crate::configuration::{CLOUD_NAME, Configuration, GATEWAY_NAME};
use crate::dns::{self, Asked};
use crate::download::Download;
use crate::keys::Keys;
use crate::lab::{Lab, Side};
use crate::linkdb::{self, Announcer, Rail};
use crate::process::{Process, Program};
use crate::programs::Programs;
use crate::web::{WebFile, WebServer};

/// How long the daemons may take until the first flow succeeds.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Lines of each log shown after a failure.
const TAIL_LINES: usize = 40;

/// The parameters of a world.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    carriers: Vec<CarrierPlan>,
    gateway: Vec<(String, Value)>,
    cloud: Vec<(String, Value)>,
    carrier_keys: Vec<(usize, String, Value)>,
    commands: Vec<String>,
    proxy_alone: bool,
    sysctls: Vec<(String, String)>,
    rail: Option<Rail>,
    previous: Option<Side>,
}

impl Plan {
    /// No carriers, and the default configuration.
    pub fn new() -> Plan {
        Plan::default()
    }

    /// Two carriers of 20 Mbit/s and 40 ms, as in most scenarios.
    pub fn twins() -> Plan {
        Plan::new().carrier("alpha", Link::new(20.0, 40)).carrier("beta", Link::new(20.0, 40))
    }

    /// Adds an emulated carrier.
    pub fn carrier(self, name: &str, link: Link) -> Plan {
        self.medium(name, Medium::Link(link))
    }

    /// Adds a carrier without limit or delay.
    pub fn wire(self, name: &str) -> Plan {
        self.medium(name, Medium::Wire)
    }

    /// Adds a carrier.
    pub fn medium(mut self, name: &str, medium: Medium) -> Plan {
        self.carriers.push(CarrierPlan { name: name.into(), medium });
        self
    }

    /// Sets a key of `gateway.toml`.
    pub fn gateway(mut self, key: &str, value: impl Into<Value>) -> Plan {
        self.gateway.push((key.into(), value.into()));
        self
    }

    /// Sets a key of `cloud.toml`.
    pub fn cloud(mut self, key: &str, value: impl Into<Value>) -> Plan {
        self.cloud.push((key.into(), value.into()));
        self
    }

    /// Sets a key of one `[[carrier]]` of `gateway.toml`.
    pub fn carrier_key(mut self, index: usize, key: &str, value: impl Into<Value>) -> Plan {
        self.carrier_keys.push((index, key.into(), value.into()));
        self
    }

    /// Sends a command to the emulator before the daemons start.
    pub fn command(mut self, line: &str) -> Plan {
        self.commands.push(line.into());
        self
    }

    /// Without interception and DNS: passengers use the SOCKS5 server.
    pub fn proxy_alone(mut self) -> Plan {
        self.proxy_alone = true;
        self
    }

    /// Adds a LinkDB to both sides, and telemetry.
    pub fn rail(mut self, rail: Rail) -> Plan {
        self.rail = Some(rail);
        self
    }

    /// Starts the daemon of an earlier commit on one side.
    pub fn previous(mut self, side: Side) -> Plan {
        self.previous = Some(side);
        self
    }

    /// Sets a kernel parameter in the namespaces of gateway and cloud.
    pub fn sysctl(mut self, key: &str, value: &str) -> Plan {
        self.sysctls.push((key.into(), value.into()));
        self
    }
}

/// A running world. Fields are dropped in order: daemons first, the lab last.
#[derive(Debug)]
pub struct World {
    /// The gateway daemon.
    pub gateway: Process,
    /// The cloud daemon.
    pub cloud: Process,
    /// The emulator, if a carrier is emulated.
    pub emulator: Option<Emulator>,
    /// The carriers.
    pub carriers: Vec<Carrier>,
    /// Sends telemetry, if the plan has a [`Plan::rail`].
    pub train: Option<Announcer>,
    /// The web server.
    pub web: WebServer,
    /// The queries of the lab's resolver.
    pub asked: Arc<Asked>,
    /// The authority that issued both certificates.
    pub keys: Keys,
    /// The programs under test.
    pub programs: Programs,
    /// The initial configuration of gateway and cloud.
    pub configurations: [Configuration; 2],
    /// When the gateway was last started.
    pub gateway_started: Instant,
    /// The namespaces.
    pub lab: Lab,
    downloads: u32,
}

impl World {
    /// Sets everything up and waits until every carrier is up and a flow succeeds.
    pub fn start(plan: &Plan) -> Result<World> {
        let mut world = World::start_cold(plan)?;
        world.wait_for_carriers()?;
        world.wait_until_up()?;
        Ok(world)
    }

    /// Sets everything up without waiting for a carrier.
    pub fn start_cold(plan: &Plan) -> Result<World> {
        let programs = Programs::find()?.with_previous(plan.previous);
        let lab = Lab::new()?;
        for (key, value) in &plan.sysctls {
            lab.gateway.sysctl(key, value)?;
            lab.cloud.sysctl(key, value)?;
        }
        let (carriers, emulator) = carrier::start(&lab, &programs, &plan.carriers)?;
        for line in &plan.commands {
            carrier::command(&lab, line)?;
        }
        let web = WebServer::start(&lab.server, lab.folder(), WEB_PORT)?;
        let asked = dns::serve(&lab.server)?;
        let keys = Keys::create(&programs, &lab.folder().join("pki"))?;
        keys.issue_cloud(CLOUD_NAME)?;
        keys.issue_gateway(GATEWAY_NAME)?;
        let configurations = write_configurations(plan, &lab, &keys, &carriers)?;
        let mut train = None;
        if let Some(rail) = &plan.rail {
            let epoch = emulator.as_ref().map_or_else(Instant::now, |emulator| emulator.epoch);
            train = Some(linkdb::lay(&lab, &programs, rail, epoch)?);
        }
        let cloud = start_daemon(&lab, &programs, Side::Cloud, Side::Cloud.name())?;
        let gateway_started = Instant::now();
        let gateway = start_daemon(&lab, &programs, Side::Gateway, Side::Gateway.name())?;
        Ok(World {
            gateway,
            cloud,
            emulator,
            carriers,
            train,
            web,
            asked,
            keys,
            programs,
            configurations,
            gateway_started,
            lab,
            downloads: 0,
        })
    }

    /// The SOCKS5 server as the passenger reaches it.
    pub fn proxy(&self) -> std::net::SocketAddr {
        GATEWAY.at(Family::V4, SOCKS5_PORT)
    }

    /// An intercepted download of a file from the web server's name.
    pub fn download(&mut self, file: &WebFile) -> Download {
        self.download_from(SERVER_NAME, file)
    }

    /// An intercepted download of a file from a name or an address.
    pub fn download_from(&mut self, host: &str, file: &WebFile) -> Download {
        self.downloads += 1;
        let target = self.lab.folder().join(format!("download{}", self.downloads));
        Download::new(host, &file.name, &target).resolver(&self.lab.resolver_file(false))
    }

    /// Kills the cloud at once and restarts it.
    pub fn restart_cloud(&mut self) -> Result<()> {
        self.cloud.kill();
        self.cloud = start_daemon(&self.lab, &self.programs, Side::Cloud, Side::Cloud.name())?;
        Ok(())
    }

    /// Kills the gateway at once and restarts it.
    pub fn restart_gateway(&mut self) -> Result<()> {
        self.gateway.kill();
        // The process that holds the interception rules dies a moment after the daemon.
        let held =
            || self.lab.gateway.tool("nft", "list tables").map(|all| all.contains("polyrail"));
        let killed = Instant::now();
        while held()? && killed.elapsed() < START_LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.gateway_started = Instant::now();
        let side = Side::Gateway;
        self.gateway = start_daemon(&self.lab, &self.programs, side, side.name())?;
        Ok(())
    }

    /// Waits until a flow from the passenger to the server succeeds.
    pub fn wait_until_up(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            for daemon in [&mut self.gateway, &mut self.cloud] {
                if let Some(status) = daemon.exit()? {
                    bail!("{} ended ({status}):\n{}", daemon.name(), daemon.log());
                }
            }
            if crosses(self).is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("no flow crosses within {START_LIMIT:?}\n{}", self.tails());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the gateway has a path over every carrier.
    pub fn wait_for_carriers(&mut self) -> Result<()> {
        let names: Vec<String> =
            self.carriers.iter().map(|carrier| carrier.name().to_owned()).collect();
        self.wait_for_paths(&names)
    }

    /// Waits until the gateway has a path over each of these carriers.
    pub fn wait_for_paths(&mut self, carriers: &[impl AsRef<str>]) -> Result<()> {
        let socket = Side::Gateway.admin_socket(&self.lab);
        self.gateway.wait_until("paths over the carriers", START_LIMIT, |_| {
            // The socket is missing until the gateway has started.
            let paths = admin::paths(&socket).unwrap_or_default();
            carriers.iter().all(|carrier| {
                paths.iter().any(|path| path["name"] == carrier.as_ref() && path["state"] == "up")
            })
        })
    }

    /// Bytes that each emulated carrier has delivered to the gateway so far.
    pub fn carried(&self) -> Result<Vec<u64>> {
        let counters = carrier::counters(&self.lab)?;
        Ok(counters.iter().map(|carrier| carrier.down_bytes).collect())
    }

    /// Copies of users' datagrams that both daemons have sent: up, down.
    pub fn copies(&self) -> Result<[u64; 2]> {
        let of = |side: Side| -> Result<u64> {
            let status = admin::get(&side.admin_socket(&self.lab), "/v1/status")?;
            let sessions = status["sessions"].as_array().context("no sessions")?;
            Ok(sessions.iter().filter_map(|it| it["datagram_copies_sent"].as_u64()).sum())
        };
        Ok([of(Side::Gateway)?, of(Side::Cloud)?])
    }

    /// The last lines of every log, for the report of a failure.
    pub fn tails(&self) -> String {
        let mut text = String::new();
        let emulator = self.emulator.as_ref().map(|emulator| &emulator.process);
        for process in [&self.gateway, &self.cloud].into_iter().chain(emulator) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "--- {} ---\n{}", process.name(), tail(&process.log()));
        }
        text
    }
}

/// Starts a daemon with the configuration file `NAME.toml`.
pub fn start_daemon(lab: &Lab, programs: &Programs, side: Side, name: &str) -> Result<Process> {
    let namespace = if side == Side::Gateway { &lab.gateway } else { &lab.cloud };
    Program::new(name, programs.daemon(side), lab.log(name))
        .arg("--config")
        .arg(lab.folder().join(format!("{name}.toml")))
        .resolver(&lab.resolver_file(side == Side::Cloud))
        .start(namespace)
}

fn write_configurations(
    plan: &Plan,
    lab: &Lab,
    keys: &Keys,
    carriers: &[Carrier],
) -> Result<[Configuration; 2]> {
    let names: Vec<String> = carriers.iter().map(|carrier| carrier.name().to_string()).collect();
    let mut gateway = Configuration::gateway(keys.folder(), &names);
    let mut cloud = Configuration::cloud(keys.folder());
    for (file, side) in [(&mut gateway, Side::Gateway), (&mut cloud, Side::Cloud)] {
        file.set("admin.socket", side.admin_socket(lab).display().to_string());
    }
    if plan.rail.is_some() {
        gateway.set("telemetry.replay", linkdb::socket(lab).display().to_string());
        gateway.set("linkdb.path", linkdb::database(lab, Side::Gateway).display().to_string());
        cloud.set("linkdb.path", linkdb::database(lab, Side::Cloud).display().to_string());
    }
    for (key, value) in &plan.gateway {
        gateway.set(key, value.clone());
    }
    for (key, value) in &plan.cloud {
        cloud.set(key, value.clone());
    }
    for (index, key, value) in &plan.carrier_keys {
        gateway.set_carrier(*index, key, value.clone());
    }
    if plan.proxy_alone {
        gateway.remove("intercept");
        gateway.remove("dns");
    }
    gateway.write(&Side::Gateway.configuration(lab))?;
    cloud.write(&Side::Cloud.configuration(lab))?;
    Ok([gateway, cloud])
}

/// Sends one request through SOCKS5 and reads the start of the answer.
fn crosses(world: &World) -> Result<()> {
    use std::io::{Read, Write};
    let server = SERVER.at(Family::V4, WEB_PORT);
    let (mut stream, code) = client::socks5(&world.lab.passenger, world.proxy(), server)?;
    if code != 0 {
        bail!("SOCKS5 reply {code}");
    }
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"HEAD / HTTP/1.0\r\n\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    Ok(())
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
