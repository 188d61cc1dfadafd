//! A gateway's and a cloud's endpoint, joined by tunnels without rate and delay.

use std::time::{Duration, Instant};

use polyrail_model::{
    Bitrate, Bytes, Destination, HostName, Identity, InstanceId, LinkSample, PathWish, TunnelMode,
    Unit, UserId,
};
use polyrail_session::{
    Endpoint, Event, FlowKey, Outlet, SessionKey, Settings, TunnelInfo, TunnelKey,
};

/// A gateway and a cloud joined by tunnels of unlimited rate and no delay.
pub struct Pair {
    pub now: Instant,
    pub gateway: Endpoint,
    pub cloud: Endpoint,
    pub tunnels: Vec<(TunnelKey, bool)>,
    /// How the operator wants new tunnels used.
    pub wish: PathWish,
    /// The gateway's data over this tunnel does not arrive.
    pub slow: Option<TunnelKey>,
    pub at_gateway: Vec<Event>,
    pub at_cloud: Vec<Event>,
    pub user_bytes: Vec<usize>,
    /// Units of data that the gateway sent, and units that it withdrew.
    pub units: Vec<(usize, u64)>,
    pub withdrawn: Vec<(usize, u64)>,
}

/// The units that an endpoint sends at once.
#[derive(Default)]
pub struct Wire {
    pub sent: Vec<(TunnelKey, Vec<u8>)>,
    slow: Option<TunnelKey>,
    units: Vec<(usize, u64)>,
    withdrawn: Vec<(usize, u64)>,
}

impl Outlet for Wire {
    fn send(&mut self, tunnel: TunnelKey, unit: Unit, frames: &[u8]) -> usize {
        if let Unit::Data { tag } = unit {
            self.units.push((tunnel.0, tag));
            if self.slow == Some(tunnel) {
                return 16_384;
            }
        }
        self.sent.push((tunnel, frames.to_vec()));
        16_384
    }

    fn withdraw(&mut self, tunnel: TunnelKey, tag: u64) {
        self.withdrawn.push((tunnel.0, tag));
    }
}

/// The first session of an endpoint.
pub fn session(endpoint: &Endpoint) -> SessionKey {
    endpoint.status().sessions[0].session
}

/// A sample of an idle transport with 20 ms.
pub fn sample(at: Instant) -> LinkSample {
    LinkSample {
        at,
        srtt: Duration::from_millis(20),
        rtt_min: Duration::from_millis(20),
        rtt_var: Duration::ZERO,
        window: Bytes(100_000),
        in_flight: Bytes::ZERO,
        unsent: Bytes::ZERO,
        delivery_rate: Some(Bitrate::from_bps(1_000)),
        application_limited: true,
        sent_packets: 10,
        lost_packets: 0,
        spurious_packets: 0,
        timeouts: 0,
        acked: Bytes(1_000),
    }
}

impl Pair {
    /// A pair with a path over each carrier, after their greetings and first PINGs.
    pub fn over(carriers: &[&str]) -> Self {
        let mut pair = Self::new(Settings::default());
        for (key, carrier) in carriers.iter().enumerate() {
            pair.up(key, carrier);
        }
        pair.advance(Duration::from_secs(3));
        pair
    }

    pub fn new(settings: Settings) -> Self {
        let now = Instant::now();
        Self {
            now,
            gateway: Endpoint::gateway(now, settings.clone(), InstanceId([7; 16])),
            cloud: Endpoint::cloud(now, settings, [1; 32]),
            tunnels: Vec::new(),
            wish: PathWish::default(),
            slow: None,
            at_gateway: Vec::new(),
            at_cloud: Vec::new(),
            user_bytes: vec![0; 8],
            units: Vec::new(),
            withdrawn: Vec::new(),
        }
    }

    pub fn up(&mut self, key: usize, carrier: &str) {
        self.up_as(key, carrier, "train-7");
    }

    pub fn up_as(&mut self, key: usize, carrier: &str, name: &str) {
        self.make(key, carrier, name, true);
    }

    /// Adds a tunnel that delivers frames, or loses all.
    pub fn make(&mut self, key: usize, carrier: &str, name: &str, passes: bool) {
        let info = |carrier: &str, peer: &str| TunnelInfo {
            carrier: carrier.to_owned(),
            peer: Identity::new(peer).unwrap(),
            exporter: Some([key as u8; 32]),
            mode: TunnelMode::Tls,
            wish: self.wish,
        };
        let tunnel = TunnelKey(key);
        self.tunnels.push((tunnel, passes));
        self.cloud.tunnel_up(self.now, tunnel, info("", name));
        self.gateway.tunnel_up(self.now, tunnel, info(carrier, "cloud"));
        self.cloud.tunnel_room(tunnel, 16_384);
        self.gateway.tunnel_room(tunnel, 16_384);
        self.run();
    }

    pub fn down(&mut self, key: usize) {
        self.tunnels.retain(|(tunnel, _)| *tunnel != TunnelKey(key));
        self.gateway.tunnel_down(self.now, TunnelKey(key));
        self.cloud.tunnel_down(self.now, TunnelKey(key));
        self.run();
    }

    /// This tunnel loses all frames from now on; neither endpoint is informed.
    pub fn dark(&mut self, key: usize) {
        self.tunnels.iter_mut().filter(|t| t.0 == TunnelKey(key)).for_each(|t| t.1 = false);
    }

    pub fn passes(&self, key: TunnelKey) -> bool {
        self.tunnels.contains(&(key, true))
    }

    pub fn run(&mut self) {
        loop {
            let events: Vec<Event> = std::iter::from_fn(|| self.gateway.poll_event()).collect();
            self.at_cloud.extend(std::iter::from_fn(|| self.cloud.poll_event()));
            let mut up = Wire { slow: self.slow, ..Wire::default() };
            let mut down = Wire::default();
            self.gateway.transmit(self.now, &mut up);
            self.cloud.transmit(self.now, &mut down);
            self.units.extend(up.units);
            self.withdrawn.extend(up.withdrawn);
            // As in the daemons, a tunnel closes after the session's last frames.
            for closed in events.iter().filter_map(closes) {
                self.gateway.tunnel_down(self.now, closed);
            }
            self.at_gateway.extend(events);
            if up.sent.is_empty() && down.sent.is_empty() {
                return;
            }
            for (key, bytes) in up.sent {
                self.user_bytes[key.0] += bytes.len();
                if self.passes(key) {
                    self.cloud.receive(self.now, key, &bytes);
                }
            }
            for (key, bytes) in down.sent {
                if self.passes(key) {
                    self.gateway.receive(self.now, key, &bytes);
                }
            }
        }
    }

    pub fn advance(&mut self, time: Duration) {
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

    pub fn open(&mut self) -> FlowKey {
        let name = HostName::new("example.com").unwrap();
        self.gateway.open(self.now, UserId(1), Destination::Name(name, 80)).unwrap()
    }

    /// The cloud's newest flow.
    pub fn opened(&self) -> FlowKey {
        let opened = |event: &Event| match event {
            Event::Opened { flow, .. } => Some(*flow),
            _ => None,
        };
        self.at_cloud.iter().rev().find_map(opened).expect("an opened flow")
    }
}

pub fn drain(endpoint: &mut Endpoint, now: Instant, flow: FlowKey) -> Vec<u8> {
    let bytes = endpoint.readable(flow).concat();
    endpoint.consume(now, flow, bytes.len());
    bytes
}

pub fn closes(event: &Event) -> Option<TunnelKey> {
    match event {
        Event::CloseTunnel { tunnel, .. } => Some(*tunnel),
        _ => None,
    }
}
