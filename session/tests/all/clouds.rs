//! A gateway with two clouds: its sessions, and where flows go.

use std::time::{Duration, Instant};

use polyrail_model::{Destination, HostName, Identity, InstanceId, PathWish, TunnelMode, UserId};
use polyrail_session::{Endpoint, Event, FlowKey, OpenError, Settings, TunnelInfo, TunnelKey};

use crate::endpoints::{Wire, closes, drain};

/// A gateway and two clouds; the tunnels with even keys lead to the first one.
struct Trio {
    now: Instant,
    gateway: Endpoint,
    clouds: [Endpoint; 2],
    at_gateway: Vec<Event>,
    at_clouds: [Vec<Event>; 2],
    /// The cloud receives nothing and sends nothing.
    dark: [bool; 2],
}

fn name(cloud: usize) -> Identity {
    Identity::new(["first", "second"][cloud]).unwrap()
}

fn info(carrier: &str, peer: Identity, key: usize) -> TunnelInfo {
    TunnelInfo {
        carrier: carrier.to_owned(),
        peer,
        exporter: Some([key as u8; 32]),
        mode: TunnelMode::Tls,
        wish: PathWish::default(),
    }
}

impl Trio {
    fn new() -> Self {
        let now = Instant::now();
        let settings = Settings::default();
        let mut gateway = Endpoint::gateway(now, settings.clone(), InstanceId([7; 16]));
        gateway.prefer(now, &name(0));
        Self {
            now,
            gateway,
            clouds: [1, 2].map(|seed| Endpoint::cloud(now, settings.clone(), [seed; 32])),
            at_gateway: Vec::new(),
            at_clouds: [Vec::new(), Vec::new()],
            dark: [false; 2],
        }
    }

    fn up(&mut self, key: usize) {
        let (tunnel, train) = (TunnelKey(key), Identity::new("train-7").unwrap());
        self.clouds[key % 2].tunnel_up(self.now, tunnel, info("", train, key));
        self.gateway.tunnel_up(self.now, tunnel, info("a", name(key % 2), key));
        self.clouds[key % 2].tunnel_room(tunnel, 16_384);
        self.gateway.tunnel_room(tunnel, 16_384);
        self.run();
    }

    fn run(&mut self) {
        loop {
            let events: Vec<Event> = std::iter::from_fn(|| self.gateway.poll_event()).collect();
            let mut wire = Wire::default();
            self.gateway.transmit(self.now, &mut wire);
            for closed in events.iter().filter_map(closes) {
                self.gateway.tunnel_down(self.now, closed);
            }
            self.at_gateway.extend(events);
            let mut idle = wire.sent.is_empty();
            for (key, bytes) in wire.sent {
                if !self.dark[key.0 % 2] {
                    self.clouds[key.0 % 2].receive(self.now, key, &bytes);
                }
            }
            for (index, cloud) in self.clouds.iter_mut().enumerate() {
                self.at_clouds[index].extend(std::iter::from_fn(|| cloud.poll_event()));
                let mut wire = Wire::default();
                cloud.transmit(self.now, &mut wire);
                idle &= wire.sent.is_empty();
                for (key, bytes) in wire.sent.into_iter().filter(|_| !self.dark[index]) {
                    self.gateway.receive(self.now, key, &bytes);
                }
            }
            if idle {
                return;
            }
        }
    }

    fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let clouds = self.clouds.iter().filter_map(Endpoint::next_timeout);
            let next = clouds.chain(self.gateway.next_timeout()).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = at.max(self.now);
            self.gateway.on_timeout(self.now);
            self.clouds.iter_mut().for_each(|cloud| cloud.on_timeout(self.now));
            self.run();
        }
        self.now = end;
    }

    fn open(&mut self) -> Result<FlowKey, OpenError> {
        let server = HostName::new("example.com").unwrap();
        self.gateway.open(self.now, UserId(1), Destination::Name(server, 80))
    }

    /// Opens a flow, writes, and returns what the clouds read.
    fn send(&mut self, bytes: &[u8]) -> (FlowKey, [Vec<u8>; 2]) {
        let flow = self.open().unwrap();
        self.gateway.write(self.now, flow, bytes);
        self.run();
        (flow, self.read())
    }

    fn read(&mut self) -> [Vec<u8>; 2] {
        [0, 1].map(|index| {
            let opened = self.at_clouds[index].iter().filter_map(|event| match event {
                Event::Opened { flow, .. } => Some(*flow),
                _ => None,
            });
            let opened: Vec<FlowKey> = opened.collect();
            let cloud = &mut self.clouds[index];
            opened.into_iter().flat_map(|flow| drain(cloud, self.now, flow)).collect()
        })
    }

    fn was_reset(&self, flow: FlowKey) -> bool {
        let reset = |event: &Event| matches!(event, Event::Reset { flow: of, .. } if *of == flow);
        self.at_gateway.iter().any(reset)
    }

    /// The numbers of flows that were open in the gateway's sessions that have ended.
    fn ended(&self) -> Vec<usize> {
        let ended = |event: &Event| match event {
            Event::SessionEnded { flows, .. } => Some(*flows),
            _ => None,
        };
        self.at_gateway.iter().filter_map(ended).collect()
    }
}

#[test]
fn each_tunnel_joins_the_session_of_its_cloud_and_new_flows_go_to_the_preferred_one() {
    let mut trio = Trio::new();
    trio.up(0);
    trio.up(1);
    let sessions = trio.gateway.status().sessions;
    let peers: Vec<_> = sessions.iter().map(|one| (one.peer.clone(), one.paths.len())).collect();
    assert_eq!(peers, [(Some(name(0)), 1), (Some(name(1)), 1)]);
    assert_eq!(trio.send(b"one").1, [b"one".to_vec(), Vec::new()]);
    trio.gateway.prefer(trio.now, &name(1));
    let (flow, read) = trio.send(b"two");
    assert_eq!(read, [Vec::new(), b"two".to_vec()]);
    assert_eq!(Some(flow.session), trio.gateway.session_with(&name(1)));
    trio.gateway.prefer(trio.now, &name(0));
    assert_eq!(trio.send(b"three").1, [b"three".to_vec(), Vec::new()]);
}

#[test]
fn flows_of_a_cloud_that_went_dark_resume_while_new_ones_use_the_other() {
    let mut trio = Trio::new();
    trio.up(0);
    let (old, _) = trio.send(b"before ");
    trio.dark[0] = true;
    trio.gateway.write(trio.now, old, b"the tunnel");
    trio.run();
    trio.advance(Duration::from_secs(10));
    trio.up(1);
    trio.gateway.prefer(trio.now, &name(1));
    assert_eq!(trio.send(b"new").1, [Vec::new(), b"new".to_vec()]);
    trio.advance(Duration::from_secs(60));
    trio.dark[0] = false;
    trio.up(2);
    trio.advance(Duration::from_secs(1));
    assert_eq!(trio.read()[0], b"the tunnel");
    assert!(!trio.was_reset(old));
}

#[test]
fn flows_of_a_cloud_that_stays_dark_end_after_the_linger_and_no_session_begins() {
    let mut trio = Trio::new();
    trio.up(0);
    let (old, _) = trio.send(b"x");
    trio.up(1);
    trio.gateway.prefer(trio.now, &name(1));
    let (new, _) = trio.send(b"y");
    trio.gateway.tunnel_down(trio.now, TunnelKey(0));
    trio.advance(Settings::default().linger + Duration::from_secs(1));
    assert!(trio.was_reset(old) && !trio.was_reset(new));
    assert_eq!((trio.ended(), trio.gateway.status().sessions.len()), (vec![1], 1));
    // The cloud is back: the gateway begins a session with the next tunnel.
    trio.up(2);
    assert_eq!(trio.gateway.status().sessions.len(), 2);
    trio.gateway.prefer(trio.now, &name(0));
    assert_eq!(trio.send(b"again").1[0], b"again");
}

