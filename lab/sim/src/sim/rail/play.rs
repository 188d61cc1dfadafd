//! One run of the rail bench in virtual time: the same trip, transfers and messages.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use polyrail_emulator::rail::{Course, Message, Transfer, Trip, Workload};
use polyrail_emulator::record::{CarrierRun, CarrierSample, SAMPLE_S, Transferred};
use polyrail_session::ResetReason;

use crate::sim::messaging::{Chat, arrived};
use crate::sim::{Contestant, world};
use crate::world::{CopyKind, CopyTally, Dial, FlowNo, Side, World};

/// The simulated counterpart of a run, in the same order.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) transfers: Vec<Transferred>,
    pub(crate) messages: Vec<Option<f64>>,
    /// The carriers as the bench records them: names from "a" on, or the aggregated link.
    pub(crate) carriers: Vec<CarrierRun>,
    /// The mean time that a packet waits in a carrier's downlink, over samples with a queue.
    pub(crate) queue_s: f64,
    /// Bytes of new data that the cloud sent, and its copies.
    pub(crate) copies: (u64, BTreeMap<CopyKind, CopyTally>),
}

/// Plays the trip and the load of the run with this number.
///
/// # Errors
/// The trip cannot be generated, or the session refuses the users of messages.
///
/// # Panics
/// The world finds a breach.
pub(crate) fn play(
    course: &Course,
    workload: Workload,
    repeat: u32,
    contestant: &Contestant,
) -> Result<Played> {
    // Runs of one trip differ by their repeat only, and all contenders have the same chance.
    let seed = (course.seed << 8) | u64::from(repeat);
    let trip = Trip { seed, ..course.trip(&course.route()?)? };
    let messages = course.messages(workload);
    let mut world = world(&trip, contestant);
    world.watch_copies();
    let mut player = Player {
        loads: course.transfers(workload).into_iter().map(Load::new).collect(),
        chats: Vec::new(),
        gauges: Gauges::new(&world),
        world,
    };
    for user in 0..if messages.is_empty() { 0 } else { Message::USERS } {
        player.chats.push(Chat::new(player.world.open(user as u64 + 1)?));
    }
    let mut agenda: Vec<(Duration, Action)> =
        messages.iter().map(|message| (message.at, Action::Send(message.user))).collect();
    for (number, load) in player.loads.iter().enumerate() {
        agenda.push((load.plan.at, Action::Begin(number)));
        agenda.push((load.plan.until, Action::Cut(number)));
    }
    let ticks = (course.length().as_secs_f64() / SAMPLE_S) as u32;
    let tick = |number: u32| (Duration::from_secs_f64(SAMPLE_S) * number, Action::Sample);
    agenda.extend((0..=ticks).map(tick));
    agenda.sort();
    for (at, action) in agenda {
        player.run_to(at);
        player.act(action);
    }
    player.run_to(course.length());
    let end = course.length().as_secs_f64();
    let lists = player.chats.iter().enumerate().map(|(user, chat)| chat.messages(user, end));
    let mut lists: Vec<_> = lists.map(Vec::into_iter).collect();
    let round = |message: &Message| lists[message.user].next().filter(|it| it.ended);
    Ok(Played {
        messages: messages.iter().map(round).map(|it| it.map(|it| it.round)).collect(),
        transfers: player.loads.into_iter().map(|load| load.result).collect(),
        queue_s: player.gauges.queue_s(),
        copies: player.world.copies(),
        carriers: player.gauges.carriers,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// The user of a message sends it.
    Send(usize),
    /// The user of a transfer connects.
    Begin(usize),
    /// The user of a transfer gives up, if it has not finished.
    Cut(usize),
    /// The carriers are read.
    Sample,
}

struct Player {
    world: World,
    loads: Vec<Load>,
    chats: Vec<Chat>,
    gauges: Gauges,
}

/// Readings of the carriers.
struct Gauges {
    carriers: Vec<CarrierRun>,
    /// The sum of the times that queues take, and the number of queues.
    queues: (f64, u32),
}

impl Gauges {
    fn new(world: &World) -> Self {
        let names = ('a'..).take(world.carrier_count());
        let carrier = |name: char| CarrierRun {
            name: name.to_string(),
            offered: [0; 2],
            samples: Vec::new(),
        };
        Self { carriers: names.map(carrier).collect(), queues: (0.0, 0) }
    }

    fn look(&mut self, world: &World) {
        for (number, carrier) in self.carriers.iter_mut().enumerate() {
            let [up, down] = [Side::Gateway, Side::Cloud].map(|from| world.delivered(number, from));
            carrier.samples.push(CarrierSample { at_s: world.elapsed().as_secs_f64(), down, up });
            carrier.offered = [Side::Cloud, Side::Gateway].map(|from| world.offered(number, from));
            if let Some(wait) = world.queue_time(number, Side::Cloud) {
                self.queues = (self.queues.0 + wait.as_secs_f64(), self.queues.1 + 1);
            }
        }
    }

    fn queue_s(&self) -> f64 {
        self.queues.0 / f64::from(self.queues.1.max(1))
    }
}

impl Player {
    /// Lets time pass until `at`. Servers answer at once.
    fn run_to(&mut self, at: Duration) {
        let progress = |world: &World, loads: &[Load], chats: &[Chat]| {
            arrived(world, chats) + loads.iter().map(|load| load.stage(world)).sum::<u64>()
        };
        loop {
            let seen = progress(&self.world, &self.loads, &self.chats);
            let left = at.saturating_sub(self.world.elapsed());
            let moved = |world: &World| progress(world, &self.loads, &self.chats) != seen;
            if self.world.run_until(left, moved).is_none() {
                return;
            }
            self.chats.iter_mut().for_each(|chat| chat.look(&mut self.world));
            self.loads.iter_mut().for_each(|load| load.look(&mut self.world));
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(user) => self.chats[user].send(&mut self.world),
            Action::Begin(number) => self.loads[number].begin(&mut self.world),
            Action::Cut(number) => self.loads[number].cut(&mut self.world),
            Action::Sample => self.gauges.look(&self.world),
        }
    }
}

/// A transfer of the plan.
struct Load {
    plan: Transfer,
    /// Its flow, as long as it runs.
    flow: Option<FlowNo>,
    result: Transferred,
}

impl Load {
    fn new(plan: Transfer) -> Self {
        let Transfer { at, until, bytes, up, .. } = plan;
        let (at_s, took_s) = (at.as_secs_f64(), (until - at).as_secs_f64());
        let (received, finished, progress) = (0, false, Vec::new());
        let result = Transferred { at_s, bytes, up, received, took_s, finished, progress };
        Self { plan, flow: None, result }
    }

    fn begin(&mut self, world: &mut World) {
        // A flow that the session refuses receives nothing.
        self.flow = world.open_with(self.plan.user as u64 + 1, Dial::Stands(DIAL), false).ok();
        let (Some(flow), Transfer { bytes, up, .. }) = (self.flow, self.plan) else { return };
        if up {
            world.write(flow, Side::Gateway, bytes);
            world.finish(flow, Side::Gateway);
        } else {
            world.flow_mut(flow).server = (bytes.min(ENDLESS), bytes <= ENDLESS);
        }
    }

    /// 2 if the user knows that the transfer has finished, 1 if only the server knows.
    fn stage(&self, world: &World) -> u64 {
        let Some(flow) = self.flow else { return 0 };
        let [user, server] = &world.flow(flow).legs;
        match self.plan.up {
            true => u64::from(server.end_seen) + u64::from(user.end_seen),
            false => 2 * u64::from(user.read >= self.plan.bytes),
        }
    }

    fn look(&mut self, world: &mut World) {
        match (self.flow, self.stage(world)) {
            (Some(flow), 1) => world.finish(flow, Side::Cloud),
            (Some(flow), 2) => {
                let took_s = (world.elapsed() - self.plan.at).as_secs_f64();
                (self.result.took_s, self.result.finished) = (took_s, true);
                self.result.received = self.plan.bytes;
                world.finish(flow, Side::Gateway);
                self.flow = None;
            }
            _ => {}
        }
    }

    fn cut(&mut self, world: &mut World) {
        if let Some(flow) = self.flow.take() {
            let [user, server] = &world.flow(flow).legs;
            self.result.received = if self.plan.up { server.read } else { user.read };
            world.reset(flow, Side::Gateway, ResetReason::PeerReset);
        }
    }
}

/// The time that a server next to the cloud takes to answer a connection.
const DIAL: Duration = Duration::from_millis(1);
const ENDLESS: u64 = 1 << 40;
