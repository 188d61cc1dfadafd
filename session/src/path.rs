//! One path of a session: what it carries, how it does, and whether it makes progress.
//!
//! ```text
//!   Fresh (gateway) --- WELCOME, PONG, an echo ---> Live
//!
//!            progress stops, data waiting
//!   Live ------------------------------------> Stalled
//!     ^                                          |
//!     +--- a PONG, an echo, or an acknowledgement of what it alone carries
//!
//!   any --- a newer tunnel of the same carrier is Live ---> Superseded ---> gone, when the newer
//!     ^                                                      |             one delivers and
//!     +--- the newer one is lost or stalls before its first -+             this one is drained
//! ```
//!
//! A path is hidden from the scheduler unless it is Live; a Fresh one is shown while no path of the
//! session is Live, the newest of its carrier.
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, FlowId, LinkSample, PathId, TunnelMode};
use polyrail_scheduler::PathView;

use crate::capacity::{Capacity, Look};
use crate::delay::{Delay, Relative};
use crate::event::TunnelKey;
use crate::limits::{
    ACK_DELAY_MAX, CONTROL_BATCH, PING_ACTIVE, PING_FORESEEN, PING_IDLE, RETIRE_MIN, SILENCE_BYTES,
    SILENCE_MIN, STALL_MAX, STALL_MIN, STALL_QUEUE_MAX,
};
use crate::rate::Rate;
use crate::settings::PathStatus;

#[derive(Debug)]
pub(crate) struct Path {
    pub id: PathId,
    pub tunnel: TunnelKey,
    pub carrier: String,
    /// The carrier's number, by which the scheduler knows it.
    pub carrier_number: u32,
    pub backup: bool,
    mode: TunnelMode,
    pub room: u64,
    /// Control that was sent beyond the room since the tunnel was full.
    pub control_debt: usize,
    /// The round-trip time before it is known.
    guess: Duration,
    srtt: Option<Duration>,
    rtt_var: Duration,
    rtt_min: Option<Duration>,
    /// What the peer's echoes tell of the way there.
    pub delay: Delay,
    pub rate: Rate,
    /// What it delivers at present.
    pub capacity: Capacity,
    /// The rate that was reached while the path was the limit, not what was offered.
    proven_rate: Option<Bitrate>,
    last_sample: Option<LinkSample>,
    start: SlowStart,
    /// What it carries, in sending order; settled entries leave lazily.
    pub carried: VecDeque<Carried>,
    /// Sent over it and neither acknowledged nor given up.
    pub outstanding: u64,
    pub progress_at: Instant,
    pub stalled: bool,
    /// The peer hears it.
    pub proven: bool,
    /// It has made progress.
    pub delivered: bool,
    /// A newer tunnel of the carrier has taken over.
    pub superseded: bool,
    /// The newer one has made progress.
    pub relieved: bool,
    /// The caller was asked to close it.
    pub dismissed: bool,
    /// The scheduler is not to use it.
    pub hidden: bool,
    /// When user data last came in, and how much since the last silence.
    heard_at: Instant,
    heard: u64,
    /// The serials of the peer's newest notices about it: of its use as a backup, and of others.
    pub noticed: [u64; 2],
    ping: Option<(u64, Instant)>,
    next_ping_at: Instant,
    /// Flows whose control frames went out here: since the last PING, and before it. What the
    /// PONG does not confirm is said again when the path stalls or is lost.
    pub spoken: BTreeSet<FlowId>,
    pub spoken_before: BTreeSet<FlowId>,
    pub sent: u64,
    pub received: u64,
}

/// Whether the transport is in slow start, from outside: its window grows by half within some round
/// trips, and it has lost nothing.
#[derive(Clone, Copy, Debug, Default)]
struct SlowStart {
    goes_on: bool,
    /// When the window had last grown so, and to what.
    grown: Option<(Instant, Bytes)>,
    /// Packets lost before it was looked at: those of the handshake.
    lost: u64,
}

impl SlowStart {
    fn sample(&mut self, sample: &LinkSample) {
        let Some((at, window)) = &mut self.grown else {
            let grown = Some((sample.at, sample.window));
            *self = Self { goes_on: true, grown, lost: sample.lost_packets };
            return;
        };
        if sample.window.0 >= window.0.saturating_add(window.0 / 2) {
            (*at, *window) = (sample.at, sample.window);
        } else if sample.application_limited || sample.in_flight == Bytes::ZERO {
            // With nothing to send it does not grow either, and goes on later.
            *at = sample.at;
        }
        let late = sample.at.saturating_duration_since(*at) > sample.srtt * START_ROUNDS;
        self.goes_on &= !late && sample.lost_packets <= self.lost;
    }
}

