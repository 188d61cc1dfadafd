//! One cloud with workers and many gateways over the same two carriers.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::addresses::{CLOUD, CLOUD_PORT, Family, GATEWAY, SERVER, SOCKS5_PORT};
use crate::carrier::{self, CarrierPlan, Emulator, Medium};
use crate::configuration::{CLOUD_NAME, Configuration, strings};
use crate::keys::Keys;
use crate::lab::{Lab, Side};
use crate::metrics::{self, Scrape};
use crate::process::{Process, Program};
use crate::programs::Programs;
use crate::world::start_daemon;
use crate::{admin, client, services};

/// Where a server sends without end.
const SOURCE_PORT: u16 = 5001;
/// Where a server echoes.
const ECHO_PORT: u16 = 5000;
/// Where a server accepts and says nothing.
const IDLE_PORT: u16 = 6000;
/// The histogram of the cloud's turns.
pub(super) const TURNS: &str = "polyrail_loop_turn_seconds";
/// The cloud's line about a new path.
const PATH_UP: &str = "path up";
/// Paths that return within this time count as returning at once.
const AT_ONCE_S: f64 = 0.1;

/// The gateways' return after a restart of the cloud.
pub(super) struct Return {
    /// When each path came up, s since the cloud was started again, the earliest first.
    pub(super) after: Vec<f64>,
    /// The most paths that came up within [`AT_ONCE_S`].
    pub(super) at_once: usize,
    /// The 99th percentile of the cloud's turns meanwhile, ms.
    pub(super) turn_ms: f64,
}

/// Running daemons. Fields are dropped in order: daemons first, the lab last.
pub(super) struct Herd {
    pub(super) gateways: Vec<Process>,
    pub(super) cloud: Process,
    holder: Option<Process>,
    _emulator: Option<Emulator>,
    pub(super) lab: Lab,
    pub(super) keys: Keys,
    programs: Programs,
}

impl Herd {
    /// Starts everything, and waits until each gateway has both paths.
    pub(super) fn start(
        workers: i64,
        gateways: usize,
        medium: &Medium,
        limit: Duration,
    ) -> Result<Self> {
        let programs = Programs::find()?;
        let lab = Lab::new()?;
        let plans = ["alpha", "beta"]
            .map(|name| CarrierPlan { name: name.to_owned(), medium: medium.clone() });
        let (_, _emulator) = carrier::start(&lab, &programs, &plans)?;
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
        let cloud = start_daemon(&lab, &programs, Side::Cloud, "cloud")?;
        let (none, holder) = (Vec::new(), None);
        let mut herd = Self { gateways: none, cloud, holder, _emulator, lab, keys, programs };
        for number in 0..gateways {
            let gateway = herd.start_gateway(number)?;
            herd.gateways.push(gateway);
        }
        herd.wait_for_all(limit)?;
        Ok(herd)
    }

    /// The name in a gateway's certificate.
    pub(super) fn name(gateway: usize) -> String {
        format!("train-{gateway}")
    }

    fn start_gateway(&self, number: usize) -> Result<Process> {
        let (name, keys) = (Self::name(number), self.keys.folder());
        self.keys.issue_gateway(&name)?;
        let mut file = Configuration::gateway(keys, &["alpha", "beta"].map(String::from));
        file.set_identity(keys, &name);
        file.set("log.level", "warn");
        file.remove("intercept");
        file.remove("dns");
        file.set("cloud.addresses", strings([CLOUD.at(Family::V4, CLOUD_PORT)]));
        file.set("socks5.listen", strings([proxy(number)]));
        file.write(&self.lab.folder().join(format!("{name}.toml")))?;
        start_daemon(&self.lab, &self.programs, Side::Gateway, &name)
    }

    /// The worker of each gateway: sessions of worker `w` of two have the numbers `w + 1`, `w + 3`,
    /// and so on.
    pub(super) fn workers(&self) -> Result<Vec<usize>> {
        let status = admin::get(&self.socket(), "/v1/status")?;
        let sessions = status["sessions"].as_array().context("no sessions")?;
        let worker = |gateway| {
            let name = Self::name(gateway);
            let own = sessions.iter().find(|session| session["peer"] == name.as_str());
            let id = own.and_then(|session| session["id"].as_str());
            let number = id.and_then(|id| id.parse::<usize>().ok());
            number.map(|number| (number + 1) % 2).with_context(|| format!("{name}: {status}"))
        };
        (0..self.gateways.len()).map(worker).collect()
    }

    fn socket(&self) -> PathBuf {
        self.lab.folder().join("cloud.sock")
    }

