//! Outgoing packets: paced, joined to runs, and sent.
//!
//! `quiche` knows the release time of the next packet. The egress makes a packet at most two
//! [`BURST`]s before that time, because a wait here would falsify the round-trip time and the
//! packet's data could not be withdrawn. `quiche` holds little unsent data: it receives a unit only
//! when little of the last one is left. `quiche` does not report how much is left, so the egress
//! estimates it from the bytes given, withdrawn and lost and the sizes of the packets, and sets it
//! to zero when `quiche` has nothing to send although the window has room. A wrong estimate does
//! little harm: control is not affected, and if data makes no progress for two round trips, another
//! unit is given to `quiche`, which accepts no more than its window.
//!
//! Pacing is for data. Acknowledgements and control leave in short packets if pacing would delay
//! them for longer than [`QUICK_WAIT`]; probes leave at once.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quiche::{Connection, Error, SendInfo};

use super::acks::Acks;
use super::meter::Meter;
use super::outbox::Outbox;
use super::socket::{Departure, Udp};

/// A connection's unsent packets and its pacing.
#[derive(Default)]
pub(super) struct Egress {
    buffer: Vec<u8>,
    /// The run in the buffer: its begin, its end and the length of its packets.
    begin: usize,
    end: usize,
    segment: usize,
    route: Option<(SocketAddr, SocketAddr)>,
    /// Whether the kernel took no more.
    blocked: bool,
    /// When the next packet may be made.
    due: Option<Instant>,
    pacing: Pacing,
    /// Packets that pacing does not hold back: probes after a timeout.
    free: u32,
    /// When `quiche` was last asked for a packet.
    looked_at: Option<Instant>,
    /// Unsent bytes of units that `quiche` holds; an estimate.
    held: usize,
    /// Since when units have waited and no packet was made.
    stuck_since: Option<Instant>,
    /// Stream bytes that `quiche` has retransmitted so far.
    resent: u64,
    /// The longest datagram; `quiche` forgets the MTU when the peer's address changes.
    datagram_max: usize,
    /// Whether `quiche` had nothing to send when it was last asked, and was given nothing since.
    drained: bool,
    /// Acknowledgements that wait.
    pub(super) acks: Acks,
    /// Refusals by the peer's host since the last datagram from it.
    pub(super) refusals: u32,
}

/// The parts of a connection that the pump needs.
pub(super) struct Flow<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) outbox: &'a mut Outbox,
    pub(super) meter: &'a mut Meter,
    /// Whether units may be given to `quiche`.
    pub(super) open: bool,
}

/// Why nothing more can be sent at all.
#[derive(Debug)]
pub(super) enum Stop {
    /// The connection failed; `quiche` has the reason.
    Connection,
    /// The socket does not work.
    Socket(io::Error),
}

impl Egress {
    pub(super) fn new(datagram_max: usize) -> Self {
        Self { datagram_max, ..Self::default() }
    }

