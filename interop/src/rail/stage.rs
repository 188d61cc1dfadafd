//! A contender's network: namespaces, carriers, and the daemons if it has them.
//!
//! The kernel's contenders use the namespaces of gateway and cloud as client and server: their
//! packets cross the same emulated carriers without a daemon.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polyrail_emulator::namespace::Namespace;
use polyrail_emulator::rail::{CarrierTrip, Message, Route, Trip, aggregated};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use super::contender::{Contender, Linked};
use crate::addresses::{self, CLOUD, Family, SERVER};
use crate::carrier::{self, CarrierPlan, Emulator, Medium};
use crate::configuration::strings;
use crate::lab::{Lab, Side};
use crate::linkdb::{self, Rail};
use crate::programs::Programs;
use crate::world::{Plan, World};

/// The ports of the load's server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Port {
    /// TCP.
    Flows = 6_300,
    Call,
    Requests,
    Quic,
}

/// The kernel parameters of Polyrail's package.
const SYSCTLS: &str = include_str!("../../../packaging/sysctl.d/60-polyrail.conf");
/// The last byte of the first user's address.
const FIRST_USER: u8 = 20;

/// A running network.
pub(super) struct Stage {
    network: Network,
    /// How users connect.
    pub(super) door: Door,
}

enum Network {
    Daemons(Box<World>),
    Kernel { lab: Lab, emulator: Emulator },
}

/// How a user's program connects to the server.
#[derive(Clone, Debug)]
pub(super) struct Door {
    contender: Contender,
    client: Namespace,
    server: IpAddr,
    /// The number of carriers.
    carriers: usize,
}

impl Stage {
    /// Starts a contender on a trip. `history` has the records of earlier trips; `repeat` decides
    /// which packets are lost at random.
    pub(super) fn start(
        contender: &Contender,
        repeat: u32,
        route: &Route,
        trip: &Trip,
        history: &str,
    ) -> Result<Stage> {
        let network = match contender {
            Contender::Polyrail { mode, congestion, chain, copies, linkdb } => {
                let mut plan = Plan::new().gateway("users.key", "address");
                plan = plan.gateway("mode", mode.as_str()).cloud("mode", mode.as_str());
                if let Some(chain) = chain {
                    let rules: Vec<&str> = chain.split('/').collect();
                    let chain = match rules.as_slice() {
                        [name] => toml::Value::from(*name),
                        rules => strings(rules),
                    };
                    plan = plan.gateway("scheduler.chain", chain.clone());
                    plan = plan.cloud("scheduler.chain", chain);
                }
                if let Some(copies) = copies {
                    plan = with_copies(plan, copies)?;
                }
                for (key, value) in crate::bench::assignments(SYSCTLS) {
                    plan = plan.sysctl(key, value);
                }
                if let Some(congestion) = congestion {
                    plan = plan.cloud("congestion", congestion.as_str());
                    for number in 0..trip.carriers.len() {
                        plan = plan.carrier_key(number, "congestion", congestion.as_str());
                    }
                }
                for (profile, carrier) in route.carriers.iter().zip(&trip.carriers) {
                    plan = plan.medium(profile.name, medium(carrier));
                }
                if *linkdb != Linked::Off {
                    let records = [history.to_owned(), history.to_owned()];
                    let telemetry = linkdb::telemetry(route, trip);
                    let (key, forecasts) = ("linkdb.forecast", *linkdb == Linked::Forecasts);
                    plan = plan.gateway(key, forecasts).cloud(key, forecasts);
                    plan = plan.rail(Rail { records, telemetry });
                }
                let world = World::start(&plan)?;
                world.lab.add_users((0..=Message::USERS).map(|user| FIRST_USER + user as u8))?;
                Network::Daemons(Box::new(world))
            }
            _ => kernel(contender, route, trip)?,
        };
        let lab = match &network {
            Network::Daemons(world) => &world.lab,
            Network::Kernel { lab, .. } => lab,
        };
        for (one, number) in carrier::counters(lab)?.iter().zip(0..) {
            let seed = route.seed << 16 | u64::from(repeat) << 8 | number;
            carrier::command(lab, &format!("set {} seed {seed}", one.carrier))?;
        }
        let (client, server) = match &network {
            Network::Daemons(world) => (&world.lab.passenger, SERVER),
            Network::Kernel { lab, .. } => (&lab.gateway, CLOUD),
        };
        let server = server.at(Family::V4, 0).ip();
        let (contender, carriers) = (contender.clone(), trip.carriers.len());
        let door = Door { contender, client: client.clone(), server, carriers };
        Ok(Stage { network, door })
    }