    /// Waits until each gateway has both paths.
    pub(super) fn wait_for_all(&self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            let up = self.paths_up().unwrap_or(0);
            if up == 2 * self.gateways.len() {
                return Ok(());
            }
            ensure!(begun.elapsed() < limit, "{up} paths are up:\n{}", self.cloud.log());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn paths_up(&self) -> Result<usize> {
        let paths = admin::paths(&self.socket())?;
        Ok(paths.iter().filter(|path| path["state"] == "up").count())
    }

    /// Bytes that the carriers have carried in both directions.
    pub(super) fn carried_bytes(&self) -> Result<u64> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
        let text = self.lab.gateway.run(read)??;
        let carriers = text.lines().filter_map(|line| line.trim().strip_prefix("wan"));
        let bytes = |line: &str| -> Result<u64> {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let of = |column: usize| Ok(fields.get(column).context("net/dev")?.parse::<u64>()?);
            // Received, and after eight columns sent.
            of(1).and_then(|received| Ok(received + of(9)?))
        };
        carriers.map(bytes).sum()
    }

    /// Ends the cloud with this signal, starts it again, and waits for all gateways.
    pub(super) fn restart_cloud(&mut self, signal: Signal, limit: Duration) -> Result<Return> {
        self.cloud.signal(signal)?;
        self.cloud.wait(limit)?;
        let begun = OffsetDateTime::now_utc();
        self.cloud = start_daemon(&self.lab, &self.programs, Side::Cloud, "cloud")?;
        self.wait_for_all(limit)?;
        let scrape = Scrape::of(&self.lab.cloud)?;
        let turn = scrape.quantile_since(&Scrape::default(), TURNS, 0.99).context("no turns")?;
        let after = returns(&self.cloud.log(), begun)?;
        let within = |(first, at): (usize, &f64)| {
            after[first..].iter().take_while(|other| **other < at + AT_ONCE_S).count()
        };
        let at_once = after.iter().enumerate().map(within).max().unwrap_or(0);
        Ok(Return { after, at_once, turn_ms: turn * 1e3 })
    }

    /// Starts the server that holds so many connections, in a process of its own.
    pub(super) fn start_holder(&mut self, count: usize) -> Result<()> {
        let program = std::env::current_exe()?;
        let address = SERVER.at(Family::V4, IDLE_PORT);
        let mut holder = Program::new("holder", program, self.lab.log("holder"))
            .arg("hold")
            .arg(format!("{address}={count}"))
            .start(&self.lab.server)?;
        holder.wait_for_log("listening", Duration::from_secs(5))?;
        self.holder = Some(holder);
        Ok(())
    }

    /// Waits until the holder has all connections.
    pub(super) fn wait_for_holder(&mut self, limit: Duration) -> Result<()> {
        self.holder.as_mut().context("no holder")?.wait_for_log("all there", limit)
    }

    /// Opens a flow of a gateway to the server that sends without end.
    pub(super) fn download(&self, gateway: usize) -> Result<TcpStream> {
        self.open(gateway, SOURCE_PORT)
    }

    /// Opens a flow of a gateway to the echo server.
    pub(super) fn echo(&self, gateway: usize) -> Result<TcpStream> {
        self.open(gateway, ECHO_PORT)
    }

    /// Opens a flow of a gateway to the server that says nothing.
    pub(super) fn idle(&self, gateway: usize) -> Result<TcpStream> {
        self.open(gateway, IDLE_PORT)
    }

    fn open(&self, gateway: usize, port: u16) -> Result<TcpStream> {
        let to = SERVER.at(Family::V4, port);
        let (stream, code) = client::socks5(&self.lab.passenger, proxy(gateway), to)?;
        ensure!(code == 0, "SOCKS5 reply {code}");
        Ok(stream)
    }
}

/// When each path came up after a start of the cloud, from its log, s. A path may have come up more
/// than once: the last time counts.
fn returns(log: &str, start: OffsetDateTime) -> Result<Vec<f64>> {
    let mut last = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains(PATH_UP)) {
        let (at, event) = line.split_once(' ').context("a line without a time")?;
        let at = OffsetDateTime::parse(at, &Rfc3339)? - start;
        let field = |name: &str| event.split_whitespace().find(|word| word.starts_with(name));
        last.insert((field("gateway="), field("path=")), at.as_seconds_f64());
    }
    let mut after: Vec<f64> = last.into_values().filter(|at| *at > 0.0).collect();
    after.sort_by(f64::total_cmp);
    Ok(after)
}

fn proxy(gateway: usize) -> SocketAddr {
    GATEWAY.at(Family::V4, SOCKS5_PORT + gateway as u16)
}
