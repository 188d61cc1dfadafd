//! The trait that every tunnel implements, and the values that cross it.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_congestion::Knowledge;
use polyrail_identity::Peer;
use polyrail_model::{Identity, LinkSample, TunnelMode, Unit};

use crate::{CloseReason, TunnelDrops};

/// The maximum number of bytes of one [`Tunnel::send`]: one TLS record (RFC 8446 5.1).
pub const FRAMES_MAX: usize = 16_384;

/// How far control frames may exceed [`Tunnel::room`], in bytes.
pub const CONTROL_EXCESS: usize = 4_096;

/// A connection that carries frames between a gateway and a cloud.
///
/// ```text
///  connect() ──> Connecting ──> Handshaking ──[Early]──> Up ──close()──> Closing ──> Closed
///  accept()  ─────────────────────^  │            │       │                 │          ^
///                                    └────────────┴───────┴── any failure ──┴──────────┘
/// ```
///
/// `Early` may be reported once before `Up`: units can be sent and received before the handshake
/// is finished (RFC 8446 2.3). An attacker may replay them, so only frames that are safe against
/// replay may be sent. The tunnel sends early data that the peer rejects again after the handshake.
/// `Up` is reported once, after the handshake and the checks of the peer's certificate, unless the
/// tunnel ends before it is polled; `Closed` once, as the last event. A dropped tunnel closes its
/// socket at once.
///
/// **The drain contract.** The registration is edge-triggered. After `register`, `on_ready`,
/// `on_timeout` or `close`:
/// 1. call [`poll_event`](Self::poll_event) until `None`;
/// 2. call [`receive`](Self::receive) until it returns 0, or stop early and call it again later
///    without waiting for an event: unread data raises none. It may end the tunnel, so poll events
///    again afterwards;
/// 3. while [`room`](Self::room) is not 0, [`send`](Self::send); then [`flush`](Self::flush) once;
/// 4. arm a timer for [`next_timeout`](Self::next_timeout).
///
/// Room is 0 only before `Early` or `Up`, after the end, and while the transport is full; in the
/// last case an event or a timeout follows.
pub trait Tunnel {
    /// Registers the tunnel's socket with the caller's poll, once.
    ///
    /// # Errors
    /// The poll refuses the socket.
    fn register(&mut self, registry: &mio::Registry, token: mio::Token) -> io::Result<()>;

    /// Takes it out of the caller's poll.
    ///
    /// # Errors
    /// The poll does not know the socket.
    fn deregister(&mut self, registry: &mio::Registry) -> io::Result<()>;

    /// Handles a readiness event: continues connect and handshake, and sends pending bytes.
    ///
    /// `readable` and `writable` come from mio's event; an error or a hang-up sets both.
    fn on_ready(&mut self, now: Instant, readable: bool, writable: bool);

    /// Runs the timers that are due; early or needless calls have no effect.
    fn on_timeout(&mut self, now: Instant);

    /// When [`on_timeout`](Self::on_timeout) must be called.
    fn next_timeout(&self) -> Option<Instant>;

    /// The next event.
    fn poll_event(&mut self) -> Option<TunnelEvent>;

    /// Hands the peer's bytes to `sink`, in order, in pieces of any size.
    ///
    /// Returns the number of bytes read from the network: at most about 256 KiB a call, 0 if there
    /// are no more for now. It delivers no bytes before [`TunnelEvent::Early`] or
    /// [`TunnelEvent::Up`] was polled.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// Bytes of frames for which the tunnel has room.
    fn room(&self) -> usize;

    /// Takes whole frames, 1 to [`FRAMES_MAX`] bytes, as one unit that is not split.
    ///
    /// Greetings and control keep their order; data may be reordered, except around greetings: data
    /// sent before a greeting arrives before it or never, and data sent after it arrives after it.
    /// The caller respects [`room`](Self::room); greetings and control may exceed it by
    /// [`CONTROL_EXCESS`]. Frames before `Early` and `Up` or after the end are dropped.
    fn send(&mut self, unit: Unit, frames: &[u8]);

