//! The simulated world: one gateway and one cloud over emulated carriers, in virtual time.
//!
//! ```text
//!   passengers           gateway Endpoint                 cloud Endpoint           servers
//!   flows.rs  <-- keys --> node.rs <-- tunnels.rs --> node.rs <-- keys --> flows.rs
//!                                transport.rs (reliable)
//!                                LinkModel each way (carriers)
//! ```
//!
//! The world keeps the drain contract: it calls `on_timeout` only at `next_timeout`, and drains an
//! endpoint only after an input to it. So a wake-up that the session forgets shows as a flow that
//! does not end. `flows` compares the bytes read with those written. Every breach is a panic.

mod arrivals;
pub mod content;
mod copies;
mod coverage;
mod flows;
mod messages;
mod node;
mod restart;
mod tap;
mod trace;
pub mod transport;
mod tunnels;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_emulator::link::LinkModel;
use polyrail_model::{LinkForecast, LinkOutlook};
use polyrail_session::Settings;

use crate::congestion::Coupling;
use crate::dice::Dice;
pub use arrivals::{Arrivals, Waits};
pub use copies::{CopyKind, CopyTally};
pub use coverage::Coverage;
pub use flows::{Dial, Flow, FlowNo, Leg, LegState, Reader};
use node::Node;
pub use tap::Tap;
pub use trace::{Trace, Verbosity};
use transport::Packet;
use tunnels::Connection;
pub use tunnels::{Carrier, CarrierSpec};

/// The two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The gateway on board.
    Gateway = 0,
    /// The cloud on the ground.
    Cloud = 1,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Gateway, Self::Cloud];

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Gateway => Self::Cloud,
            Self::Cloud => Self::Gateway,
        }
    }
}

/// The behaviour of a world, apart from its carriers.
#[derive(Clone, Debug)]
pub struct Habits {
    /// The seed of all chance in the world itself.
    pub seed: u64,
    /// Endpoints are drained after each input, else after all inputs of an instant.
    pub drains_at_once: bool,
    /// The share of messages that an unordered tunnel delivers twice.
    pub repeats: f64,
    /// A transport gives up its connection after this time without progress.
    pub patience: Duration,
    /// The share of connections that send early data, if they may.
    pub early: f64,
    /// The share of those whose early data the cloud accepts.
    pub early_accepted: f64,
    /// Stalled paths are restarted, as gateways do.
    pub restarts: bool,
    /// How much is printed.
    pub verbosity: Verbosity,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            seed: 1,
            drains_at_once: true,
            repeats: 0.0,
            patience: Duration::from_secs(20),
            early: 0.0,
            early_accepted: 1.0,
            restarts: false,
            verbosity: Verbosity::Silent,
        }
    }
}

/// One gateway, one cloud, and carriers between them.
pub struct World {
    now: Instant,
    start: Instant,
    habits: Habits,
    dice: Dice,
    nodes: [Node; 2],
    carriers: Vec<Carrier>,
    connections: BTreeMap<usize, Connection>,
    /// The congestion controls of all connections, by end: RFC 6356 couples them.
    couplings: [Coupling; 2],
    next_connection: usize,
    timers: BinaryHeap<Reverse<(Instant, u64, Timer)>>,
    next_timer: u64,
    flows: Vec<Flow>,
    /// A buffer for writes, kept for its allocation.
    scratch: Vec<u8>,
    trace: Trace,
    /// The events so far that may end sessions and lose flows.
    upheavals: Upheavals,
    coverage: Coverage,
    /// Early data that an eavesdropper recorded: carrier and units.
    captured: VecDeque<(usize, Vec<Vec<u8>>)>,
    /// Packets and timers so far.
    steps: u64,
    /// Scheduled forecasts for carriers.
    forecasts: Vec<(usize, Option<LinkForecast>)>,
    /// Scheduled outlooks for carriers, by the side that sends.
    outlooks: Vec<(usize, Side, LinkOutlook)>,
    /// Arrivals at the gateway, if they are watched.
    arrivals: Option<Arrivals>,
    /// Runs sent by the cloud, if they are watched.
    copies: Option<copies::Copies>,
}

/// Events that may end a session.
#[derive(Clone, Copy, Debug, Default)]
struct Upheavals {
    gateway_restarts: u32,
    cloud_restarts: u32,
    lingers: [u32; 2],
    impostors: u32,
    replays: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Connect { carrier: usize },
    Attempt { carrier: usize, race: u32 },
    Deadline { connection: usize },
    EndDown { connection: usize, side: Side },
    Dial { flow: FlowNo },
    Read { flow: FlowNo, side: Side },
    Forecast { number: usize },
    Outlook { number: usize },
}

