//! A QUIC connection as a [`Tunnel`]: an engine and its way to the network.
//!
//! A client's tunnel has a socket of its own. The cloud's tunnels share the listener's: the
//! listener reads, sends each tunnel its datagrams as [`Mail`] and names the tunnels to wake; the
//! tunnels send by themselves.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::time::Instant;

use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use polyrail_congestion::Knowledge;
use polyrail_model::{LinkSample, TunnelMode, Unit};

use super::cid::Cid;
use super::connection::Engine;
use super::group::Packed;
use super::mail::{Mail, Mailbox, News};
use super::socket::Udp;
use crate::phase::TunnelPhase;
use crate::{Parcel, Tunnel, TunnelDrops, TunnelEvent};

/// A tunnel of QUIC over UDP.
pub(super) struct QuicTunnel {
    engine: Held,
    port: Port,
    /// Whether the own socket may be readable; readiness is edge-triggered.
    readable: bool,
    /// Whether the listener still counts its handshake.
    half_open: bool,
}

/// The engine of a tunnel that was not packed.
struct Held(Option<Engine>);

impl Deref for Held {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.0.as_ref().expect("packing consumes the tunnel")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Engine {
        self.0.as_mut().expect("packing consumes the tunnel")
    }
}

/// The way to the network.
pub(super) enum Port {
    Own(Udp),
    Shared(Rc<Udp>, Mailbox),
}

impl Port {
    fn udp(&self) -> &Udp {
        match self {
            Self::Own(udp) => udp,
            Self::Shared(udp, _) => udp,
        }
    }
}

impl QuicTunnel {
    pub(super) fn new(engine: Engine, port: Port) -> Self {
        let engine = Held(Some(engine));
        Self { engine, port, readable: false, half_open: true }
    }

    /// Reads one batch from the own socket, or all mail. Returns the number of bytes.
    fn read(&mut self, now: Instant) -> usize {
        match &self.port {
            Port::Own(udp) if self.readable => {
                let engine = &mut *self.engine;
                match udp.receive(&mut |arrival, bytes| engine.absorb(arrival, bytes)) {
                    Ok(bytes) => {
                        engine.after_absorb(now);
                        return bytes;
                    }
                    Err(error) => self.on_read_error(&error),
                }
                0
            }
            Port::Own(_) => 0,
            Port::Shared(_, mailbox) => {
                let mut total = 0;
                for mail in mailbox.mail.try_iter() {
                    match mail {
                        Mail::Datagrams(arrival, mut bytes) => {
                            self.engine.absorb(&arrival, &mut bytes);
                            total += bytes.len();
                        }
                        Mail::GiveWay => self.engine.give_way(now),
                    }
                }
                if total > 0 {
                    self.engine.after_absorb(now);
                }
                total
            }
        }
    }

    /// Datagrams for a closed connection are dropped, so that mail does not accumulate until the
    /// caller drops the tunnel.
    fn discard_mail(&self) {
        if let Port::Shared(_, mailbox) = &self.port {
            mailbox.mail.try_iter().for_each(drop);
        }
    }

