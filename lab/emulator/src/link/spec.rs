//! The properties of one direction of a link.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};
use serde::{Deserialize, Serialize};

use super::chance::{BurstLoss, Probability};
use super::policing::Policing;
use super::schedule::{Schedule, ScheduleError};

/// The speed of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// A packet takes no time.
    Unlimited,
    /// This many bits per second of the packets; zero stops the server.
    Limited(Bitrate),
}

/// The effect of a blackout on the queue. Where two overlap, the later in this list wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Blackout {
    /// The server stops; packets wait, within the queue's bound.
    Hold,
    /// Queued and arriving packets are lost.
    Drop,
}

/// One scheduled blackout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlackoutWindow {
    /// Its beginning, counted from the epoch.
    pub start: Duration,
    /// How long it lasts.
    pub length: Duration,
    /// Its effect.
    pub mode: Blackout,
}

/// Packets that are delayed, so that later ones overtake them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// The share of delayed packets.
    pub share: Probability,
    /// Their additional delay.
    pub delay: Duration,
}

/// The largest packet of the path, if smaller than the MTU of the sender's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// The size of the IP packet in bytes; larger ones are dropped.
    pub bytes: u16,
    /// A black hole: the sender gets no ICMP for a packet that must not be fragmented.
    pub silent: bool,
}

/// One direction of a link. The default has no limit, no delay and no faults.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// The speed over time.
    pub rate: Schedule<Rate>,
    /// The propagation delay over time.
    pub delay: Schedule<Duration>,
    /// The limit of the queue, without the packet being sent. Default: 256 KiB.
    pub queue: Bytes,
    /// Independent loss of each packet; the mean of `loss_steps` if there are any.
    pub loss: Probability,
    /// The random loss over time: see [`LinkSpec::with_losses`].
    pub loss_steps: Option<Schedule<Probability>>,
    /// Loss in bursts, in addition to the random loss.
    pub burst_loss: Option<BurstLoss>,
    /// The share of packets that arrive twice.
    pub duplicate: Probability,
    /// Delayed packets.
    pub reorder: Option<Reorder>,
    /// Policing of UDP.
    pub udp: Policing,
    /// The largest packet; `None`: no limit beyond the interfaces.
    pub mtu: Option<PathMtu>,
    /// When the link is dark.
    pub blackouts: Schedule<Option<Blackout>>,
}

/// A property and its new value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// The rate; a schedule of rates ends. A packet being sent goes on at the new rate.
    Rate(Rate),
    /// The delay of the packets that leave the server later; a schedule of delays ends.
    Delay(Duration),
    /// The random loss; a schedule of losses ends.
    Loss(Probability),
    /// The limit of the queue; queued packets stay.
    Queue(Bytes),
    /// Loss in bursts, beginning in the good state.
    BurstLoss(Option<BurstLoss>),
    /// Which of the packets that leave the server later are delayed.
    Reorder(Option<Reorder>),
    /// Policing of UDP; a bucket begins full.
    Udp(Policing),
    /// The largest packet; queued packets pass.
    Mtu(Option<PathMtu>),
    /// The seed of all random faults, which restart.
    Seed(u64),
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self {
            rate: Schedule::constant(Rate::Unlimited),
            delay: Schedule::constant(Duration::ZERO),
            queue: Bytes::from_kib(256),
            loss: Probability::NEVER,
            loss_steps: None,
            burst_loss: None,
            duplicate: Probability::NEVER,
            reorder: None,
            udp: Policing::Free,
            mtu: None,
            blackouts: Schedule::constant(None),
        }
    }
}

impl LinkSpec {
    /// A link of one rate and one delay with the given queue, and no faults.
    pub fn steady(rate: Bitrate, delay: Duration, queue: Bytes) -> Self {
        Self {
            rate: Schedule::constant(Rate::Limited(rate)),
            delay: Schedule::constant(delay),
            queue,
            ..Self::default()
        }
    }

    /// The same link with this random loss over time.
    pub fn with_losses(self, losses: Schedule<Probability>) -> Self {
        let first = losses.at(Duration::ZERO).value;
        if losses.values().all(|loss| loss == first) {
            return Self { loss: first, loss_steps: None, ..self };
        }
        let mean = Probability::new(losses.mean_of(Probability::get));
        Self { loss: mean.unwrap_or_default(), loss_steps: Some(losses), ..self }
    }

    /// Changes a property. The specification has no seed.
    pub fn set(&mut self, setting: Setting) {
        match setting {
            Setting::Rate(rate) => self.rate = Schedule::constant(rate),
            Setting::Delay(delay) => self.delay = Schedule::constant(delay),
            Setting::Loss(loss) => (self.loss, self.loss_steps) = (loss, None),
            Setting::Queue(queue) => self.queue = queue,
            Setting::BurstLoss(burst) => self.burst_loss = burst,
            Setting::Reorder(reorder) => self.reorder = reorder,
            Setting::Udp(udp) => self.udp = udp,
            Setting::Mtu(mtu) => self.mtu = mtu,
            Setting::Seed(_) => {}
        }
    }

    /// The random loss at `offset` after the epoch.
    pub fn loss_at(&self, offset: Duration) -> Probability {
        self.loss_steps.as_ref().map_or(self.loss, |steps| steps.at(offset).value)
    }

    /// The same link, dark in these windows; they may overlap and come in any order.
    ///
    /// # Errors
    /// Too many windows.
    pub fn with_blackouts(self, windows: &[BlackoutWindow]) -> Result<Self, ScheduleError> {
        Ok(Self { blackouts: timeline(windows)?, ..self })
    }
}

/// The strongest blackout at each time.
fn timeline(windows: &[BlackoutWindow]) -> Result<Schedule<Option<Blackout>>, ScheduleError> {
    let mut edges: Vec<(Duration, Blackout, bool)> = windows
        .iter()
        .flat_map(|w| [(w.start, w.mode, true), (w.start.saturating_add(w.length), w.mode, false)])
        .collect();
    edges.sort();
    let (mut holds, mut drops) = (0_usize, 0_usize);
    let (mut first, mut steps) = (None, Vec::<(Duration, Option<Blackout>)>::new());
    for (at, mode, begins) in edges {
        let open = if mode == Blackout::Hold { &mut holds } else { &mut drops };
        // Within one instant an end may sort before its own beginning: wrap, and be even after.
        *open = if begins { open.wrapping_add(1) } else { open.wrapping_sub(1) };
        let now = match (drops, holds) {
            (0, 0) => None,
            (0, _) => Some(Blackout::Hold),
            _ => Some(Blackout::Drop),
        };
        match steps.last_mut() {
            _ if at.is_zero() => first = now,
            Some(last) if last.0 == at => last.1 = now,
            _ => steps.push((at, now)),
        }
    }
    Schedule::new(first, steps, None)
}