impl World {
    /// A world at time zero; its carriers begin to connect at once.
    pub fn new(habits: Habits, gateway: Settings, cloud: Settings, specs: &[CarrierSpec]) -> Self {
        // The base of virtual time: only differences from it matter.
        let start = Instant::now();
        let mut dice = Dice::new(habits.seed);
        let nodes = [
            Node::new(start, Side::Gateway, gateway, &mut dice),
            Node::new(start, Side::Cloud, cloud, &mut dice),
        ];
        let carriers = specs.iter().map(|spec| Carrier::new(start, spec, &mut dice)).collect();
        let mut world = Self {
            now: start,
            start,
            trace: Trace::new(habits.verbosity),
            habits,
            dice,
            nodes,
            carriers,
            connections: BTreeMap::new(),
            couplings: Default::default(),
            next_connection: 0,
            timers: BinaryHeap::new(),
            next_timer: 0,
            flows: Vec::new(),
            scratch: Vec::new(),
            upheavals: Upheavals::default(),
            coverage: Coverage::default(),
            captured: VecDeque::new(),
            steps: 0,
            forecasts: Vec::new(),
            outlooks: Vec::new(),
            arrivals: None,
            copies: None,
        };
        for carrier in 0..world.carriers.len() {
            world.timer(Duration::ZERO, Timer::Connect { carrier });
        }
        world.drain();
        world
    }

    /// The current virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// The record of what happened.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// How often each event has happened.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// The number of packets and timers so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Watches all arrivals at the gateway from now on.
    pub fn watch_arrivals(&mut self) {
        self.arrivals = Some(Arrivals::default());
    }

    /// The arrivals since then.
    pub fn arrivals(&self) -> Option<&Arrivals> {
        self.arrivals.as_ref()
    }

    /// Watches all runs that the cloud sends from now on.
    pub fn watch_copies(&mut self) {
        self.copies = Some(copies::Copies::default());
    }

    /// The bytes of new data sent by the cloud since then, and its copies.
    pub fn copies(&self) -> (u64, BTreeMap<CopyKind, CopyTally>) {
        self.copies.as_ref().map(copies::Copies::tally).unwrap_or_default()
    }

    /// Lets this much time pass.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
    }

    /// Lets time pass until the condition holds, at most for `most`. Returns the time it took, or
    /// `None`.
    pub fn run_until(
        &mut self,
        most: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Option<Duration> {
        let (from, until) = (self.now, self.now + most);
        loop {
            if done(self) {
                return Some(self.now - from);
            }
            if !self.step(until) {
                self.now = until;
                return done(self).then_some(most);
            }
        }
    }

    /// Handles the next event that is due by `until`; false if there is none.
    fn step(&mut self, until: Instant) -> bool {
        let Some((at, source)) = self.next_source() else { return false };
        if at > until {
            return false;
        }
        assert!(at >= self.now, "time runs backwards: {source:?}");
        self.now = at;
        self.steps += 1;
        match source {
            Source::Timer => self.fire_timer(),
            Source::Link { carrier, side } => self.poll_link(carrier, side),
            Source::Transport { connection, side } => self.transport_timeout(connection, side),
            Source::Endpoint(side) => self.endpoint_timeout(side),
        }
        let more_now = || self.next_source().is_some_and(|(next, _)| next == at);
        if self.habits.drains_at_once || !more_now() {
            self.drain();
        }
        true
    }

    /// The next due event; of simultaneous ones the first in this order.
    fn next_source(&self) -> Option<(Instant, Source)> {
        let mut next: Option<(Instant, Source)> = None;
        let mut offer = |at: Option<Instant>, source: Source| {
            let Some(at) = at.map(|at| at.max(self.now)) else { return };
            if next.is_none_or(|(known, _)| at < known) {
                next = Some((at, source));
            }
        };
        offer(self.timers.peek().map(|Reverse((at, ..))| *at), Source::Timer);
        for (carrier, c) in self.carriers.iter().enumerate() {
            for side in Side::BOTH {
                offer(c.departures[side as usize], Source::Link { carrier, side });
            }
        }
        for (&connection, c) in &self.connections {
            for side in Side::BOTH {
                let end = c.ends[side as usize].as_ref();
                let at = end.and_then(|end| end.transport.next_timeout());
                offer(at, Source::Transport { connection, side });
            }
        }
        for side in Side::BOTH {
            offer(self.nodes[side as usize].wake, Source::Endpoint(side));
        }
        next
    }

    fn fire_timer(&mut self) {
        let Some(Reverse((_, _, timer))) = self.timers.pop() else { return };
        match timer {
            Timer::Connect { carrier } => self.connect(carrier),
            Timer::Attempt { carrier, race } => self.attempt(carrier, race),
            Timer::Deadline { connection } => self.connect_deadline(connection),
            Timer::EndDown { connection, side } => self.end_down(connection, side, "timer"),
            Timer::Dial { flow } => self.dial_over(flow),
            Timer::Read { flow, side } => self.read_some(flow, side),
            Timer::Forecast { number } => self.tell_forecast(number),
            Timer::Outlook { number } => self.tell_outlook(number),
        }
    }

    fn timer(&mut self, after: Duration, timer: Timer) {
        self.next_timer += 1;
        self.timers.push(Reverse((self.now + after, self.next_timer, timer)));
    }

    fn say(&self, level: Verbosity, line: impl FnOnce() -> String) {
        self.trace.say(level, self.now - self.start, line);
    }
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Timer,
    Link { carrier: usize, side: Side },
    Transport { connection: usize, side: Side },
    Endpoint(Side),
}

/// The links of one carrier, by the side that sends into them.
type Links = [LinkModel<Packet>; 2];
