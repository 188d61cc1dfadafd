//! Within which time a faulted carrier is in use again, by class of fault.
//!
//! Derived from the design's own figures, not from measurements: detection, race, round trips.

use std::time::Duration;

/// Rate of each carrier of the matrix in each direction, Mbit/s.
pub(super) const RATE_MBIT_S: f64 = 10.0;
/// Their round-trip time without load, ms.
pub(super) const ROUND_TRIP_MS: u32 = 40;
/// Their queue, KiB.
pub(super) const QUEUE_KIB: u32 = 128;
/// A carrier is in use when it has delivered so much downwards: more than handshakes have.
pub(super) const IN_USE_BYTES: u64 = 32 * 1024;

/// Without acknowledged progress for so long, a path restarts (DESIGN 4: at least 300 ms).
const DETECTION_MS: u32 = 300;
/// TLS joins a race of QUIC attempts after so long (DESIGN 4).
const TLS_JOINS_MS: u32 = 300;
/// The longest wait for the next attempt of a race (DESIGN 4).
const ATTEMPT_MS: u32 = 100;
/// TCP, TLS, JOIN and its first data (three), then [`IN_USE_BYTES`] from an initial window of ten
/// segments (RFC 6928; two).
const ROUND_TRIPS: u32 = 5;
/// What scheduling, the harness's look at the counters and a busy machine may add.
const MARGIN_MS: u32 = 100;
/// The carrier's queue, sent at its rate.
const QUEUE_MS: u32 = 105;
/// The last progress of a connection comes so late after its end: packets in flight arrive.
const LAST_PROGRESS_MS: u32 = QUEUE_MS + ROUND_TRIP_MS;
/// How long a process may take from its start to its first attempt.
const START_MS: u32 = 200;
/// The longest wait for the next attempt on a carrier that was never there: what TCP's first
/// retransmission waits (RFC 6298 2.1).
const FIRST_ATTEMPT_MS: u32 = 1000;
/// A demotion's bound is a goal of its own: 5 s.
const DEMOTION_MS: u32 = 5000;
/// At 1 Mbit/s [`IN_USE_BYTES`] take 262 ms; policed QUIC loses most of its first packets.
const TRICKLE_MS: u32 = 1500;

/// The target of [`Class::Change`].
const CHANGE_MS: u32 =
    LAST_PROGRESS_MS + DETECTION_MS + ATTEMPT_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS;
/// A guest's kernel is a process among others, and its system calls take several times as long.
const GUEST_FACTOR: u32 = 2;

/// What kinds of faults have the same target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The carrier is there, if worse: the first data of a download.
    Steady,
    /// The carrier was gone and is there again.
    Return,
    /// The same, behind what the carrier held.
    ReturnWithQueue,
    /// The carrier was never there before, so that nobody had haste.
    First,
    /// The connection is dead and the carrier is not, but nobody says so.
    Change,
    /// UDP dies in mid-transfer, TLS takes over.
    Fallback,
    /// UDP never worked, TLS begins.
    FallbackAtStart,
    /// UDP is policed, TLS takes over.
    Demotion,
    /// UDP is policed and there is no other way.
    Trickle,
    /// The clock stepped, in a guest: at worst that looks like [`Class::Change`].
    Clock,
}

/// The target of each class, milliseconds.
pub const TARGETS: [(Class, u32); 10] = [
    (Class::Steady, ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::Return, ATTEMPT_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::ReturnWithQueue, QUEUE_MS + ATTEMPT_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::First, FIRST_ATTEMPT_MS + ROUND_TRIPS * ROUND_TRIP_MS + MARGIN_MS),
    (Class::Change, CHANGE_MS),
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