/// A run that a path carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    pub flow: FlowId,
    pub start: u64,
    pub end: u64,
}

/// What a greeting says of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner<'a> {
    pub carrier: &'a str,
    pub backup: bool,
    pub mode: TunnelMode,
    /// The peer is known to hear it.
    pub proven: bool,
}

impl Path {
    pub fn new(now: Instant, id: PathId, tunnel: TunnelKey, manner: Manner<'_>) -> Self {
        Self {
            id,
            tunnel,
            carrier: manner.carrier.to_owned(),
            carrier_number: 0,
            backup: manner.backup,
            mode: manner.mode,
            room: 0,
            control_debt: 0,
            guess: RTT_GUESS,
            srtt: None,
            rtt_var: Duration::ZERO,
            rtt_min: None,
            delay: Delay::default(),
            rate: Rate::default(),
            capacity: Capacity::default(),
            proven_rate: None,
            last_sample: None,
            start: SlowStart::default(),
            carried: VecDeque::new(),
            outstanding: 0,
            progress_at: now,
            stalled: false,
            proven: manner.proven,
            delivered: false,
            superseded: false,
            relieved: false,
            dismissed: false,
            hidden: false,
            heard_at: now,
            heard: 0,
            noticed: [0; 2],
            ping: None,
            next_ping_at: now + PING_ACTIVE,
            spoken: BTreeSet::new(),
            spoken_before: BTreeSet::new(),
            sent: 0,
            received: 0,
        }
    }

    /// What the scheduler sees now; `relative` is the one-way delay compared with other paths. The
    /// forecasts of the carrier are not known here.
    pub fn view(&self, now: Instant, relative: Option<Relative>) -> PathView {
        let sample = self.last_sample.as_ref();
        let bytes = |get: fn(&LinkSample) -> Bytes| sample.map_or(Bytes::ZERO, get);
        PathView {
            id: self.id,
            carrier: self.carrier_number,
            srtt: self.srtt(),
            rtt_min: self.rtt_min(),
            rtt_var: self.rtt_var,
            owd: self.owd(relative),
            owd_error: relative.map_or(Duration::ZERO, |relative| relative.error),
            room: Bytes(self.room),
            outstanding: Bytes(self.outstanding),
            window: bytes(|sample| sample.window),
            in_flight: bytes(|sample| sample.in_flight),
            unsent: bytes(|sample| sample.unsent),
            slow_start: self.start.goes_on,
            timeouts: self.timeouts(),
            rate: self.rate.most(),
            capacity: self.capacity.now(now),
            stalled: self.hidden,
            backup: self.backup,
            ..PathView::default()
        }
    }

    /// A snapshot for operators.
    pub fn status(&self, relative: Option<Relative>) -> PathStatus {
        let view = self.view(self.progress_at, relative);
        let sample = self.last_sample.as_ref();
        PathStatus {
            tunnel: self.tunnel,
            path: self.id,
            carrier: self.carrier.clone(),
            mode: self.mode,
            srtt: view.srtt,
            rtt_var: view.rtt_var,
            owd: view.owd,
            stalled: self.stalled,
            superseded: self.superseded,
            unproven: !self.proven,
            backup: self.backup,
            outstanding: view.outstanding,
            window: view.window,
            in_flight: view.in_flight,
            unsent: view.unsent,
            rate: view.rate,
            sent_packets: sample.map_or(0, |sample| sample.sent_packets),
            lost_packets: sample.map_or(0, |sample| sample.lost_packets),
            timeouts: view.timeouts,
            sent: Bytes(self.sent),
            received: Bytes(self.received),
        }
    }

    /// What is known of the one-way delay. No direction takes longer than there and back: what a
    /// path carried out of a blackout says little about it now, and an idle path has nothing newer
    /// to say. By half a round trip the zero of relative delays may be off.
    fn owd(&self, relative: Option<Relative>) -> Option<Duration> {
        let most = self.srtt() + self.rtt_min() / 2;
        relative.map(|relative| relative.owd.min(most))
    }

    /// The tunnel takes this many bytes now.
    pub fn set_room(&mut self, room: usize) {
        self.room = room as u64;
        if room > 0 {
            self.control_debt = 0;
        }
    }

    /// The least round-trip time of the transport's window; the smoothed one before it is known.
    pub fn rtt_min(&self) -> Duration {
        self.rtt_min.unwrap_or_else(|| self.srtt())
    }

    /// The smoothed round-trip time; a guess before the first measurement.
    pub fn srtt(&self) -> Duration {
        self.srtt.unwrap_or(self.guess)
    }

    /// Another path of the same carrier had this round-trip time.
    pub fn expect(&mut self, rtt: Duration) {
        self.guess = rtt;
    }

