//! What happens to the daemons in a soak.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyrail_emulator::namespace::Namespace;
use rand::RngExt;
use rand_pcg::Pcg64;
use serde_json::json;

use super::load::Load;
use crate::addresses::{Family, SERVER};
use crate::lab::Side;
use crate::world::World;

/// Makes trouble, one kind after the other, and counts it.
#[derive(Debug)]
pub(super) struct Trouble {
    /// Fills the disk of the gateway's LinkDB.
    filler: PathBuf,
    /// Where removed interfaces are kept.
    drawer: Namespace,
    made: BTreeMap<&'static str, u32>,
    /// Host number of the next address of a carrier.
    host: u8,
    /// Kinds that wait for their turn: each happens once before one happens again.
    waiting: Vec<Kind>,
    cell: u64,
}

type Kind = (&'static str, fn(&mut Trouble, &World, &mut Pcg64) -> Result<()>);

const KINDS: [Kind; 9] = [
    ("blackout", Trouble::blackout),
    ("blackout", Trouble::blackout),
    ("blackout of all", Trouble::darkness),
    ("address", Trouble::address),
    ("interface", Trouble::interface),
    ("reload", Trouble::reload),
    ("change by hand", Trouble::change),
    ("full disk", Trouble::full_disk),
    ("port scan", Trouble::scan),
];

impl Trouble {
    pub(super) fn new(world: &World, filler: PathBuf) -> Result<Self> {
        world.lab.passenger.ip(&format!("addr add {SCANNER}/24 dev wlan0"))?;
        Ok(Self {
            filler,
            drawer: Namespace::new()?,
            made: BTreeMap::new(),
            host: 3,
            waiting: Vec::new(),
            cell: 0,
        })
    }

    /// Makes one trouble and waits a little. A train passes a cell meanwhile.
    pub(super) fn make(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        if self.waiting.is_empty() {
            self.waiting.extend(KINDS);
        }
        let (name, kind) = self.waiting.swap_remove(generator.random_range(0..self.waiting.len()));
        *self.made.entry(name).or_default() += 1;
        self.pass_cell(world);
        kind(self, world, generator).with_context(|| format!("trouble: {name}"))?;
        sleep(milliseconds(generator, 200, 1_500));
        Ok(())
    }

    /// Kills a daemon and restarts it as its unit does.
    pub(super) fn kill(
        &mut self,
        world: &mut World,
        load: &Load,
        generator: &mut Pcg64,
    ) -> Result<()> {
        let side = [Side::Gateway, Side::Cloud][generator.random_range(0..2)];
        let name = if side == Side::Gateway { "kill of the gateway" } else { "kill of the cloud" };
        *self.made.entry(name).or_default() += 1;
        load.excuse(|| {
            match side {
                Side::Gateway => world.restart_gateway()?,
                Side::Cloud => world.restart_cloud()?,
            }
            world.wait_until_up()
        })
    }

    /// All carriers are there again.
    pub(super) fn end(&self, world: &mut World) -> Result<()> {
        world.wait_for_carriers()
    }

    /// How often each kind happened.
    pub(super) fn summary(&self) -> String {
        let parts = self.made.iter().map(|(name, count)| format!("{count} x {name}"));
        parts.collect::<Vec<_>>().join(", ")
    }

    fn blackout(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        let carrier = &world.carriers[generator.random_range(0..world.carriers.len())];
        carrier.dark_for(&world.lab, milliseconds(generator, 100, 4_000))
    }

    fn darkness(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        world.carriers.iter().try_for_each(|carrier| carrier.darken(&world.lab))?;
        sleep(milliseconds(generator, 300, 3_000));
        world.carriers.iter().try_for_each(|carrier| carrier.brighten(&world.lab))
    }

    fn address(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        let carrier = &world.carriers[generator.random_range(0..world.carriers.len())];
        carrier.withdraw_address(&world.lab)?;
        sleep(milliseconds(generator, 50, 1_000));
        self.host = if self.host >= 200 { 3 } else { self.host + 1 };
        carrier.assign_address(&world.lab, self.host)
    }

    fn interface(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        let carrier = &world.carriers[generator.random_range(0..world.carriers.len())];
        carrier.remove(&world.lab, &self.drawer)?;
        sleep(milliseconds(generator, 50, 1_000));
        carrier.reinsert(&world.lab, &self.drawer)
    }

    /// An accepted reload with changes of both daemons, and a refused one.
    fn reload(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        let chain = ["polyrail", "min_rtt", "hsrsch"][generator.random_range(0..3)];
        let copies = ["always", "forecast", "off"][generator.random_range(0..3)];
        for (index, side) in [Side::Gateway, Side::Cloud].into_iter().enumerate() {
            let mut file = world.configurations[index].clone();
            file.set("scheduler.chain", chain);
            file.set("udp.copies", copies);
            file.write(&side.configuration(&world.lab))?;
            world.ask(side, "reload")?;
        }
        let path = Side::Gateway.configuration(&world.lab);
        let good = std::fs::read_to_string(&path)?;
        std::fs::write(&path, format!("{good}\nwrong"))?;
        let answer = world.operate(Side::Gateway, "reload")?;
        std::fs::write(&path, good)?;
        ensure!(!answer.good, "an invalid file was accepted");
        Ok(())
    }

    fn change(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        let carrier = world.carriers[generator.random_range(0..world.carriers.len())].name();
        let change =
            ["set %s --mode tls", "set %s --mode quic", "set %s --mode auto", "restart %s"];
        let change = change[generator.random_range(0..change.len())].replace("%s", carrier);
        world.ask(Side::Gateway, &format!("path {change}")).map(|_| ())
    }

    fn full_disk(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        super::fill(&self.filler)?;
        for _ in 0..3 {
            self.pass_cell(world);
            sleep(milliseconds(generator, 100, 500));
        }
        Ok(std::fs::remove_file(&self.filler)?)
    }

    /// Another passenger tries many ports of a server.
    fn scan(&mut self, world: &World, generator: &mut Pcg64) -> Result<()> {
        let first = generator.random_range(10_000..60_000);
        world.lab.passenger.run(|| -> Result<()> {
            for port in first..first + SCANNED {
                let socket =
                    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
                socket.bind(&std::net::SocketAddr::new(SCANNER.parse()?, 0).into())?;
                let to = SERVER.at(Family::V4, port).into();
                // A refused connection is an answer, too.
                let _ = socket.connect_timeout(&to, Duration::from_millis(200));
                drop(TcpStream::from(socket));
            }
            Ok(())
        })?
    }

    fn pass_cell(&mut self, world: &World) {
        self.cell += 1;
        let line = json!({
            "metres": self.cell as f64 * 24.0,
            "metres_per_second": 80.0,
            "carriers": [{ "carrier": "alpha", "cell": self.cell, "rsrp_dbm": -90.0 }],
            "handovers": [{ "carrier": "alpha", "outcome": "success", "dark_s": 0.04 }],
        });
        if let Some(train) = &world.train {
            train.say(&line.to_string());
        }
    }
}

fn milliseconds(generator: &mut Pcg64, least: u64, most: u64) -> Duration {
    Duration::from_millis(generator.random_range(least..most))
}

/// The passenger who scans ports, and how many.
const SCANNER: &str = "10.71.0.66";
const SCANNED: u16 = 300;
