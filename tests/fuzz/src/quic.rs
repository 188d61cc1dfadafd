//! Datagrams at the QUIC listener: of strangers, and of real gateways whose datagrams are changed,
//! repeated, reordered or lost.
//!
//! Promises: nothing panics; the handshakes in progress stay below their bound; when the clients
//! are gone, the listener keeps no memory of them.

#[path = "../../../control/identity/tests/scratch/mod.rs"]
mod scratch;

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Poll, Token};
use polyrail_identity::Clock;
use polyrail_model::{Identity, Unit};
use polyrail_tunnel::quic::{Client, Listener, ServerOptions};
use polyrail_tunnel::{CarrierSpec, Tunnel, TunnelEvent};

use crate::input::Input;
use scratch::Authority;

/// A listener for all inputs, since its keys are expensive.
struct World {
    poll: Poll,
    listener: Listener,
    client: Client,
    accepted: Vec<End>,
    gateways: Vec<Gateway>,
    stranger: UdpSocket,
    next: usize,
    _authority: Authority,
}

struct End {
    token: Token,
    tunnel: Box<dyn Tunnel>,
}

/// A gateway whose datagrams pass through the fuzzer.
struct Gateway {
    tunnel: Box<dyn Tunnel>,
    /// Where the gateway sends to, and its address there.
    near: UdpSocket,
    address: Option<SocketAddr>,
    far: UdpSocket,
    /// Datagrams on their way to the listener.
    queue: Vec<Vec<u8>>,
}

/// Any order of connects, datagrams, and turns of the listener's loop.
pub fn quic_listener(data: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let mut input = Input(data);
        for _ in 0..OPERATIONS_MAX {
            if input.is_over() {
                break;
            }
            match input.byte() % 16 {
                0 | 1 => world.connect(),
                2..=6 => world.change(&mut input),
                7 => world.knock(&mut input),
                8 => drop(world.stranger.send(input.part())),
                9 => {
                    let (gateway, datagram) = (input.byte(), input.part());
                    if let Some(gateway) = world.gateways.get(usize::from(gateway)) {
                        let _ = gateway.far.send(datagram);
                    }
                }
                10 => {
                    let length = usize::from(input.short()).clamp(1, UNIT_MAX);
                    for gateway in &mut world.gateways {
                        gateway.tunnel.send(Unit::Control, &[1; UNIT_MAX][..length]);
                    }
                }
                11 => {
                    let end = usize::from(input.byte());
                    if end < world.accepted.len() {
                        world.accepted.remove(end);
                    }
                }
                12 | 13 => world.turn(true),
                _ => world.turn(false),
            }
        }
        world.end();
    });
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

impl World {
    fn new() -> Self {
        let authority = Authority::new();
        let options =
            ServerOptions { half_open_max: HALF_OPEN_MAX, retry_above: 3, ..Default::default() };
        let clock = Arc::new(Fixed);
        let listener = Listener::bind(loopback(), authority.cloud(), options, clock.clone());
        let listener = listener.expect("a free port");
        let cloud = Identity::new("cloud").expect("a valid name");
        let client = Client::new(authority.gateway(), cloud, clock).expect("a valid identity");
        Self {
            poll: Poll::new().expect("a poll"),
            stranger: socket(Some(listener.local_addr())),
            listener,
            client,
            accepted: Vec::new(),
            gateways: Vec::new(),
            next: 0,
            _authority: authority,
        }
    }

    /// A gateway begins to connect.
    fn connect(&mut self) {
        if self.gateways.len() >= GATEWAYS_MAX {
            return;
        }
        let (near, far) = (socket(None), socket(Some(self.listener.local_addr())));
        let spec = CarrierSpec { name: "a".to_owned(), ..CarrierSpec::default() };
        let peer = near.local_addr().expect("a bound socket");
        let tunnel = self.client.connect(Instant::now(), &spec, peer);
        let mut tunnel = tunnel.expect("a socket of a gateway");
        let token = self.token();
        tunnel.register(self.poll.registry(), token).expect("a new socket");
        tunnel.flush(Instant::now());
        self.gateways.push(Gateway { tunnel, near, address: None, far, queue: Vec::new() });
        self.turn(false);
    }

    fn token(&mut self) -> Token {
        self.next += 1;
        Token(self.next)
    }

    /// One queued datagram of a gateway is sent, with or without a change.
    fn change(&mut self, input: &mut Input<'_>) {
        let (which, kind, at) = (input.byte(), input.byte(), usize::from(input.short()));
        let count = self.gateways.len().max(1);
        let Some(gateway) = self.gateways.get_mut(usize::from(which) % count) else { return };
        if gateway.queue.is_empty() {
            return;
        }
        let from = usize::from(which >> 4) % gateway.queue.len();
        let mut datagram = match kind % 8 {
            0 => return drop(gateway.queue.remove(from)),
            1 | 2 => gateway.queue[from].clone(),
            _ => gateway.queue.remove(from),
        };
        let length = datagram.len().max(1);
        match kind % 8 {
            2 | 3 => datagram[at % length] ^= input.byte(),
            4 => datagram.truncate(at),
            5 => datagram.extend_from_slice(input.part()),
            6 => {
                let bytes = input.part();
                let end = (at % length + bytes.len()).min(length);
                datagram[at % length..end].copy_from_slice(&bytes[..end - at % length]);
            }
            _ => {}
        }
        let sender = if kind & 64 == 0 { &gateway.far } else { &self.stranger };
        let _ = sender.send(&datagram);
    }

