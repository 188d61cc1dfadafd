//! Tunnels that move between the workers of a cloud, next to a model: the bytes that each gateway
//! has sent, which come back in order, each once.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Destination, Identity, InstanceId, UserId};
use polyrail_session::{Endpoint, Event, FlowKey, Settings};
use polyrail_tunnel::{CloseReason, Parcel};

use super::Side;
use crate::fake::{self, FakeControl};
use crate::{Label, MovingTunnel, RelayEvent, RelaySettings, Workers};

const WORKERS: usize = 3;

struct Gateway {
    name: Identity,
    side: Side,
    flow: FlowKey,
    sent: Vec<u8>,
    received: Vec<u8>,
    /// The open tunnels, oldest first.
    tunnels: VecDeque<FakeControl>,
}

struct Worker {
    side: Side,
    /// Tunnels on their way here, and after how many turns they arrive.
    arriving: VecDeque<(u64, MovingTunnel)>,
    /// The bytes of each flow that go back.
    echoes: BTreeMap<FlowKey, Vec<u8>>,
    /// The gateways with a session here.
    peers: Vec<String>,
}

struct Fleet {
    gateways: Vec<Gateway>,
    workers: Vec<Worker>,
    joins: u64,
    moved: u64,
    random: u64,
}

impl Fleet {
    fn new(gateways: u8, seed: u64) -> Self {
        let now = Instant::now();
        let gateway = |number: u8| {
            let endpoint = Endpoint::gateway(now, Settings::default(), InstanceId([number; 16]));
            let mut side = Side::new(endpoint, RelaySettings::default());
            let to = Destination::Address(([192, 0, 2, 1], 80).into());
            let flow = side.relay.endpoint().open(now, UserId(1), to).unwrap();
            let name = Identity::new(&format!("train-{number}")).unwrap();
            let (sent, received) = (Vec::new(), Vec::new());
            Gateway { name, side, flow, sent, received, tunnels: VecDeque::new() }
        };
        let worker = |own: usize| {
            let mut endpoint = Endpoint::cloud(now, Settings::default(), [own as u8; 32]);
            endpoint.number_sessions(own as u64 + 1, WORKERS as u64);
            let mut side = Side::new(endpoint, RelaySettings::default());
            side.relay.set_workers(Workers { own, count: WORKERS });
            let (arriving, echoes) = (VecDeque::new(), BTreeMap::new());
            Worker { side, arriving, echoes, peers: Vec::new() }
        };
        let gateways = (0..gateways).map(gateway).collect();
        let workers = (0..WORKERS).map(worker).collect();
        Self { gateways, workers, joins: 0, moved: 0, random: seed }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (self.random >> 33) % below
    }

    /// A gateway connects over a carrier, and any worker accepts.
    fn join(&mut self, number: usize) {
        self.joins += 1;
        let (at, carrier) = (self.draw(WORKERS as u64) as usize, self.draw(2));
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&self.joins.to_be_bytes());
        let gateway = &mut self.gateways[number];
        let cloud = Identity::new("cloud").unwrap();
        let (near, far) = fake::pair(&gateway.name, &cloud, secret).unwrap();
        gateway.tunnels.push_back(near.control());
        let label = Label { carrier: format!("c{carrier}"), ..Label::default() };
        gateway.side.relay.add_tunnel(Box::new(near), label).unwrap();
        self.workers[at].side.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
    }

    fn write(&mut self, number: usize, length: u64) {
        let gateway = &mut self.gateways[number];
        let from = gateway.sent.len() as u64;
        let bytes: Vec<u8> = (from..from + length).map(|at| (at ^ (at >> 8)) as u8).collect();
        let now = Instant::now();
        let taken = gateway.side.relay.endpoint().write(now, gateway.flow, &bytes);
        gateway.sent.extend(&bytes[..taken]);
    }

    fn turn(&mut self) {
        for gateway in &mut self.gateways {
            gateway.side.turn();
            let (now, flow) = (Instant::now(), gateway.flow);
            gateway.received.extend(take(&mut gateway.side, now, flow));
        }
        let mut moving = Vec::new();
        for worker in &mut self.workers {
            moving.extend(worker.turn());
        }
        for tunnel in moving {
            self.moved += 1;
            let turns = self.draw(4);
            self.workers[tunnel.to].arriving.push_back((turns, tunnel));
        }
    }

    fn is_done(&self) -> bool {
        self.gateways.iter().all(|gateway| gateway.received.len() >= gateway.sent.len())
    }
}

