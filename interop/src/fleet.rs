//! Several clouds and gateways in one lab: clouds that die, drain and come back.
//!
//! The clouds share a namespace and listen on ports of their own, as two machines in one place
//! would. The gateways share the carriers; passengers use their SOCKS5 servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use toml::Table;

use crate::addresses::{CLOUD, CLOUD_PORT, Family, GATEWAY, SERVER, SOCKS5_PORT};
use crate::carrier::{self, Carrier, CarrierPlan, Emulator, Link, Medium};
use crate::configuration::{CLOUD_NAME, Configuration, strings};
use crate::keys::Keys;
use crate::lab::{Lab, Side};
use crate::process::Process;
use crate::programs::Programs;
use crate::world::start_daemon;
use crate::{admin, client, linkdb, services};

/// The clouds' names.
pub const CLOUDS: [&str; 3] = [CLOUD_NAME, "cloud-2", "cloud-3"];
/// The usual number of gateways.
pub const GATEWAYS: usize = 3;

/// Where the echo server listens.
const ECHO_PORT: u16 = 5000;
/// How long the daemons may take until every gateway serves.
const START_LIMIT: Duration = Duration::from_secs(15);
/// How long a passenger waits for an answer before it tries again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Running daemons. Fields are dropped in order: daemons first, the lab last.
#[derive(Debug)]
pub struct Fleet {
    /// The gateways.
    pub gateways: Vec<Process>,
    /// The clouds, as [`CLOUDS`].
    pub clouds: Vec<Process>,
    /// The carriers of all gateways.
    pub carriers: Vec<Carrier>,
    /// The emulator.
    pub emulator: Option<Emulator>,
    /// The namespaces.
    pub lab: Lab,
    programs: Programs,
    shared: Vec<String>,
}

impl Fleet {
    /// Starts two clouds and [`GATEWAYS`], and waits until each gateway serves over the first
    /// cloud.
    pub fn start() -> Result<Fleet> {
        Self::with_workers(1)
    }

    /// The same with clouds of so many workers.
    pub fn with_workers(workers: i64) -> Result<Fleet> {
        let fleet = Fleet::of(2, GATEWAYS, workers, Vec::new())?;
        fleet.wait_for_cloud(0, START_LIMIT)?;
        Ok(fleet)
    }

    /// Starts as many gateways, and a cloud for each of these URLs of a shared LinkDB. A gateway
    /// prefers the cloud of its number modulo that of clouds, and then the others in their order.
    pub fn sharing(urls: Vec<String>, gateways: usize) -> Result<Fleet> {
        Fleet::of(urls.len(), gateways, 1, urls)
    }

    fn of(clouds: usize, gateways: usize, workers: i64, shared: Vec<String>) -> Result<Fleet> {
        let programs = Programs::find()?;
        let lab = Lab::new()?;
        let plans = ["alpha", "beta"].map(|name| CarrierPlan {
            name: name.into(),
            medium: Medium::Link(Link::new(20.0, 40)),
        });
        let (carriers, emulator) = carrier::start(&lab, &programs, &plans)?;
        services::serve_echo(&lab.server, SERVER.at(Family::V4, ECHO_PORT))?;
        let keys = Keys::create(&programs, &lab.folder().join("pki"))?;
        let (daemons, none) = (Vec::new(), Vec::new());
        let mut fleet =
            Fleet { gateways: daemons, clouds: none, carriers, emulator, lab, programs, shared };
        for (cloud, name) in CLOUDS.into_iter().take(clouds).enumerate() {
            keys.issue_cloud(name)?;
            fleet.configure_cloud(&keys, cloud, workers)?;
            fleet.clouds.push(fleet.spawn(Side::Cloud, cloud)?);
        }
        for gateway in 0..gateways {
            keys.issue_gateway(&gateway_name(gateway))?;
            fleet.configure_gateway(&keys, gateway)?;
            fleet.gateways.push(fleet.spawn(Side::Gateway, gateway)?);
        }
        Ok(fleet)
    }

    fn configure_cloud(&self, keys: &Keys, cloud: usize, workers: i64) -> Result<()> {
        let mut file = Configuration::cloud(keys.folder());
        file.set("workers", workers);
        file.set_identity(keys.folder(), CLOUDS[cloud]);
        file.set("listen", strings([format!("[::]:{}", port(cloud))]));
        file.set("admin.socket", self.socket(Side::Cloud, cloud).display().to_string());
        if let Some(url) = self.shared.get(cloud) {
            file.set("linkdb.path", self.database(Side::Cloud, cloud).display().to_string());
            file.set("linkdb.shared.url", url.as_str());
        }
        file.write(&self.file(Side::Cloud, cloud))
    }

