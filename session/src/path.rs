//! One path of a session: the runs in flight on it, its measurements, and whether it makes
//! progress.
//!
//! ```text
//!   Fresh (gateway) --- WELCOME, PONG, an echo ---> Live
//!
//!        no progress, data or a PING unacknowledged
//!   Live ------------------------------------> Stalled
//!     ^                                          |
//!     +--- a PONG, an echo, or an acknowledgement of a run that it alone carries
//!
//!   any --- a newer tunnel of the carrier is Live ---> Superseded ---> closed, when the newer one
//!     ^                                                 |              delivers and this one is
//!     +--- the newer one is lost or stalls early -------+              drained
//! ```
//!
//! A path is hidden from the scheduler unless it is Live. While no path of the session is Live, the
//! newest Fresh path of each carrier is shown.

mod busy_rate;
mod carried;
mod limit;
mod link;
mod pings;
mod reports;
mod stall;

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, PathId, PathRank, PathWish, TunnelMode};
use polyrail_scheduler::PathView;

pub(crate) use self::carried::Carried;
use self::carried::CarriedRuns;
use self::limit::RateLimit;
use self::link::Link;
use self::pings::Pings;
use self::reports::Reports;
use self::stall::Stall;
use crate::delay::{Delay, Relative};
use crate::event::TunnelKey;
use crate::limits::{CONTROL_BATCH, RETIRE_MIN};
use crate::settings::PathStatus;

#[derive(Debug)]
pub(crate) struct Path {
    pub id: PathId,
    pub tunnel: TunnelKey,
    pub carrier: String,
    /// The carrier's number, by which the scheduler knows it.
    pub carrier_number: u32,
    pub wish: PathWish,
    limit: Option<RateLimit>,
    mode: TunnelMode,
    pub room: u64,
    /// Bytes of control sent beyond the room since the tunnel was full.
    pub control_debt: usize,
    /// The same of real-time datagrams.
    pub urgent_debt: usize,
    /// One-way delay to the peer.
    pub delay: Delay,
    pub link: Link,
    /// The runs sent over it.
    pub carried: CarriedRuns,
    pub stall: Stall,
    pub pings: Pings,
    /// The peer is known to receive on it.
    pub proven: bool,
    /// It has made progress.
    pub delivered: bool,
    pub standing: Standing,
    /// The scheduler must not use it.
    pub hidden: bool,
    /// The serials of the peer's newest notices about it: of problems, of its use, of its limit.
    pub noticed: [u64; 3],
    pub reports: Reports,
    pub sent: u64,
    pub received: u64,
    /// Bytes of datagrams.
    pub datagrams_sent: u64,
    pub datagrams_received: u64,
}

/// A path among those of its carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Standing {
    Current,
    /// A newer tunnel of the carrier has taken over.
    Superseded,
    /// The newer one has made progress: it must be closed when it is drained.
    Relieved,
    /// The caller was asked to close it.
    Closing,
}

/// The properties of a new path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner<'a> {
    pub carrier: &'a str,
    pub wish: PathWish,
    pub mode: TunnelMode,
    /// The peer is known to receive on it.
    pub proven: bool,
}

impl Path {
    pub fn new(now: Instant, id: PathId, tunnel: TunnelKey, manner: Manner<'_>) -> Self {
        Self {
            id,
            tunnel,
            carrier: manner.carrier.to_owned(),
            carrier_number: 0,
            wish: manner.wish,
            limit: manner.wish.rate_limit.map(|rate| RateLimit::new(now, rate)),
            mode: manner.mode,
            room: 0,
            control_debt: 0,
            urgent_debt: 0,
            delay: Delay::default(),
            link: Link::default(),
            carried: CarriedRuns::default(),
            stall: Stall::new(now),
            pings: Pings::new(now),
            proven: manner.proven,
            delivered: false,
            standing: Standing::Current,
            hidden: false,
            noticed: [0; 3],
            reports: Reports::default(),
            sent: 0,
            received: 0,
            datagrams_sent: 0,
            datagrams_received: 0,
        }
    }

    /// The scheduler's view, without the forecasts of the carrier; `relative` is the one-way delay
    /// relative to other paths.
    pub fn view(&self, now: Instant, relative: Option<Relative>) -> PathView {
        let measured = self.link.view(now);
        PathView {
            id: self.id,
            carrier: self.carrier_number,
            owd: self.owd(relative),
            queued: self.delay.queued(),
            unqueued: self.delay.unqueued(),
            busy_rate: measured.busy_rate.map(|rate| self.limited(rate)),
            owd_error: relative.map_or(Duration::ZERO, |relative| relative.error),
            room: Bytes(self.room()),
            outstanding: Bytes(self.stall.outstanding),
            stalled: self.hidden,
            quiet: self.stall.quiet(now),
            backup: self.wish.is_backup(),
            secondary: self.wish.rank == PathRank::Secondary,
            metered: self.wish.metered,
            rate: measured.rate.map(|rate| self.limited(rate)),
            capacity: measured.capacity.map(|rate| self.limited(rate)),
            ..measured
        }
    }

    fn limited(&self, rate: Bitrate) -> Bitrate {
        self.wish.rate_limit.map_or(rate, |limit| limit.min(rate))
    }

