//! Two gateways and a cloud without links: one session is attacked, the other is its neighbour.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polyrail_model::{
    Bytes, Channel, Delivery, Destination, HostName, Identity, InstanceId, NodeRole, PathWish,
    TunnelMode, Unit, UserId,
};
use polyrail_session::limits::{FLOW_OVERHEAD, FLOWS_REFUSED_MAX, RUNS_SHARE};
use polyrail_session::wire::Decoder;
use polyrail_session::{
    Endpoint, Event, FlowKey, Outlet, ResetReason, SessionStatus, Settings, TunnelInfo, TunnelKey,
};
use polyrail_sim::dice::Dice;

/// The tunnel of the hostile bytes.
pub const ATTACKED: TunnelKey = TunnelKey(1);
/// A tunnel without a greeting.
pub const FRESH: TunnelKey = TunnelKey(9);
const OTHER: TunnelKey = TunnelKey(2);
const NEIGHBOUR: TunnelKey = TunnelKey(3);
const MEMORY: u64 = 1 << 20;
const FLOWS_MAX: usize = 20;

pub struct Rig {
    now: Instant,
    /// The attacked gateway, the cloud, and the neighbour's gateway.
    ends: [End; 3],
    /// The frames received by both sides of the attacked session, by role.
    pub recorded: [Vec<Vec<u8>>; 2],
    neighbours_flow: (FlowKey, FlowKey),
}

struct End {
    endpoint: Endpoint,
    flows: BTreeSet<FlowKey>,
    ended: BTreeSet<FlowKey>,
    sessions_ended: u32,
}

#[derive(Default)]
struct Wire(Vec<(TunnelKey, Vec<u8>)>);

impl Outlet for Wire {
    fn send(&mut self, tunnel: TunnelKey, _unit: Unit, frames: &[u8]) -> usize {
        let fed = Decoder::default().feed(frames, |_| {});
        assert_eq!(fed, Ok(()), "the sent bytes are not frames");
        self.0.push((tunnel, frames.to_vec()));
        if self.0.len() > 64 { 0 } else { 16_384 }
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

impl End {
    fn new(endpoint: Endpoint) -> Self {
        let (flows, ended) = (BTreeSet::new(), BTreeSet::new());
        Self { endpoint, flows, ended, sessions_ended: 0 }
    }

    /// Handles events as a relay does: reads everything and tracks flows.
    fn drain(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Opened { flow, .. } => {
                    assert!(self.flows.insert(flow), "{flow:?} opened twice");
                }
                Event::Readable { flow } => {
                    let bytes = self.endpoint.readable(flow).iter().map(|part| part.len()).sum();
                    self.endpoint.consume(now, flow, bytes);
                }
                Event::Reset { flow, .. } | Event::Closed { flow } => {
                    assert!(self.flows.remove(&flow), "{flow:?} ended, but is not there");
                    assert!(self.ended.insert(flow), "{flow:?} ended twice");
                }
                Event::CloseTunnel { tunnel, .. } => self.endpoint.tunnel_down(now, tunnel),
                Event::SessionEnded { .. } => self.sessions_ended += 1,
                _ => {}
            }
        }
    }
}

impl Rig {
    pub fn new(dice: &mut Dice) -> Self {
        let now = Instant::now();
        let settings = Settings {
            memory: Bytes(MEMORY),
            flows_max: FLOWS_MAX,
            linger: Duration::from_secs(30),
            ..Settings::default()
        };
        let gateway = |id| Endpoint::gateway(now, settings.clone(), InstanceId([id; 16]));
        let cloud = Endpoint::cloud(now, settings.clone(), [9; 32]);
        let ends = [End::new(gateway(7)), End::new(cloud), End::new(gateway(8))];
        let nobody =
            FlowKey { session: polyrail_session::SessionKey(0), flow: polyrail_model::FlowId(0) };
        let neighbours_flow = (nobody, nobody);
        let mut rig = Self { now, ends, recorded: Default::default(), neighbours_flow };
        for (key, end, name) in
            [(ATTACKED, 0, "train-7"), (OTHER, 0, "train-7"), (NEIGHBOUR, 2, "train-8")]
        {
            rig.up(key, end, name);
        }
        rig.exchange(true);
        rig.open_flows(dice);
        rig.up(FRESH, 1, "train-7");
        rig
    }

