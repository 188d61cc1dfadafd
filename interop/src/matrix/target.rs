//! The time within which a faulted carrier must be in use again, by class of fault.
//!
//! The targets are sums of the protocol's timers and round trips, not measurements: the stall
//! timeout, the intervals of a race of attempts, handshakes and slow start.

use std::time::Duration;

/// Rate of each carrier of the matrix in each direction, Mbit/s.
pub(super) const RATE_MBIT_S: f64 = 10.0;
/// Their round-trip time without load, ms.
pub(super) const ROUND_TRIP_MS: u32 = 40;
/// Their queue, KiB.
pub(super) const QUEUE_KIB: u32 = 128;
/// A carrier is in use when it has delivered this much to the gateway: more than handshakes.
pub(super) const IN_USE_BYTES: u64 = 32 * 1024;

/// The shortest time without acknowledged progress after which a path stalls and restarts. It is
/// above the delays that retransmissions of a live carrier cause.
const DETECTION_MS: u32 = 300;
/// When TLS joins a race of QUIC attempts: late enough that a working QUIC handshake wins.
const TLS_JOINS_MS: u32 = 300;
/// The longest interval between attempts of a race, because a lost packet should cost no more.
const ATTEMPT_MS: u32 = 100;
/// TCP, TLS, JOIN and its first data (three), then [`IN_USE_BYTES`] from an initial window of ten
/// segments (RFC 6928; two).
const ROUND_TRIPS: u32 = 5;
/// A margin for scheduling, polling of the counters and a busy machine.
const MARGIN_MS: u32 = 100;
/// The time to send the carrier's queue at its rate.
const QUEUE_MS: u32 = 105;
/// How long after the end of a connection its last packets in flight arrive.
const LAST_PROGRESS_MS: u32 = QUEUE_MS + ROUND_TRIP_MS;
/// How long a process may take from its start to its first attempt.
const START_MS: u32 = 200;
/// The longest interval between attempts on a carrier that was never up: TCP's first retransmission
/// timeout (RFC 6298, section 2.1).
const FIRST_ATTEMPT_MS: u32 = 1000;
/// A policed carrier must use TLS within 5 s.
const DEMOTION_MS: u32 = 5000;
/// At 1 Mbit/s [`IN_USE_BYTES`] take 262 ms; policed QUIC loses most of its first packets.
const TRICKLE_MS: u32 = 1500;

/// The target of [`Class::Change`].
const CHANGE_MS: u32 =
    LAST_PROGRESS_MS + DETECTION_MS + ATTEMPT_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS;
/// Restarts of a TLS path after long packets began to vanish.
const RESTARTS: u32 = 2;
/// A guest's processor is slow.
const GUEST_FACTOR: u32 = 2;

/// The faults with a common target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The carrier works, with worse quality: the first data of a download.
    Steady,
    /// The carrier was dark or missing and works again.
    Return,
    /// The same, after the queue that the carrier held.
    ReturnWithQueue,
    /// The carrier was never up before, so its attempts have backed off.
    First,
    /// The connection is dead without notice, and the carrier works.
    Change,
    /// Long packets vanish, and TLS has to find out. Short packets that still pass may end its
    /// first restart early.
    BlackHole,
    /// UDP fails in mid-transfer, and TLS takes over.
    Fallback,
    /// UDP never works, and TLS connects.
    FallbackAtStart,
    /// UDP is policed, and TLS takes over.
    Demotion,
    /// UDP is policed, and there is no other transport.
    Trickle,
    /// The clock stepped in a guest: at worst like [`Class::Change`].
    Clock,
}

/// The target of each class, milliseconds.
pub const TARGETS: [(Class, u32); 11] = [
    (Class::Steady, ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::Return, ATTEMPT_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::ReturnWithQueue, QUEUE_MS + ATTEMPT_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::First, FIRST_ATTEMPT_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::Change, CHANGE_MS),
    (Class::BlackHole, CHANGE_MS * RESTARTS),
    (
        Class::Fallback,
        LAST_PROGRESS_MS + DETECTION_MS + TLS_JOINS_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS,
    ),
    (Class::FallbackAtStart, START_MS + TLS_JOINS_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::Demotion, DEMOTION_MS),
    (Class::Trickle, TRICKLE_MS),
    (Class::Clock, CHANGE_MS * GUEST_FACTOR),
];

impl Class {
    /// The name in the document's table.
    pub fn name(self) -> &'static str {
        match self {
            Class::Steady => "steady",
            Class::Return => "return",
            Class::ReturnWithQueue => "return with queue",
            Class::First => "first",
            Class::Change => "change",
            Class::BlackHole => "black hole",
            Class::Fallback => "fallback",
            Class::FallbackAtStart => "fallback at start",
            Class::Demotion => "demotion",
            Class::Trickle => "trickle",
            Class::Clock => "clock",
        }
    }

    /// Its target.
    pub fn target(self) -> Duration {
        let ms = TARGETS.iter().find(|(class, _)| *class == self).map_or(0, |(_, ms)| *ms);
        Duration::from_millis(u64::from(ms))
    }
}
