//! The bounds of the session by name, with their units and effects.

use std::time::Duration;

use polyrail_model::UserId;

/// The maximum receive window of a new flow, in bytes, and never more than the largest one
/// ([`WINDOW_SHARE`]). While a carrier that has become slow holds data of a flow, the others
/// deliver a window of it at most. With 64 KiB a download of 1 MB takes four round trips more than
/// with 2 MiB, with 1 MiB one of 4 MB on the emulated rail has nine tenths of the rate, and with
/// 4 MiB 1.04 times as much (`docs/congestion.md`, section 4).
pub const WINDOW_INITIAL_MAX: u64 = 4 * 1024 * 1024;

/// A window grows to at most this part of the session's memory.
pub const WINDOW_SHARE: u64 = 4;

/// The window of a slow reader shrinks no further than this, in bytes.
pub const WINDOW_MIN: u64 = 64 * 1024;

/// Bytes that readers withhold, and bytes that were written and never sent, may each take this part
/// of the memory; beyond, each flow has [`FLOOR`] and the pace of its reader. The other half is for
/// bytes in flight.
pub const POOL_SHARE: u64 = 2;

/// One user's flows may queue this part of the memory.
pub const QUEUED_SHARE: u64 = 8;

/// One user's flows may withhold this part of the memory, and at most [`WITHHELD_MAX`], so that it
/// takes eight users who read nothing to exhaust the pool, and more with more memory. Bytes in
/// flight to a reader that stops are beside it. A reader whose pace is not known yet has it, too:
/// with a thirty-second downloads of 1 MB on the emulated rail have 0.96 of the rate.
pub const WITHHELD_SHARE: u64 = 16;

/// The most that one user's flows may withhold, in bytes, beside bytes in flight.
pub const WITHHELD_MAX: u64 = 1024 * 1024;

/// The peer's memory is scarce while less than this part of it is left.
pub const SCARCE_SHARE: u64 = 4;

/// While memory is scarce, a flow may have this part of the bytes that its reader ever took at the
/// peer: to exhaust the memory takes sixteen times as much traffic as memory remains.
pub const PROOF_SHARE: u64 = 16;

/// While more than half of its memory is taken, the receiver looks for readers that have stopped
/// after each such time. Our own: longer slows the others for longer, and with less, players that
/// read ahead and then pause would count as stopped. Players were not measured.
pub const STOPPED_LOOK: Duration = Duration::from_secs(10);

/// Bytes that each flow may always have at the peer, or queue here: enough to show that its reader
/// follows, and few enough that a thousand flows fit into half of 16 MiB.
pub const FLOOR: u64 = 5 * polyrail_scheduler::SEGMENT;

/// The pace of a reader: bytes taken within two of these periods; a period lasts at least two
/// round trips (receivers of QUIC tune their windows over two round trips, too).
pub const PACE_PERIOD: Duration = Duration::from_millis(125);

/// How long an OPEN waits for the first data, to travel together.
pub const OPEN_HOLD: Duration = Duration::from_millis(5);

/// How long an acknowledgement may wait for a second run.
pub const ACK_DELAY: Duration = Duration::from_millis(10);

/// Runs that one acknowledgement covers.
pub const ACK_EVERY: u32 = 2;

/// The share of the uplink for acknowledgements.
pub const ACK_UPLINK_SHARE: f64 = 0.03;

/// What acknowledgements may take in addition, of the user data received: a gateway that only
/// acknowledges may never learn the rate of its uplinks, however fast they are.
pub const ACK_RECEIVED_SHARE: f64 = 0.002;

/// The same next to a call: short queues need fresh acknowledgements.
pub const ACK_RECEIVED_SHARE_CALLS: f64 = 0.02;

/// An acknowledgement leaves after this time even if the share is used up.
pub const ACK_DELAY_MAX: Duration = polyrail_scheduler::ACK_DELAY_MAX;

/// The maximum of control frames that travel together, in bytes; a full tunnel still takes as many.
pub const CONTROL_BATCH: usize = 4 * 1024;

/// Acknowledgements up to this size are repeated on a second path.
pub const ACK_REPEAT_MAX: usize = 256;

/// Out-of-order pieces that a flow may hold; a peer that sends more breaks the protocol.
pub const FRAGMENTS_MAX: usize = 8_192;

/// All ranges that a session received out of order may take this part of its memory; a run that
/// adds another one resets its flow. An honest peer needs a tenth of it for segments.
pub const RANGES_SHARE: u64 = 16;

/// The memory of a range that was received out of order, in bytes: half-full nodes of a B-tree.
pub const RANGE_BYTES: u64 = 48;