    /// It may carry whatever comes.
    pub fn is_sound(&self) -> bool {
        self.proven && !self.stalled && !self.superseded
    }

    /// It takes control frames, a few even without room.
    pub fn takes_control(&self) -> bool {
        self.room > 0 || self.control_debt < CONTROL_BATCH
    }

    /// What it carries is to go over others. One that delivers keeps that when it is superseded.
    pub fn gives_up(&self) -> bool {
        let drains = self.superseded && self.delivered && !self.stalled;
        self.hidden && !drains
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
        self.last_sample = Some(*sample);
        self.start.sample(sample);
        if !sample.application_limited {
            self.proven_rate = sample.delivery_rate.or(self.proven_rate);
        }
        self.rate.sample(sample);
        let waits = sample.unsent.0.saturating_add(sample.in_flight.0);
        let delivered = self.sent.saturating_sub(waits);
        let look = Look {
            at: sample.at,
            delivered,
            busy: sample.in_flight > Bytes::ZERO,
            out: waits,
            rtt_min: sample.rtt_min,
        };
        self.capacity.sample(&look);
    }

    pub fn timeouts(&self) -> u32 {
        self.last_sample.map_or(0, |sample| sample.timeouts)
    }

    /// How long progress may stay away before the path counts as stalled: 3 srtt + 4 rttvar, from
    /// [`STALL_MIN`] to [`STALL_MAX`], and twice the time that the bytes in flight need at the
    /// path's rate, at most [`STALL_QUEUE_MAX`]. A superseded path only has to drain:
    /// acknowledgements come all the time, or it is given up.
    pub fn patience(&self) -> Duration {
        if self.superseded {
            return self.srtt() + self.rtt_var * 4 + ACK_DELAY_MAX;
        }
        let rtt = self.srtt() * 3 + self.rtt_var * 4;
        let queue = self.rate.most().and_then(|rate| rate.time_for(Bytes(2 * self.outstanding)));
        rtt.clamp(STALL_MIN, STALL_MAX) + queue.unwrap_or_default().min(STALL_QUEUE_MAX)
    }

    /// Something that this path carried has arrived. Returns whether the path was stalled.
    pub fn progress(&mut self, now: Instant) -> bool {
        self.progress_at = now;
        std::mem::take(&mut self.stalled)
    }

    /// When the path must be looked at again: for a PING, and if it is `judged`, to see whether it
    /// stalls.
    pub fn deadline(&self, judged: bool) -> Instant {
        let stall = self.waiting_since().filter(|_| self.is_judged(judged) && !self.stalled);
        let stall = stall.map(|since| since + self.patience());
        let retires = (self.leaves() && self.outstanding == 0).then(|| self.retire_at());
        let others = [stall, retires, self.silent_at()].into_iter().flatten();
        others.chain([self.ping_at()]).min().unwrap_or(self.next_ping_at)
    }

    /// A superseded path is always judged: what it carries must not stay with it.
    pub fn is_judged(&self, judged: bool) -> bool {
        judged || self.superseded
    }

    /// It carries something that others could carry.
    pub fn owes(&self) -> bool {
        self.outstanding > 0 || !self.spoken.is_empty() || !self.spoken_before.is_empty()
    }

    /// It was superseded by one that delivers, and is to be closed once it is drained.
    pub fn leaves(&self) -> bool {
        self.superseded && self.relieved && !self.dismissed
    }

    /// Nothing of either side is under way on it any more, as far as one can tell.
    pub fn is_drained(&self, now: Instant) -> bool {
        self.stalled || (self.outstanding == 0 && now >= self.retire_at())
    }

    fn retire_at(&self) -> Instant {
        if self.received == 0 { self.heard_at } else { self.heard_at + self.srtt().max(RETIRE_MIN) }
    }

    /// User data came in; silence after it is looked into if `counts`.
    pub fn hears(&mut self, now: Instant, bytes: u64, counts: bool) {
        self.received += bytes;
        self.heard_at = now;
        if counts {
            self.heard = self.heard.saturating_add(bytes);
        }
    }

    /// When a PING is to ask why nothing more comes.
    fn silent_at(&self) -> Option<Instant> {
        let transfer = self.heard >= SILENCE_BYTES;
        transfer.then(|| self.heard_at + (self.srtt() * 2).max(SILENCE_MIN))
    }

    /// Whether user data came in and has stopped; true once for each silence.
    pub fn falls_silent(&mut self, now: Instant) -> bool {
        let silent = self.silent_at().is_some_and(|at| now >= at);
        if silent {
            self.heard = 0;
        }
        silent
    }

    /// One PING is out at a time; an old one is given up, so that a dead connection is noticed.
    fn ping_at(&self) -> Instant {
        self.ping.map_or(self.next_ping_at, |(_, at)| at + PING_IDLE)
    }

