//! A scratch authority, a settable clock, and a loop that drives tunnels over loopback.

#![allow(dead_code)] // each test file uses its part

pub mod fake;
#[path = "../../../control/identity/tests/scratch/mod.rs"]
pub mod pki;
pub mod raw;
pub mod relay;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use polyrail_identity::{Clock, TlsIdentity};
use polyrail_model::{Identity, Unit};
use polyrail_tunnel::tls::{Client, Listener, Server};
use polyrail_tunnel::{
    CarrierSpec, CloseReason, Early, Established, SocketOptions, Tunnel, TunnelEvent,
};

pub use pki::BEGIN;

/// A clock that changes only when it is set.
#[derive(Debug)]
pub struct TestClock(AtomicU64);

impl TestClock {
    /// A hundred seconds into the certificates' life.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(BEGIN + 100)))
    }

    pub fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn since_epoch(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// The alerts with which a peer rejects a certificate or protocol (RFC 8446 6).
pub mod alert {
    pub const WRONG_ROLE: u8 = 43;
    pub const REVOKED: u8 = 44;
    pub const EXPIRED: u8 = 45;
    pub const UNKNOWN_CA: u8 = 48;
    pub const WRONG_NAME: u8 = 49;
    pub const OLD_VERSION: u8 = 70;
    pub const WRONG_PROTOCOL: u8 = 120;
}

/// The end of a tunnel whose peer sent this alert.
pub fn refused_by(alert: u8) -> CloseReason {
    let text = match alert {
        alert::WRONG_ROLE => "our certificate is for the other role",
        alert::REVOKED => "our certificate is revoked",
        alert::EXPIRED => "our certificate has expired or is not valid yet by its clock",
        alert::UNKNOWN_CA => "our certificate is not from the authority configured there",
        alert::WRONG_NAME => "our certificate does not carry the name that is expected there",
        alert::WRONG_PROTOCOL => "it does not speak polyrail/1",
        alert::OLD_VERSION => "TLS alert ProtocolVersion",
        other => panic!("no test expects alert {other}"),
    };
    CloseReason::PeerRefused(text.to_owned())
}

pub fn name(text: &str) -> Identity {
    Identity::new(text).unwrap()
}

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Memory of this process that is in use, in bytes.
pub fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// One end of a tunnel and its events.
pub struct End {
    pub tunnel: Box<dyn Tunnel>,
    pub early: Option<Early>,
    pub up: Option<Established>,
    pub closed: Option<CloseReason>,
    pub received: Vec<u8>,
    /// Whether to receive data.
    pub reading: bool,
}

/// A poll with the ends of tunnels and at most one listening server.
pub struct World {
    poll: Poll,
    pub ends: Vec<End>,
    listener: Option<Listener>,
    pub server: Option<Server>,
}

const LISTENER: Token = Token(usize::MAX);

impl World {
    pub fn new() -> Self {
        Self { poll: Poll::new().unwrap(), ends: Vec::new(), listener: None, server: None }
    }

    /// A world whose cloud listens, and where; the clock is of both sides.
    pub fn serving() -> (Self, pki::Authority, Arc<TestClock>, SocketAddr) {
        let (mut world, authority, clock) = (Self::new(), pki::Authority::new(), TestClock::new());
        let address = world.serve(server(authority.cloud(), &clock));
        (world, authority, clock, address)
    }

    /// Listens at a loopback port; each connection becomes a new end.
    pub fn serve(&mut self, server: Server) -> SocketAddr {
        let listener = Listener::bind(loopback()).unwrap();
        let source = &mut SourceFd(&listener.as_raw_fd());
        self.poll.registry().register(source, LISTENER, Interest::READABLE).unwrap();
        let address = listener.local_addr().unwrap();
        self.listener = Some(listener);
        self.server = Some(server);
        address
    }

    pub fn add(&mut self, mut tunnel: Box<dyn Tunnel>) -> usize {
        let index = self.ends.len();
        tunnel.register(self.poll.registry(), Token(index)).unwrap();
        self.ends.push(End {
            tunnel,
            early: None,
            up: None,
            closed: None,
            received: Vec::new(),
            reading: true,
        });
        index
    }

    pub fn connect(&mut self, client: &mut Client, peer: SocketAddr) -> usize {
        self.connect_with(client, peer, false)
    }

    /// Connects; `early` attempts early data.
    pub fn connect_with(&mut self, client: &mut Client, peer: SocketAddr, early: bool) -> usize {
        let spec = CarrierSpec { name: "a".to_owned(), early, ..CarrierSpec::default() };
        let tunnel = client.connect(Instant::now(), &spec, peer).unwrap();
        self.add(tunnel)
    }

    /// Polls once for at most 10 ms and drains every end.
    pub fn step(&mut self) {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(10))).unwrap();
        let now = Instant::now();
        for event in &events {
            if event.token() == LISTENER {
                self.accept(now);
            } else {
                let end = &mut self.ends[event.token().0];
                end.tunnel.on_ready(now, event.is_readable(), event.is_writable());
            }
        }
        for end in &mut self.ends {
            end.tunnel.on_timeout(now);
            end.drain();
        }
    }

    fn accept(&mut self, now: Instant) {
        let listener = self.listener.take().unwrap();
        while let Some((socket, _)) = listener.accept().unwrap() {
            let tunnel = self.server.as_mut().unwrap().accept(now, socket).unwrap();
            self.add(tunnel);
        }
        self.listener = Some(listener);
    }

    /// Steps until `done`, at most 20 s.
    pub fn until(&mut self, what: &str, done: impl Fn(&[End]) -> bool) {
        let give_up = Instant::now() + Duration::from_secs(20);
        while !done(&self.ends) {
            assert!(Instant::now() < give_up, "{what}: not reached; {}", self.told());
            self.step();
        }
    }

    /// Connects, runs until both ends are up or closed, and returns their close reasons.
    pub fn outcome(&mut self, client: &mut Client, peer: SocketAddr) -> [Option<CloseReason>; 2] {
        self.outcome_of(client, peer, false, &[])
    }

    /// The same for a gateway that may attempt early data and sends `data` as soon as possible.
    pub fn outcome_of(
        &mut self,
        client: &mut Client,
        peer: SocketAddr,
        early: bool,
        data: &[u8],
    ) -> [Option<CloseReason>; 2] {
        let near = self.connect_with(client, peer, early);
        let mut sent = 0;
        while self.ends[near].up.is_none() && self.ends[near].closed.is_none() {
            self.step();
            sent += self.ends[near].send(&data[sent..], 1_000);
        }
        self.until("both ends up or over", |ends| {
            let settled = |end: &End| end.closed.is_some() || end.up.is_some();
            ends.len() > near + 1 && ends[near..].iter().all(settled)
        });
        // The server's rejection arrives after the client is up.
        for _ in 0..5 {
            self.step();
        }
        [self.ends[near].closed.clone(), self.ends[near + 1].closed.clone()]
    }

    fn told(&self) -> String {
        let ends = self.ends.iter().map(|end| {
            format!("[up {}, closed {:?}, {}]", end.up.is_some(), end.closed, end.received.len())
        });
        ends.collect()
    }
}

