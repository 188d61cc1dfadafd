//! The trait that every tunnel implements, and the values that cross it.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_identity::Peer;
use polyrail_model::{Identity, LinkSample, TunnelMode, Unit};

use crate::CloseReason;

/// Most bytes that one [`Tunnel::send`] takes: one TLS record (RFC 8446 5.1).
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
/// `Early` may be announced once before `Up`: units can be sent and received before the handshake
/// is over (RFC 8446 2.3). They may be replayed by others, so only what is safe then may be sent.
/// Early data that the peer refuses is sent again by the tunnel after the handshake. `Up` is
/// announced once, after the handshake and the checks of the peer's certificate, unless the
/// tunnel ends before it was polled; `Closed` once, as the last event. A tunnel that is
/// dropped closes its socket at once.
///
/// **The drain contract.** The registration is edge-triggered. After `register`, `on_ready`,
/// `on_timeout` or `close`:
/// 1. call [`poll_event`](Self::poll_event) until `None`;
/// 2. call [`receive`](Self::receive) until it returns 0, or stop early and call it again later
///    without waiting for an event: what is unread raises none. It may end the tunnel, so poll
///    events again afterwards;
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

    /// Takes a readiness event: goes on with connect and handshake, flushes what is pending.
    ///
    /// `readable` and `writable` are what mio's event says; an error or a hang-up comes with both.
    fn on_ready(&mut self, now: Instant, readable: bool, writable: bool);

    /// Takes the passing of time; early or needless calls do no harm.
    fn on_timeout(&mut self, now: Instant);

    /// When [`on_timeout`](Self::on_timeout) is next wanted.
    fn next_timeout(&self) -> Option<Instant>;

    /// What happened since the last call.
    fn poll_event(&mut self) -> Option<TunnelEvent>;

    /// Hands the peer's bytes to `sink`, in order, in pieces of any size.
    ///
    /// Returns how many bytes were taken off the wire: at most about 256 KiB a call, 0 when there
    /// is nothing more for now. Nothing is handed out before [`TunnelEvent::Early`] or
    /// [`TunnelEvent::Up`] was polled.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// How many bytes of frames the tunnel takes now.
    fn room(&self) -> usize;

    /// Takes whole frames, 1 to [`FRAMES_MAX`] bytes, as one unit that is not split.
    ///
    /// Greetings and control keep their order; data may overtake and be overtaken, except around
    /// greetings: what was sent before one arrives before it or never, what was sent behind it
    /// arrives behind it. The caller keeps to [`room`](Self::room); greetings and control may
    /// exceed it by [`CONTROL_EXCESS`]. What comes before `Early` and `Up` or after the end is
    /// dropped.
    fn send(&mut self, unit: Unit, frames: &[u8]);

    /// What was sent as [`Unit::Data`] with this tag need not arrive any more.
    ///
    /// A wish: TLS cannot take back what it has sent. Unknown tags, and those whose data has
    /// arrived, are ignored.
    fn withdraw(&mut self, tag: u64);

    /// How it travels.
    fn mode(&self) -> TunnelMode;

    /// Hands what is pending to the transport.
    fn flush(&mut self, now: Instant);

    /// Measures the link. `None` unless the tunnel is up.
    ///
    /// Call it every 5 to 10 ms while data is out and rarely otherwise: the samples also set how
    /// much the tunnel takes ahead of the link.
    fn sample(&mut self, now: Instant) -> Option<LinkSample>;

    /// Ends the tunnel in order: what is pending goes out, then the notice of the end, and
    /// `Closed` follows within 2 s. Nothing can be sent afterwards.
    fn close(&mut self, now: Instant);

    /// Sets the congestion control of what this side sends from now on, by the kernel's name.
    ///
    /// # Errors
    /// There is no such control or it is not allowed; or `Unsupported`: a QUIC connection keeps
    /// what it began with. The old one stays.
    fn set_congestion(&mut self, name: &str) -> io::Result<()>;

    /// Our end of the connection, once it is known.
    fn local_addr(&self) -> Option<SocketAddr>;

    /// The peer's end of the connection.
    fn peer_addr(&self) -> Option<SocketAddr>;
}

/// What a tunnel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelEvent {
    /// Early data may be sent (client), or the peer's early data has come and its certificate
    /// passed all checks (server). Comes at most once, before `Up`.
    Early(Early),
    /// The handshake succeeded and the peer's certificate passed all checks. Comes once.
    ///
    /// On the client's side the server may still refuse our certificate: TLS 1.3 tells the client
    /// nothing of that before the server's first answer.
    Up(Established),
    /// The tunnel is over. Comes once, last.
    Closed(CloseReason),
}

/// What is known before the handshake is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Early {
    /// The peer's name, from the checked certificate of the session that is resumed.
    pub peer: Identity,
    /// The serial number of that certificate, as in [`Established`].
    pub serial: String,
}

impl From<Peer> for Early {
    fn from(Peer { name, serial }: Peer) -> Self {
        Self { peer: name, serial }
    }
}

/// What the handshake established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The peer's name, from its checked certificate.
    pub peer: Identity,
    /// The serial number of the peer's certificate, in lower-case hexadecimal digits.
    pub serial: String,
    /// A secret that only the two ends of this very connection know (RFC 8446 7.5).
    pub exporter: [u8; 32],
    /// Whether an earlier TLS session was resumed.
    pub resumed: bool,
    /// How long it took from the begin of the connect (client) or the accept (server).
    pub handshake: Duration,
}
