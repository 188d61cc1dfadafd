//! One path of a session: what it carries, how it does, and whether it makes progress.
//!
//! ```text
//!            progress stops, data waiting
//!   Live ------------------------------------> Stalled
//!     ^                                          |
//!     +------ a PONG, or an acknowledgement -----+
//!                of what it carries
//!   either --- a newer tunnel of the same carrier ---> Superseded --- first progress of the newer
//!     ^                                                    |           or lost ---> gone
//!     +--- the newer one is lost before its progress ------+
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, FlowId, LinkSample, PathId};
use polyrail_scheduler::PathView;

use crate::TunnelKey;
use crate::delay::{Delay, Relative};
use crate::limits::{PING_ACTIVE, PING_IDLE, STALL_MIN};

#[derive(Debug)]
pub(crate) struct Path {
    pub id: PathId,
    pub tunnel: TunnelKey,
    pub carrier: String,
    pub backup: bool,
    pub room: u64,
    /// Control that was sent beyond the room since the tunnel was full.
    pub control_debt: usize,
    srtt: Option<Duration>,
    rtt_var: Duration,
    rtt_min: Option<Duration>,
    /// What the peer's echoes tell of the way there.
    pub delay: Delay,
    /// The same, compared with the other paths when the views were last brought up to date.
    pub relative: Option<Relative>,
    rate: Option<Bitrate>,
    /// The rate that was reached while the path was the limit, not what was offered.
    proven_rate: Option<Bitrate>,
    timeouts: u32,
    /// What it carries, in sending order; settled entries leave lazily.
    pub carried: VecDeque<Carried>,
    /// Sent over it and neither acknowledged nor given up.
    pub outstanding: u64,
    pub progress_at: Instant,
    pub stalled: bool,
    /// A newer tunnel of the carrier has taken over.
    pub superseded: bool,
    /// The caller was asked to close it.
    pub dismissed: bool,
    ping: Option<(u64, Instant)>,
    next_ping_at: Instant,
    /// Flows whose control frames went out here: since the last PING, and before it. What the
    /// PONG does not confirm is said again when the path stalls or is lost.
    pub spoken: BTreeSet<FlowId>,
    pub spoken_before: BTreeSet<FlowId>,
    pub sent: u64,
    pub received: u64,
}

/// A run that a path carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    pub flow: FlowId,
    pub start: u64,
    pub end: u64,
}

impl Path {
    pub fn new(now: Instant, id: PathId, tunnel: TunnelKey, carrier: String, backup: bool) -> Self {
        Self {
            id,
            tunnel,
            carrier,
            backup,
            room: 0,
            control_debt: 0,
            srtt: None,
            rtt_var: Duration::ZERO,
            rtt_min: None,
            delay: Delay::default(),
            relative: None,
            rate: None,
            proven_rate: None,
            timeouts: 0,
            carried: VecDeque::new(),
            outstanding: 0,
            progress_at: now,
            stalled: false,
            superseded: false,
            dismissed: false,
            ping: None,
            next_ping_at: now + PING_ACTIVE,
            spoken: BTreeSet::new(),
            spoken_before: BTreeSet::new(),
            sent: 0,
            received: 0,
        }
    }

    pub fn view(&self) -> PathView {
        let mut view = PathView {
            id: self.id,
            srtt: self.srtt(),
            rtt_var: self.rtt_var,
            owd: None,
            owd_age: Duration::ZERO,
            owd_error: Duration::ZERO,
            room: Bytes(self.room),
            outstanding: Bytes(self.outstanding),
            rate: self.rate,
            stalled: self.stalled || self.superseded,
            backup: self.backup,
        };
        self.show_delay(&mut view);
        view
    }

    /// Fills in what is known of the one-way delay.
    pub fn show_delay(&self, view: &mut PathView) {
        view.owd = self.relative.map(|relative| relative.owd);
        view.owd_age = self.relative.map_or(Duration::ZERO, |relative| relative.age);
        view.owd_error = self.relative.map_or(Duration::ZERO, |relative| relative.error);
    }

    /// The least round-trip time of the transport's window; the smoothed one before it is known.
    pub fn rtt_min(&self) -> Duration {
        self.rtt_min.unwrap_or_else(|| self.srtt())
    }

    /// The smoothed round-trip time; a guess of 100 ms before the first measurement.
    pub fn srtt(&self) -> Duration {
        self.srtt.unwrap_or(Duration::from_millis(100))
    }

