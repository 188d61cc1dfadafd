//! A constant window without pacing: the ceiling of what any control can reach.

use std::time::Instant;

use polyrail_model::Bitrate;

use super::{Ack, Control, Loss};

/// A constant number of bytes in flight.
#[derive(Debug)]
pub struct Fixed(pub u64);

impl Control for Fixed {
    fn on_ack(&mut self, _: &Ack) {}

    fn on_loss(&mut self, _: &Loss) {}

    fn on_timeout(&mut self, _: Instant, _: bool) {}

    fn window(&self) -> u64 {
        self.0
    }

    fn pacing(&self) -> Option<Bitrate> {
        None
    }
}