    /// Unsent bytes of units that `quiche` holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// So many bytes were withdrawn from `quiche`.
    pub(super) fn on_withdrawn(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// The path timed out: its probes do not wait.
    pub(super) fn on_probe_timeout(&mut self) {
        self.free = PROBES;
    }

    /// Whether the socket is full: a writable event follows.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The socket takes more.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// When [`pump`](Self::pump) is to be called again for pacing.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Limits the length of datagrams.
    pub(super) fn limit_datagrams(&mut self, length: usize) {
        self.datagram_max = length;
    }

    /// Makes and sends what may leave now. `forced` ignores pacing: for the last packets.
    pub(super) fn pump(
        &mut self,
        flow: &mut Flow<'_>,
        udp: &Udp,
        now: Instant,
        forced: bool,
    ) -> Result<(), Stop> {
        self.due = None;
        if self.blocked {
            return Ok(());
        }
        self.borrow_buffer();
        flow.meter.refresh(flow.connection);
        let result = self.fill(flow, udp, now, forced);
        let sent = self.send_run(flow.connection, udp);
        self.return_buffer();
        result.and(sent)
    }

    /// Makes packets in the thread's buffer, after the pending run, if any.
    fn borrow_buffer(&mut self) {
        let mut buffer = SCRATCH.take();
        buffer.resize(BUFFER, 0);
        let run = &self.buffer[self.begin..self.end];
        buffer[..run.len()].copy_from_slice(run);
        (self.begin, self.end) = (0, run.len());
        self.buffer = buffer;
    }

    /// Keeps only the pending run: idle connections hold no buffer.
    fn return_buffer(&mut self) {
        let run = self.buffer[self.begin..self.end].to_vec();
        (self.begin, self.end) = (0, run.len());
        SCRATCH.set(std::mem::replace(&mut self.buffer, run));
    }

    fn fill(
        &mut self,
        flow: &mut Flow<'_>,
        udp: &Udp,
        now: Instant,
        forced: bool,
    ) -> Result<(), Stop> {
        let segments_max = udp.segments_max();
        loop {
            if flow.open {
                self.feed(flow, now).map_err(|_| Stop::Connection)?;
            }
            let hurried = forced || self.free > 0 || is_overdue(flow, now);
            if !hurried && let Some(due) = self.ack_due(flow, now) {
                self.due = Some(due);
                return Ok(());
            }
            if !hurried {
                let release = flow.meter.release_time(flow.connection, now);
                if let Some(due) = self.pacing.wait(release, now) {
                    return self.wait_until(due, flow, udp, now);
                }
            }
            let run = self.end - self.begin;
            let full = self.segment > 0 && run / self.segment >= segments_max;
            if full || run + self.datagram_max > RUN_MAX || self.end + self.datagram_max > BUFFER {
                self.send_run(flow.connection, udp)?;
                if self.blocked {
                    return Ok(());
                }
            }
            // Probes after a timeout also pass if the path's MTU has shrunk.
            let is_probe = !forced && self.free > 0;
            let longest = if is_probe { PROBE_MAX } else { self.datagram_max };
            let made = self.make_packet(longest, flow, udp, now)?;
            self.free = if made { self.free.saturating_sub(1) } else { 0 };
            if !made || self.blocked {
                return Ok(());
            }
        }
    }

    /// Until when nothing leaves, because only an acknowledgement is due.
    fn ack_due(&self, flow: &Flow<'_>, now: Instant) -> Option<Instant> {
        let waits = flow.outbox.waiting() > 0 || !flow.outbox.datagrams.is_empty();
        let alone = flow.open && self.drained && !waits;
        alone.then(|| self.acks.wait(now, flow.meter.srtt()))?
    }

    /// Gives `quiche` all control, which has priority there, too, and data while it holds little.
    fn feed(&mut self, flow: &mut Flow<'_>, now: Instant) -> Result<(), Error> {
        let before = self.held;
        self.drained &= !flow.outbox.datagrams.give(flow.connection, now, self.datagram_max);
        self.held += flow.outbox.give_control(flow.connection)?;
        if self.held < HELD_MIN {
            self.held += flow.outbox.give_data(flow.connection)?;
        }
        self.drained &= self.held == before;
        Ok(())
    }

    /// Waits for pacing; meanwhile short packets leave, one at a time.
    fn wait_until(
        &mut self,
        due: Instant,
        flow: &mut Flow<'_>,
        udp: &Udp,
        now: Instant,
    ) -> Result<(), Stop> {
        self.due = Some(due);
        if !flow.connection.is_established() {
            return Ok(());
        }
        let mut quick = self.looked_at.map_or(now, |at| at + QUICK_WAIT);
        if quick <= now {
            self.send_run(flow.connection, udp)?;
            if self.blocked {
                return Ok(());
            }
            self.make_packet(QUICK_MAX, flow, udp, now)?;
            quick = now + QUICK_WAIT;
        }
        let overdue = flow.outbox.datagrams.overdue_at().filter(|at| *at > now);
        self.due = Some(due.min(quick).min(overdue.unwrap_or(due)));
        Ok(())
    }

    /// Makes one packet; false when there is none to make.
    fn make_packet(
        &mut self,
        longest: usize,
        flow: &mut Flow<'_>,
        udp: &Udp,
        now: Instant,
    ) -> Result<bool, Stop> {
        self.looked_at = Some(now);
        self.drained = false;
        self.acks.on_asked();
        let space = &mut self.buffer[self.end..self.end + longest];
        let datagrams = flow.connection.dgram_send_queue_byte_size();
        let (length, info) = match flow.connection.send(space) {
            Ok(made) => made,
            Err(Error::Done) => {
                if self.on_nothing_to_send(flow, now) {
                    return Ok(true);
                }
                let is_idle = self.drained && flow.outbox.waiting() == 0;
                let space = &mut self.buffer[self.end..self.end + IDLE_SPACE];
                let told = is_idle && flow.meter.idleness_counts(flow.connection);
                match told.then(|| tell_idle(flow.connection, space)).flatten() {
                    Some(made) => made,
                    None => return Ok(false),
                }
            }
            Err(_) => return Err(Stop::Connection),
        };
        if flow.meter.on_sent(flow.connection, now, length) {
            self.stuck_since = None;
        }
        let datagrams = datagrams - flow.connection.dgram_send_queue_byte_size();
        self.reckon(flow.connection, length.saturating_sub(datagrams));
        let route = (info.from, info.to);
        let fits = self.begin == self.end
            || (self.route == Some(route) && length <= self.segment && self.is_even());
        if !fits {
            self.send_before(flow.connection, udp, length)?;
        }
        if self.begin == self.end {
            self.segment = length;
            self.route = Some(route);
        }
        self.end += length;
        Ok(true)
    }

    /// Whether all packets of the run are equally long, so that another may follow.
    fn is_even(&self) -> bool {
        (self.end - self.begin).is_multiple_of(self.segment)
    }

    /// Sends the run; the packet after it, of another size or route, begins the next run.
    fn send_before(
        &mut self,
        connection: &mut Connection,
        udp: &Udp,
        length: usize,
    ) -> Result<(), Stop> {
        let at = self.end;
        self.send_run(connection, udp)?;
        if self.blocked {
            // Only one run can be kept: the new packet is lost.
            self.end = at;
            return Ok(());
        }
        self.buffer.copy_within(at..at + length, 0);
        Ok(())
    }

    /// `quiche` has nothing to send, or no window; true if more units can be given to it.
    fn on_nothing_to_send(&mut self, flow: &mut Flow<'_>, now: Instant) -> bool {
        let window = super::paths::active(flow.connection).map_or(0, |path| path.cwnd);
        // The smallest windows are two packets: an empty one must count as such.
        let margin = (WINDOW_MARGIN + window / WINDOW_PART).min(window / 2);
        // A pacer's window is checked before the packet is made.
        let is_bound = flow.meter.pacer.is_none();
        let is_full = is_bound && flow.meter.in_flight(flow.connection) + margin > window;
        if is_full && !self.is_stuck(flow, now) {
            return false;
        }
        self.drained = true;
        let was_held = std::mem::take(&mut self.held);
        if flow.outbox.waiting() == 0 {
            flow.meter.on_idle(flow.connection, now);
            return false;
        }
        was_held > 0 && flow.open
    }

    /// Whether units have waited for so long without a packet that the estimate must be wrong.
    fn is_stuck(&mut self, flow: &Flow<'_>, now: Instant) -> bool {
        if self.held < HELD_MIN || !flow.open || flow.outbox.waiting() == 0 {
            self.stuck_since = None;
            return false;
        }
        let since = *self.stuck_since.get_or_insert(now);
        let patience_ends = since + flow.meter.patience();
        if now < patience_ends {
            self.due = Some(patience_ends);
            return false;
        }
        self.stuck_since = None;
        true
    }

    /// Counts a packet of this length, without datagrams, as that much less unsent.
    fn reckon(&mut self, connection: &Connection, length: usize) {
        let resent =
            super::paths::active(connection).map_or(self.resent, |path| path.stream_retrans_bytes);
        // The count of another path starts at zero.
        self.held += resent.saturating_sub(self.resent) as usize;
        self.resent = resent;
        if self.held > 0 {
            self.held = self.held.saturating_sub(length.saturating_sub(PACKET_OVERHEAD));
        }
    }

    fn send_run(&mut self, connection: &mut Connection, udp: &Udp) -> Result<(), Stop> {
        if self.begin == self.end {
            return Ok(());
        }
        let Some((from, to)) = self.route else { return Ok(()) };
        let bytes = &self.buffer[self.begin..self.end];
        let result = udp.send(&Departure { from, to, segment: self.segment, bytes });
        if let Err(error) = &result
            && error.kind() == io::ErrorKind::WouldBlock
        {
            self.blocked = true;
            return Ok(());
        }
        (self.begin, self.end) = (0, 0);
        match result {
            Ok(()) => Ok(()),
            Err(error) => self.on_send_error(connection, error),
        }
    }

    /// Packets that the kernel refuses are lost; some errors say more.
    fn on_send_error(&mut self, connection: &mut Connection, error: io::Error) -> Result<(), Stop> {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => connection.revalidate_pmtu(),
            Some(libc::ECONNREFUSED) => self.refusals += 1,
            _ => {
                tracing::trace!(%error, "datagrams not sent");
                return Err(Stop::Socket(error));
            }
        }
        Ok(())
    }
}