    /// Since when an acknowledgement or a PONG has been outstanding without progress; `None` while
    /// neither is.
    fn waiting_since(&self) -> Option<Instant> {
        if self.outstanding > 0 {
            return Some(self.progress_at);
        }
        self.ping.map(|(_, at)| self.progress_at.max(at))
    }

    /// Since when the path is dark: data waits, and nothing was heard of the peer.
    pub fn dark_since(&self, now: Instant) -> Instant {
        self.waiting_since().unwrap_or(now).max(self.heard_at)
    }

    /// Whether progress has stayed away for too long.
    pub fn is_overdue(&self, now: Instant) -> bool {
        let since = self.waiting_since().filter(|_| !self.stalled);
        since.is_some_and(|since| now >= since + self.patience())
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

    /// It is kept empty because a failure is foreseen: it is asked often whether it lives.
    pub fn watch(&mut self, now: Instant) {
        self.next_ping_at = self.next_ping_at.min(now + PING_FORESEEN);
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

/// The round-trip time of a carrier of which nothing is known.
/// In which slow start doubles its window three times.
const START_ROUNDS: u32 = 3;
const RTT_GUESS: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// What a transport shows at so many milliseconds, of 40 ms.
    fn sample(base: Instant, ms: u64, window: u64, lost: u64) -> LinkSample {
        LinkSample {
            at: base + Duration::from_millis(ms),
            srtt: Duration::from_millis(40),
            rtt_min: Duration::from_millis(40),
            rtt_var: Duration::ZERO,
            window: Bytes(window),
            in_flight: Bytes(window),
            unsent: Bytes(1),
            delivery_rate: None,
            application_limited: false,
            sent_packets: 0,
            lost_packets: lost,
            timeouts: 0,
            acked: Bytes::ZERO,
        }
    }

    #[test]
    fn slow_start_ends_with_a_loss_or_a_window_that_stays() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let base = Instant::now();
        let mut start = SlowStart::default();
        let mut goes_on = |sample: LinkSample| {
            start.sample(&sample);
            start.goes_on
        };
        assert!(goes_on(sample(base, 0, 14_000, 2)), "what the handshake lost does not count");
        assert!(goes_on(sample(base, 40, 28_000, 2)));
        assert!(goes_on(sample(base, 160, 28_000, 2)), "three round trips");
        let idle = LinkSample { in_flight: Bytes::ZERO, ..sample(base, 60_000, 28_000, 2) };
        assert!(goes_on(idle), "nothing to send");
        assert!(goes_on(sample(base, 60_100, 41_999, 2)));
        assert!(!goes_on(sample(base, 60_121, 41_999, 2)), "not half as much again");
        assert!(!goes_on(sample(base, 60_130, 84_000, 2)), "it does not begin again");
        let mut start = SlowStart::default();
        start.sample(&sample(base, 0, 14_000, 0));
        start.sample(&sample(base, 40, 28_000, 1));
        assert!(!start.goes_on, "a loss");
    }

    #[test]
    fn path_stalls_when_an_acknowledgement_or_pong_is_late() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let base = Instant::now();
        let at = |ms: u64| base + Duration::from_millis(ms);
        let manner = Manner { carrier: "a", backup: false, mode: TunnelMode::Quic, proven: true };
        let mut path = Path::new(base, PathId(1), TunnelKey(1), manner);
        assert!(!path.is_overdue(at(60_000)), "an idle path");
        path.outstanding = 1_000;
        path.progress(at(1_000));
        assert!(!path.is_overdue(at(1_299)) && path.is_overdue(at(1_300)), "300 ms at least");
        path.progress(at(1_300));
        assert!(!path.is_overdue(at(1_599)) && path.is_overdue(at(1_600)));
        assert_eq!(path.dark_since(at(1_600)), at(1_300));
        path.hears(at(1_450), 10, false);
        assert_eq!(path.dark_since(at(1_600)), at(1_450), "the peer was heard later");
        path.outstanding = 0;
        assert!(!path.is_overdue(at(60_000)), "nothing waits");
        path.pinged(at(2_000), 7);
        assert!(!path.is_overdue(at(2_299)) && path.is_overdue(at(2_300)), "the PONG is late");
        // 3 srtt + 4 rttvar, at most 5 s.
        for (srtt, rtt_var, patience) in [(200, 50, 800), (4_000, 50, 5_000)] {
            let slow = LinkSample {
                srtt: Duration::from_millis(srtt),
                rtt_var: Duration::from_millis(rtt_var),
                ..sample(base, 2_000, 10_000, 0)
            };
            path.sample(&slow);
            assert_eq!(path.patience(), Duration::from_millis(patience));
        }
    }
}