    /// A snapshot for operators.
    pub fn status(&self, now: Instant, relative: Option<Relative>) -> PathStatus {
        let view = self.view(now, relative);
        let sample = self.link.last.as_ref();
        PathStatus {
            tunnel: self.tunnel,
            path: self.id,
            carrier: self.carrier.clone(),
            mode: self.mode,
            srtt: view.srtt,
            rtt_var: view.rtt_var,
            owd: view.owd,
            stalled: self.stall.stalled,
            superseded: self.is_superseded(),
            unproven: !self.proven,
            wish: self.wish,
            outstanding: view.outstanding,
            window: view.window,
            in_flight: view.in_flight,
            unsent: view.unsent,
            rate: view.rate,
            sent_packets: sample.map_or(0, |sample| sample.sent_packets),
            lost_packets: sample.map_or(0, |sample| sample.lost_packets),
            timeouts: view.timeouts,
            sent: Bytes(self.sent + self.datagrams_sent),
            received: Bytes(self.received + self.datagrams_received),
        }
    }

    /// The one-way delay, at most a round trip: the delay of data that a blackout held back says
    /// little about the path now, and an idle path has no newer echo. The zero of relative delays
    /// is uncertain by half a round trip.
    fn owd(&self, relative: Option<Relative>) -> Option<Duration> {
        let max = self.link.srtt() + self.link.rtt_min() / 2;
        relative.map(|relative| relative.owd.min(max))
    }

    /// The tunnel has room for this many bytes.
    pub fn set_room(&mut self, room: usize) {
        self.room = room as u64;
        if room > 0 {
            (self.control_debt, self.urgent_debt) = (0, 0);
        }
    }

    /// The bytes that it takes now: the room of its tunnel, within its rate limit.
    pub fn room(&self) -> u64 {
        self.limit.as_ref().map_or(self.room, |limit| limit.left().min(self.room))
    }

    /// Follows another wish of the operator.
    pub fn set_wish(&mut self, now: Instant, wish: PathWish) {
        if self.wish.rate_limit != wish.rate_limit {
            self.limit = wish.rate_limit.map(|rate| RateLimit::new(now, rate));
        }
        self.wish = wish;
    }

    /// The rate limit earns what may be sent by now.
    pub fn refill(&mut self, now: Instant) {
        self.limit.iter_mut().for_each(|limit| limit.refill(now));
    }

    /// When the rate limit permits the next segment, if it does not permit one now.
    pub fn limited_until(&self) -> Option<Instant> {
        self.limit.as_ref().and_then(RateLimit::next_at)
    }

    /// A unit of this length was sent.
    pub fn charge(&mut self, bytes: usize) {
        self.limit.iter_mut().for_each(|limit| limit.charge(bytes));
    }

    /// A newer tunnel of the carrier has taken over.
    pub fn is_superseded(&self) -> bool {
        self.standing >= Standing::Superseded
    }

    /// It may carry any data.
    pub fn is_sound(&self) -> bool {
        self.proven && !self.stall.stalled && !self.is_superseded()
    }

    /// It takes control frames; a full tunnel takes up to [`CONTROL_BATCH`] bytes.
    pub fn takes_control(&self) -> bool {
        self.room > 0 || self.control_debt < CONTROL_BATCH
    }

    /// It takes real-time datagrams; a full tunnel takes up to [`URGENT_DEBT_MAX`] bytes.
    pub fn takes_urgent(&self) -> bool {
        self.room > 0 || self.urgent_debt < URGENT_DEBT_MAX
    }

    /// Its runs must be reinjected on others. A superseded path that delivers keeps its runs.
    pub fn gives_up(&self) -> bool {
        let drains = self.is_superseded() && self.delivered && !self.stall.stalled;
        self.hidden && !drains
    }

    /// When the path must be checked again: for a PING, and if it is `judged`, for a stall.
    pub fn deadline(&self, judged: bool) -> Instant {
        let srtt = self.link.srtt();
        let retires = (self.standing == Standing::Relieved && self.stall.outstanding == 0)
            .then(|| self.retire_at());
        let (paused, reported) = (self.pings.pause_at(srtt), self.reports.next_at());
        let others = [self.stalls_at(judged), retires, paused, reported].into_iter().flatten();
        others.fold(self.pings.next_at(), Instant::min)
    }

    /// When the path stalls, if it is `judged`. A superseded one always is, so that its runs are
    /// reinjected in time.
    pub fn stalls_at(&self, judged: bool) -> Option<Instant> {
        let superseded = self.is_superseded();
        let patience = self.stall.patience(&self.link, superseded);
        self.stall.at(self.pings.pinged_at(), patience).filter(|_| judged || superseded)
    }

    /// Since when the path is dark: it waits for the peer and has received nothing.
    pub fn dark_since(&self, now: Instant) -> Instant {
        let waiting_since = self.stall.waiting_since(self.pings.pinged_at());
        waiting_since.unwrap_or(now).max(self.pings.received_at)
    }

    /// Neither side has anything in flight on it, as far as this side knows.
    pub fn is_drained(&self, now: Instant) -> bool {
        self.stall.stalled || (self.stall.outstanding == 0 && now >= self.retire_at())
    }

    fn retire_at(&self) -> Instant {
        let quiet =
            if self.received == 0 { Duration::ZERO } else { self.link.srtt().max(RETIRE_MIN) };
        self.pings.received_at + quiet
    }
}

/// Bytes of real-time datagrams that a full tunnel takes until it has room again: the packets of 30
/// calls within 20 ms.
const URGENT_DEBT_MAX: usize = 8_192;