/// All runs in flight of a session may take this part of its memory, [`RUN_BYTES`] each. Beyond,
/// each flow may have one, and an acknowledgement that splits a run resets its flow. An honest peer
/// acknowledges whole runs; segments of all its memory need three quarters of this.
pub const RUNS_SHARE: u64 = 4;

/// The memory of a run in flight, in bytes: half-full nodes of a B-tree. A run that was sent on
/// several paths takes up to 320 bytes more.
pub const RUN_BYTES: u64 = 256;

/// Unacknowledged runs of a flow; at the bound nothing new is sent.
pub const RUNS_MAX: usize = 2_048;

/// The maximum number of bytes of a flow that may be skipped because a faster path sends them
/// later; beyond, nothing is sent out of order. This bounds the number of runs.
pub const AHEAD_MAX: u64 = 1_024 * 1_024;

/// Bytes that a writer may queue beyond the flow's window while the flow may send.
pub const UNSENT_MAX: u64 = 64 * 1024;

/// A writer without room is woken when it has at least this much, in bytes.
pub const WRITABLE_MIN: u64 = 8 * 1024;

/// The user of flows that the gateway opens for itself: those of its DNS forwarder.
pub const OWN_USER: UserId = UserId(0);

/// The user of a speed test's flows. Numbers of passengers are hashes, so none has this one.
pub const TEST_USER: UserId = UserId(1);

/// Flows of [`OWN_USER`] that may be open although users have reached the bound on flows. Also the
/// least cap of this user and of [`TEST_USER`], whatever that of passengers is.
pub const FLOWS_RESERVED: usize = 8;

/// Reset flows that are remembered, to answer a peer that missed the reset: at most 1.5 MB. The
/// oldest is evicted first, and then counts as delivered. As many as a peer may have waiting for
/// such an answer: of an evicted one it would not learn how many bytes were sent, and the session's
/// credit for them would be lost.
pub const TOMBSTONES_MAX: usize = FLOWS_REFUSED_MAX;

/// Ended flows whose unconfirmed control frames a path remembers, beyond twice the open flows; then
/// all of them are forgotten, and their peer asks again.
pub const UNCONFIRMED_ENDED_MAX: usize = 1_024;

/// Flows beyond the bound of its settings that a cloud keeps until their refusal is answered; a
/// gateway that opens more breaks the protocol. A gateway keeps as many reset flows that wait for
/// the cloud's answer.
pub const FLOWS_REFUSED_MAX: usize = 16_384;

/// Flows whose OPEN has not arrived that a cloud keeps; a gateway that causes more breaks the
/// protocol. Each was overtaken by its own later data or RESET, because its OPEN is lost or on a
/// dark path. Ten busy trains open 375 flows a second, and few of them send more before an answer.
pub const FLOWS_UNOPENED_MAX: usize = 1_024;

/// Ranges of flow numbers that a cloud remembers: each gap is a flow whose OPEN is late, or that a
/// gateway of version 0.1 never sent. Beyond, the lowest gap is closed: its flows are reset when
/// their OPEN arrives. At most about 200 KiB a session.
pub const FLOW_RANGES_MAX: usize = 4_096;

/// The maximum overhead of an open flow, in bytes: its state, and the parts of its buffers that no
/// credit covers. A session allocates at most 1.2 times its memory for received bytes, three times
/// its memory for sent bytes, and this for each open flow.
pub const FLOW_OVERHEAD: u64 = 4 * 1_024;

/// How long a reset flow continues to deliver data written before the reset.
pub const RESET_LINGER: Duration = Duration::from_secs(30);

/// A peer of which nothing arrived for this time is silent: flows without an OPEN do not age.
pub const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Sessions of a cloud; a HELLO beyond is refused.
pub const SESSIONS_MAX: usize = 4_096;

/// Ranges of accepted path counters that a session remembers; beyond, the lowest is forgotten, and
/// all counters below it count as used.
pub const COUNTER_RANGES_MAX: usize = 1_024;

/// HELLOs whose keys a gateway remembers until it knows which one founded the session; without the
/// key it continues to send HELLOs.
pub const HELLOS_REMEMBERED: usize = 64;

/// Paths of a session; a HELLO or JOIN beyond is refused. Sixteen carriers, each with a path and
/// three attempts at another; also the maximum of the scheduler.
pub const SESSION_PATHS_MAX: usize = polyrail_scheduler::PATHS_MAX;

/// Bindings of a session; datagrams of further ones are dropped.
pub const BINDINGS_MAX: usize = 16_384;

/// A binding without datagrams for so long makes room for others (RFC 4787 REQ-5: at least two
/// minutes; five are recommended). Daemons end bindings earlier.
pub const BINDING_IDLE: Duration = Duration::from_secs(300);

