//! The attacked endpoint, its users, and a neighbour.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use polyrail_model::{
    Bytes, Channel, Delivery, Destination, Families, HostName, Identity, InstanceId, NodeRole,
    PathRank, PathWish, SessionId, TunnelMode, Unit, UserId,
};
use polyrail_session::limits::FLOW_OVERHEAD;
use polyrail_session::wire::{Frame, Greeting, Offer, Terms, encode};
use polyrail_session::{
    Endpoint, Event, FlowKey, Outlet, ResetReason, Settings, TunnelInfo, TunnelKey,
};

use crate::input::Input;

/// The tunnel of the hostile peer.
const ATTACKED: TunnelKey = TunnelKey(1);
/// The tunnel of the neighbour, if the target is a cloud.
const NEIGHBOUR: TunnelKey = TunnelKey(2);

/// An attacked endpoint with its users, and the neighbour's gateway.
pub struct World {
    now: Instant,
    target: Target,
    neighbour: Option<Neighbour>,
    /// Bytes that the target has allocated since the attack began.
    allocated: i64,
    /// The counter of the next HELLO.
    counter: u64,
}

/// The attacked endpoint.
struct Target {
    role: NodeRole,
    endpoint: Endpoint,
    /// Users read what arrives.
    reads: bool,
    flows: BTreeSet<FlowKey>,
    /// The flow of the neighbour, which the target reads at the end only.
    neighbours: Option<FlowKey>,
    outlet: Capture,
    is_connected: bool,
}

/// A gateway next to the attacker, with a flow.
struct Neighbour {
    endpoint: Endpoint,
    outlet: Capture,
    /// The flow's keys at the gateway and at the cloud.
    flow: (FlowKey, FlowKey),
}

/// Keeps frames for the neighbour and drops those for the attacker.
#[derive(Default)]
struct Capture(Vec<Vec<u8>>);