    /// Connects a tunnel to the gateway `end`; with 1, only the cloud's end of a tunnel.
    fn up(&mut self, key: TunnelKey, end: usize, name: &str) {
        let info = |carrier: &str, peer: &str| TunnelInfo {
            carrier: carrier.to_owned(),
            peer: Identity::new(peer).unwrap(),
            exporter: Some([key.0 as u8; 32]),
            mode: TunnelMode::Tls,
            wish: PathWish::default(),
        };
        self.ends[1].endpoint.tunnel_up(self.now, key, info("", name));
        self.ends[1].endpoint.tunnel_room(key, 16_384);
        if end != 1 {
            let carrier = ["", "a", "b", "c"][key.0];
            self.ends[end].endpoint.tunnel_up(self.now, key, info(carrier, "cloud"));
            self.ends[end].endpoint.tunnel_room(key, 16_384);
        }
    }

    fn open_flows(&mut self, dice: &mut Dice) {
        let destination = Destination::Name(HostName::new("a.example").unwrap(), 80);
        for _ in 0..dice.between(1, 8) {
            let user = UserId(dice.between(1, 3));
            let end = &mut self.ends[0];
            let key = end.endpoint.open(self.now, user, destination.clone()).unwrap();
            end.flows.insert(key);
            let bytes = dice.between(0, 5_000) as usize;
            end.endpoint.write(self.now, key, &vec![7; bytes]);
        }
        let end = &mut self.ends[2];
        let key = end.endpoint.open(self.now, UserId(1), destination).unwrap();
        end.flows.insert(key);
        end.endpoint.write(self.now, key, b"hello");
        self.exchange(true);
        let neighbours = self.ends[1].flows.iter().max().copied();
        let session = self.ends[1].endpoint.status().sessions;
        let session = session.iter().find(|s| s.peer.as_ref().unwrap().as_str() == "train-8");
        let of_neighbour = |key: &FlowKey| key.session == session.unwrap().session;
        let at_cloud = self.ends[1].flows.iter().copied().find(of_neighbour);
        self.neighbours_flow = (key, at_cloud.or(neighbours).unwrap());
        // The servers answer.
        for flow in self.ends[1].flows.clone() {
            self.ends[1].endpoint.dialed(self.now, flow);
            if !of_neighbour(&flow) {
                let bytes = dice.between(0, 5_000) as usize;
                self.ends[1].endpoint.write(self.now, flow, &vec![8; bytes]);
            }
        }
        self.exchange(dice.chance(0.5));
    }