    fn on_read_error(&mut self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::WouldBlock => self.readable = false,
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::ConnectionRefused => {
                self.engine.egress.refusals += 1;
                self.engine.check_refusals();
            }
            _ => self.engine.on_socket_error(error),
        }
    }

    /// Sends pending packets and reports to the listener.
    fn settle(&mut self, now: Instant) {
        self.engine.settle(self.port.udp(), now);
        self.report();
    }

    /// Reports changes to the listener.
    fn report(&mut self) {
        let Port::Shared(_, mailbox) = &self.port else { return };
        let engine = &mut *self.engine;
        if !engine.ids.new.is_empty() {
            mailbox.report(News::NewIds(std::mem::take(&mut engine.ids.new)));
        }
        if !engine.ids.old.is_empty() {
            mailbox.report(News::OldIds(std::mem::take(&mut engine.ids.old)));
        }
        if self.half_open && !engine.life.is_handshaking() {
            self.half_open = false;
            mailbox.report(News::HandshakeOver);
        }
        if engine.egress.is_blocked() {
            mailbox.report(News::Blocked);
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
            Port::Shared(_, mailbox) => {
                mailbox.report(News::Registered(Some(token)));
                Ok(())
            }
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match &self.port {
            Port::Own(udp) => SourceFd(&udp.raw_fd()).deregister(registry),
            Port::Shared(_, mailbox) => {
                mailbox.report(News::Registered(None));
                Ok(())
            }
        }
    }

    fn on_ready(&mut self, now: Instant, readable: bool, writable: bool) {
        if self.engine.life.is_closed() {
            self.discard_mail();
            return;
        }
        self.readable |= readable && matches!(self.port, Port::Own(_));
        if writable {
            self.engine.egress.unblock();
        }
        for _ in 0..READS_MAX {
            if self.read(now) == 0 && !self.readable {
                break;
            }
        }
        // The answers of the handshake are sent at once; later the caller calls `flush`.
        if writable
            || matches!(self.engine.life.phase(), TunnelPhase::Handshaking | TunnelPhase::Closing)
            || self.engine.farewell
        {
            self.settle(now);
        } else {
            self.report();
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.readable && !self.engine.life.is_closed() {
            self.read(now);
        }
        self.engine.on_timeout(self.port.udp(), now);
        self.report();
    }

    fn next_timeout(&self) -> Option<Instant> {
        let unread = self.readable && !self.engine.life.is_closed();
        if unread { Some(self.engine.life.began()) } else { self.engine.next_timeout() }
    }

    fn poll_event(&mut self) -> Option<TunnelEvent> {
        self.engine.events.poll()
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let engine = &self.engine;
        if !engine.is_readable() && self.readable && !engine.life.is_closed() {
            let now = Instant::now();
            let read = self.read(now);
            let handed_out = self.engine.hand_out(sink);
            // Sends acknowledgements and flow control.
            self.settle(now);
            return read.max(handed_out);
        }
        let handed_out = self.engine.hand_out(sink);
        if self.engine.farewell {
            self.settle(Instant::now());
        }
        handed_out
    }

    fn room(&self) -> usize {
        self.engine.room()
    }

    fn send(&mut self, unit: Unit, frames: &[u8]) {
        self.engine.send(unit, frames, self.port.udp());
        self.report();
    }

    fn withdraw(&mut self, tag: u64) {
        self.engine.withdraw(tag);
    }

    fn mode(&self) -> TunnelMode {
        TunnelMode::Quic
    }

    fn flush(&mut self, now: Instant) {
        self.settle(now);
    }

    fn sample(&mut self, now: Instant) -> Option<LinkSample> {
        self.engine.sample(now)
    }

    fn close(&mut self, now: Instant) {
        self.engine.close(now);
        self.settle(now);
    }

    fn set_congestion(&mut self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn pack(mut self: Box<Self>, worker: usize) -> Option<Parcel> {
        self.report();
        let Port::Shared(_, mailbox) = &self.port else { return None };
        mailbox.report(News::Moved(worker.try_into().ok()?));
        let unread = mailbox.mail.try_iter().filter_map(|mail| match mail {
            Mail::Datagrams(arrival, bytes) => Some((arrival, bytes)),
            Mail::GiveWay => None,
        });
        let unread = unread.collect();
        let (listener, original) = (mailbox.listener, mailbox.original);
        let engine = self.engine.0.take()?;
        let ids = engine.connection.source_ids().filter_map(|id| Cid::new(id)).collect();
        let contents = Box::new(Packed { engine, original, ids, unread });
        Some(Parcel::Quic { listener, contents })
    }

    fn knowledge(&self) -> Option<Knowledge> {
        self.engine.meter.pacer.as_ref()?.knowledge()
    }

    fn resume(&mut self, now: Instant, known: Knowledge) {
        self.engine.begin_pacing(now);
        if let Some(pacer) = &mut self.engine.meter.pacer {
            pacer.resume(now, known);
        }
    }

    fn datagram_drops(&self) -> TunnelDrops {
        self.engine.datagram_drops()
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        super::paths::active(&self.engine.connection).map(|path| path.local_addr)
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        Some(self.engine.peer)
    }
}

impl Drop for QuicTunnel {
    fn drop(&mut self) {
        let Some(engine) = &mut self.engine.0 else { return };
        engine.abandon();
        engine.settle(self.port.udp(), Instant::now());
        if let Port::Shared(_, mailbox) = &self.port {
            mailbox.report(News::Gone);
        }
    }
}

/// The maximum number of batches per readiness event; `receive` and `on_timeout` read the rest.
const READS_MAX: usize = 4;
