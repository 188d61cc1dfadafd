//! A tunnel that passes early data, and one that has no socket of its own.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use polyrail_model::{LinkSample, TunnelMode, Unit};
use polyrail_session::Event;
use polyrail_tunnel::fake::{self, FakeTunnel};
use polyrail_tunnel::{Early, Established, Tunnel, TunnelEvent};

use super::{Identity, Label, RelayEvent, World};

/// A fake that is early until the test says otherwise, and does something only when woken.
struct Shared {
    inner: FakeTunnel,
    confirmed: Rc<Cell<bool>>,
    token: Rc<RefCell<Option<Token>>>,
    told: bool,
    up: Option<Established>,
}

impl Tunnel for Shared {
    fn register(&mut self, _registry: &Registry, token: Token) -> io::Result<()> {
        *self.token.borrow_mut() = Some(token);
        Ok(())
    }

    fn deregister(&mut self, _registry: &Registry) -> io::Result<()> {
        Ok(())
    }

    fn on_ready(&mut self, now: Instant, readable: bool, writable: bool) {
        self.inner.on_ready(now, readable, writable);
    }

    fn on_timeout(&mut self, now: Instant) {
        self.inner.on_timeout(now);
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<TunnelEvent> {
        if !std::mem::replace(&mut self.told, true) {
            let Some(TunnelEvent::Up(up)) = self.inner.poll_event() else { panic!("up at once") };
            let early = Early { peer: up.peer.clone(), serial: up.serial.clone() };
            self.up = Some(up);
            return Some(TunnelEvent::Early(early));
        }
        if self.confirmed.get()
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
        self.inner.room()
    }

    fn send(&mut self, unit: Unit, frames: &[u8]) {
        self.inner.send(unit, frames);
    }

    fn withdraw(&mut self, tag: u64) {
        self.inner.withdraw(tag);
    }

    fn mode(&self) -> TunnelMode {
        TunnelMode::Quic
    }

    fn flush(&mut self, now: Instant) {
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

    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }
}

#[test]
fn an_early_tunnel_counts_as_handshaking_until_it_is_up() {
    let mut world = World::new(0);
    let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
    let (near, far) = fake::pair(&train, &ground, [5; 32]).unwrap();
    let (confirmed, token) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None)));
    let near = Shared {
        inner: near,
        confirmed: confirmed.clone(),
        token: token.clone(),
        told: false,
        up: None,
    };
    let label = Label { carrier: "c".to_owned(), backup: false };
    let key = world.gateway.relay.add_tunnel(Box::new(near), label).unwrap();
    world.cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
    let token = token.borrow().unwrap();

    let mut said = Vec::new();
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        world.gateway.relay.wake(Instant::now(), token);
        said.extend(world.gateway.turn());
        world.turn();
    }
    assert!(matches!(said[..], [RelayEvent::TunnelEarly { tunnel }] if tunnel == key), "{said:?}");
    let relay = &world.gateway.relay;
    assert_eq!((relay.handshaking(TunnelMode::Quic), relay.handshaking(TunnelMode::Tls)), (1, 0));
    let view = relay.tunnel(key).unwrap();
    assert!(view.early && !view.up && view.mode == TunnelMode::Quic && view.carrier == "c");
    assert_eq!(view.peer, Some(&ground));
    assert_eq!(world.cloud.relay.endpoint_ref().status().sessions.len(), 0);

    assert_eq!(relay.oldest_handshake(TunnelMode::Quic), Some(key));
    assert_eq!(relay.oldest_handshake(TunnelMode::Tls), None);

    confirmed.set(true);
    said.clear();
    let mut turns = 0;
    while !said.iter().any(|e| matches!(e, RelayEvent::Session(Event::SessionUp { .. }))) {
        turns += 1;
        assert!(turns < 1_000, "no session: {said:?}");
        world.gateway.relay.wake(Instant::now(), token);
        said.extend(world.gateway.turn());
        world.turn();
    }
    let up = |e: &RelayEvent| matches!(e, RelayEvent::TunnelUp { tunnel, .. } if *tunnel == key);
    assert_eq!(said.iter().filter(|event| up(event)).count(), 1);
    let relay = &mut world.gateway.relay;
    let view = relay.tunnel(key).unwrap();
    assert!(view.up && !view.early && view.received_bytes > 0 && view.sent_bytes > 0);
    assert_eq!(relay.handshaking(TunnelMode::Quic), 0);
    assert_eq!(relay.tunnels_of(TunnelMode::Quic), 1);
    relay.give_up(Instant::now(), key);
    assert_eq!(relay.oldest_handshake(TunnelMode::Quic), None);
    assert_eq!(relay.tunnels_of(TunnelMode::Quic), 1, "its handshake is over");
    // Strangers' tokens find nothing.
    relay.wake(Instant::now(), Token(token.0 + 1));
    relay.wake(Instant::now(), Token(0));
    relay.wake(Instant::now(), Token(usize::MAX));
    relay.close_tunnel(Instant::now(), key);
    relay.turn(Instant::now());
    assert_eq!(relay.tunnels_of(TunnelMode::Quic), 0);
}