    /// The rate that the path is known to carry.
    pub fn proven_rate(&self) -> Option<Bitrate> {
        self.proven_rate
    }

    /// A round-trip time that the session measured; the transport's own figures come before it.
    pub fn measured(&mut self, rtt: Duration) {
        if self.srtt.is_none() {
            self.srtt = Some(rtt);
            self.rtt_var = rtt / 2;
        }
    }

    pub fn sample(&mut self, sample: &LinkSample) {
        self.srtt = Some(sample.srtt);
        self.rtt_var = sample.rtt_var;
        self.rtt_min = Some(sample.rtt_min);
        self.timeouts = sample.timeouts;
        if !sample.application_limited {
            self.proven_rate = sample.delivery_rate.or(self.proven_rate);
        }
        // What the application limits says nothing, unless it is more than was known.
        if let Some(rate) = sample.delivery_rate
            && (!sample.application_limited || self.rate.is_none_or(|known| rate > known))
        {
            self.rate = Some(rate);
        }
    }

    pub fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// How long progress may stay away before the path counts as stalled: max(3 srtt + 4 rttvar,
    /// 300 ms), and twice the time that what is out needs at the known rate.
    pub fn patience(&self) -> Duration {
        let rtt = self.srtt() * 3 + self.rtt_var * 4;
        let out = self.rate.and_then(|rate| rate.time_for(Bytes(2 * self.outstanding)));
        rtt.max(STALL_MIN) + out.unwrap_or_default().min(PATIENCE_QUEUE_MAX)
    }

    /// Something that this path carried has arrived. Returns whether the path was stalled.
    pub fn progress(&mut self, now: Instant) -> bool {
        self.progress_at = now;
        std::mem::take(&mut self.stalled)
    }

    /// When the path must be looked at again: for a PING, and if it is `judged`, to see whether it
    /// stalls.
    pub fn deadline(&self, judged: bool) -> Instant {
        let waits = judged && (self.outstanding > 0 || self.ping.is_some());
        let stall = (waits && !self.stalled).then(|| self.waiting_since() + self.patience());
        stall.into_iter().chain([self.ping_at()]).min().unwrap_or(self.next_ping_at)
    }

    /// One PING is out at a time; an old one is given up, so that a dead connection is noticed.
    fn ping_at(&self) -> Instant {
        self.ping.map_or(self.next_ping_at, |(_, at)| at + PING_IDLE)
    }

    fn waiting_since(&self) -> Instant {
        match self.ping {
            Some((_, at)) if self.outstanding == 0 => self.progress_at.max(at),
            _ => self.progress_at,
        }
    }

    /// Whether progress has stayed away for too long.
    pub fn is_overdue(&self, now: Instant) -> bool {
        (self.outstanding > 0 || self.ping.is_some())
            && !self.stalled
            && now >= self.waiting_since() + self.patience()
    }

    /// Whether a PING is due.
    pub fn wants_ping(&self, now: Instant) -> bool {
        now >= self.ping_at()
    }

    /// A PING goes out. What was said before it is confirmed by its PONG.
    pub fn pinged(&mut self, now: Instant, token: u64) {
        self.ping = Some((token, now));
        let mut spoken = std::mem::take(&mut self.spoken);
        self.spoken_before.append(&mut spoken);
    }

    /// Asks for a PING as soon as one may go: one is out at a time.
    pub fn ping_soon(&mut self, now: Instant) {
        self.next_ping_at = now;
    }

    /// A PONG came. Returns the round-trip time if it answers the PING that is out.
    pub fn ponged(&mut self, now: Instant, token: u64) -> Option<Duration> {
        let (_, at) = self.ping.take_if(|(sent, _)| *sent == token)?;
        self.spoken_before.clear();
        let interval = if self.spoken.is_empty() { PING_IDLE } else { PING_ACTIVE };
        self.next_ping_at = now + interval;
        Some(now.saturating_duration_since(at))
    }

    /// A control frame of this flow goes out here.
    pub fn speaks(&mut self, now: Instant, flow: FlowId) {
        if self.spoken.is_empty() {
            self.next_ping_at = self.next_ping_at.min(now + PING_ACTIVE);
        }
        self.spoken.insert(flow);
    }
}

/// How much patience a long queue may add.
const PATIENCE_QUEUE_MAX: Duration = Duration::from_secs(2);
