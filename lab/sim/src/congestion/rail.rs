//! The tunnels' own controller, [`polyrail_congestion::Rail`]: the code that also drives QUIC.

use std::time::{Duration, Instant};

use polyrail_congestion::{Acked, Rail as Controller};
use polyrail_model::Bitrate;

use super::{Ack, Control, Loss};

/// The controller, with the totals that it needs.
#[derive(Debug)]
pub struct Rail {
    /// None until the first packet, whose time it needs.
    controller: Option<Controller>,
    lost: u64,
}

impl Rail {
    pub(super) fn new() -> Self {
        Self { controller: None, lost: 0 }
    }

    fn controller(&mut self, now: Instant) -> &mut Controller {
        self.controller.get_or_insert_with(|| Controller::new(now))
    }
}

impl Control for Rail {
    fn on_sent(&mut self, now: Instant, bytes: u64, in_flight: u64) {
        self.controller(now).on_sent(now, bytes, in_flight);
    }

    fn on_limited(&mut self, in_flight: u64) -> bool {
        if let Some(controller) = &mut self.controller {
            controller.on_limited(in_flight);
        }
        true
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.lost += ack.lost;
        let (lost, rtt) = (self.lost, ack.rtt);
        let (acked, in_flight) = (ack.delivered, ack.in_flight);
        let acked = Acked { now: ack.now, acked, lost, in_flight, rtt };
        self.controller(ack.now).on_acked(&acked);
    }

    fn on_loss(&mut self, _: &Loss) {}

    fn on_timeout(&mut self, _: Instant, _: bool) {}

    fn on_restart(&mut self, _: Instant, _: Duration) {}

    fn window(&self) -> u64 {
        self.controller.as_ref().map_or(super::WINDOW_FIRST, |it| it.window().0)
    }

    fn pacing(&self) -> Option<Bitrate> {
        self.controller.as_ref().and_then(Controller::pacing)
    }
}