    fn configure_gateway(&self, keys: &Keys, gateway: usize) -> Result<()> {
        let names: Vec<String> = self.carriers.iter().map(|one| one.name().to_owned()).collect();
        let mut file = Configuration::gateway(keys.folder(), &names);
        file.set_identity(keys.folder(), &gateway_name(gateway));
        file.remove("intercept");
        file.remove("dns");
        let preferred = self.preferred(gateway);
        file.set("cloud.name", CLOUDS[preferred]);
        file.set("cloud.addresses", strings([CLOUD.at(Family::V4, port(preferred))]));
        let others = (0..self.clouds.len()).filter(|cloud| *cloud != preferred);
        let standby = others.map(|cloud| {
            let mut standby = Table::new();
            standby.insert("name".into(), CLOUDS[cloud].into());
            standby.insert("addresses".into(), strings([CLOUD.at(Family::V4, port(cloud))]));
            standby
        });
        file.set("cloud.standby", standby.collect::<Vec<_>>());
        if !self.shared.is_empty() {
            file.set("linkdb.path", self.database(Side::Gateway, gateway).display().to_string());
        }
        file.set("socks5.listen", strings([proxy(gateway)]));
        file.set("admin.socket", self.socket(Side::Gateway, gateway).display().to_string());
        file.write(&self.file(Side::Gateway, gateway))
    }

    fn spawn(&self, side: Side, number: usize) -> Result<Process> {
        let name = format!("{}-{number}", side.name());
        start_daemon(&self.lab, &self.programs, side, &name)
    }

    fn file(&self, side: Side, number: usize) -> PathBuf {
        self.lab.folder().join(format!("{}-{number}.toml", side.name()))
    }

    /// The admin socket of a daemon.
    pub fn socket(&self, side: Side, number: usize) -> PathBuf {
        self.lab.folder().join(format!("{}-{number}.sock", side.name()))
    }

    /// The file of a daemon's LinkDB.
    pub fn database(&self, side: Side, number: usize) -> PathBuf {
        self.lab.folder().join(format!("{}-{number}.redb", side.name()))
    }

    /// The cloud that a gateway prefers.
    fn preferred(&self, gateway: usize) -> usize {
        if self.shared.is_empty() { 0 } else { gateway % self.clouds.len() }
    }

    /// Stops a gateway, adds records ([`linkdb::records`]) to its LinkDB, and starts it again.
    pub fn teach(&mut self, gateway: usize, records: &str) -> Result<()> {
        self.gateways[gateway].kill();
        let database = self.database(Side::Gateway, gateway);
        linkdb::import(&self.lab, &self.programs, records, &database)?;
        self.gateways[gateway] = self.spawn(Side::Gateway, gateway)?;
        Ok(())
    }

    /// The handovers of a stopped daemon's LinkDB, one per line, sorted.
    pub fn export(&self, side: Side, number: usize) -> Result<Vec<String>> {
        linkdb::export(&self.programs, &self.database(side, number))
    }

    /// Starts a cloud again.
    pub fn restart_cloud(&mut self, cloud: usize) -> Result<()> {
        self.clouds[cloud].kill();
        self.clouds[cloud] = self.spawn(Side::Cloud, cloud)?;
        Ok(())
    }

    /// Starts all gateways again: without a memory of earlier failures.
    pub fn restart_gateways(&mut self) -> Result<()> {
        for gateway in 0..GATEWAYS {
            self.gateways[gateway].kill();
            self.gateways[gateway] = self.spawn(Side::Gateway, gateway)?;
        }
        self.wait_for_cloud(0, START_LIMIT)
    }

    /// The clouds of a gateway, as its admin interface shows them.
    pub fn states(&self, gateway: usize) -> Result<Vec<Value>> {
        let status = admin::get(&self.socket(Side::Gateway, gateway), "/v1/status")?;
        status["clouds"].as_array().cloned().with_context(|| format!("no clouds: {status}"))
    }