/// Tells `quiche` that it has nothing to send although the window has room. Its bbr learns that
/// only when it makes a packet without data, and else takes the rate of a trickle for the carrier's
/// (its issue 2496). A datagram that does not fit has it try such a packet, which mostly stays
/// empty and is not made. Its other controls would take that for a full window.
fn tell_idle(connection: &mut Connection, space: &mut [u8]) -> Option<(usize, SendInfo)> {
    let is_free = connection.dgram_send_queue_len() == 0;
    if !is_free || connection.dgram_send(&[0; IDLE_SPACE]).is_err() {
        return None;
    }
    let made = connection.send(space);
    connection.dgram_purge_outgoing(|_| true);
    made.ok()
}

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Whether pacing has held datagrams back for too long. The window of `quiche` still holds; that of
/// a pacer of ours would not.
fn is_overdue(flow: &Flow<'_>, now: Instant) -> bool {
    let overdue = flow.outbox.datagrams.overdue_at().is_some_and(|at| at <= now);
    overdue && flow.meter.pacer.is_none()
}

/// Holds packets back until their release time, and lets them leave in bursts.
///
/// Neither `quiche`'s pacer nor `rail` makes up for a late packet, and wake-ups are late by up to a
/// millisecond. So a burst begins [`BURST`] before its first packet's release time, and ends with
/// the packet that is as much earlier again.
#[derive(Default)]
struct Pacing {
    /// Whether the last packet was held back.
    waits: bool,
}