/// Tunnels of one certificate at a cloud, refused ones included until they are down; further ones
/// are refused. Twice the paths of a session, because a session may replace another.
pub const TUNNELS_MAX: usize = 2 * SESSION_PATHS_MAX;

/// A tunnel that does not greet within this time, or is not answered, is closed. For an early
/// tunnel the time starts over when its handshake is finished.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// A path with unacknowledged data stalls after max(3 srtt + 4 rttvar, this) without progress.
pub const STALL_MIN: Duration = Duration::from_millis(300);

/// The maximum of 3 srtt + 4 rttvar in that rule.
pub const STALL_MAX: Duration = Duration::from_secs(5);

/// How long a failing path holds its segments, before the first stall is measured.
pub const RECOVERY: Duration = Duration::from_secs(1);

/// The maximum time that a long queue adds to that rule.
pub const STALL_QUEUE_MAX: Duration = Duration::from_secs(2);

/// A gateway PINGs a path when its received user data pauses for max(2 srtt, this).
pub const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Bytes that must have arrived before such a pause: a single message is not a transfer.
pub const PAUSE_BYTES: u64 = 4 * 1024;

/// A superseded path whose carrier has a newer one is closed when nothing has arrived over it for
/// max(srtt, this) and it has nothing in flight.
pub const RETIRE_MIN: Duration = Duration::from_millis(100);

/// Units remembered per run, to withdraw them when the run has arrived; beyond, the oldest is
/// forgotten and delivered anyway.
pub const UNITS_MAX: usize = 8;

/// The least time between two reports of the peer about a path that the caller receives; the peer
/// reports a stall no sooner than [`STALL_MIN`] after the last one.
pub const REPORT_APART: Duration = Duration::from_millis(250);

/// Notices about paths that wait to be sent; the oldest is dropped.
pub const NOTICES_MAX: usize = 64;

/// Prompt messages that wait for a path; the oldest is dropped and counted. Their senders limit
/// their rate.
pub const PROMPT_MAX: usize = 64;

/// Urgent messages that wait for a path or for their turn; the oldest is dropped and counted.
pub const URGENT_MAX: usize = 64;

/// Urgent messages sent in a second, each on all paths; a train of eight carriers has fewer
/// handovers. The others wait.
pub const URGENT_RATE: f64 = 16.0;

/// Urgent messages that may be sent at once.
pub const URGENT_BURST: f64 = 16.0;

/// A path that comes up, or takes control again, within this time after an urgent message was sent
/// gets a copy, too; with [`URGENT_RATE`] this bounds the number of kept messages.
pub const URGENT_KEPT: Duration = Duration::from_secs(3);

/// Background messages that wait for their turn; the oldest is dropped and counted.
pub const BACKGROUND_MAX: usize = 16;

/// One background message is sent in a round trip. Next to flows' data they take at most one part
/// in this many of their path's rate, if it is known.
pub const BACKGROUND_SHARE: u64 = 20;

/// The longest pause between two background messages while there is a path.
pub const BACKGROUND_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Interval of pings on a path that carried control frames since the last one.
pub const PING_ACTIVE: Duration = Duration::from_secs(1);

/// Interval of pings on a path that carries datagrams, which nobody acknowledges.
pub const PING_DATAGRAMS: Duration = Duration::from_millis(200);

/// Interval of pings on an idle path.
pub const PING_IDLE: Duration = Duration::from_secs(20);

/// A gateway that has received no frame over any path for this time PINGs its fastest path: an idle
/// train notices within seconds that its cloud has died or restarted. `docs/carriers.md` has the
/// bytes that this costs.
pub const PING_SILENT: Duration = Duration::from_secs(5);

/// Flows that a transmit turn may skip because they wait for other paths. The next turn continues
/// with the next flows.
pub const ASIDE_MAX: usize = 128;

/// Flows without credit that are examined after an event that may bring some: a passenger may have
/// thousands, and a download causes thousands of events a second.
pub const FED_AT_ONCE: usize = 4;

/// A scheduler that lets a segment wait for a time is asked again no sooner than after this.
pub const WAKE_APART: Duration = Duration::from_millis(1);

/// A flow that sent less than this in the last second is interactive, in bytes.
pub const INTERACTIVE_MAX: f64 = 16.0 * 1024.0;

/// Gateway processes of one certificate that are remembered, to notice two at once.
pub const INSTANCES_REMEMBERED: usize = 4;

/// Users with a weight other than 1 that a gateway remembers; at the bound all are forgotten, and
/// count as 1 until their addresses are seen again.
pub const WEIGHTS_MAX: usize = 16_384;
