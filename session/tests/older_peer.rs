//! The present endpoints understand the first release: a recorded session of its code (commit
//! 7862e63), with each side replayed against the present peer.
//!
//! That code wrote `session/vectors/older_peer.txt` with the steps below. At `step n` both sides
//! take the actions of step n; at `later` time has passed; the other lines are the bytes that a
//! side sent on a tunnel, in order. The recording never changes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test, with a base for its clock

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::{
    Destination, HostName, Identity, InstanceId, NodeRole, PathWish, TunnelMode, Unit, UserId,
};
use polyrail_session::wire::{Decoder, Frame};
use polyrail_session::{
    Endpoint, Event, FlowKey, Outlet, ResetReason, Settings, TunnelInfo, TunnelKey,
};

#[test]
fn present_cloud_serves_a_recorded_gateway() {
    let cloud = replay(NodeRole::Cloud);
    assert_eq!(cloud.flows.len(), 4);
    for (flow, bytes) in [2_000, 100, 50, 20_000].into_iter().enumerate() {
        let sent = content(flow, NodeRole::Gateway, bytes);
        assert!(cloud.read[&cloud.flows[flow]] == sent, "{flow}");
    }
    let opened = cloud.events.iter().filter_map(|event| match event {
        Event::Opened { user, destination, .. } => Some((user.0, destination.to_string())),
        _ => None,
    });
    let opened: Vec<_> = opened.collect();
    let wanted =
        [(1, "www.example:443"), (2, "192.0.2.1:80"), (2, "[::1]:80"), (3, "192.0.2.9:80")];
    assert_eq!(opened, wanted.map(|(user, at)| (user, at.to_owned())));
    cloud.happened(Event::Closed { flow: cloud.flows[0] });
    cloud.happened(Event::Reset { flow: cloud.flows[2], reason: ResetReason::Idle });
    cloud.happened(Event::Closed { flow: cloud.flows[3] });
}

#[test]
fn recorded_cloud_serves_the_present_gateway() {
    let gateway = replay(NodeRole::Gateway);
    for (flow, bytes) in [(0, 5_000), (1, 300)] {
        let sent = content(flow, NodeRole::Cloud, bytes);
        assert!(gateway.read[&gateway.flows[flow]] == sent, "{flow}");
    }
    for flow in [0, 1, 3] {
        gateway.happened(Event::Dialed { flow: gateway.flows[flow] });
    }
    gateway.happened(Event::Closed { flow: gateway.flows[0] });
    gateway.happened(Event::Reset { flow: gateway.flows[1], reason: ResetReason::PeerReset });
    gateway.happened(Event::Closed { flow: gateway.flows[3] });
}

#[test]
fn recording_contains_all_frames_of_a_session() {
    let mut seen = [const { BTreeSet::new() }; 2];
    for line in RECORDING.lines() {
        let Some((side, _, bytes)) = recorded(line) else { continue };
        let mut note = |frame: Frame<'_>| {
            let name = format!("{frame:?}");
            seen[side as usize].insert(name.split([' ', '(']).next().unwrap().to_owned());
        };
        Decoder::default().feed(&bytes, &mut note).unwrap();
    }
    let both = ["Ack", "Data", "GoAway", "Ping", "Pong", "Reset", "Window"];
    let gateway = both.iter().chain(&["Hello", "Join", "Open"]);
    let cloud = both.iter().chain(&["Welcome"]);
    assert!(seen[0].iter().eq(gateway.collect::<BTreeSet<_>>()), "{seen:?}");
    assert!(seen[1].iter().eq(cloud.collect::<BTreeSet<_>>()), "{seen:?}");
}

/// Replays the recorded peer against a present endpoint, with the endpoint's actions.
fn replay(role: NodeRole) -> End {
    let mut end = End::new(role, Instant::now());
    let mut step = 0;
    for line in RECORDING.lines() {
        if let Some(number) = line.strip_prefix("step ") {
            step = number.parse().unwrap();
            end.act(step);
        } else if line == "later" {
            end.wait(step);
        } else if let Some((side, tunnel, bytes)) = recorded(line) {
            if side == role {
                end.transmit();
            } else {
                end.endpoint.receive(end.now, tunnel, &bytes);
                end.drain();
            }
        }
    }
    assert_eq!(step + 1, STEPS);
    let odd = |e: &&Event| matches!(e, Event::CloseTunnel { .. } | Event::Alarm { .. });
    assert_eq!(end.events.iter().find(odd), None);
    let session = &end.endpoint.status().sessions[0];
    assert_eq!((session.flows, session.paths.len()), (0, 2));
    assert_eq!((session.memory_sent.0, session.memory_received.0), (0, 0));
    assert!(session.paths.iter().all(|path| !path.unproven && !path.stalled), "{session:?}");
    end
}

/// The side, tunnel and bytes of a line of the recording; `None` if it is a step.
fn recorded(line: &str) -> Option<(NodeRole, TunnelKey, Vec<u8>)> {
    let mut words = line.split(' ');
    let role = words.next()?.parse().ok()?;
    let tunnel = TunnelKey(words.next()?.parse().unwrap());
    let hex = words.next()?;
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    Some((role, tunnel, (0..hex.len()).step_by(2).map(byte).collect()))
}

#[derive(Default)]
struct Wire(Vec<(TunnelKey, Vec<u8>)>);

