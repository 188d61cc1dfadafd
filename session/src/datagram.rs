//! The state of one binding: its waiting datagrams, its rate, and the copies that have arrived.

mod codel;
mod reorder;
mod window;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::{BindingId, Bytes, Destination, UserId, Weight};

use codel::{Codel, Law};
pub(crate) use reorder::{Reorder, STREAM};
pub(crate) use window::Window;

use crate::carriers::CarrierSet;
use crate::drops::DatagramDrops;

/// A datagram that the caller sends or has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserDatagram {
    /// The passenger's endpoint.
    pub binding: BindingId,
    /// The user, from the gateway.
    pub user: Option<UserId>,
    /// The other end: to which the passenger sends, or which has sent.
    pub remote: Destination,
    /// Its contents, at most [`DATAGRAM_MAX`](crate::wire::DATAGRAM_MAX) bytes.
    pub payload: Vec<u8>,
    /// Its sender marked it as EF (RFC 3246). The peer does not learn it.
    pub expedited: bool,
}

/// One binding of a session.
#[derive(Debug)]
pub(crate) struct Binding {
    pub user: UserId,
    /// Its user's share; the gateway decides it.
    pub weight: Weight,
    queue: VecDeque<Queued>,
    /// Bytes in the queue.
    queued_bytes: usize,
    codel: Codel,
    rate: Rate,
    /// That of the received ones.
    received_rate: Rate,
    /// The newest datagram is marked as EF.
    expedited: bool,
    /// The number of datagrams sent.
    sent: u64,
    /// The length of the longest datagram sent.
    longest: usize,
    /// The sequence number of the next one. It begins with this side's clock, so that a binding
    /// that was forgotten does not repeat the numbers that its peer remembers.
    pub sequence: u64,
    pub received: Window,
    pub reorder: Reorder,
    /// It waits for its turn.
    pub waits: bool,
    pub begun_at: Instant,
    pub used_at: Instant,
    /// To which the passenger has sent its latest datagram.
    pub remote: Option<Destination>,
    /// Bytes of datagrams, without copies.
    pub sent_bytes: Bytes,
    pub received_bytes: Bytes,
    /// The carriers that have carried it, in either direction.
    pub carriers: CarrierSet,
}

/// How much of a binding may wait, and for how long.
#[derive(Debug)]
pub(crate) struct Patience {
    /// The longest queue.
    bytes: usize,
    /// A datagram that has waited for so long is of no use.
    stale: Duration,
    law: Law,
}

impl Patience {
    /// For single datagrams. They become stale at the limit of a conversation (ITU-T G.114). The
    /// interval is the longest usual round trip (RFC 8289 4.3): on a train, queues of carriers
    /// hold a few hundred milliseconds. The tunnel's bbr raises its rate only while datagrams
    /// wait, so with a target of 15 ms a download inside a flow follows its carrier too slowly.
    pub const SINGLE: Self = Self {
        bytes: 256 * 1_024,
        stale: Duration::from_millis(400),
        law: Law { target: Duration::from_millis(50), interval: Duration::from_millis(400) },
    };

    /// For datagrams before a stream. Rates change by more than a factor of two in a fifth of a
    /// second, so a shorter target cuts the rate inside the flow at each dip of the carriers, and
    /// that takes seconds to return: a VPN's download was 1 to 15 % slower.
    pub const STREAM: Self = Self {
        bytes: 512 * 1_024,
        stale: Duration::from_secs(1),
        law: Law { target: Duration::from_millis(200), interval: Duration::from_secs(1) },
    };
}

/// A datagram that waits.
#[derive(Debug)]
pub(crate) struct Queued {
    pub at: Instant,
    pub remote: Destination,
    pub payload: Vec<u8>,
    pub expedited: bool,
}

/// The rate over the present and the last period.
#[derive(Debug)]
struct Rate {
    since: Instant,
    packets: u32,
    /// Those that came [`APART`] after the one before.
    spaced: u32,
    bytes: usize,
    /// The present and the last period have few bytes, as a call.
    few: bool,
    /// The last period has as many packets as a call, or it is a pause of speech.
    steady: bool,
    /// Periods like those of a call in succession.
    speech: u32,
    /// Further periods with fewer packets that count as a pause of speech.
    pause: u32,
    /// When the last packet came.
    last_at: Instant,
    /// How many periods in succession have had few bytes.
    calm: u32,
}

