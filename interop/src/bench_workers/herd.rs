//! One cloud with workers and many gateways, over bare wires.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::addresses::{CLOUD, CLOUD_PORT, Family, GATEWAY, SERVER, SOCKS5_PORT};
use crate::carrier::{self, CarrierPlan, Medium};
use crate::configuration::{CLOUD_NAME, Configuration, strings};
use crate::keys::Keys;
use crate::lab::{Lab, Side};
use crate::process::{Process, Program};
use crate::programs::Programs;
use crate::{admin, client, metrics, services};

/// Where a server sends without end.
const SOURCE_PORT: u16 = 5001;
/// Where a server echoes.
const ECHO_PORT: u16 = 5000;

/// Running daemons. Fields are dropped in order: daemons first, the lab last.
pub(super) struct Herd {
    pub(super) gateways: Vec<Process>,
    pub(super) cloud: Process,
    pub(super) lab: Lab,
    programs: Programs,
}

impl Herd {
    /// Starts everything, and waits until each gateway has both paths.
    pub(super) fn start(workers: i64, gateways: usize, limit: Duration) -> Result<Self> {
        let programs = Programs::find()?;
        let lab = Lab::new()?;
        let plans = ["alpha", "beta"]
            .map(|name| CarrierPlan { name: name.to_owned(), medium: Medium::Wire });
        carrier::start(&lab, &programs, &plans)?;
        services::serve_echo(&lab.server, SERVER.at(Family::V4, ECHO_PORT))?;
        services::serve(&lab.server, SERVER.at(Family::V4, SOURCE_PORT), |mut stream, _| {
            let zeros = vec![0; 256 * 1024];
            while stream.write_all(&zeros).is_ok() {}
        })?;
        let keys = Keys::create(&programs, &lab.folder().join("pki"))?;
        keys.issue_cloud(CLOUD_NAME)?;
        let mut file = Configuration::cloud(keys.folder());
        file.set("log.level", "info");
        file.set("workers", workers);
        file.set("metrics.listen", metrics::LISTEN.to_string());
        file.set("admin.socket", lab.folder().join("cloud.sock").display().to_string());
        file.write(&lab.folder().join("cloud.toml"))?;
        let cloud = spawn(&lab, &programs, Side::Cloud, "cloud")?;
        let mut herd = Self { gateways: Vec::new(), cloud, lab, programs };
        for number in 0..gateways {
            let name = format!("train-{number}");
            keys.issue_gateway(&name)?;
            let mut file =
                Configuration::gateway(keys.folder(), &["alpha", "beta"].map(String::from));
            file.set_identity(keys.folder(), &name);
            file.set("log.level", "warn");
            file.remove("intercept");
            file.remove("dns");
            file.set("cloud.addresses", strings([CLOUD.at(Family::V4, CLOUD_PORT)]));
            file.set("socks5.listen", strings([proxy(number)]));
            file.write(&herd.lab.folder().join(format!("{name}.toml")))?;
            herd.gateways.push(spawn(&herd.lab, &herd.programs, Side::Gateway, &name)?);
        }
        herd.wait_for_all(limit)?;
        Ok(herd)
    }

    /// Waits until each gateway has both paths; returns how long that took.
    pub(super) fn wait_for_all(&self, limit: Duration) -> Result<Duration> {
        let begun = Instant::now();
        loop {
            let up = self.paths_up().unwrap_or(0);
            if up == 2 * self.gateways.len() {
                return Ok(begun.elapsed());
            }
            ensure!(begun.elapsed() < limit, "{up} paths are up:\n{}", self.cloud.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn paths_up(&self) -> Result<usize> {
        let paths = admin::paths(&self.lab.folder().join("cloud.sock"))?;
        Ok(paths.iter().filter(|path| path["state"] == "up").count())
    }

    /// Kills the cloud and starts it again.
    pub(super) fn restart_cloud(&mut self) -> Result<()> {
        self.cloud.kill();
        self.cloud = spawn(&self.lab, &self.programs, Side::Cloud, "cloud")?;
        Ok(())
    }

    /// Opens a flow of a gateway to the server that sends without end.
    pub(super) fn download(&self, gateway: usize) -> Result<TcpStream> {
        self.open(gateway, SOURCE_PORT)
    }

    /// Opens a flow of a gateway to the echo server.
    pub(super) fn echo(&self, gateway: usize) -> Result<TcpStream> {
        self.open(gateway, ECHO_PORT)
    }

    fn open(&self, gateway: usize, port: u16) -> Result<TcpStream> {
        let to = SERVER.at(Family::V4, port);
        let (stream, code) = client::socks5(&self.lab.passenger, proxy(gateway), to)?;
        ensure!(code == 0, "SOCKS5 reply {code}");
        Ok(stream)
    }
}

fn spawn(lab: &Lab, programs: &Programs, side: Side, name: &str) -> Result<Process> {
    let file: PathBuf = lab.folder().join(format!("{name}.toml"));
    let namespace = if side == Side::Gateway { &lab.gateway } else { &lab.cloud };
    Program::new(name, programs.daemon(side), lab.log(name))
        .arg("--config")
        .arg(file)
        .resolver(&lab.resolver_file(side == Side::Cloud))
        .start(namespace)
        .with_context(|| format!("starting {name}"))
}

fn proxy(gateway: usize) -> SocketAddr {
    GATEWAY.at(Family::V4, SOCKS5_PORT + gateway as u16)
}