    /// When the schedules of the links began.
    pub(super) fn epoch(&self) -> Result<Instant> {
        match &self.network {
            Network::Daemons(world) => Ok(world.emulator.as_ref().context("no emulator")?.epoch),
            Network::Kernel { emulator, .. } => Ok(emulator.epoch),
        }
    }

    pub(super) fn lab(&self) -> &Lab {
        match &self.network {
            Network::Daemons(world) => &world.lab,
            Network::Kernel { lab, .. } => lab,
        }
    }

    /// The gateway's admin socket, if there is a gateway.
    pub(super) fn admin(&self) -> Option<std::path::PathBuf> {
        match &self.network {
            Network::Daemons(world) => Some(Side::Gateway.admin_socket(&world.lab)),
            Network::Kernel { .. } => None,
        }
    }

    /// The events that the gateway has stored.
    pub(super) fn events(&self) -> Result<Vec<Value>> {
        match &self.network {
            Network::Daemons(world) => world.events(Side::Gateway, 0),
            Network::Kernel { .. } => Ok(Vec::new()),
        }
    }

    /// A listener for the load's server.
    pub(super) fn listener(&self) -> Result<Socket> {
        self.server().run(|| -> Result<Socket> {
            let socket = self.door.socket()?;
            socket.bind(&self.door.address(Port::Flows).into())?;
            socket.listen(64)?;
            Ok(socket)
        })?
    }

    /// A UDP socket of the load's server.
    pub(super) fn server_udp(&self, port: Port) -> Result<UdpSocket> {
        let address = self.door.address(port);
        Ok(self.server().run(|| UdpSocket::bind(address))??)
    }

    fn server(&self) -> &Namespace {
        match &self.network {
            Network::Daemons(world) => &world.lab.server,
            Network::Kernel { lab, .. } => &lab.cloud,
        }
    }

    /// Copies of users' datagrams that both daemons have sent: up, down.
    pub(super) fn copies(&self) -> Result<[u64; 2]> {
        match &self.network {
            Network::Daemons(world) => world.copies(),
            Network::Kernel { .. } => Ok([0; 2]),
        }
    }

    /// The last lines of all logs.
    pub(super) fn tails(&self) -> String {
        match &self.network {
            Network::Daemons(world) => world.tails(),
            Network::Kernel { emulator, .. } => emulator.process.log(),
        }
    }
}

impl Door {
    /// Runs `work` on a thread in the users' namespace.
    pub(super) fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<std::thread::JoinHandle<T>> {
        Ok(self.client.run(|| std::thread::spawn(work))?)
    }

