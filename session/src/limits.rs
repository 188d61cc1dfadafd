//! Every bound of the session by name, with its unit and what happens at the bound.

use std::time::Duration;

/// Window of a new flow, in bytes: it grows only by what its reader drains (DESIGN: 64 KB).
pub const WINDOW_INITIAL: u64 = 64 * 1024;

/// A flow that the gateway opens begins with so much more, in bytes, while there is room for it
/// and its user has not had its part: with 64 KB alone a download of 1 MB takes four round trips,
/// however fast the carriers are.
pub const WINDOW_EARLY_MAX: u64 = 2 * 1024 * 1024;

/// What flows hold of this counts as shares of a pool, and all together are granted no more than
/// this part of the session's memory, each half of what is left of it: two hundred readers that
/// stop at once must not hold all of the memory. A flow beyond begins with 64 KB.
pub const WINDOW_EARLY_SHARE: u64 = 2;

/// Of the pool, those of one user are granted no more than this part of the session's memory, each
/// half of what is left of it: the first has what the sender lets a user have out before its
/// readers drain ([`STALLED_USER_SHARE`]). Half of that costs downloads of 4 MB on the emulated
/// rail a tenth of their rate.
pub const WINDOW_EARLY_USER_SHARE: u64 = 4;

/// A share counts for so long; after that while more than [`WINDOW_INITIAL`] is held for the
/// flow's reader, and until the reader has drained the first window.
pub const WINDOW_EARLY_TIME: Duration = Duration::from_secs(1);

/// A flow's window is given no more than this part of the session's memory, and when it begins or
/// grows this part of what is free of it; two segments at least, and at the beginning 64 KB.
pub const WINDOW_SHARE: u64 = 4;

/// Of flows whose readers do not drain, all together may hold this part of the peer's memory;
/// beyond, the sender holds back all but [`STALLED_FLOOR`] a flow.
pub const STALLED_SHARE: u64 = 2;

/// Of such flows, those of one user may hold this part of the peer's memory.
pub const STALLED_USER_SHARE: u64 = 8;

/// A user whose flows withhold no more than this part of the peer's memory is not held back when
/// others withhold all that may be: its readers that follow may have out what credit allows.
pub const STALLED_LITTLE_SHARE: u64 = 64;

/// Flows of a user that withholds this part of the peer's memory all the same have out what their
/// readers have taken lately, and one segment.
pub const STALLED_USER_MOST: u64 = 4;

/// Lately is within so long, or two round trips, and the same again.
pub const LATELY: Duration = Duration::from_millis(125);

/// What each such flow may hold in any case, in bytes, so that it can prove that it drains.
pub const STALLED_FLOOR: u64 = 4 * polyrail_scheduler::SEGMENT;

/// A flow whose reader has drained nothing for so long counts as stalled; at least four round
/// trips.
pub const STALLED_AFTER: Duration = Duration::from_millis(500);

/// How long an OPEN waits for the first data to ride along.
pub const OPEN_HOLD: Duration = Duration::from_millis(5);

/// How long an acknowledgement may wait for a second run.
pub const ACK_DELAY: Duration = Duration::from_millis(10);

/// Runs that one acknowledgement covers.
pub const ACK_EVERY: u32 = 2;

/// The share of the uplink that acknowledgements may take.
pub const ACK_UPLINK_SHARE: f64 = 0.03;

/// An acknowledgement that the share holds back goes out after this time all the same.
pub const ACK_DELAY_MAX: Duration = Duration::from_millis(50);

/// Control frames that travel together, in bytes; also what a full tunnel still takes.
pub const CONTROL_BATCH: usize = 4 * 1024;

/// Acknowledgements up to this size are repeated on a second path.
pub const ACK_REPEAT_MAX: usize = 256;

/// Out-of-order pieces that a flow may hold; a peer that makes more breaks the protocol.
pub const FRAGMENTS_MAX: usize = 8_192;

/// Runs that a flow may have unacknowledged; at the bound it waits.
pub const RUNS_MAX: usize = 2_048;

/// What a flow may skip over at once because it goes later, over a faster path, in bytes; beyond,
/// nothing is sent out of turn. So runs stay few, however small it is cut.
pub const AHEAD_MAX: u64 = 1_024 * 1_024;

/// What was never sent of all flows may take this part of this side's memory, what was not of one
/// user's half of that, and each flow's a quarter of what is left; beyond, a flow has what it needs
/// to go on.
pub const UNSENT_SHARE: u64 = 2;

/// This part of this side's memory is never given to what was not sent.
pub const UNSENT_RESERVE: u64 = 4;

/// What a local writer may hold unsent beyond the flow's window, in bytes.
pub const UNSENT_MAX: u64 = 64 * 1024;

/// The same for a flow whose reader has stalled, and what one whose reader follows may hold in any
/// case.
pub const UNSENT_STALLED_MAX: u64 = 16 * 1024;