#[test]
fn cloud_that_restarted_gets_a_new_session_while_another_is_current() {
    let mut trio = Trio::new();
    trio.up(0);
    trio.up(1);
    let (old, _) = trio.send(b"x");
    trio.gateway.prefer(trio.now, &name(1));
    let current = trio.gateway.current();
    trio.gateway.tunnel_down(trio.now, TunnelKey(0));
    trio.clouds[0] = Endpoint::cloud(trio.now, Settings::default(), [9; 32]);
    trio.up(2);
    assert!(trio.was_reset(old), "the new process does not know its session");
    assert_eq!(trio.gateway.current(), current);
    let up = trio.gateway.session_with(&name(0)).and_then(|key| trio.gateway.status_of(key));
    assert_eq!(up.map(|one| one.paths.len()), Some(1), "over the tunnel of the rejected JOIN");
}

#[test]
fn session_that_is_not_current_can_be_left() {
    let mut trio = Trio::new();
    trio.up(0);
    trio.up(1);
    let keys = [0, 1].map(|index| trio.gateway.session_with(&name(index)).unwrap());
    trio.gateway.leave(trio.now, keys[0]);
    assert!(trio.ended().is_empty(), "it is the current one");
    trio.gateway.leave(trio.now, keys[1]);
    trio.run();
    assert_eq!((trio.ended(), trio.gateway.status().sessions.len()), (vec![0], 1));
    assert!(trio.at_gateway.iter().any(|event| closes(event) == Some(TunnelKey(1))));
    assert_eq!(trio.send(b"x").1[0], b"x");
}

#[test]
fn cloud_that_goes_away_keeps_flows_and_paths_but_takes_no_flow() {
    let mut trio = Trio::new();
    trio.up(0);
    trio.up(1);
    let (old, _) = trio.send(b"before ");
    let unaware = trio.open().unwrap();
    trio.clouds[0].drain(trio.now, "maintenance");
    trio.gateway.write(trio.now, unaware, b"unaware ");
    trio.run();
    assert_eq!(trio.read()[0], b"unaware ", "it was opened before the GOAWAY arrived");
    assert!(trio.gateway.status().sessions[0].peer_going);
    assert_eq!(trio.open(), Err(OpenError::GoingAway));
    // A path of the old session may restart, and the flow goes on.
    trio.gateway.tunnel_down(trio.now, TunnelKey(0));
    trio.clouds[0].tunnel_down(trio.now, TunnelKey(0));
    trio.up(2);
    trio.gateway.write(trio.now, old, b"and after");
    trio.run();
    assert_eq!(trio.read()[0], b"and after");
    trio.gateway.prefer(trio.now, &name(1));
    assert_eq!(trio.send(b"new").1[1], b"new");
    // Another gateway learns it at once.
    let (key, stranger) = (TunnelKey(4), Identity::new("train-8").unwrap());
    trio.clouds[0].tunnel_up(trio.now, key, info("", stranger, 4));
    let mut other = Endpoint::gateway(trio.now, Settings::default(), InstanceId([8; 16]));
    other.tunnel_up(trio.now, key, info("a", name(0), 4));
    for _ in 0..2 {
        let mut wire = Wire::default();
        other.transmit(trio.now, &mut wire);
        for (_, bytes) in std::mem::take(&mut wire.sent) {
            trio.clouds[0].receive(trio.now, key, &bytes);
        }
        trio.clouds[0].transmit(trio.now, &mut wire);
        for (_, bytes) in wire.sent.into_iter().filter(|(tunnel, _)| *tunnel == key) {
            other.receive(trio.now, key, &bytes);
        }
    }
    let session = &other.status().sessions[0];
    assert!(session.peer_going && session.paths.len() == 1, "{session:?}");
}

#[test]
fn cloud_knows_whether_its_gateway_has_heard_that_it_goes_away() {
    let mut trio = Trio::new();
    trio.up(0);
    let heard = |trio: &Trio| trio.clouds[0].status().sessions[0].heard_going;
    trio.dark[0] = true;
    trio.clouds[0].drain(trio.now, "maintenance");
    trio.run();
    trio.advance(Duration::from_secs(10));
    assert!(!heard(&trio), "the GOAWAY was sent into the dark");
    trio.dark[0] = false;
    trio.up(2);
    trio.advance(Duration::from_secs(3));
    assert!(heard(&trio) && trio.gateway.status().sessions[0].peer_going);
}