impl Outlet for Wire {
    fn send(&mut self, tunnel: TunnelKey, _unit: Unit, frames: &[u8]) -> usize {
        self.0.push((tunnel, frames.to_vec()));
        1 << 20
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

fn info(key: usize, carrier: &str, peer: &str) -> TunnelInfo {
    TunnelInfo {
        carrier: carrier.to_owned(),
        peer: Identity::new(peer).unwrap(),
        exporter: Some([key as u8; 32]),
        wish: PathWish::default(),
        mode: TunnelMode::Tls,
    }
}

/// One endpoint and its passengers or servers.
struct End {
    role: NodeRole,
    now: Instant,
    endpoint: Endpoint,
    /// In the order of their opening.
    flows: Vec<FlowKey>,
    read: BTreeMap<FlowKey, Vec<u8>>,
    events: Vec<Event>,
    /// Whether readers take bytes as they arrive.
    reads: bool,
}

impl End {
    fn new(role: NodeRole, now: Instant) -> Self {
        let endpoint = match role {
            NodeRole::Gateway => Endpoint::gateway(now, Settings::default(), InstanceId([7; 16])),
            NodeRole::Cloud => Endpoint::cloud(now, Settings::default(), [9; 32]),
        };
        let (flows, read, events) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { role, now, endpoint, flows, read, events, reads: true }
    }

    /// Takes this side's action of a step.
    fn act(&mut self, step: usize) {
        match (self.role, step) {
            (_, 0) => self.up(1, "a"),
            (_, 1) => self.up(2, "b"),
            (NodeRole::Gateway, 2) => {
                let name = HostName::new("www.example").unwrap();
                self.open(1, Destination::Name(name, 443), 2_000);
            }
            (NodeRole::Cloud, 3) => {
                self.dialed(0);
                self.write(0, 5_000);
                self.endpoint.finish(self.now, self.flows[0]);
            }
            (NodeRole::Gateway, 4) => self.endpoint.finish(self.now, self.flows[0]),
            (NodeRole::Gateway, 5) => self.open(2, address(Ipv4Addr::new(192, 0, 2, 1)), 100),
            (NodeRole::Cloud, 6) => {
                self.dialed(1);
                self.write(1, 300);
                self.reset(1, ResetReason::PeerReset);
            }
            (NodeRole::Gateway, 7) => self.open(2, address(Ipv6Addr::LOCALHOST), 50),
            (NodeRole::Gateway, 8) => self.reset(2, ResetReason::Idle),
            (NodeRole::Gateway, 9) => self.open(3, address(Ipv4Addr::new(192, 0, 2, 9)), 20_000),
            (NodeRole::Cloud, 9) => self.reads = false,
            (NodeRole::Cloud, 10) => {
                self.reads = true;
                self.dialed(3);
                self.read_all(3);
            }
            (NodeRole::Gateway, 11) => self.endpoint.finish(self.now, self.flows[3]),
            (NodeRole::Cloud, 12) => self.endpoint.finish(self.now, self.flows[3]),
            (NodeRole::Gateway, 14) => self.endpoint.go_away(self.now, "maintenance"),
            (NodeRole::Cloud, 15) => self.endpoint.go_away(self.now, "maintenance"),
            _ => {}
        }
        self.drain();
    }

    /// Lets time pass: over a second before the step in which PINGs are due.
    fn wait(&mut self, step: usize) {
        self.now += Duration::from_millis(if step == 13 { 1_100 } else { 20 });
        self.endpoint.on_timeout(self.now);
        self.drain();
    }

    fn up(&mut self, key: usize, carrier: &str) {
        let info = match self.role {
            NodeRole::Gateway => info(key, carrier, "cloud"),
            NodeRole::Cloud => info(key, "", "train-7"),
        };
        self.endpoint.tunnel_up(self.now, TunnelKey(key), info);
        self.endpoint.tunnel_room(TunnelKey(key), 1 << 20);
    }

    fn open(&mut self, user: u64, destination: Destination, bytes: usize) {
        let flow = self.endpoint.open(self.now, UserId(user), destination).unwrap();
        self.flows.push(flow);
        self.write(self.flows.len() - 1, bytes);
    }

    fn write(&mut self, flow: usize, bytes: usize) {
        let data = content(flow, self.role, bytes);
        assert_eq!(self.endpoint.write(self.now, self.flows[flow], &data), bytes);
    }

    fn dialed(&mut self, flow: usize) {
        self.endpoint.dialed(self.now, self.flows[flow]);
    }

    fn reset(&mut self, flow: usize, reason: ResetReason) {
        self.endpoint.reset(self.now, self.flows[flow], reason);
    }

    fn read_all(&mut self, flow: usize) {
        let key = self.flows[flow];
        let bytes = self.endpoint.readable(key).concat();
        self.endpoint.consume(self.now, key, bytes.len());
        self.read.entry(key).or_default().extend(bytes);
    }

    fn drain(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            if let Event::Opened { flow, .. } = event {
                self.flows.push(flow);
            }
            if let (Event::Readable { flow }, true) = (&event, self.reads) {
                let flow = self.flows.iter().position(|known| known == flow).unwrap();
                self.read_all(flow);
            }
            self.events.push(event);
        }
    }

    fn happened(&self, event: Event) {
        assert!(self.events.contains(&event), "{event:?} is not in {:?}", self.events);
    }

    fn transmit(&mut self) -> Vec<(TunnelKey, Vec<u8>)> {
        let mut wire = Wire::default();
        self.endpoint.transmit(self.now, &mut wire);
        self.drain();
        wire.0
    }
}

fn address(ip: impl Into<std::net::IpAddr>) -> Destination {
    Destination::Address(SocketAddr::new(ip.into(), 80))
}

/// The bytes that this side writes on a flow.
fn content(flow: usize, role: NodeRole, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + flow * 13 + at / 251 + role as usize) as u8).collect()
}

const STEPS: usize = 16;
const RECORDING: &str = include_str!("../vectors/older_peer.txt");
