//! A loop that drives QUIC tunnels over loopback: one listening cloud, any number of gateways.

pub mod wire;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use polyrail_identity::TlsIdentity;
use polyrail_model::Unit;
use polyrail_tunnel::quic::{Client, Listener, ServerOptions};
use polyrail_tunnel::{CarrierSpec, CloseReason, Early, Established, Tunnel, TunnelEvent};

use crate::common::{TestClock, fake, loopback, name};

/// One end of a tunnel and its events.
pub struct End {
    pub tunnel: Box<dyn Tunnel>,
    pub early: Option<Early>,
    pub up: Option<Established>,
    pub closed: Option<CloseReason>,
    /// The received units.
    pub units: Vec<Vec<u8>>,
    pub bytes: u64,
    /// Whether to keep the units, and whether to take them in at all.
    pub keeping: bool,
    pub reading: bool,
    pub timeouts_max: u32,
    dropped: bool,
}

/// A poll with the ends of tunnels and a listener.
pub struct World {
    poll: Poll,
    pub ends: Vec<End>,
    pub listener: Option<Listener>,
    next_tag: u64,
    asleep: Option<usize>,
    crashed: Option<(Listener, Box<dyn Tunnel>)>,
}

const LISTENER: Token = Token(usize::MAX);

impl World {
    pub fn new() -> Self {
        Self {
            poll: Poll::new().unwrap(),
            ends: Vec::new(),
            listener: None,
            next_tag: 0,
            asleep: None,
            crashed: None,
        }
    }

    /// A world whose cloud listens, and where.
    pub fn serving(identity: TlsIdentity, clock: &Arc<TestClock>) -> (Self, SocketAddr) {
        let mut world = Self::new();
        let address = world.serve(identity, ServerOptions::default(), clock, loopback());
        (world, address)
    }

    pub fn serve(
        &mut self,
        identity: TlsIdentity,
        options: ServerOptions,
        clock: &Arc<TestClock>,
        address: SocketAddr,
    ) -> SocketAddr {
        let listener = Listener::bind(address, identity, options, clock.clone()).unwrap();
        let both = Interest::READABLE | Interest::WRITABLE;
        let source = &mut SourceFd(&listener.as_raw_fd());
        self.poll.registry().register(source, LISTENER, both).unwrap();
        let address = listener.local_addr();
        self.listener = Some(listener);
        address
    }

    /// Another process takes the cloud's place at the same address. The tunnels of the old one must
    /// be dropped: they share its socket.
    pub fn restart_cloud(
        &mut self,
        identity: TlsIdentity,
        clock: &Arc<TestClock>,
        address: SocketAddr,
    ) {
        drop(self.stop_listening());
        self.serve(identity, ServerOptions::default(), clock, address);
    }

    fn stop_listening(&mut self) -> Listener {
        let old = self.listener.take().unwrap();
        self.poll.registry().deregister(&mut SourceFd(&old.as_raw_fd())).unwrap();
        old
    }

    /// The cloud crashes, with its tunnel at `end`, and another process takes its place; answers
    /// with the new one's address.
    pub fn crash(
        &mut self,
        end: usize,
        identity: TlsIdentity,
        clock: &Arc<TestClock>,
    ) -> SocketAddr {
        let old = self.stop_listening();
        // They send no more packets, not even a close notice.
        let (fake, _) = fake::pair(&name("nobody"), &name("nobody"), [0; 32]).unwrap();
        let silent = std::mem::replace(&mut self.ends[end].tunnel, Box::new(fake));
        self.ends[end].dropped = true;
        self.crashed = Some((old, silent));
        self.serve(identity, ServerOptions::default(), clock, loopback())
    }

    /// Drops an end's tunnel; a fake takes its place.
    pub fn drop_end(&mut self, end: usize) {
        let (fake, _) = fake::pair(&name("nobody"), &name("nobody"), [0; 32]).unwrap();
        drop(std::mem::replace(&mut self.ends[end].tunnel, Box::new(fake)));
        self.ends[end].dropped = true;
    }

