//! Two endpoints back to back: what one sends the other receives at once, path by path.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test, with a base for its clock

use std::time::{Duration, Instant};

use polyrail_model::{
    Bytes, Destination, HostName, Identity, InstanceId, TunnelMode, Unit, UserId,
};
use polyrail_session::{
    Endpoint, Event, FlowKey, Outlet, ResetReason, Settings, TunnelInfo, TunnelKey,
};

/// A gateway and a cloud joined by tunnels of unlimited rate and no delay.
struct Pair {
    now: Instant,
    gateway: Endpoint,
    cloud: Endpoint,
    tunnels: Vec<(TunnelKey, bool)>,
    at_gateway: Vec<Event>,
    at_cloud: Vec<Event>,
    user_bytes: Vec<usize>,
}

#[derive(Default)]
struct Wire(Vec<(TunnelKey, Vec<u8>)>);

impl Outlet for Wire {
    fn send(&mut self, tunnel: TunnelKey, _unit: Unit, frames: &[u8]) -> usize {
        self.0.push((tunnel, frames.to_vec()));
        16_384
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

impl Pair {
    fn new(settings: Settings) -> Self {
        let now = Instant::now();
        Self {
            now,
            gateway: Endpoint::gateway(now, settings.clone(), InstanceId([7; 16])),
            cloud: Endpoint::cloud(now, settings, [1; 32]),
            tunnels: Vec::new(),
            at_gateway: Vec::new(),
            at_cloud: Vec::new(),
            user_bytes: vec![0; 8],
        }
    }

    fn up(&mut self, key: usize, carrier: &str) {
        self.up_as(key, carrier, "train-7");
    }

    fn up_as(&mut self, key: usize, carrier: &str, name: &str) {
        let info = |carrier: &str, peer: &str| TunnelInfo {
            carrier: carrier.to_owned(),
            peer: Identity::new(peer).unwrap(),
            exporter: Some([key as u8; 32]),
            mode: TunnelMode::Tls,
            backup: false,
        };
        let tunnel = TunnelKey(key);
        self.tunnels.push((tunnel, true));
        self.cloud.tunnel_up(self.now, tunnel, info("", name));
        self.gateway.tunnel_up(self.now, tunnel, info(carrier, "cloud"));
        self.cloud.tunnel_room(tunnel, 16_384);
        self.gateway.tunnel_room(tunnel, 16_384);
        self.run();
    }

    fn down(&mut self, key: usize) {
        self.tunnels.retain(|(tunnel, _)| *tunnel != TunnelKey(key));
        self.gateway.tunnel_down(self.now, TunnelKey(key));
        self.cloud.tunnel_down(self.now, TunnelKey(key));
        self.run();
    }

    /// Nothing passes this tunnel any more, and nobody is told.
    fn dark(&mut self, key: usize) {
        self.tunnels.iter_mut().filter(|t| t.0 == TunnelKey(key)).for_each(|t| t.1 = false);
    }

    fn passes(&self, key: TunnelKey) -> bool {
        self.tunnels.contains(&(key, true))
    }

    fn run(&mut self) {
        loop {
            self.at_gateway.extend(std::iter::from_fn(|| self.gateway.poll_event()));
            self.at_cloud.extend(std::iter::from_fn(|| self.cloud.poll_event()));
            let (mut up, mut down) = (Wire::default(), Wire::default());
            self.gateway.transmit(self.now, &mut up);
            self.cloud.transmit(self.now, &mut down);
            if up.0.is_empty() && down.0.is_empty() {
                return;
            }
            for (key, bytes) in up.0 {
                self.user_bytes[key.0] += bytes.len();
                if self.passes(key) {
                    self.cloud.receive(self.now, key, &bytes);
                }
            }
            for (key, bytes) in down.0 {
                if self.passes(key) {
                    self.gateway.receive(self.now, key, &bytes);
                }
            }
        }
    }

    fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let next = [self.gateway.next_timeout(), self.cloud.next_timeout()];
            match next.into_iter().flatten().min().filter(|at| *at <= end) {
                Some(at) => self.now = at.max(self.now),
                None => break,
            }
            self.gateway.on_timeout(self.now);
            self.cloud.on_timeout(self.now);
            self.run();
        }
        self.now = end;
    }

    fn open(&mut self) -> FlowKey {
        let name = HostName::new("example.com").unwrap();
        self.gateway.open(self.now, UserId(1), Destination::Name(name, 80)).unwrap()
    }