/// A writer that was refused is told when at least this much room is there, in bytes.
pub const WRITABLE_MIN: u64 = 8 * 1024;

/// Ended flows whose outcome is remembered, to answer a peer that missed it. The oldest is
/// forgotten first; it is then answered as delivered.
pub const TOMBSTONES_MAX: usize = 16_384;

/// Flows beyond the bound of its settings that a cloud keeps until their refusal is answered; a
/// gateway that opens more breaks the protocol.
pub const FLOWS_REFUSED_MAX: usize = 16_384;

/// How far flow numbers may leap ahead: those of flows that ended before anything of them was
/// sent are missing.
pub const FLOWS_AHEAD_MAX: u64 = 1 << 20;

/// How long a reset flow goes on delivering what was written before the reset.
pub const RESET_LINGER: Duration = Duration::from_secs(30);

/// Sessions that a cloud holds; a HELLO beyond is refused.
pub const SESSIONS_MAX: usize = 4_096;

/// Ranges of path counters that a session remembers to have accepted; of more the lowest is
/// forgotten, and all below count as used.
pub const COUNTER_RANGES_MAX: usize = 1_024;

/// HELLOs whose keys a gateway remembers until it knows which one founded the session; without the
/// key it goes on with HELLOs.
pub const HELLOS_REMEMBERED: usize = 64;

/// Paths of a session; a HELLO or JOIN beyond is refused. Sixteen carriers, each with a path and
/// three attempts at another; also what the scheduler can tell apart.
pub const SESSION_PATHS_MAX: usize = polyrail_scheduler::PATHS_MAX;

/// A tunnel that does not greet within this time, or is not answered, is closed. An early one that
/// waits for the end of its handshake has as long for that, and as long again from then on.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// A path without session progress for max(3 srtt + 4 rttvar, this) with data waiting stalls.
pub const STALL_MIN: Duration = Duration::from_millis(300);

/// A gateway PINGs a path on which user data came in and stopped, after max(2 srtt, this).
pub const SILENCE_MIN: Duration = Duration::from_millis(100);

/// What must have come in before such a silence, in bytes: a single message is not a transfer.
pub const SILENCE_BYTES: u64 = 4 * 1024;

/// A superseded path whose carrier goes on over a newer one is closed when nothing has come in over
/// it for max(srtt, this) and nothing of its own is out.
pub const RETIRE_MIN: Duration = Duration::from_millis(100);

/// Units in which a run went out that are remembered, to withdraw them when it has arrived; of more
/// the oldest is forgotten and delivered in vain.
pub const UNITS_MAX: usize = 8;

/// Notices about paths that wait to be sent; the oldest is dropped.
pub const NOTICES_MAX: usize = 64;

/// Urgent messages that wait for a path or for their turn; the oldest is dropped and counted.
pub const URGENT_MAX: usize = 64;

/// Urgent messages that leave in a second, each on all paths; a train of eight carriers has fewer
/// handovers. The others wait.
pub const URGENT_RATE: f64 = 16.0;

/// Urgent messages that may leave at once.
pub const URGENT_BURST: f64 = 16.0;

/// A path that comes up, or takes control again, within this time after an urgent message has left
/// gets its copy, too; with [`URGENT_RATE`] it bounds how many are kept.
pub const URGENT_KEPT: Duration = Duration::from_secs(3);

/// Background messages that wait for their turn; the oldest is dropped and counted.
pub const BACKGROUND_MAX: usize = 16;

/// One background message leaves in a round trip. Next to flows' data they take at most one part in
/// so many of what their path carries, if its rate is known.
pub const BACKGROUND_SHARE: u64 = 20;

/// But one leaves after this time if there is a path.
pub const BACKGROUND_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Interval of pings on a path that carried control frames since the last one.
pub const PING_ACTIVE: Duration = Duration::from_secs(1);

/// Interval of pings on a path whose handover is foreseen to fail now: it is kept empty, and is to
/// show all the same whether it does fail.
pub const PING_FORESEEN: Duration = Duration::from_millis(200);

/// Interval of pings on an idle path.
pub const PING_IDLE: Duration = Duration::from_secs(20);

/// Flows that are asked in vain in one go, because they wait for other paths. Of more the next ones
/// are asked in the next go, and those again when all have been.
pub const ASIDE_MAX: usize = 128;

/// A scheduler that lets a segment wait for a time is asked again no sooner than after this.
pub const WAKE_APART: Duration = Duration::from_millis(1);

/// A flow that sent less than this in the last second is interactive, in bytes.
pub const INTERACTIVE_MAX: f64 = 16.0 * 1024.0;

/// Gateway processes of one certificate that are remembered, to notice two at once.
pub const INSTANCES_REMEMBERED: usize = 4;
