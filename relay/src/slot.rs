//! One tunnel in the loop: its stage, its last measurement, and its view for the daemon.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, Identity, LinkSample, PathWish, TunnelMode};
use polyrail_session::{Endpoint, TunnelInfo, TunnelKey};
use polyrail_tunnel::Tunnel;

use crate::Suspicion;

/// How often a tunnel with data in flight is measured. Idle tunnels are not: an idle daemon sleeps.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(8);

/// The properties of a tunnel that the daemon knows before the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The carrier's name (gateway); empty on the cloud, which learns it from the gateway.
    pub carrier: String,
    /// How the operator wants it used (gateway).
    pub wish: PathWish,
}

/// The state of a tunnel, for the daemon.
#[derive(Clone, Copy, Debug)]
pub struct TunnelView<'a> {
    /// The carrier's name in the label.
    pub carrier: &'a str,
    /// When it was added.
    pub begun: Instant,
    /// The tunnel mode.
    pub mode: TunnelMode,
    /// The handshake is over, and the tunnel is not being closed.
    pub up: bool,
    /// The session uses it, and its handshake is in progress.
    pub early: bool,
    /// The peer, once it is known.
    pub peer: Option<&'a Identity>,
    /// The serial number of the peer's certificate, once the peer is known.
    pub serial: Option<&'a str>,
    /// When the peer's certificate expires, since 1970, once the handshake is over.
    pub expires: Option<Duration>,
    /// The address of the peer.
    pub address: Option<SocketAddr>,
    /// The local address, if known.
    pub local: Option<SocketAddr>,
    /// The last measurement.
    pub sample: Option<&'a LinkSample>,
    /// Bytes that the peer's transport has acknowledged, by the last measurement.
    pub acked: Bytes,
    /// Bytes of frames received.
    pub received_bytes: u64,
    /// Bytes of frames sent.
    pub sent_bytes: u64,
}

pub(crate) struct Slot {
    pub(crate) tunnel: Box<dyn Tunnel>,
    pub(crate) label: Label,
    pub(crate) begun: Instant,
    pub(crate) mode: TunnelMode,
    pub(crate) stage: Stage,
    pub(crate) peer: Option<Identity>,
    pub(crate) serial: Option<String>,
    pub(crate) expires: Option<Duration>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    /// The room last reported to the session.
    pub(crate) room: usize,
    /// The timer that is armed.
    pub(crate) timer: Option<Instant>,
    pub(crate) sample_at: Option<Instant>,
    pub(crate) sample: Option<LinkSample>,
    /// Only for QUIC tunnels.
    pub(crate) suspicion: Option<Suspicion>,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// Something was sent since the last sample.
    pub(crate) active: bool,
    pub(crate) receiving: bool,
    pub(crate) touched: bool,
    pub(crate) unflushed: bool,
}

/// ```text
///  Handshaking ──[Early]──> Early ──> Up ──> Closing
///        └───────────────────────────^ │        ^
///        └─────────────────────────────┴────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Handshaking,
    /// The session knows it; its handshake is in progress.
    Early,
    /// The session knows it.
    Up,
    /// The session does not use it any more; it closes gracefully.
    Closing,
}

impl Stage {
    /// Whether the session knows it.
    pub(crate) fn is_known(self) -> bool {
        matches!(self, Self::Early | Self::Up)
    }

    /// Whether the handshake is in progress.
    pub(crate) fn is_handshaking(self) -> bool {
        matches!(self, Self::Handshaking | Self::Early)
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("label", &self.label).field("stage", &self.stage).finish()
    }
}

impl Slot {
    pub(crate) fn new(tunnel: Box<dyn Tunnel>, label: Label) -> Self {
        let mode = tunnel.mode();
        Self {
            label,
            begun: Instant::now(),
            mode,
            stage: Stage::Handshaking,
            peer: None,
            serial: None,
            expires: None,
            address: tunnel.peer_addr(),
            local: tunnel.local_addr(),
            room: 0,
            timer: None,
            sample_at: None,
            sample: None,
            suspicion: (mode == TunnelMode::Quic).then(Suspicion::default),
            received_bytes: 0,
            sent_bytes: 0,
            active: false,
            receiving: false,
            touched: false,
            unflushed: false,
            tunnel,
        }
    }

    pub(crate) fn view(&self) -> TunnelView<'_> {
        TunnelView {
            carrier: &self.label.carrier,
            begun: self.begun,
            mode: self.mode,
            up: self.stage == Stage::Up,
            early: self.stage == Stage::Early,
            peer: self.peer.as_ref(),
            serial: self.serial.as_deref(),
            expires: self.expires,
            address: self.address,
            local: self.local,
            sample: self.sample.as_ref(),
            acked: self.sample.map_or(Bytes::ZERO, |sample| sample.acked),
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
        }
    }

    /// The session's description of the tunnel.
    pub(crate) fn info(&self, peer: &Identity, exporter: Option<[u8; 32]>) -> TunnelInfo {
        TunnelInfo {
            carrier: self.label.carrier.clone(),
            peer: peer.clone(),
            exporter,
            wish: self.label.wish,
            mode: self.mode,
        }
    }

    /// Updates the addresses: they change if a peer behind an address translator moves.
    pub(crate) fn update_addresses(&mut self) {
        self.address = self.tunnel.peer_addr().or(self.address);
        self.local = self.tunnel.local_addr().or(self.local);
    }

    /// Measures the link for the session; returns the rate if the link looks policed.
    pub(crate) fn measure(
        &mut self,
        now: Instant,
        key: TunnelKey,
        endpoint: &mut Endpoint,
    ) -> Option<Bitrate> {
        self.sample_at = None;
        if self.stage != Stage::Up {
            return None;
        }
        let sample = self.tunnel.sample(now)?;
        let out = sample.in_flight.0 > 0 || sample.unsent.0 > 0;
        if out || std::mem::take(&mut self.active) {
            self.sample_at = Some(now + SAMPLE_EVERY);
        }
        if self.mode == TunnelMode::Quic {
            self.update_addresses();
        }
        self.sample = Some(sample);
        endpoint.tunnel_sample(now, key, &sample);
        self.suspicion.as_mut()?.on_sample(&sample)
    }
}