    pub fn add(&mut self, mut tunnel: Box<dyn Tunnel>) -> usize {
        let index = self.ends.len();
        tunnel.register(self.poll.registry(), Token(index)).unwrap();
        self.ends.push(End {
            tunnel,
            early: None,
            up: None,
            closed: None,
            units: Vec::new(),
            bytes: 0,
            keeping: true,
            reading: true,
            timeouts_max: 0,
            dropped: false,
        });
        index
    }

    pub fn connect(&mut self, client: &mut Client, peer: SocketAddr) -> usize {
        self.connect_by(client, &carrier("a"), peer)
    }

    pub fn connect_by(
        &mut self,
        client: &mut Client,
        spec: &CarrierSpec,
        peer: SocketAddr,
    ) -> usize {
        let tunnel = client.connect(Instant::now(), spec, peer).unwrap();
        self.add(tunnel)
    }

    /// Waits for something to do, at most 5 ms, and does it.
    pub fn step(&mut self) {
        let mut events = Events::with_capacity(64);
        let due = self.ends.iter().filter_map(|end| end.tunnel.next_timeout()).min();
        let wait = due.map_or(WAIT, |due| due.saturating_duration_since(Instant::now()).min(WAIT));
        self.poll.poll(&mut events, Some(wait)).unwrap();
        let now = Instant::now();
        for event in &events {
            let (readable, writable) = (event.is_readable(), event.is_writable());
            if event.token() == LISTENER {
                if let Some(listener) = &mut self.listener {
                    listener.on_ready(now, readable, writable);
                }
            } else if self.asleep != Some(event.token().0) {
                self.ends[event.token().0].tunnel.on_ready(now, readable, writable);
            }
        }
        self.serve_listener(now);
        for (number, end) in self.ends.iter_mut().enumerate() {
            if self.asleep == Some(number) {
                continue;
            }
            if end.tunnel.next_timeout().is_some_and(|due| due <= now) {
                end.tunnel.on_timeout(now);
            }
            end.drain();
        }
    }

    fn serve_listener(&mut self, now: Instant) {
        let Some(mut listener) = self.listener.take() else { return };
        for _ in 0..64 {
            if !listener.receive(now) {
                break;
            }
        }
        while let Some(tunnel) = listener.accept() {
            self.add(tunnel);
        }
        let mut woken = Vec::new();
        listener.take_woken(&mut woken);
        for token in woken {
            self.ends[token.0].tunnel.on_ready(now, true, true);
        }
        self.listener = Some(listener);
    }

    /// Steps until `done`, at most 20 s.
    pub fn until(&mut self, what: &str, done: impl Fn(&[End]) -> bool) {
        self.until_within(Duration::from_secs(20), what, done);
    }

    pub fn until_within(&mut self, most: Duration, what: &str, done: impl Fn(&[End]) -> bool) {
        let give_up = Instant::now() + most;
        while !done(&self.ends) {
            assert!(Instant::now() < give_up, "{what}: not reached; {}", self.told());
            self.step();
        }
    }

    /// The same while the end `asleep` does nothing.
    pub fn until_far(&mut self, what: &str, asleep: usize, done: impl Fn(&[End]) -> bool) {
        self.asleep = Some(asleep);
        self.until(what, done);
        self.asleep = None;
        // It missed its events.
        self.ends[asleep].tunnel.on_ready(Instant::now(), true, true);
    }

    /// Steps until nothing of an end is in flight, at most 20 s.
    pub fn until_acknowledged(&mut self, end: usize) {
        let give_up = Instant::now() + Duration::from_secs(20);
        while self.ends[end].tunnel.sample(Instant::now()).unwrap().in_flight.0 > 0 {
            assert!(Instant::now() < give_up, "in flight for ever; {}", self.told());
            self.step();
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step();
        }
    }

    /// Connects, runs until both ends are over or up, and answers with why the ends are over.
    pub fn outcome(&mut self, client: &mut Client, peer: SocketAddr) -> [Option<CloseReason>; 2] {
        let near = self.connect(client, peer);
        self.until("both ends up or over", |ends| {
            let settled = |end: &End| end.closed.is_some() || end.up.is_some();
            ends.len() > near + 1 && ends[near..].iter().all(settled)
        });
        // A refusal by the server arrives after the client is up.
        self.run_for(Duration::from_millis(50));
        [self.ends[near].closed.clone(), self.ends[near + 1].closed.clone()]
    }