impl Outlet for Capture {
    fn send(&mut self, tunnel: TunnelKey, _unit: Unit, frames: &[u8]) -> usize {
        if tunnel == NEIGHBOUR {
            self.0.push(frames.to_vec());
        }
        ROOM
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

impl World {
    /// A session is up, with some flows if the target is a gateway.
    pub fn new(role: NodeRole, reads: bool) -> Self {
        let now = Instant::now();
        let settings = settings();
        let endpoint = match role {
            NodeRole::Cloud => Endpoint::cloud(now, settings.clone(), [9; 32]),
            NodeRole::Gateway => Endpoint::gateway(now, settings.clone(), InstanceId([7; 16])),
        };
        let (flows, outlet) = (BTreeSet::new(), Capture::default());
        let (neighbours, is_connected) = (None, false);
        let target = Target { role, endpoint, reads, flows, neighbours, outlet, is_connected };
        let mut world = Self { now, target, neighbour: None, allocated: 0, counter: 0 };
        world.reconnect();
        if role == NodeRole::Cloud {
            world.settle_neighbour(settings);
        } else {
            for user in 1..4 {
                world.open(user);
            }
        }
        assert!(!world.target.endpoint.status().sessions.is_empty());
        world.allocated = 0;
        world
    }

    /// Connects the attacker again if its tunnel is down.
    pub fn reconnect(&mut self) {
        if self.target.is_connected {
            return;
        }
        self.target.is_connected = true;
        let peer = if self.target.role == NodeRole::Cloud { "train-7" } else { "cloud" };
        let carrier = if self.target.role == NodeRole::Cloud { "" } else { "a" };
        let (now, info) = (self.now, info(carrier, peer));
        self.counter += 1;
        let greeting = greeting(self.target.role, self.counter);
        self.count(|target| {
            target.endpoint.tunnel_up(now, ATTACKED, info);
            target.endpoint.tunnel_room(ATTACKED, ROOM);
            target.turn(now);
            target.endpoint.receive(now, ATTACKED, &greeting);
            target.turn(now);
        });
    }

    /// The attacker sends bytes.
    pub fn receive(&mut self, bytes: &[u8]) {
        let now = self.now;
        self.count(|target| {
            for unit in bytes.chunks(UNIT) {
                target.endpoint.receive(now, ATTACKED, unit);
                target.turn(now);
            }
        });
    }

    /// A user, or the daemon, does something.
    pub fn act(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        let theirs = self.target.neighbours;
        let mut flows = self.target.flows.iter().copied().filter(|flow| Some(*flow) != theirs);
        let flow = flows.nth((input.byte() % 16).into());
        let what = input.byte() % 9;
        if what == 8 {
            return self.open((input.byte() % 4).into());
        }
        self.count(|target| {
            let Target { endpoint, flows, .. } = target;
            match (what, flow) {
                (6, _) => target.tell(now, input),
                (7, _) => target.disconnect(now),
                (_, None) => {}
                (0, Some(flow)) => endpoint.dialed(now, flow),
                (1, Some(flow)) => {
                    endpoint.write(now, flow, &WRITTEN[..input.short().into()]);
                }
                (2, Some(flow)) => target.read(now, flow, input.short().into()),
                (3, Some(flow)) => endpoint.finish(now, flow),
                (4, Some(flow)) => {
                    endpoint.reset(now, flow, input.pick(ResetReason::ALL));
                    flows.remove(&flow);
                }
                (_, Some(flow)) => drop(endpoint.write_room(flow)),
            }
            target.turn(now);
        });
    }

    /// Time passes; timeouts fire.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let mut spins = 0;
        for _ in 0..WAKES_MAX {
            let far = self.neighbour.as_ref().and_then(|near| near.endpoint.next_timeout());
            let near = self.target.endpoint.next_timeout();
            let Some(next) = near.into_iter().chain(far).min().filter(|at| *at <= until) else {
                break;
            };
            self.now = self.now.max(next);
            let now = self.now;
            self.count(|target| {
                target.endpoint.on_timeout(now);
                target.turn(now);
            });
            let next = self.target.endpoint.next_timeout();
            spins = if next.is_some_and(|next| next <= now) { spins + 1 } else { 0 };
            assert!(spins < SPINS_MAX, "the timeout stays in the past");
            if let Some(neighbour) = &mut self.neighbour {
                neighbour.endpoint.on_timeout(now);
            }
            self.exchange();
        }
        self.now = until;
    }

    /// Compares the target's memory with its bound.
    pub fn check(&self) {
        let sessions = self.target.endpoint.status().sessions;
        let mut bound = 0;
        for session in &sessions {
            // A segment beyond the credit for each flow in memory, as `Credit::receive` grants.
            let slack = (session.flows_held as u64 + 1) * SEGMENT;
            assert!(session.memory_received.0 <= MEMORY + slack, "{session:?}");
            assert!(session.memory_sent.0 <= MEMORY + slack, "{session:?}");
            let written = if session.memory_sent.0 > 0 { 2 } else { 1 };
            bound += written * MEMORY * 12 / 10 + session.flows_held as u64 * FLOW_OVERHEAD;
        }
        let bound = i64::try_from(bound.max(MEMORY) + SESSION_OVERHEAD).expect("a small bound");
        assert!(self.allocated <= bound, "{} bytes allocated, bound {bound}", self.allocated);
    }

    /// The neighbour's flow continues; without tunnels all flows end.
    pub fn end(mut self) {
        if let Some(neighbour) = &mut self.neighbour {
            let (near, far) = neighbour.flow;
            neighbour.endpoint.write(self.now, near, b"hello");
            self.target.endpoint.write(self.now, far, b"hello");
            self.exchange();
        }
        if let Some(neighbour) = &self.neighbour {
            let (near, far) = neighbour.flow;
            assert_eq!(neighbour.endpoint.readable(near).concat(), b"hello");
            assert_eq!(self.target.endpoint.readable(far).concat(), b"hello");
        }
        self.neighbour = None;
        let now = self.now;
        self.count(|target| {
            target.disconnect(now);
            target.endpoint.tunnel_down(now, NEIGHBOUR);
        });
        self.pass(LINGER + Duration::from_secs(1));
        let flows: usize = self.target.endpoint.status().sessions.iter().map(|s| s.flows).sum();
        assert_eq!((flows, self.target.flows.len()), (0, 0), "flows outlive their session");
        self.check();
    }

    /// Counts the allocations of an action of the target. The lists of the test are small.
    fn count(&mut self, act: impl FnOnce(&mut Target)) {
        let target = &mut self.target;
        self.allocated += measure(|| act(target)).bytes_current;
        self.exchange();
    }

    fn open(&mut self, user: u64) {
        let now = self.now;
        let host = HostName::new("a.example").expect("a valid name");
        self.count(|target| {
            let opened = target.endpoint.open(now, UserId(user), Destination::Name(host, 80));
            target.flows.extend(opened);
            target.turn(now);
        });
    }

    fn settle_neighbour(&mut self, settings: Settings) {
        let mut endpoint = Endpoint::gateway(self.now, settings, InstanceId([8; 16]));
        let far = &mut self.target.endpoint;
        far.tunnel_up(self.now, NEIGHBOUR, info("", "train-8"));
        far.tunnel_room(NEIGHBOUR, ROOM);
        endpoint.tunnel_up(self.now, NEIGHBOUR, info("b", "cloud"));
        endpoint.tunnel_room(NEIGHBOUR, ROOM);
        let host = HostName::new("a.example").expect("a valid name");
        let near = endpoint.open(self.now, UserId(1), Destination::Name(host, 80));
        let near = near.expect("room for a flow");
        endpoint.write(self.now, near, b"hello");
        let neighbour = Neighbour { endpoint, outlet: Capture::default(), flow: (near, near) };
        self.neighbour = Some(neighbour);
        self.exchange();
        let far = *self.target.flows.first().expect("the neighbour's flow");
        self.target.endpoint.dialed(self.now, far);
        self.target.read(self.now, far, usize::MAX);
        self.exchange();
        self.target.neighbours = Some(far);
        self.neighbour.as_mut().expect("a neighbour").flow.1 = far;
    }

    /// Carries frames between the target and the neighbour.
    fn exchange(&mut self) {
        let Some(neighbour) = &mut self.neighbour else { return };
        let (now, target) = (self.now, &mut self.target);
        loop {
            while neighbour.endpoint.poll_event().is_some() {}
            neighbour.endpoint.tunnel_room(NEIGHBOUR, ROOM);
            neighbour.endpoint.transmit(now, &mut neighbour.outlet);
            target.turn(now);
            let (up, down) = (&mut neighbour.outlet.0, &mut target.outlet.0);
            if up.is_empty() && down.is_empty() {
                return;
            }
            for frames in down.drain(..) {
                neighbour.endpoint.receive(now, NEIGHBOUR, &frames);
            }
            for frames in std::mem::take(up) {
                target.endpoint.receive(now, NEIGHBOUR, &frames);
            }
        }
    }
}

impl Target {
    /// Handles events as a relay does, and sends.
    fn turn(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Opened { flow, .. } => {
                    assert!(self.flows.insert(flow), "{flow:?} opened twice");
                }
                Event::Readable { flow } if self.reads && self.neighbours != Some(flow) => {
                    self.read(now, flow, usize::MAX);
                }
                Event::Reset { flow, .. } | Event::Closed { flow } => {
                    assert!(self.flows.remove(&flow), "{flow:?} ended, but is not there");
                }
                Event::CloseTunnel { tunnel, .. } if tunnel == ATTACKED => self.disconnect(now),
                Event::CloseTunnel { tunnel, reason, .. } => panic!("{tunnel:?}: {reason}"),
                _ => {}
            }
        }
        self.endpoint.tunnel_room(ATTACKED, ROOM);
        self.endpoint.tunnel_room(NEIGHBOUR, ROOM);
        self.endpoint.transmit(now, &mut self.outlet);
    }

    fn read(&mut self, now: Instant, flow: FlowKey, most: usize) {
        let unread: usize = self.endpoint.readable(flow).iter().map(|part| part.len()).sum();
        self.endpoint.consume(now, flow, unread.min(most));
    }

    fn tell(&mut self, now: Instant, input: &mut Input<'_>) {
        let sessions = self.endpoint.status().sessions;
        let Some(session) = sessions.first().map(|one| one.session) else { return };
        for _ in 0..input.byte() % 80 {
            let delivery = input.pick(&[Delivery::Latest, Delivery::Urgent, Delivery::Background]);
            let channel = Channel(input.byte() % 4);
            self.endpoint.send_message(now, session, channel, delivery, vec![1; 1_178]);
        }
    }

    fn disconnect(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_connected) {
            self.endpoint.tunnel_down(now, ATTACKED);
        }
    }
}