    /// Connects a user's flow; the calling thread is in the users' namespace.
    pub(super) fn connect(
        &self,
        user: usize,
        flow: usize,
        patience: Duration,
    ) -> Result<TcpStream> {
        let socket = self.socket()?;
        socket.bind(&SocketAddr::new(self.source(user, flow), 0).into())?;
        socket.connect_timeout(&self.address(Port::Flows).into(), patience)?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket.into())
    }

    /// A user's UDP socket that is connected to the server; the calling thread is in the users'
    /// namespace.
    pub(super) fn udp(&self, user: usize, flow: usize, port: Port) -> Result<UdpSocket> {
        let socket = UdpSocket::bind((self.source(user, flow), 0))?;
        socket.connect(self.address(port))?;
        Ok(socket)
    }

    /// The address from which a user's flow comes.
    fn source(&self, user: usize, flow: usize) -> IpAddr {
        match self.contender {
            Contender::Polyrail { .. } => addresses::user(FIRST_USER + user as u8),
            // MPTCP's first subflow uses each carrier in turn.
            Contender::RoundRobin | Contender::Mptcp(_) => carrier_address(flow % self.carriers),
            Contender::Single(_) | Contender::Ideal => carrier_address(0),
        }
    }

    fn address(&self, port: Port) -> SocketAddr {
        SocketAddr::new(self.server, port as u16)
    }

    /// A TCP or MPTCP socket with the contender's congestion control.
    fn socket(&self) -> Result<Socket> {
        let protocol = match self.contender {
            Contender::Mptcp(_) => Protocol::MPTCP,
            _ => Protocol::TCP,
        };
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))
            .with_context(|| format!("a socket for {}", self.contender))?;
        socket.set_reuse_address(true)?;
        self.control(&socket)?;
        Ok(socket)
    }

    /// Sets the congestion control of a socket. Passengers and servers of Polyrail keep the
    /// machine's.
    pub(super) fn control(&self, socket: &Socket) -> Result<()> {
        if matches!(self.contender, Contender::Polyrail { .. }) {
            return Ok(());
        }
        let control = self.contender.control();
        socket
            .set_tcp_congestion(control.as_bytes())
            .with_context(|| format!("TCP cannot use {control} here: run `modprobe tcp_{control}`"))
    }
}

/// `copies` is `udp.copies` of both sides, also with `udp.copies_max` behind a colon.
fn with_copies(plan: Plan, copies: &str) -> Result<Plan> {
    let (copies, max) = copies.split_once(':').map_or((copies, None), |(a, b)| (a, Some(b)));
    let plan = plan.gateway("udp.copies", copies).cloud("udp.copies", copies);
    let Some(max) = max else { return Ok(plan) };
    let max: i64 = max.parse().with_context(|| format!("bytes of copies, not {max:?}"))?;
    Ok(plan.gateway("udp.copies_max", max).cloud("udp.copies_max", max))
}

fn kernel(contender: &Contender, route: &Route, trip: &Trip) -> Result<Network> {
    let named = |(number, carrier): (usize, &CarrierTrip)| CarrierPlan {
        name: route.carriers.get(number).map_or("", |profile| profile.name).to_owned(),
        medium: medium(carrier),
    };
    let all = || trip.carriers.iter().enumerate();
    let plans: Vec<CarrierPlan> = match contender {
        Contender::Single(index) => {
            all().filter(|(number, _)| number == index).map(named).collect()
        }
        Contender::Ideal => {
            let sum = aggregated(trip)?;
            let sum = sum.carriers.first().context("no carrier")?;
            vec![CarrierPlan { name: "ideal".to_owned(), medium: medium(sum) }]
        }
        _ => all().map(named).collect(),
    };
    let lab = Lab::new()?;
    for (key, value) in crate::bench::assignments(crate::bench::DEBIAN) {
        lab.gateway.sysctl(key, value)?;
        lab.cloud.sysctl(key, value)?;
    }
    let programs = Programs::find()?;
    let (carriers, emulator) = carrier::start(&lab, &programs, &plans)?;
    if let Contender::Mptcp(_) = contender {
        for side in [&lab.gateway, &lab.cloud] {
            side.sysctl("net.mptcp.enabled", "1")?;
            side.tool("ip", "mptcp limits set subflow 8 add_addr_accepted 8")?;
        }
        for index in 0..carriers.len() {
            let (address, device) = (carrier_address(index), format!("wan{index}"));
            lab.gateway
                .tool("ip", &format!("mptcp endpoint add {address} dev {device} subflow"))?;
        }
    }
    Ok(Network::Kernel { lab, emulator: emulator.context("no emulator")? })
}

fn medium(carrier: &CarrierTrip) -> Medium {
    Medium::Course(Box::new(carrier.links.clone()))
}

fn carrier_address(index: usize) -> IpAddr {
    IpAddr::V4(addresses::carrier_gateway(index as u8).v4)
}