impl Binding {
    pub fn new(now: Instant, user: UserId, sequence: u64) -> Self {
        Self {
            user,
            weight: Weight::default(),
            sequence,
            queue: VecDeque::new(),
            queued_bytes: 0,
            codel: Codel::default(),
            rate: Rate::new(now),
            received_rate: Rate::new(now),
            expedited: false,
            sent: 0,
            longest: 0,
            received: Window::default(),
            reorder: Reorder::default(),
            waits: false,
            begun_at: now,
            used_at: now,
            remote: None,
            sent_bytes: Bytes(0),
            received_bytes: Bytes(0),
            carriers: CarrierSet::default(),
        }
    }

    /// Appends a datagram, and drops the oldest ones if the queue is too long or they are stale.
    pub fn push(
        &mut self,
        now: Instant,
        patience: &Patience,
        datagram: Queued,
        drops: &mut DatagramDrops,
    ) {
        self.used_at = now;
        self.rate.add(now, datagram.cost());
        self.expedited = datagram.expedited;
        self.longest = self.longest.max(datagram.payload.len());
        self.queued_bytes += datagram.cost();
        self.queue.push_back(datagram);
        // The oldest is dropped: the newest is worth more.
        while let Some(oldest) = self.queue.front() {
            if now.saturating_duration_since(oldest.at) >= patience.stale {
                drops.stale += 1;
            } else if self.queued_bytes > patience.bytes {
                drops.queue += 1;
            } else {
                break;
            }
            self.queued_bytes -= oldest.cost();
            self.queue.pop_front();
        }
    }

    /// Datagrams that wait: to be sent, and received ones for their turn.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.reorder.held()
    }

    /// Bytes that wait, with the cost of each datagram.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// The next one was sent.
    pub fn on_sent(&mut self, bytes: u64) {
        self.sent += 1;
        self.sequence += 1;
        self.sent_bytes.0 += bytes;
    }

    /// A datagram has arrived.
    pub fn on_received(&mut self, now: Instant, bytes: usize) {
        self.received_bytes.0 += bytes as u64;
        self.received_rate.add(now, bytes + OVERHEAD);
    }

    /// It carries more than a call, in either direction, or may do so soon, as QUIC.
    pub fn is_bulk(&self, now: Instant) -> bool {
        let begins_quic = self.sent < FIRST && self.may_be_quic();
        let has_more = !self.rate.is_few(now) || !self.received_rate.is_few(now);
        self.has_sent() && (begins_quic || has_more)
    }

    /// This side's endpoint has sent something.
    pub fn has_sent(&self) -> bool {
        self.sent > 0 || !self.is_empty()
    }

    /// Its datagrams go into its stream if it has one: a download that waits for its server is not
    /// a call at once. QUIC's first ones do so too, because the user's control compares their round
    /// trips with later ones (HyStart++, RFC 9406): copies of single datagrams are sooner.
    pub fn prefers_stream(&self, now: Instant) -> bool {
        let is_young_quic = self.may_be_quic() && self.is_new(now) && !self.expedited;
        is_young_quic || !self.is_realtime() || self.rate.calm < CALM
    }

    /// The passenger has sent a datagram to this destination.
    pub fn set_remote(&mut self, remote: &Destination) {
        if self.remote.as_ref() != Some(remote) {
            self.remote = Some(remote.clone());
        }
    }

    /// The next datagram to send; drops those before it that waited too long.
    pub fn pop(
        &mut self,
        now: Instant,
        patience: &Patience,
        drops: &mut DatagramDrops,
    ) -> Option<Queued> {
        while let Some(next) = self.queue.pop_front() {
            self.queued_bytes -= next.cost();
            let waited = now.saturating_duration_since(next.at);
            let is_last = self.queue.is_empty();
            if waited >= patience.stale {
                drops.stale += 1;
            } else if self.codel.drops(now, &patience.law, waited, is_last) {
                drops.codel += 1;
            } else {
                return Some(next);
            }
        }
        None
    }

    /// Returns a datagram that no path takes now.
    pub fn put_back(&mut self, datagram: Queued) {
        self.queued_bytes += datagram.cost();
        self.queue.push_front(datagram);
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The cost of the next datagram.
    pub fn next_cost(&self) -> usize {
        self.queue.front().map_or(0, Queued::cost)
    }

    /// It is at its beginning, or sends like a call: few bytes, steadily or marked as EF.
    pub fn is_realtime(&self) -> bool {
        let speaks = self.rate.steady || self.begins_to_speak();
        self.sent < FIRST || (self.rate.few && (speaks || self.expedited))
    }

    /// It has sent like a call for two seconds, or begins to speak, and receives no more than one:
    /// it is no short exchange, nor the acknowledgements of a download, nor the pause between two.
    pub fn is_call(&self, now: Instant) -> bool {
        let speaks = self.rate.steady && !self.is_new(now) || self.begins_to_speak();
        speaks && self.rate.few && self.rate.calm >= CALM && !self.is_bulk(now)
    }

    /// Short packets, one after the other: a call from the first moment.
    fn begins_to_speak(&self) -> bool {
        self.rate.spaced >= SPEECH_PACKETS && !self.may_be_quic()
    }

    /// It has had a datagram as long as QUIC's first (RFC 9000 section 14.1).
    fn may_be_quic(&self) -> bool {
        self.longest >= QUIC_FIRST
    }

    /// It has existed for less than two seconds.
    fn is_new(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.begun_at) < PERIOD * CALM
    }
}