    /// Withdraws the [`Unit::Data`] with this tag: it need not arrive any more.
    ///
    /// Best effort: TLS cannot withdraw sent data. Unknown tags, and tags of data that has arrived,
    /// are ignored.
    fn withdraw(&mut self, tag: u64);

    /// The tunnel mode.
    fn mode(&self) -> TunnelMode;

    /// Hands pending bytes to the transport.
    fn flush(&mut self, now: Instant);

    /// Measures the link. `None` unless the tunnel is up.
    ///
    /// Call it every 5 to 10 ms while data is in flight and rarely otherwise: the samples also
    /// determine how many bytes the tunnel queues.
    fn sample(&mut self, now: Instant) -> Option<LinkSample>;

    /// Closes the tunnel gracefully: sends pending bytes and the close notice; `Closed` follows
    /// within 2 s. No more frames can be sent.
    fn close(&mut self, now: Instant);

    /// Sets the congestion control of this side's sending direction, by the kernel's name.
    ///
    /// # Errors It does not exist or is not allowed; or `Unsupported`: a QUIC connection keeps its
    /// congestion control. The old one stays.
    fn set_congestion(&mut self, name: &str) -> io::Result<()>;

    /// What the next connection over the same carrier can start from; `None` if this one has
    /// measured nothing, or does not control its congestion itself.
    fn knowledge(&self) -> Option<Knowledge> {
        None
    }

    /// Starts from what an earlier connection over the same carrier knew (RFC 9959).
    fn resume(&mut self, _now: Instant, _known: Knowledge) {}

    /// Packs it for the event loop of another worker of this process. It must not be registered any
    /// more; its last event may be passed on with it. `None`: it cannot move, and is closed.
    fn pack(self: Box<Self>, _worker: usize) -> Option<Parcel> {
        None
    }

    /// The datagrams that it has dropped so far.
    fn datagram_drops(&self) -> TunnelDrops;

    /// Our end of the connection, once it is known.
    fn local_addr(&self) -> Option<SocketAddr>;

    /// The peer's end of the connection.
    fn peer_addr(&self) -> Option<SocketAddr>;
}

/// A tunnel on its way to another event loop.
pub enum Parcel {
    /// It has a socket of its own.
    Whole(Box<dyn Tunnel + Send>),
    /// It needs the other worker's listener.
    Quic {
        /// Where the listeners of both workers listen.
        listener: SocketAddr,
        /// For [`quic::Listener::unpack`](crate::quic::Listener::unpack).
        contents: Box<dyn Any + Send>,
    },
}

impl std::fmt::Debug for Parcel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(_) => f.write_str("Whole"),
            Self::Quic { listener, .. } => write!(f, "Quic({listener})"),
        }
    }
}

/// An event of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelEvent {
    /// Early data may be sent (client), or the peer's early data has arrived and its certificate
    /// passed all checks (server). Reported at most once, before `Up`.
    Early(Early),
    /// The handshake succeeded and the peer's certificate passed all checks. Reported once.
    ///
    /// On the client's side the server may still reject our certificate: with TLS 1.3 the client
    /// learns that only from the server's first answer.
    Up(Established),
    /// The tunnel has ended. Reported once, as the last event.
    Closed(CloseReason),
}

/// The identity of the peer before the end of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Early {
    /// The peer's name, from the checked certificate of the resumed session.
    pub peer: Identity,
    /// The serial number of that certificate, as in [`Established`].
    pub serial: String,
}

impl From<Peer> for Early {
    fn from(Peer { name, serial, .. }: Peer) -> Self {
        Self { peer: name, serial }
    }
}

/// The result of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The peer's name, from its checked certificate.
    pub peer: Identity,
    /// The serial number of the peer's certificate, in lower-case hexadecimal digits.
    pub serial: String,
    /// When the peer's certificate, or one above it, expires, since 1970.
    pub expires: Duration,
    /// A secret of the two ends of this connection (RFC 8446 7.5).
    pub exporter: [u8; 32],
    /// Whether an earlier TLS session was resumed.
    pub resumed: bool,
    /// The time since the connect (client) or the accept (server) began.
    pub handshake: Duration,
}