fn settings() -> Settings {
    let (memory, linger) = (Bytes(MEMORY), LINGER);
    Settings { memory, linger, flows_max: 200, user_flows_max: 150, ..Settings::default() }
}

fn info(carrier: &str, peer: &str) -> TunnelInfo {
    let (carrier, exporter) = (carrier.to_owned(), Some([7; 32]));
    let peer = Identity::new(peer).expect("a valid name");
    TunnelInfo { carrier, peer, exporter, mode: TunnelMode::Tls, wish: PathWish::default() }
}

/// The attacker's first frame.
fn greeting(target: NodeRole, counter: u64) -> Vec<u8> {
    let terms = Terms { window: 65_536, credit: MEMORY };
    let mut bytes = Vec::new();
    let frame = match target {
        NodeRole::Cloud => {
            let greeting = Greeting {
                counter,
                rank: PathRank::Primary,
                metered: false,
                carrier: "a".to_owned(),
            };
            Frame::Hello { instance: InstanceId([7; 16]), greeting, terms }
        }
        NodeRole::Gateway => Frame::Welcome {
            session: SessionId([1; 16]),
            counter,
            founder: 1,
            offer: Offer { families: Families::BOTH, datagrams: true, ..Offer::default() },
            terms,
        },
    };
    encode(&frame, &mut bytes);
    bytes
}

/// The memory of a session: the least that a configuration permits.
const MEMORY: u64 = 1 << 20;
/// Allocations of a session that do not depend on flows and credit: queues of messages and events,
/// paths, ranges of flow numbers ([`FLOW_RANGES_MAX`](polyrail_session::limits::FLOW_RANGES_MAX)).
const SESSION_OVERHEAD: u64 = 512 << 10;
const LINGER: Duration = Duration::from_secs(30);
static WRITTEN: [u8; 65_536] = [9; 65_536];
const ROOM: usize = 16_384;
/// The longest unit of a tunnel.
const UNIT: usize = 16_384;
const SEGMENT: u64 = 1_402;
/// Timeouts at one instant.
const SPINS_MAX: u32 = 50;
const WAKES_MAX: usize = 2_000;