    /// A stranger sends what looks like a client's first datagram.
    fn knock(&mut self, input: &mut Input<'_>) {
        let (kind, version) = (input.byte(), input.pick(&[1, 1, 1, 0, 0x0a1a_2a3a, 2]));
        let mut datagram = vec![0xc0 | kind & 0x3f];
        datagram.extend_from_slice(&u32::to_be_bytes(version));
        for _ in 0..3 {
            let id = input.part();
            let id = &id[..id.len().min(63)];
            datagram.push(id.len() as u8);
            datagram.extend_from_slice(id);
        }
        datagram.extend_from_slice(input.part());
        if kind & 64 != 0 {
            datagram.resize(1_200, kind);
        }
        let _ = self.stranger.send(&datagram);
    }

    /// One turn of all loops; with `all`, unchanged datagrams travel until there are none.
    fn turn(&mut self, all: bool) {
        for _ in 0..if all { TURNS_MAX } else { 1 } {
            self.serve();
            let mut idle = true;
            for gateway in &mut self.gateways {
                idle &= !gateway.turn();
                if all {
                    for datagram in gateway.queue.drain(..) {
                        let _ = gateway.far.send(&datagram);
                    }
                }
            }
            if idle {
                return;
            }
        }
    }

    /// One turn of the cloud's loop.
    fn serve(&mut self) {
        let now = Instant::now();
        self.listener.on_ready(now, true, true);
        while self.listener.receive(now) {}
        while let Some(mut tunnel) = self.listener.accept() {
            let token = self.token();
            tunnel.register(self.poll.registry(), token).expect("a new tunnel");
            self.accepted.push(End { token, tunnel });
        }
        let mut woken = Vec::new();
        self.listener.take_woken(&mut woken);
        self.accepted.retain_mut(|end| {
            if woken.contains(&end.token) {
                end.tunnel.on_ready(now, true, true);
            }
            let is_open = drained(&mut *end.tunnel, now);
            let room = end.tunnel.room().min(100);
            if room > 0 {
                end.tunnel.send(Unit::Control, &[2; 100][..room]);
                end.tunnel.flush(now);
            }
            is_open
        });
        assert!(self.listener.half_open() <= HALF_OPEN_MAX);
    }

    /// Everybody leaves.
    fn end(&mut self) {
        self.turn(false);
        self.gateways.clear();
        self.accepted.clear();
        self.serve();
        self.accepted.clear();
        self.serve();
        assert_eq!((self.accepted.len(), self.listener.half_open()), (0, 0));
        while self.stranger.recv(&mut [0; 2_048]).is_ok() {}
    }
}

impl Gateway {
    /// Carries datagrams to the gateway, and its own into the queue; whether there were any.
    fn turn(&mut self) -> bool {
        let (now, mut buffer, mut moved) = (Instant::now(), [0; 2_048], false);
        while let (Some(address), Ok(length)) = (self.address, self.far.recv(&mut buffer)) {
            let _ = self.near.send_to(&buffer[..length], address);
            moved = true;
        }
        self.tunnel.on_ready(now, true, true);
        drained(&mut *self.tunnel, now);
        while let Ok((length, address)) = self.near.recv_from(&mut buffer) {
            self.address = Some(address);
            moved = true;
            if self.queue.len() < QUEUE_MAX {
                self.queue.push(buffer[..length].to_vec());
            }
        }
        moved
    }
}

/// Drains a tunnel; false when it is closed.
fn drained(tunnel: &mut dyn Tunnel, now: Instant) -> bool {
    if tunnel.next_timeout().is_some_and(|at| at <= now) {
        tunnel.on_timeout(now);
    }
    let mut is_open = true;
    for _ in 0..2 {
        while let Some(event) = tunnel.poll_event() {
            assert!(is_open, "an event after the end");
            is_open = !matches!(event, TunnelEvent::Closed(_));
        }
        while is_open && tunnel.receive(&mut |_| {}) > 0 {}
    }
    tunnel.flush(now);
    is_open
}

/// A time at which the certificates are valid.
#[derive(Debug)]
struct Fixed;

impl Clock for Fixed {
    fn since_epoch(&self) -> Duration {
        Duration::from_secs(scratch::BEGIN + 100)
    }
}

fn socket(peer: Option<SocketAddr>) -> UdpSocket {
    let socket = UdpSocket::bind(loopback()).expect("a free port");
    socket.set_nonblocking(true).expect("a socket");
    if let Some(peer) = peer {
        socket.connect(peer).expect("a route to this host");
    }
    socket
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

const OPERATIONS_MAX: usize = 100;
const GATEWAYS_MAX: usize = 6;
const HALF_OPEN_MAX: usize = 5;
const QUEUE_MAX: usize = 32;
const TURNS_MAX: usize = 12;
const UNIT_MAX: usize = 4_096;