impl Pacing {
    /// Until when a packet with this release time waits, if it does.
    fn wait(&mut self, release: Option<Instant>, now: Instant) -> Option<Instant> {
        let early = if self.waits { BURST } else { 2 * BURST };
        let wait = release.filter(|&release| release > now + early);
        self.waits = wait.is_some();
        wait?.checked_sub(BURST)
    }
}

/// How long a burst lasts, and how early it begins: wake-ups are a millisecond apart.
const BURST: Duration = Duration::from_millis(1);
/// The longest delay of an acknowledgement by pacing: the usual `max_ack_delay` (RFC 9000 18.2).
const QUICK_WAIT: Duration = Duration::from_millis(25);
/// The longest packet that ignores pacing: room for acknowledgements and a little control.
const QUICK_MAX: usize = 256;
/// Packets that a probe timeout may send at once (RFC 9002 6.2.4).
const PROBES: u32 = 2;
/// The longest probe: every path of QUIC's takes it (RFC 9000 14).
const PROBE_MAX: usize = quiche::MIN_CLIENT_INITIAL_LEN;
/// `quiche` receives the next unit when it holds less than this.
const HELD_MIN: usize = 4_096;
/// Short header, packet number, tag, and the header of one STREAM frame, rounded down: `held` is
/// rather too large, which corrects itself.
const PACKET_OVERHEAD: usize = 1 + 16 + 3 + 16 + 8;
/// With less room in the window than this, `quiche` may not send.
const WINDOW_MARGIN: usize = 2 * 1_500;
/// Part of the window that is uncertain, too: under loss the estimate of the bytes in flight is low
/// by up to a tenth of the window, and if a full window is mistaken for an idle `quiche`, units
/// wait there for a quarter of a second.
const WINDOW_PART: usize = 6;
/// Room for the headers of a packet, but not for as many bytes of data.
const IDLE_SPACE: usize = 80;
/// A run fits in one UDP datagram of the kernel's, headers included.
const RUN_MAX: usize = 65_000;
const BUFFER: usize = 66_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_wake_ups_cost_no_rate_and_packets_leave_in_bursts() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let base = Instant::now();
        for mbit_s in [2.0, 5.0, 20.0, 100.0, 1_000.0] {
            let gap = Duration::from_secs_f64(1_440.0 * 8.0 / (mbit_s * 1e6));
            let (mut pacing, mut now, mut release) = (Pacing::default(), base, base);
            let (mut packets, mut bursts) = (0_u32, 0_u32);
            while now < base + Duration::from_secs(2) {
                match pacing.wait(Some(release), now) {
                    None => {
                        packets += 1;
                        // As quiche's pacer: a late packet moves all later ones.
                        release = release.max(now) + gap;
                    }
                    Some(due) => {
                        bursts += 1;
                        let wait = (due - now).as_micros().div_ceil(1_000) as u64;
                        now += Duration::from_millis(wait) + Duration::from_micros(80);
                    }
                }
            }
            let share = f64::from(packets) * gap.as_secs_f64() / 2.0;
            assert!((0.95..1.03).contains(&share), "{mbit_s} Mbit/s: {share}");
            let each = gap.as_secs_f64() * f64::from(packets) / f64::from(bursts);
            assert!(each >= 0.99 * BURST.as_secs_f64(), "{mbit_s} Mbit/s: bursts of {each} s");
        }
    }
}
