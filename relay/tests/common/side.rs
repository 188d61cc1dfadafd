//! One end of tunnels, for tests: a relay and its poll. Tests of other crates include this file.

#![allow(dead_code)] // each crate uses its part

use std::time::{Duration, Instant};

use mio::{Events, Poll};
use polyrail_model::InstanceId;
use polyrail_relay::{Relay, RelayEvent, RelaySettings};
use polyrail_session::{Endpoint, Settings};

pub struct Side {
    poll: Poll,
    pub relay: Relay,
}

impl Side {
    pub fn gateway() -> Self {
        Self::new(Endpoint::gateway(Instant::now(), Settings::default(), InstanceId([7; 16])))
    }

    pub fn cloud() -> Self {
        Self::new(Endpoint::cloud(Instant::now(), Settings::default(), [9; 32]))
    }

    fn new(endpoint: Endpoint) -> Self {
        let poll = Poll::new().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        Self { poll, relay: Relay::new(registry, endpoint, RelaySettings::default()) }
    }

    /// Turns the loop once.
    pub fn turn(&mut self) -> Vec<RelayEvent> {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        let now = Instant::now();
        for event in &events {
            self.relay.on_event(now, event);
        }
        self.relay.turn(now);
        std::iter::from_fn(|| self.relay.poll_event()).collect()
    }
}