impl Queued {
    /// Its bytes on a carrier, about: an empty datagram is not free.
    pub fn cost(&self) -> usize {
        self.payload.len() + OVERHEAD
    }
}

impl Rate {
    /// Whether the present and the last period have few bytes.
    fn is_few(&self, now: Instant) -> bool {
        self.few || now.saturating_duration_since(self.since) >= 2 * PERIOD
    }

    fn new(now: Instant) -> Self {
        Self {
            since: now,
            packets: 0,
            spaced: 0,
            bytes: 0,
            few: true,
            steady: false,
            speech: 0,
            pause: 0,
            last_at: now,
            calm: CALM,
        }
    }

    fn add(&mut self, now: Instant, bytes: usize) {
        let age = now.saturating_duration_since(self.since);
        let gap = now.saturating_duration_since(std::mem::replace(&mut self.last_at, now));
        if age >= PERIOD {
            let is_over = age >= 2 * PERIOD;
            let few = self.bytes <= STEADY_BYTES_MAX;
            self.few = few || is_over;
            let passed = (age.as_millis() / PERIOD.as_millis()) as u32;
            self.calm = if few { self.calm.saturating_add(passed) } else { passed - 1 };
            let is_call = !is_over && self.packets >= STEADY_PACKETS_MIN;
            self.speech = if is_call && few { self.speech + 1 } else { 0 };
            self.pause = match self.speech {
                _ if !few || gap >= GAP_MAX => 0,
                CALM.. => PAUSE,
                _ => self.pause.saturating_sub(passed),
            };
            self.steady = is_call || self.pause > 0;
            (self.since, self.packets, self.spaced, self.bytes) = (now, 0, 0, 0);
        }
        self.packets += 1;
        self.spaced += u32::from(gap >= APART);
        self.bytes += bytes;
        // A burst ends it at once.
        if self.bytes > STEADY_BYTES_MAX {
            (self.few, self.calm) = (false, 0);
        }
    }
}