    /// The flow that the cloud was told of last.
    fn opened(&self) -> FlowKey {
        let opened = |event: &Event| match event {
            Event::Opened { flow, .. } => Some(*flow),
            _ => None,
        };
        self.at_cloud.iter().rev().find_map(opened).expect("an opened flow")
    }
}

fn drain(endpoint: &mut Endpoint, now: Instant, flow: FlowKey) -> Vec<u8> {
    let bytes = endpoint.readable(flow).concat();
    endpoint.consume(now, flow, bytes.len());
    bytes
}

#[test]
fn a_request_and_its_answer() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    assert_eq!(pair.gateway.write(pair.now, flow, b"hello"), 5);
    pair.gateway.finish(pair.now, flow);
    pair.run();
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"hello");
    assert!(pair.cloud.finished(served));
    let answer: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < answer.len() {
        sent += pair.cloud.write(pair.now, served, &answer[sent..]);
        pair.run();
        got.extend(drain(&mut pair.gateway, pair.now, flow));
        pair.advance(Duration::from_millis(20));
    }
    assert!(got == answer);
    pair.cloud.finish(pair.now, served);
    pair.run();
    assert!(pair.gateway.finished(flow) || pair.at_gateway.contains(&Event::Closed { flow }));
    pair.advance(Duration::from_secs(1));
    assert!(pair.at_gateway.contains(&Event::Closed { flow }));
    assert!(pair.at_cloud.contains(&Event::Closed { flow: served }));
    let status = pair.gateway.status();
    assert_eq!(status.sessions[0].flows, 0);
    assert_eq!(status.sessions[0].memory_sent, Bytes::ZERO);
}

#[test]
fn an_open_leaves_alone_after_five_milliseconds() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.open();
    pair.advance(Duration::from_millis(4));
    assert!(!pair.at_cloud.iter().any(|e| matches!(e, Event::Opened { .. })));
    pair.advance(Duration::from_millis(2));
    let served = pair.opened();
    pair.cloud.write(pair.now, served, b"220 ready\r\n");
    pair.cloud.dialed(pair.now, served);
    pair.run();
    assert!(pair.at_gateway.iter().any(|e| matches!(e, Event::Dialed { .. })));
    assert!(pair.at_gateway.iter().any(|e| matches!(e, Event::Readable { .. })));
}

#[test]
fn what_a_dark_path_carried_goes_over_the_other() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.up(1, "b");
    let flow = pair.open();
    pair.dark(0);
    pair.gateway.write(pair.now, flow, b"into the dark");
    pair.gateway.finish(pair.now, flow);
    pair.run();
    pair.advance(Duration::from_secs(2));
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"into the dark");
    assert!(pair.cloud.finished(served));
}

#[test]
fn a_lost_path_is_replaced_and_nothing_is_lost() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    pair.dark(0);
    pair.gateway.write(pair.now, flow, b"early");
    pair.run();
    pair.advance(Duration::from_secs(30));
    pair.down(0);
    pair.advance(Duration::from_secs(30));
    pair.up(1, "a");
    pair.advance(Duration::from_millis(100));
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"early");
}

#[test]
fn resets_come_after_what_was_written() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"last words");
    pair.run();
    let served = pair.opened();
    pair.gateway.reset(pair.now, flow, ResetReason::PeerReset);
    pair.run();
    let reset = Event::Reset { flow: served, reason: ResetReason::PeerReset };
    assert!(!pair.at_cloud.contains(&reset));
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"last words");
    pair.advance(Duration::from_millis(100));
    assert!(pair.at_cloud.contains(&reset));
    for endpoint in [&pair.gateway, &pair.cloud] {
        assert_eq!(endpoint.status().sessions[0].flows, 0);
    }
}

#[test]
fn a_foreign_join_is_refused() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.up_as(1, "b", "train-8");
    let refused = |e: &Event| match e {
        Event::CloseTunnel { tunnel: TunnelKey(1), reason } => reason.contains("certificate"),
        _ => false,
    };
    assert!(pair.at_cloud.iter().any(refused), "{:?}", pair.at_cloud);
}

#[test]
fn a_restarted_cloud_makes_flows_end_and_the_session_begin_anew() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"x");
    pair.run();
    pair.down(0);
    pair.cloud = Endpoint::cloud(pair.now, Settings::default(), [2; 32]);
    pair.up(1, "a");
    let reset = Event::Reset { flow, reason: ResetReason::SessionLost };
    assert!(pair.at_gateway.contains(&reset), "{:?}", pair.at_gateway);
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"anew");
    pair.run();
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"anew");
}
