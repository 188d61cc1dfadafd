//! Instant messaging (POLYCORN 6.3): a long-lived flow a user, 100 messages each at exponential
//! intervals, 100 bytes up and at once 4 bytes down.

use std::time::Duration;

use polyrail_emulator::rail::Trip;

use super::{START, resent};
use crate::dice::Dice;
use crate::world::{FlowNo, Side, World};

/// A message. One that has not arrived at the trip's end counts until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// The user.
    pub user: usize,
    /// From the passenger's write to the server's read, in seconds.
    pub up: f64,
    /// From the passenger's write to the passenger's read of the answer, in seconds.
    pub round: f64,
    /// The answer arrived.
    pub ended: bool,
}

/// All messages of a trip.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Messages {
    /// By user, in their order.
    pub list: Vec<Message>,
    /// Bytes that gateway and cloud reinjected.
    pub resent: u64,
}

impl Message {
    /// The bytes of a message and its answer.
    pub const BYTES: u64 = UP + DOWN;
}

/// The times and users of messages, in order: the same for every contestant.
pub fn schedule(trip: &Trip, users: usize) -> Vec<(Duration, usize)> {
    let last = trip.length.saturating_sub(LAST);
    let mut list = Vec::new();
    for user in 0..users {
        let mut dice = Dice::new(trip.seed ^ (user as u64 + 1).rotate_left(40));
        let mut at = START + WARM_UP;
        for _ in 0..MESSAGES {
            at += dice.pause(INTERVAL);
            list.extend((at < last).then_some((at, user)));
        }
    }
    list.sort();
    list
}

/// All messages of a trip.
pub fn messaging(mut world: World, trip: &Trip, users: usize) -> Messages {
    let flows = (0..users).map(|user| world.open(user as u64 + 1));
    let flows: Vec<FlowNo> = flows.filter_map(Result::ok).collect();
    assert_eq!(flows.len(), users, "a session takes more users than that");
    let mut chats: Vec<Chat> = flows.into_iter().map(Chat::new).collect();
    let mut due = schedule(trip, users).into_iter().peekable();
    while world.elapsed() < trip.length {
        let next = due.peek().map_or(trip.length, |(at, _)| *at).min(trip.length);
        let seen = arrived(&world, &chats);
        let left = next.saturating_sub(world.elapsed());
        world.run_until(left, |world| arrived(world, &chats) != seen);
        chats.iter_mut().for_each(|chat| chat.look(&mut world));
        while let Some((_, user)) = due.next_if(|(at, _)| *at <= world.elapsed()) {
            chats[user].send(&mut world);
        }
    }
    let end = trip.length.as_secs_f64();
    let messages = |(user, chat): (usize, &Chat)| chat.messages(user, end);
    Messages {
        list: chats.iter().enumerate().flat_map(messages).collect(),
        resent: Side::BOTH.map(|side| resent(&world, side)).iter().sum(),
    }
}

/// The messages of one user.
pub(super) struct Chat {
    flow: FlowNo,
    sent: Vec<f64>,
    there: Vec<f64>,
    back: Vec<f64>,
}

impl Chat {
    /// No messages yet.
    pub(super) fn new(flow: FlowNo) -> Self {
        Self { flow, sent: Vec::new(), there: Vec::new(), back: Vec::new() }
    }

    /// The user sends a message.
    pub(super) fn send(&mut self, world: &mut World) {
        self.sent.push(world.elapsed().as_secs_f64());
        world.write(self.flow, Side::Gateway, UP);
    }

    /// Records arrived messages; the server answers.
    pub(super) fn look(&mut self, world: &mut World) {
        let now = world.elapsed().as_secs_f64();
        let legs = &world.flow(self.flow).legs;
        let (there, back) = (legs[1].read / UP, legs[0].read / DOWN);
        let new = there.saturating_sub(self.there.len() as u64);
        self.there.resize(there as usize, now);
        self.back.resize(back as usize, now);
        if new > 0 {
            world.write(self.flow, Side::Cloud, new * DOWN);
        }
    }

    /// All messages in their order; `end` is the end of the trip in seconds.
    pub(super) fn messages(&self, user: usize, end: f64) -> Vec<Message> {
        let time = |list: &[f64], number: usize| list.get(number).copied().unwrap_or(end);
        let message = |(number, sent): (usize, &f64)| Message {
            user,
            up: time(&self.there, number) - sent,
            round: time(&self.back, number) - sent,
            ended: self.back.len() > number,
        };
        self.sent.iter().enumerate().map(message).collect()
    }
}

/// All bytes that users and servers have read.
pub(super) fn arrived(world: &World, chats: &[Chat]) -> u64 {
    let legs = |chat: &Chat| world.flow(chat.flow).legs.iter().map(|leg| leg.read).sum::<u64>();
    chats.iter().map(legs).sum()
}

const MESSAGES: usize = 100;
const UP: u64 = 100;
const DOWN: u64 = 4;
/// The mean interval, so that 100 messages take a trip of 100 s.
const INTERVAL: Duration = Duration::from_millis(870);
/// The time for flows to open.
const WARM_UP: Duration = Duration::from_secs(1);
/// No message is written so shortly before the end.
const LAST: Duration = Duration::from_secs(5);
