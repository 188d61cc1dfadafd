//! A QUIC connection as a [`Tunnel`]: an engine and its way to the network.
//!
//! A client's tunnel has a socket of its own. The cloud's share the listener's: there the listener
//! reads, feeds the engines and says whom to wake. An engine is shared between its tunnel and the
//! listener; both belong to one thread, so its lock is never waited for.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use polyrail_model::{LinkSample, TunnelMode, Unit};

use super::connection::{Engine, State};
use super::socket::Udp;
use crate::{Tunnel, TunnelEvent};

/// A tunnel of QUIC over UDP.
pub(super) struct QuicTunnel {
    engine: Arc<Mutex<Engine>>,
    port: Port,
    /// Whether the own socket may have something to read: edge-triggered.
    readable: bool,
}

/// The way to the network.
pub(super) enum Port {
    Own(Udp),
    Shared { hub: Arc<Hub>, id: u64 },
}

/// What the listener and its tunnels share.
pub(super) struct Hub {
    pub(super) udp: Udp,
    pub(super) desk: Mutex<Desk>,
}

/// Notes between the listener and its tunnels.
#[derive(Default)]
pub(super) struct Desk {
    /// Tunnels that have something to do.
    pub(super) woken: Vec<Token>,
    /// Tunnels that wait for the socket to take more.
    pub(super) blocked: Vec<Token>,
    /// Tunnels that were dropped.
    pub(super) gone: Vec<u64>,
}

impl QuicTunnel {
    pub(super) fn new(engine: Arc<Mutex<Engine>>, port: Port) -> Self {
        Self { engine, port, readable: false }
    }

    fn udp(&self) -> &Udp {
        match &self.port {
            Port::Own(udp) => udp,
            Port::Shared { hub, .. } => &hub.udp,
        }
    }

    /// Reads the own socket: one batch; true when there may be more.
    fn read(&mut self, engine: &mut Engine, now: Instant) -> usize {
        let Port::Own(udp) = &self.port else { return 0 };
        if !self.readable {
            return 0;
        }
        let received = udp.receive(&mut |arrival, datagrams| engine.absorb(arrival, datagrams));
        match received {
            Ok(bytes) => {
                engine.after_absorb(now);
                bytes
            }
            Err(error) => {
                match error.kind() {
                    io::ErrorKind::WouldBlock => self.readable = false,
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionRefused => {
                        engine.egress.refusals += 1;
                        engine.check_refusals();
                    }
                    _ => engine.on_socket_error(&error),
                }
                0
            }
        }
    }

    /// Sends what there is, and has the listener wake it when the shared socket is full.
    fn settle(&self, engine: &mut Engine, now: Instant) {
        engine.settle(self.udp(), now);
        self.await_room(engine);
    }

    fn await_room(&self, engine: &Engine) {
        if let (Port::Shared { hub, .. }, Some(token)) = (&self.port, engine.token)
            && engine.egress.is_blocked()
        {
            let mut desk = lock(&hub.desk);
            if !desk.blocked.contains(&token) {
                desk.blocked.push(token);
            }
        }
    }
}

impl Tunnel for QuicTunnel {
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &self.port {
            Port::Own(udp) => {
                let interest = Interest::READABLE | Interest::WRITABLE;
                SourceFd(&udp.raw_fd()).register(registry, token, interest)
            }
            Port::Shared { hub, .. } => {
                let mut engine = lock(&self.engine);
                engine.token = Some(token);
                engine.woken = true;
                lock(&hub.desk).woken.push(token);
                Ok(())
            }
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match &self.port {
            Port::Own(udp) => SourceFd(&udp.raw_fd()).deregister(registry),
            Port::Shared { .. } => {
                lock(&self.engine).token = None;
                Ok(())
            }
        }
    }

    fn on_ready(&mut self, now: Instant, readable: bool, writable: bool) {
        let shared = self.engine.clone();
        let mut engine = lock(&shared);
        engine.woken = false;
        if engine.state == State::Closed {
            return;
        }
        self.readable |= readable && matches!(self.port, Port::Own(_));
        if writable {
            engine.egress.unblock();
        }
        for _ in 0..READS_MAX {
            if self.read(&mut engine, now) == 0 && !self.readable {
                break;
            }
        }
        // What the handshake answers leaves at once; later what follows a call of `flush` does.
        if writable
            || matches!(engine.state, State::Handshaking | State::Closing)
            || engine.farewell
        {
            self.settle(&mut engine, now);
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        let shared = self.engine.clone();
        let mut engine = lock(&shared);
        if self.readable && engine.state != State::Closed {
            self.read(&mut engine, now);
        }
        engine.on_timeout(self.udp(), now);
        self.await_room(&engine);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let engine = lock(&self.engine);
        let unread = self.readable && engine.state != State::Closed;
        if unread { Some(engine.began) } else { engine.next_timeout() }
    }

    fn poll_event(&mut self) -> Option<TunnelEvent> {
        lock(&self.engine).poll_event()
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let shared = self.engine.clone();
        let mut engine = lock(&shared);
        if !engine.is_readable() && self.readable && engine.state != State::Closed {
            let now = Instant::now();
            let read = self.read(&mut engine, now);
            let handed_out = engine.hand_out(sink);
            // Acknowledgements, and room for what the peer sends.
            self.settle(&mut engine, now);
            return read.max(handed_out);
        }
        let handed_out = engine.hand_out(sink);
        if engine.farewell {
            self.settle(&mut engine, Instant::now());
        }
        handed_out
    }

    fn room(&self) -> usize {
        lock(&self.engine).room()
    }

    fn send(&mut self, unit: Unit, frames: &[u8]) {
        let mut engine = lock(&self.engine);
        engine.send(unit, frames, self.udp());
        self.await_room(&engine);
    }

    fn withdraw(&mut self, tag: u64) {
        lock(&self.engine).withdraw(tag);
    }

    fn mode(&self) -> TunnelMode {
        TunnelMode::Quic
    }

    fn flush(&mut self, now: Instant) {
        let mut engine = lock(&self.engine);
        self.settle(&mut engine, now);
    }

    fn sample(&mut self, now: Instant) -> Option<LinkSample> {
        lock(&self.engine).sample(now)
    }

    fn close(&mut self, now: Instant) {
        let mut engine = lock(&self.engine);
        engine.close(now);
        self.settle(&mut engine, now);
    }

    fn set_congestion(&mut self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        let engine = lock(&self.engine);
        super::meter::active(&engine.connection).map(|path| path.local_addr)
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        Some(lock(&self.engine).peer)
    }
}

impl Drop for QuicTunnel {
    fn drop(&mut self) {
        let mut engine = lock(&self.engine);
        engine.abandon();
        engine.settle(self.udp(), Instant::now());
        if let Port::Shared { hub, id } = &self.port {
            lock(&hub.desk).gone.push(*id);
        }
    }
}

/// Locks what only this thread uses; a panic elsewhere left it as whole as any other.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Batches that one readiness event reads at most; `receive` and `on_timeout` go on with it.
const READS_MAX: usize = 4;