impl Worker {
    fn turn(&mut self) -> Vec<MovingTunnel> {
        let now = Instant::now();
        for (turns, _) in &mut self.arriving {
            *turns = turns.saturating_sub(1);
        }
        while self.arriving.front().is_some_and(|(turns, _)| *turns == 0) {
            let Some((_, tunnel)) = self.arriving.pop_front() else { break };
            let MovingTunnel { parcel, event, begun, .. } = tunnel;
            let Parcel::Whole(tunnel) = parcel else { panic!("it has a socket") };
            self.side.relay.take_in(now, tunnel, event, begun).unwrap();
        }
        let mut moving = Vec::new();
        for event in self.side.turn() {
            match event {
                RelayEvent::TunnelMoves(tunnel) => moving.push(tunnel),
                RelayEvent::Session(Event::Opened { flow, .. }) => {
                    self.side.relay.endpoint().dialed(now, flow);
                    self.echoes.insert(flow, Vec::new());
                }
                RelayEvent::Session(Event::SessionUp { peer, .. }) => {
                    self.peers.push(peer.to_string());
                }
                RelayEvent::Session(Event::SessionEnded { reason, .. }) => panic!("{reason}"),
                _ => {}
            }
        }
        for (&flow, echo) in &mut self.echoes {
            echo.extend(take(&mut self.side, now, flow));
            let written = self.side.relay.endpoint().write(now, flow, echo);
            echo.drain(..written);
        }
        moving
    }
}

/// The bytes that a flow has received.
fn take(side: &mut Side, now: Instant, flow: FlowKey) -> Vec<u8> {
    let endpoint = side.relay.endpoint();
    let bytes = endpoint.readable(flow).concat();
    endpoint.consume(now, flow, bytes.len());
    bytes
}

/// `POLYRAIL_MOVES=10000` for the long run, `POLYRAIL_SEED` for another one.
#[test]
fn no_byte_is_lost_or_repeated_when_tunnels_join_at_any_worker() {
    let number = |name: &str, usual: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let (seed, steps) = (number("POLYRAIL_SEED", 1), number("POLYRAIL_MOVES", 300));
    println!("seed {seed}, {steps} steps");
    let mut fleet = Fleet::new(4, seed);
    for _ in 0..steps {
        let gateway = fleet.draw(4) as usize;
        match fleet.draw(3) {
            0 => fleet.join(gateway),
            1 if fleet.gateways[gateway].tunnels.len() > 1 => {
                let oldest = fleet.gateways[gateway].tunnels.pop_front();
                oldest.unwrap().break_with(CloseReason::Reset);
            }
            _ => {
                let length = fleet.draw(20_000);
                fleet.write(gateway, length);
            }
        }
        for _ in 0..fleet.draw(3) {
            fleet.turn();
        }
    }
    (0..4).for_each(|gateway| fleet.join(gateway));
    let limit = Instant::now() + Duration::from_secs(30);
    while !fleet.is_done() {
        assert!(Instant::now() < limit, "bytes do not come back");
        fleet.turn();
    }
    for gateway in &fleet.gateways {
        assert!(gateway.received == gateway.sent, "{} got what it sent", gateway.name);
    }
    for (own, worker) in fleet.workers.iter().enumerate() {
        let workers = Workers { own, count: WORKERS };
        for peer in &worker.peers {
            assert_eq!(workers.owner(&Identity::new(peer).unwrap()), own, "{peer}");
        }
    }
    let sessions: usize = fleet.workers.iter().map(|worker| worker.peers.len()).sum();
    assert_eq!(sessions, 4, "each gateway has one session");
    println!("{} joins, {} moves", fleet.joins, fleet.moved);
    assert!(fleet.moved * 2 > fleet.joins, "two of three joins move");
}