    /// Waits until new flows of all gateways go to this cloud, over all carriers.
    pub fn wait_for_cloud(&self, cloud: usize, limit: Duration) -> Result<()> {
        self.wait_for_clouds(|_| cloud, limit)
    }

    /// The same with a cloud for each gateway.
    pub fn wait_for_clouds(&self, wanted: impl Fn(usize) -> usize, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        for gateway in 0..self.gateways.len() {
            let cloud = wanted(gateway);
            while !self.is_on(gateway, cloud).unwrap_or(false) {
                let (name, on) = (gateway_name(gateway), CLOUDS[cloud]);
                ensure!(begun.elapsed() < limit, "{name} is not on {on}:\n{}", self.tails());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    fn is_on(&self, gateway: usize, cloud: usize) -> Result<bool> {
        let states = self.states(gateway)?;
        let paths = admin::paths(&self.socket(Side::Gateway, gateway))?;
        let of_cloud = || paths.iter().filter(|path| path["peer"] == CLOUDS[cloud]);
        let current =
            states.iter().any(|one| one["name"] == CLOUDS[cloud] && one["current"] == true);
        let up = of_cloud().filter(|path| path["state"] == "up").count();
        Ok(current && up == self.carriers.len())
    }

    /// The number of times that a gateway's new flows went to another cloud.
    pub fn changes(&self, gateway: usize) -> usize {
        self.gateways[gateway].log().matches("cloud changed").count()
    }

    /// Opens a flow through a gateway and waits for its first echo.
    pub fn open(&self, gateway: usize) -> Result<TcpStream> {
        let to = SERVER.at(Family::V4, ECHO_PORT);
        let mut stream = client::connect(&self.lab.passenger, proxy(gateway))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let code = client::negotiate(&mut stream, to)?;
        ensure!(code == 0, "SOCKS5 reply {code}");
        echo(&mut stream)?;
        Ok(stream)
    }

    /// The time until a new flow of a gateway works: each attempt is given up after a second.
    pub fn time_to_serve(&self, gateway: usize, limit: Duration) -> Result<Duration> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if self.open(gateway).is_ok() {
                return Ok(begun.elapsed());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("no new flow within {limit:?}:\n{}", self.tails())
    }

    /// The longest [`Fleet::time_to_serve`] of all gateways, measured at once.
    pub fn slowest_to_serve(&self, limit: Duration) -> Result<Duration> {
        std::thread::scope(|scope| {
            let measure = |gateway| scope.spawn(move || self.time_to_serve(gateway, limit));
            let all: Vec<_> = (0..self.gateways.len()).map(measure).collect();
            let mut times = all.into_iter().map(|one| match one.join() {
                Ok(time) => time,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            times.try_fold(Duration::ZERO, |most, time| Ok(most.max(time?)))
        })
    }

    /// One open flow of each gateway.
    pub fn open_each(&self) -> Result<Vec<TcpStream>> {
        (0..GATEWAYS).map(|gateway| self.open(gateway)).collect()
    }

    /// The ends of all logs, for the report of a failure.
    pub fn tails(&self) -> String {
        let all = self.clouds.iter().chain(&self.gateways);
        let tail = |process: &Process| {
            let log = process.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
            format!("--- {} ---\n{last}\n", process.name())
        };
        all.map(tail).collect()
    }
}

/// Sends a byte and waits for it.
pub fn echo(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"x").context("sending")?;
    answer(stream)
}

fn answer(stream: &mut TcpStream) -> Result<()> {
    let mut byte = [0];
    stream.read_exact(&mut byte).context("no echo")
}

/// Waits for the echo of a byte that was sent before.
pub fn answer_within(stream: &mut TcpStream, limit: Duration) -> Result<()> {
    stream.set_read_timeout(Some(limit))?;
    answer(stream)
}

/// Waits for an echo for longer than [`Fleet::open`] does.
pub fn echo_within(stream: &mut TcpStream, limit: Duration) -> Result<()> {
    stream.set_read_timeout(Some(limit))?;
    echo(stream)
}

fn gateway_name(gateway: usize) -> String {
    format!("train-{}", gateway + 1)
}

fn proxy(gateway: usize) -> SocketAddr {
    GATEWAY.at(Family::V4, SOCKS5_PORT + gateway as u16)
}

fn port(cloud: usize) -> u16 {
    CLOUD_PORT + cloud as u16
}

/// Lines of each log shown after a failure.
const TAIL_LINES: usize = 40;
