//! A fake tunnel with early data and without a socket of its own, which records its calls.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use mio::{Registry, Token};
use polyrail_model::{LinkSample, TunnelMode, Unit};
use polyrail_tunnel::{Early, Established, Tunnel, TunnelDrops, TunnelEvent};

use crate::fake::FakeTunnel;

/// The tunnel; it acts only when woken.
pub(super) struct Shared {
    inner: FakeTunnel,
    hold: Rc<Hold>,
    told: bool,
    up: Option<Established>,
}

/// The test's hold on it.
#[derive(Default)]
pub(super) struct Hold {
    /// The handshake is finished.
    pub(super) confirmed: Cell<bool>,
    pub(super) token: Cell<Option<Token>>,
    /// It ignores readiness: its transport reads at its next timeout.
    pub(super) deaf: Cell<bool>,
    pub(super) timeout: Cell<Option<Instant>>,
    /// The room for units of data until they are withdrawn, in bytes.
    pub(super) bound: Cell<Option<usize>>,
    held: RefCell<BTreeMap<u64, usize>>,
    calls: RefCell<Vec<Call>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Control,
    Data,
    Withdraw,
    Flush,
}

impl Shared {
    pub(super) fn new(inner: FakeTunnel, confirmed: bool) -> (Self, Rc<Hold>) {
        let hold = Rc::new(Hold { confirmed: Cell::new(confirmed), ..Hold::default() });
        (Self { inner, hold: hold.clone(), told: false, up: None }, hold)
    }
}

impl Hold {
    /// The calls since the last time.
    pub(super) fn take_calls(&self) -> Vec<Call> {
        self.calls.take()
    }

    fn note(&self, call: Call) {
        self.calls.borrow_mut().push(call);
    }
}

impl Tunnel for Shared {
    fn register(&mut self, _registry: &Registry, token: Token) -> io::Result<()> {
        self.hold.token.set(Some(token));
        Ok(())
    }

    fn deregister(&mut self, _registry: &Registry) -> io::Result<()> {
        Ok(())
    }

    fn on_ready(&mut self, now: Instant, readable: bool, writable: bool) {
        self.inner.on_ready(now, readable && !self.hold.deaf.get(), writable);
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.hold.timeout.get().is_some_and(|at| at <= now) {
            self.hold.timeout.set(None);
            self.inner.on_ready(now, true, false);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.hold.timeout.get()
    }

    fn poll_event(&mut self) -> Option<TunnelEvent> {
        if !std::mem::replace(&mut self.told, true) {
            let Some(TunnelEvent::Up(up)) = self.inner.poll_event() else { panic!("up at once") };
            let early = Early { peer: up.peer.clone(), serial: up.serial.clone() };
            self.up = Some(up);
            return Some(TunnelEvent::Early(early));
        }
        if self.hold.confirmed.get()
            && let Some(up) = self.up.take()
        {
            return Some(TunnelEvent::Up(up));
        }
        self.inner.poll_event()
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        self.inner.receive(sink)
    }

    fn room(&self) -> usize {
        let held: usize = self.hold.held.borrow().values().sum();
        let bound = self.hold.bound.get().map_or(usize::MAX, |bound| bound.saturating_sub(held));
        self.inner.room().min(bound)
    }

    fn send(&mut self, unit: Unit, frames: &[u8]) {
        if let Unit::Data { tag } = unit {
            self.hold.held.borrow_mut().insert(tag, frames.len());
            self.hold.note(Call::Data);
        } else {
            self.hold.note(Call::Control);
        }
        self.inner.send(unit, frames);
    }

    fn withdraw(&mut self, tag: u64) {
        self.hold.held.borrow_mut().remove(&tag);
        self.hold.note(Call::Withdraw);
    }

    fn mode(&self) -> TunnelMode {
        TunnelMode::Quic
    }

    fn flush(&mut self, now: Instant) {
        self.hold.note(Call::Flush);
        self.inner.flush(now);
    }

    fn sample(&mut self, now: Instant) -> Option<LinkSample> {
        self.inner.sample(now)
    }

    fn close(&mut self, now: Instant) {
        self.inner.close(now);
    }

    fn set_congestion(&mut self, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn datagram_drops(&self) -> TunnelDrops {
        self.inner.datagram_drops()
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }
}
