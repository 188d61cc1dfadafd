//! A tunnel without cryptography, for tests of the layers above: a pair over a local socket.
//!
//! It keeps the contract of [`Tunnel`] (order of events, room, one `send` one unit, readiness
//! through a real poll), is up at once, and breaks when the test orders it.
//! The tests of other crates include this file, too.

#![allow(dead_code)] // each crate uses its part

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use polyrail_model::{Identity, LinkSample, TunnelMode, Unit};
use polyrail_tunnel::{CloseReason, Established, Parcel, Tunnel, TunnelDrops, TunnelEvent};

/// One end of a fake tunnel.
#[derive(Debug)]
pub struct FakeTunnel {
    socket: UnixStream,
    pending: VecDeque<u8>,
    blocked: bool,
    readable: bool,
    up: Option<Established>,
    closed: Option<CloseReason>,
    over: bool,
    control: FakeControl,
}

/// The most bytes that the tunnel holds before it is full.
const QUANTUM: usize = 65_536;
/// When the certificates of both ends expire, in seconds since 1970: in 2100.
const EXPIRES_S: u64 = 4_102_444_800;

/// The test's orders to one end, also after the tunnel was boxed and given away.
#[derive(Clone, Debug)]
pub struct FakeControl(Arc<Mutex<Orders>>);

#[derive(Debug)]
struct Orders {
    breaking: Option<CloseReason>,
    congestion: Option<String>,
    lingers: bool,
    drops: TunnelDrops,
}

/// Creates the two ends of a tunnel between `gateway` and `cloud`; both are up at once.
///
/// `exporter` is the secret of the connection: give each pair its own.
///
/// # Errors
/// The kernel cannot create a socket pair.
pub fn pair(
    gateway: &Identity,
    cloud: &Identity,
    exporter: [u8; 32],
) -> io::Result<(FakeTunnel, FakeTunnel)> {
    let (near, far) = UnixStream::pair()?;
    Ok((FakeTunnel::new(near, cloud, exporter), FakeTunnel::new(far, gateway, exporter)))
}

impl FakeTunnel {
    fn new(socket: UnixStream, peer: &Identity, exporter: [u8; 32]) -> Self {
        let up = Established {
            peer: peer.clone(),
            serial: "01".to_owned(),
            expires: Duration::from_secs(EXPIRES_S),
            exporter,
            resumed: false,
            handshake: Duration::ZERO,
        };
        let drops = TunnelDrops::default();
        let orders = Orders { breaking: None, congestion: None, lingers: false, drops };
        Self {
            socket,
            pending: VecDeque::new(),
            blocked: false,
            readable: true,
            up: Some(up),
            closed: None,
            over: false,
            control: FakeControl(Arc::new(Mutex::new(orders))),
        }
    }

    /// The peer shows another certificate, which expires later.
    pub fn certify(&mut self, serial: &str, later: Duration) {
        if let Some(up) = &mut self.up {
            serial.clone_into(&mut up.serial);
            up.expires += later;
        }
    }

    /// The test's orders to this end.
    pub fn control(&self) -> FakeControl {
        self.control.clone()
    }

    fn end(&mut self, reason: CloseReason) {
        if !self.over {
            self.over = true;
            self.closed = Some(reason);
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
        }
    }

    fn obey(&mut self) {
        let breaking = self.control.orders().breaking.take();
        if let Some(reason) = breaking {
            self.end(reason);
        }
    }

    fn write_out(&mut self) {
        while !self.over && !self.pending.is_empty() {
            let (front, _) = self.pending.as_slices();
            match self.socket.write(front) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return;
                }
                Err(_) => self.end(CloseReason::Reset),
            }
        }
    }
}

impl FakeControl {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.0.lock().unwrap()
    }

    /// Ends the tunnel with `reason` at its next readiness, timeout or event poll.
    pub fn break_with(&self, reason: CloseReason) {
        self.orders().breaking = Some(reason);
    }

    /// The peer does not answer a close: the tunnel stays until it breaks.
    pub fn linger(&self) {
        self.orders().lingers = true;
    }

    /// It has dropped these datagrams.
    pub fn drop_datagrams(&self, drops: TunnelDrops) {
        self.orders().drops += drops;
    }

    /// The congestion control that was set last.
    pub fn congestion(&self) -> Option<String> {
        self.orders().congestion.clone()
    }
}

impl Tunnel for FakeTunnel {
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.socket.register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.socket.deregister(registry)
    }

    fn on_ready(&mut self, _now: Instant, readable: bool, writable: bool) {
        self.obey();
        self.readable |= readable;
        if writable {
            self.blocked = false;
            self.write_out();
        }
    }

    fn on_timeout(&mut self, _now: Instant) {
        self.obey();
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<TunnelEvent> {
        self.obey();
        if let Some(established) = self.up.take() {
            return Some(TunnelEvent::Up(established));
        }
        self.closed.take().map(TunnelEvent::Closed)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        if self.over || self.up.is_some() || !self.readable {
            return 0;
        }
        let mut buffer = [0; 16_384];
        match self.socket.read(&mut buffer) {
            Ok(0) => {
                self.end(CloseReason::PeerClosed);
                0
            }
            Ok(read) => {
                sink(&buffer[..read]);
                read
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                0
            }
            Err(_) => {
                self.end(CloseReason::Reset);
                0
            }
        }
    }

    fn room(&self) -> usize {
        if self.over || self.blocked {
            return 0;
        }
        QUANTUM.saturating_sub(self.pending.len())
    }

    fn send(&mut self, _unit: Unit, frames: &[u8]) {
        if self.over {
            return;
        }
        self.pending.extend(frames);
        if self.pending.len() >= QUANTUM && !self.blocked {
            self.write_out();
        }
    }

    fn flush(&mut self, _now: Instant) {
        if !self.blocked {
            self.write_out();
        }
    }

    fn withdraw(&mut self, _tag: u64) {}

    fn mode(&self) -> TunnelMode {
        TunnelMode::Tls
    }

    fn sample(&mut self, _now: Instant) -> Option<LinkSample> {
        None
    }

    fn close(&mut self, now: Instant) {
        self.flush(now);
        if !self.control.orders().lingers {
            self.end(CloseReason::Local);
        }
    }

    fn set_congestion(&mut self, name: &str) -> io::Result<()> {
        self.control.orders().congestion = Some(name.to_owned());
        Ok(())
    }

    fn pack(self: Box<Self>, _worker: usize) -> Option<Parcel> {
        Some(Parcel::Whole(self))
    }

    fn datagram_drops(&self) -> TunnelDrops {
        self.control.orders().drops
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }
}