    /// Carries frames both ways until there are none. Without `all`, drops those of the attacked
    /// session.
    fn exchange(&mut self, all: bool) {
        for _ in 0..20 {
            let mut quiet = true;
            for from in 0..3 {
                let mut wire = Wire::default();
                self.ends[from].drain(self.now);
                self.ends[from].endpoint.transmit(self.now, &mut wire);
                for (tunnel, frames) in wire.0 {
                    let to = match (from, tunnel) {
                        (0 | 2, _) => 1,
                        (_, NEIGHBOUR) => 2,
                        _ => 0,
                    };
                    if tunnel == FRESH || (!all && tunnel != NEIGHBOUR) {
                        continue;
                    }
                    if to < 2 && from < 2 {
                        self.recorded[to].push(frames.clone());
                    }
                    self.ends[to].endpoint.receive(self.now, tunnel, &frames);
                    self.ends[to].drain(self.now);
                    quiet = false;
                }
                for tunnel in [ATTACKED, OTHER, NEIGHBOUR] {
                    self.ends[from].endpoint.tunnel_room(tunnel, 16_384);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Feeds bytes in random pieces.
    pub fn feed(&mut self, dice: &mut Dice, target: NodeRole, tunnel: TunnelKey, bytes: &[u8]) {
        let end = &mut self.ends[target as usize];
        let mut rest = bytes;
        while !rest.is_empty() {
            let cut = if dice.chance(0.5) { rest.len() as u64 } else { dice.scale(1, 3_000) };
            let (head, tail) = rest.split_at((cut as usize).min(rest.len()));
            end.endpoint.receive(self.now, tunnel, head);
            rest = tail;
            if dice.chance(0.3) {
                end.drain(self.now);
            }
        }
        end.drain(self.now);
    }

    /// Relays write, end and reset at random.
    pub fn act(&mut self, dice: &mut Dice) {
        let keep = [self.neighbours_flow.0, self.neighbours_flow.1];
        for end in 0..2 {
            let flows: Vec<FlowKey> = self.ends[end].flows.iter().copied().collect();
            for flow in flows {
                if keep.contains(&flow) && end == 1 {
                    continue;
                }
                let End { endpoint, flows, .. } = &mut self.ends[end];
                match dice.between(0, 8) {
                    0 => drop(endpoint.write(self.now, flow, &[9; 3_000])),
                    1 => endpoint.finish(self.now, flow),
                    2 => {
                        endpoint.reset(self.now, flow, dice.pick(ResetReason::ALL));
                        flows.remove(&flow);
                    }
                    3 => drop(endpoint.write_room(flow)),
                    _ => {}
                }
            }
        }
        self.tell(dice);
        self.exchange(dice.chance(0.7));
    }

    /// Both sides queue messages.
    fn tell(&mut self, dice: &mut Dice) {
        for end in &mut self.ends[..2] {
            let Some(session) = end.endpoint.status().sessions.first().map(|s| s.session) else {
                continue;
            };
            let count = if dice.chance(0.01) { 70 } else { dice.pick(&[0, 0, 1, 2]) };
            for _ in 0..count {
                let kinds = [Delivery::Latest, Delivery::Urgent, Delivery::Background];
                let (channel, delivery) = (Channel(dice.between(0, 3) as u8), dice.pick(&kinds));
                let payload = vec![1; dice.pick(&[0, 100, 1_178, 1_200])];
                end.endpoint.send_message(self.now, session, channel, delivery, payload);
            }
        }
    }

    /// Fires timeouts when they are due; none may stay in the past.
    pub fn pass_time(&mut self, dice: &mut Dice) {
        let until = self.now + dice.millis(0, 2_000);
        for _ in 0..WAKES_MAX {
            let next = self.ends.iter().filter_map(|end| end.endpoint.next_timeout()).min();
            let Some(next) = next.filter(|next| *next <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            for end in &mut self.ends {
                if end.endpoint.next_timeout().is_some_and(|at| at <= self.now) {
                    end.endpoint.on_timeout(self.now);
                }
            }
            self.exchange(true);
        }
        panic!("next_timeout stays in the past");
    }

    pub fn check_bounds(&self) {
        for end in &self.ends {
            for session in end.endpoint.status().sessions {
                let bound = MEMORY + (session.flows as u64 + 1) * 1_402;
                assert!(session.memory_received.0 <= bound, "{session:?}");
                assert!(session.memory_sent.0 <= bound, "{session:?}");
                assert!(session.flows <= FLOWS_MAX + FLOWS_REFUSED_MAX, "{session:?}");
            }
        }
    }

    /// The bytes that both sides may allocate: what their counters say, with the overhead of their
    /// buffers, runs in flight, state of flows, and messages.
    pub fn allocation_bound(&self) -> i64 {
        let recorded = self.recorded.iter().flatten().map(|frames| frames.capacity() + 48);
        let sessions = self.ends.iter().flat_map(|end| end.endpoint.status().sessions);
        let of_session = |session: SessionStatus| {
            // The largest buffer of sent bytes that a flow of this rig needs.
            let unused = MEMORY.min(session.flows_held as u64 * (32 << 10));
            let bytes = session.memory_received.0 * 9 / 8 + 2 * session.memory_sent.0;
            bytes + unused + MEMORY / RUNS_SHARE + session.flows_held as u64 * FLOW_OVERHEAD
        };
        let sessions = sessions.map(of_session).sum::<u64>();
        (recorded.sum::<usize>() as u64 + sessions + MESSAGES) as i64
    }

    /// The neighbour's flow still carries data both ways.
    pub fn check_neighbour(&mut self) {
        let (at_gateway, at_cloud) = self.neighbours_flow;
        self.exchange(true);
        for (from, to, key, other) in [(2, 1, at_gateway, at_cloud), (1, 2, at_cloud, at_gateway)] {
            assert_eq!(self.ends[from].endpoint.write(self.now, key, b"neighbour"), 9);
            let mut wire = Wire::default();
            self.ends[from].drain(self.now);
            self.ends[from].endpoint.transmit(self.now, &mut wire);
            for (tunnel, frames) in wire.0.into_iter().filter(|(tunnel, _)| *tunnel == NEIGHBOUR) {
                self.ends[to].endpoint.receive(self.now, tunnel, &frames);
            }
            let read = self.ends[to].endpoint.readable(other).concat();
            assert_eq!(read, b"neighbour", "to end {to}");
            self.ends[to].drain(self.now);
        }
        assert_eq!(self.ends[2].sessions_ended, 0);
    }

    /// Closes all tunnels; the sessions end after the linger.
    pub fn end(&mut self, dice: &mut Dice) {
        for end in &mut self.ends {
            for tunnel in [ATTACKED, OTHER, NEIGHBOUR, FRESH] {
                end.endpoint.tunnel_down(self.now, tunnel);
            }
        }
        self.now += Duration::from_secs(31);
        for end in &mut self.ends {
            end.endpoint.on_timeout(self.now);
            end.drain(self.now);
            let flows: usize = end.endpoint.status().sessions.iter().map(|s| s.flows).sum();
            assert_eq!((flows, end.flows.len()), (0, 0), "flows outlive their session");
        }
        self.pass_time(dice);
    }
}

const WAKES_MAX: usize = 5_000;
/// Queued messages, events, and ended flows.
const MESSAGES: u64 = 512 << 10;