    /// Connects and runs until both ends are up; answers with their places.
    pub fn pair(&mut self, client: &mut Client, peer: SocketAddr) -> [usize; 2] {
        self.pair_by(client, &carrier("a"), peer)
    }

    pub fn pair_by(
        &mut self,
        client: &mut Client,
        spec: &CarrierSpec,
        peer: SocketAddr,
    ) -> [usize; 2] {
        let near = self.connect_by(client, spec, peer);
        self.until_up(near);
        [near, near + 1]
    }

    /// Steps until this end, the last one connected, and its peer are up.
    pub fn until_up(&mut self, near: usize) {
        self.until("both ends up", |ends| {
            ends.len() == near + 2 && ends[near..].iter().all(|end| end.up.is_some())
        });
    }

    /// A tag that no unit had.
    pub fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Sends `count` data units of `size` bytes from one end, as there is room, and steps until the
    /// other has them all; checks that each came whole and once.
    pub fn transfer(&mut self, from: usize, to: usize, count: u32, size: usize) {
        let begin = self.ends[to].units.len();
        let mut sent = 0;
        let give_up = Instant::now() + Duration::from_secs(60);
        while self.ends[to].units.len() < begin + count as usize {
            assert!(Instant::now() < give_up, "{sent} of {count} sent; {}", self.told());
            while sent < count && self.ends[from].tunnel.room() > 0 {
                let tag = self.tag();
                self.ends[from].tunnel.send(Unit::Data { tag }, &numbered(sent, size));
                sent += 1;
            }
            self.ends[from].tunnel.flush(Instant::now());
            self.ends[from].measure();
            self.step();
        }
        let mut came: Vec<Vec<u8>> = self.ends[to].units.drain(begin..).collect();
        came.sort();
        for (number, unit) in (0..count).zip(came) {
            assert!(unit == numbered(number, size), "unit {number} came as it was sent");
        }
    }

    pub fn told(&self) -> String {
        let ends = self.ends.iter().map(|end| {
            format!(
                "[early {}, up {}, closed {:?}, {} units, {:?}]",
                end.early.is_some(),
                end.up.is_some(),
                end.closed,
                end.units.len(),
                end.tunnel.datagram_drops()
            )
        });
        ends.collect()
    }
}

impl End {
    pub fn drain(&mut self) {
        if self.dropped {
            return;
        }
        self.poll_events();
        while self.reading {
            let (units, keeping, bytes) = (&mut self.units, self.keeping, &mut self.bytes);
            let taken = self.tunnel.receive(&mut |unit| {
                *bytes += unit.len() as u64;
                if keeping {
                    units.push(unit.to_vec());
                }
            });
            if taken == 0 {
                break;
            }
        }
        self.poll_events();
        self.tunnel.flush(Instant::now());
    }

    pub fn measure(&mut self) {
        if let Some(sample) = self.tunnel.sample(Instant::now()) {
            self.timeouts_max = self.timeouts_max.max(sample.timeouts);
        }
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.tunnel.poll_event() {
            assert!(self.closed.is_none(), "nothing comes after Closed");
            match event {
                TunnelEvent::Early(early) => {
                    assert!(self.up.is_none(), "Early comes before Up");
                    assert!(self.early.replace(early).is_none(), "Early comes once");
                }
                TunnelEvent::Up(up) => assert!(self.up.replace(up).is_none(), "Up comes once"),
                TunnelEvent::Closed(reason) => self.closed = Some(reason),
            }
        }
    }

    pub fn send(&mut self, unit: Unit, frames: &[u8]) {
        self.tunnel.send(unit, frames);
        self.tunnel.flush(Instant::now());
    }
}

pub fn carrier(name: &str) -> CarrierSpec {
    CarrierSpec { name: name.to_owned(), ..CarrierSpec::default() }
}

pub fn client(identity: TlsIdentity, clock: &Arc<TestClock>) -> Client {
    Client::new(identity, name("cloud"), clock.clone()).unwrap()
}

/// A unit that tells its number and is `size` bytes long.
pub fn numbered(number: u32, size: usize) -> Vec<u8> {
    let mut unit = number.to_be_bytes().to_vec();
    unit.extend((4..size).map(|at| (at as u32 ^ number) as u8));
    unit
}

const WAIT: Duration = Duration::from_millis(5);