/// The headers of IP, UDP, tunnel and frame.
const OVERHEAD: usize = 64;
/// Each flow's first datagrams: handshakes, and requests of one packet.
const FIRST: u64 = 4;
/// The length of QUIC's first datagram, at least.
const QUIC_FIRST: usize = 1_200;
/// The period over which a rate is judged.
const PERIOD: Duration = Duration::from_millis(500);
/// Periods with few bytes after which a flow with more is like a call again: a download that waits
/// for its server is none.
const CALM: u32 = 4;
/// 320 kbit/s with the overhead: voice, and a small video.
const STEADY_BYTES_MAX: usize = 20_000;
/// Ten a second.
const STEADY_PACKETS_MIN: u32 = 5;
/// Packets apart within a period that make a call at once: 200 ms of speech.
const SPEECH_PACKETS: u32 = 10;
const APART: Duration = Duration::from_millis(5);
/// A call that suppresses silence sends a packet in 160 (3GPP TS 26.193) or 400 ms (Opus) during
/// it, and one may be lost.
const GAP_MAX: Duration = Duration::from_secs(1);
/// For so many periods, half a minute and a little more: other flows have few packets for longer.
const PAUSE: u32 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE: Patience = Patience::SINGLE;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tables
        Instant::now()
    }

    fn queued(at: Instant, bytes: usize) -> Queued {
        let remote = Destination::Address(([192, 0, 2, 1], 443).into());
        Queued { at, remote, payload: vec![0; bytes], expedited: false }
    }

    #[test]
    fn call_is_real_time_and_a_download_is_only_at_its_beginning() {
        // Bytes, packets a second, whether they are marked as EF, and whether the binding is
        // real-time after two seconds.
        for (bytes, each_s, expedited, wanted) in [
            (160, 50, false, true),
            (1_200, 30, false, true),
            (1_200, 400, false, false),
            (1_200, 400, true, false),
            (100, 2, false, false),
            (100, 5, true, true),
            (0, 2_000, false, false),
            (0, 2_000, true, false),
        ] {
            let begin = base();
            let mut binding = Binding::new(begin, UserId(1), 0);
            assert!(binding.is_realtime(), "its first ones");
            for number in 0..2 * each_s {
                let now = begin + Duration::from_secs(1) * number / each_s;
                let drops = &mut DatagramDrops::default();
                binding.push(now, &SINGLE, Queued { expedited, ..queued(now, bytes) }, drops);
                binding.pop(now, &SINGLE, drops);
                binding.on_sent(bytes as u64);
            }
            let row = format!("{bytes} bytes, {each_s} a second, EF {expedited}");
            assert_eq!(binding.is_realtime(), wanted, "{row}");
        }
    }

    #[test]
    fn download_prefers_a_stream_until_it_is_calm_for_two_seconds_and_a_call_never_does() {
        let step = Duration::from_millis(20);
        let mut now = base();
        let mut binding = Binding::new(now, UserId(1), 0);
        let mut send = |binding: &mut Binding, count: u32, bytes: usize| {
            for _ in 0..count {
                let drops = &mut DatagramDrops::default();
                binding.push(now, &SINGLE, queued(now, bytes), drops);
                binding.pop(now, &SINGLE, drops);
                binding.on_sent(bytes as u64);
                now += step;
            }
            (binding.prefers_stream(now), binding.is_bulk(now), binding.is_call(now))
        };
        assert_eq!(send(&mut binding, 3, 160), (false, false, false), "its first datagrams");
        assert_eq!(send(&mut binding, 6, 160), (true, false, false), "180 ms of a call");
        assert_eq!(send(&mut binding, 2, 160), (false, false, true), "220 ms");
        assert_eq!(send(&mut binding, 100, 1_200), (true, true, false), "60 KB/s");
        assert_eq!(send(&mut binding, 50, 160), (true, false, false), "a pause of 1 s");
        assert_eq!(send(&mut binding, 100, 160), (false, false, true), "after 3 s");
        assert!(!binding.is_bulk(now));
        binding.on_received(now, 30_000);
        assert!(binding.is_bulk(now) && !binding.prefers_stream(now), "it receives a download");
        assert!(!binding.is_call(now), "and acknowledges it");
        let over = now + 2 * PERIOD;
        assert!(!binding.is_bulk(over) && binding.is_call(over), "that is over");
    }

    /// Sends packets of these bytes, each so many milliseconds after the one before; whether the
    /// binding is a call then, and real-time.
    fn send(binding: &mut Binding, now: &mut Instant, packets: (u32, usize, u64)) -> (bool, bool) {
        let (count, bytes, each_ms) = packets;
        for _ in 0..count {
            let drops = &mut DatagramDrops::default();
            *now += Duration::from_millis(each_ms);
            binding.push(*now, &SINGLE, queued(*now, bytes), drops);
            binding.pop(*now, &SINGLE, drops);
            binding.on_sent(bytes as u64);
        }
        (binding.is_call(*now), binding.is_realtime())
    }

    #[test]
    fn call_is_known_soon_and_exchanges_are_none() {
        // Packets, their bytes, the pause before each in ms; a call, real-time.
        type Step = (u32, usize, u64, bool, bool);
        let table: [(&str, &[Step]); 6] = [
            ("speech", &[(9, 160, 20, false, false), (1, 160, 20, true, true)]),
            ("60 ms of it in each", &[(9, 400, 60, false, true), (25, 400, 60, true, true)]),
            ("a burst", &[(20, 160, 0, false, false), (1, 160, 200, false, false)]),
            ("an exchange, and once more", &[(5, 60, 0, false, false), (1, 60, 600, false, true)]),
            ("QUIC", &[(1, 1_200, 0, false, true), (95, 160, 20, false, true)]),
            ("QUIC that lasts", &[(1, 1_200, 0, false, true), (105, 160, 20, true, true)]),
        ];
        for (what, steps) in table {
            let mut now = base();
            let mut binding = Binding::new(now, UserId(1), 0);
            for &(count, bytes, each_ms, call, realtime) in steps {
                let seen = send(&mut binding, &mut now, (count, bytes, each_ms));
                assert_eq!(seen, (call, realtime), "{what}: {count} of {bytes} bytes");
            }
        }
    }

    #[test]
    fn young_quic_prefers_a_stream_unless_it_is_marked() {
        for (bytes, expedited, age_ms, wanted) in [
            (1_200, false, 0, true),
            (1_200, false, 1_999, true),
            (1_200, false, 2_000, false),
            (1_200, true, 0, false),
            (1_199, false, 0, false),
        ] {
            let mut now = base();
            let mut binding = Binding::new(now, UserId(1), 0);
            let drops = &mut DatagramDrops::default();
            binding.push(now, &SINGLE, Queued { expedited, ..queued(now, bytes) }, drops);
            now += Duration::from_millis(age_ms);
            assert_eq!(binding.prefers_stream(now), wanted, "{bytes} {expedited} {age_ms}");
        }
    }

    #[test]
    fn call_that_suppresses_silence_remains_one() {
        let mut now = base();
        let mut binding = Binding::new(now, UserId(1), 0);
        assert_eq!(send(&mut binding, &mut now, (200, 60, 20)), (true, true), "speech");
        for each_ms in [160, 400] {
            for number in 0..20 {
                // Each fifth is lost.
                let each_ms = if number % 5 == 4 { 2 * each_ms } else { each_ms };
                let silence = send(&mut binding, &mut now, (1, 60, each_ms));
                assert_eq!(silence, (true, true), "silence, {each_ms} ms");
            }
            assert_eq!(send(&mut binding, &mut now, (150, 60, 20)), (true, true), "speech again");
        }
        let silence = send(&mut binding, &mut now, (29 * 6, 60, 160));
        assert_eq!(silence, (true, true), "28 s of silence");
        assert_eq!(send(&mut binding, &mut now, (80, 60, 160)), (false, false), "41 s");
        send(&mut binding, &mut now, (200, 60, 20));
        assert_eq!(send(&mut binding, &mut now, (2, 60, 1_100)), (false, false), "it is over");
    }

    #[test]
    fn trickle_after_other_packets_is_no_call() {
        let trickle = (100, 60, 160);
        // Nothing before, a handshake, and a download.
        for before in [(0, 0, 0), (30, 100, 50), (400, 1_200, 2)] {
            let mut now = base();
            let mut binding = Binding::new(now, UserId(1), 0);
            send(&mut binding, &mut now, before);
            assert_eq!(send(&mut binding, &mut now, trickle), (false, false), "after {before:?}");
        }
    }

    #[test]
    fn queue_is_bounded_and_drops_the_oldest() {
        let now = base();
        for bytes in [0, 1_000] {
            let mut binding = Binding::new(now, UserId(1), 0);
            let mut drops = DatagramDrops::default();
            (0..5_000).for_each(|_| binding.push(now, &SINGLE, queued(now, bytes), &mut drops));
            let queue = 5_000 - (SINGLE.bytes / (bytes + OVERHEAD)) as u64;
            assert_eq!(drops, DatagramDrops { queue, ..DatagramDrops::default() }, "{bytes} bytes");
            assert!(binding.queued_bytes() <= SINGLE.bytes);
        }
        let (mut binding, mut drops) = (Binding::new(now, UserId(1), 0), DatagramDrops::default());
        binding.push(now, &SINGLE, queued(now, 1), &mut drops);
        assert_eq!(drops.total(), 0);
        let later = now + SINGLE.stale;
        binding.push(later, &SINGLE, queued(later, 1), &mut drops);
        assert_eq!((drops.stale, drops.total()), (1, 1));
    }

    #[test]
    fn stale_datagrams_are_dropped_unsent() {
        let now = base();
        let (mut binding, mut drops) = (Binding::new(now, UserId(1), 0), DatagramDrops::default());
        for at_ms in [0, 10, 390] {
            let at = now + Duration::from_millis(at_ms);
            binding.push(at, &SINGLE, queued(at, 100), &mut drops);
        }
        let next = binding.pop(now + Duration::from_millis(420), &SINGLE, &mut drops);
        let at = next.map(|next| next.at);
        assert_eq!((at, drops.stale), (Some(now + Duration::from_millis(390)), 2));
        assert!(binding.is_empty() && binding.queued_bytes == 0);
    }
}