impl End {
    pub fn drain(&mut self) {
        if self.early.is_none() && self.up.is_none() {
            let before = self.tunnel.receive(&mut |_| panic!("delivered before it was reported"));
            assert_eq!(before, 0);
        }
        self.poll_events();
        while self.reading && self.tunnel.receive(&mut |b| self.received.extend_from_slice(b)) > 0 {
        }
        self.poll_events();
    }

    /// Runs the next timer; returns the close reason.
    pub fn time_out(&mut self) -> Option<CloseReason> {
        let due = self.tunnel.next_timeout().unwrap();
        self.tunnel.on_timeout(due);
        self.drain();
        self.closed.clone()
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.tunnel.poll_event() {
            assert!(self.closed.is_none(), "an event after Closed");
            match event {
                TunnelEvent::Early(early) => {
                    assert!(self.early.replace(early).is_none(), "Early is reported once")
                }
                TunnelEvent::Up(up) => {
                    assert!(self.up.replace(up).is_none(), "Up is reported once")
                }
                TunnelEvent::Closed(reason) => self.closed = Some(reason),
            }
        }
    }

    /// Sends as much of `data` as there is room for, in units of `unit`; returns the number of
    /// bytes.
    pub fn send(&mut self, data: &[u8], unit: usize) -> usize {
        let mut sent = 0;
        while sent < data.len() && self.tunnel.room() > 0 {
            let size = unit.min(data.len() - sent).min(self.tunnel.room());
            self.tunnel.send(Unit::Control, &data[sent..sent + size]);
            sent += size;
        }
        self.tunnel.flush(Instant::now());
        sent
    }
}

pub fn server(identity: TlsIdentity, clock: &Arc<TestClock>) -> Server {
    Server::new(identity, SocketOptions::default(), clock.clone()).unwrap()
}

pub fn client(identity: TlsIdentity, clock: &Arc<TestClock>) -> Client {
    Client::new(identity, name("cloud"), clock.clone()).unwrap()
}
