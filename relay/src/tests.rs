//! Two relays over fake tunnels, with real sockets at both ends, in one thread.

mod contract;
mod drops;
mod early;
mod shared;
mod shutdown;
mod traffic;
mod workers;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use polyrail_model::{Destination, Identity, InstanceId, UserId};
use polyrail_session::{Endpoint, Event, Settings};
use polyrail_tunnel::CloseReason;
use socket2::SockRef;

use crate::fake::{self, FakeControl};
use crate::{Label, Relay, RelayEvent, RelaySettings};

struct Side {
    poll: Poll,
    events: Events,
    relay: Relay,
}

/// A gateway and a cloud; destinations are dialed as they are opened.
struct World {
    gateway: Side,
    cloud: Side,
    server: TcpListener,
    accepted: VecDeque<TcpStream>,
    turns: usize,
    users: u64,
    /// All flows belong to one user.
    one_user: bool,
    tunnels: u8,
}

impl Side {
    fn new(endpoint: Endpoint, settings: RelaySettings) -> Self {
        let poll = Poll::new().unwrap();
        let relay = Relay::new(poll.registry().try_clone().unwrap(), endpoint, settings);
        Self { poll, events: Events::with_capacity(1024), relay }
    }

    fn turn(&mut self) -> Vec<RelayEvent> {
        let wanted = self.relay.timeout(Instant::now()).unwrap_or(Duration::MAX);
        self.poll.poll(&mut self.events, Some(wanted.min(Duration::from_millis(1)))).unwrap();
        let now = Instant::now();
        for event in &self.events {
            assert!(self.relay.on_event(now, event), "only the relay has tokens here");
        }
        self.relay.turn(now);
        std::iter::from_fn(|| self.relay.poll_event()).collect()
    }
}

impl World {
    fn new(tunnels: u8) -> Self {
        Self::with(tunnels, RelaySettings::default())
    }

    fn with(tunnels: u8, relay: RelaySettings) -> Self {
        crate::raise_descriptor_limit();
        let now = Instant::now();
        let gateway = Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]));
        let cloud = Endpoint::cloud(now, Settings::default(), [9; 32]);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (gateway, cloud) = (Side::new(gateway, relay), Side::new(cloud, relay));
        let accepted = VecDeque::new();
        let (turns, users, one_user, tunnels_up) = (0, 0, false, 0);
        let mut world =
            Self { gateway, cloud, server, accepted, turns, users, one_user, tunnels: tunnels_up };
        for _ in 0..tunnels {
            world.add_tunnel();
        }
        world
    }

    fn add_tunnel(&mut self) -> FakeControl {
        self.tunnels += 1;
        let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
        let (near, far) = fake::pair(&train, &ground, [self.tunnels; 32]).unwrap();
        let control = near.control();
        let label = Label { carrier: format!("c{}", self.tunnels), ..Label::default() };
        self.gateway.relay.add_tunnel(Box::new(near), label).unwrap();
        self.cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
        control
    }

    fn turn(&mut self) {
        self.turns += 1;
        self.gateway.turn();
        let now = Instant::now();
        for event in self.cloud.turn() {
            if let RelayEvent::Session(Event::Opened { flow, destination, .. }) = event {
                let Destination::Address(address) = destination else { panic!("by address") };
                let stream = TcpStream::connect(address).unwrap();
                let (server, _) = self.server.accept().unwrap();
                server.set_nonblocking(true).unwrap();
                self.accepted.push_back(server);
                stream.set_nonblocking(true).unwrap();
                self.cloud.relay.endpoint().dialed(now, flow);
                self.cloud.relay.attach(now, flow, mio::net::TcpStream::from_std(stream));
            }
        }
    }

    fn turn_until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            self.turn();
            if let Some(result) = done(self) {
                return result;
            }
            assert!(Instant::now() < limit, "{what} does not happen");
        }
    }

    /// A user's connection through both relays: the user's end and the server's end.
    fn connect(&mut self) -> (TcpStream, TcpStream) {
        let client = self.open();
        let server = self.turn_until("the dial", |world| world.accepted.pop_front());
        (client, server)
    }

    fn open(&mut self) -> TcpStream {
        let (client, leg) = socket_pair();
        self.carry(leg);
        client
    }

    /// Opens a flow for the near end of a user's connection.
    fn carry(&mut self, leg: TcpStream) {
        let now = Instant::now();
        let to: SocketAddr = self.server.local_addr().unwrap();
        let endpoint = self.gateway.relay.endpoint();
        self.users += u64::from(self.users == 0 || !self.one_user);
        let flow = endpoint.open(now, UserId(self.users), Destination::Address(to)).unwrap();
        self.gateway.relay.attach(now, flow, mio::net::TcpStream::from_std(leg));
    }

    /// Reads until the end of the stream or an error.
    fn read_all(&mut self, stream: &mut TcpStream) -> (Vec<u8>, Option<ErrorKind>) {
        let mut got = Vec::new();
        let mut buffer = vec![0; 65_536];
        let end = self.turn_until("the end of the stream", |_| {
            loop {
                match stream.read(&mut buffer) {
                    Ok(0) => return Some(None),
                    Ok(read) => got.extend_from_slice(&buffer[..read]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                    Err(error) => return Some(Some(error.kind())),
                }
            }
        });
        (got, end)
    }

    fn read_exactly(&mut self, stream: &mut TcpStream, length: usize) -> Vec<u8> {
        let mut got = vec![0; length];
        let mut at = 0;
        self.turn_until("the bytes", |_| {
            while at < length {
                match stream.read(&mut got[at..]) {
                    Ok(0) => panic!("the end after {at} of {length} bytes"),
                    Ok(read) => at += read,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                    Err(error) => panic!("{error} after {at} of {length} bytes"),
                }
            }
            Some(())
        });
        got
    }

    fn write_all(&mut self, stream: &mut TcpStream, mut bytes: &[u8]) {
        self.turn_until("the writing", |_| {
            match stream.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            bytes.is_empty().then_some(())
        });
    }

    fn rest(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn();
        }
    }

    fn legs(&self) -> usize {
        self.gateway.relay.leg_count() + self.cloud.relay.leg_count()
    }
}

fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(next).collect()
}

fn abort(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn bytes_are_relayed_in_both_directions_and_servers_may_send_first() {
    let mut world = World::new(2);
    let (mut client, mut server) = world.connect();
    world.write_all(&mut server, b"220 ready\r\n");
    assert_eq!(world.read_exactly(&mut client, 11), b"220 ready\r\n");
    world.rest(Duration::from_millis(20));
    for round in 0..20 {
        let sent = pattern(1 + round * 5_000, round as u32);
        world.write_all(&mut client, &sent);
        assert!(world.read_exactly(&mut server, sent.len()) == sent, "up, round {round}");
        world.write_all(&mut server, &sent);
        assert!(world.read_exactly(&mut client, sent.len()) == sent, "down, round {round}");
    }
}

#[test]
fn socket_has_keepalive_and_user_timeout() {
    let mut world = World::new(1);
    let (_client, leg) = socket_pair();
    let same = leg.try_clone().unwrap();
    let socket = SockRef::from(&same);
    assert!(!socket.keepalive().unwrap());
    world.carry(leg);
    // Longer than a blackout, and short enough to free the flows of vanished passengers.
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
    assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(60));
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(120)));
}

#[test]
fn urgent_bytes_keep_their_place() {
    let mut world = World::new(1);
    let (client, server) = world.connect();
    for (mut from, mut to) in [
        (client.try_clone().unwrap(), server.try_clone().unwrap()),
        (server.try_clone().unwrap(), client.try_clone().unwrap()),
    ] {
        for round in 0..3 {
            world.write_all(&mut from, b"before");
            assert_eq!(SockRef::from(&from).send_out_of_band(b"!").unwrap(), 1);
            world.write_all(&mut from, b"after");
            assert_eq!(world.read_exactly(&mut to, 12), b"before!after", "round {round}");
        }
    }
}

#[test]
fn directions_close_independently() {
    for from_client in [true, false] {
        let mut world = World::new(1);
        let (client, server) = world.connect();
        let (mut first, mut second) = if from_client { (client, server) } else { (server, client) };
        let (request, answer) = (pattern(300_000, 1), pattern(2_000_000, 2));
        world.write_all(&mut first, &request);
        first.shutdown(Shutdown::Write).unwrap();
        let (got, end) = world.read_all(&mut second);
        assert!(got == request && end.is_none(), "{from_client}: {} bytes, {end:?}", got.len());
        // The other direction goes on.
        let mut reader = first.try_clone().unwrap();
        let mut sent = 0;
        let mut got = Vec::new();
        let mut buffer = vec![0; 65_536];
        world.turn_until("the answer", |_| {
            if sent < answer.len() {
                sent += second.write(&answer[sent..]).unwrap_or(0);
            }
            if sent == answer.len() {
                let _ = second.shutdown(Shutdown::Write);
            }
            match reader.read(&mut buffer) {
                Ok(0) => return Some(()),
                Ok(read) => got.extend_from_slice(&buffer[..read]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            None
        });
        assert!(got == answer, "{from_client}: {} bytes", got.len());
        world.turn_until("the end of the legs", |world| (world.legs() == 0).then_some(()));
    }
}

#[test]
fn reset_is_relayed_after_the_data_in_both_directions() {
    for from_client in [true, false] {
        let mut world = World::new(2);
        let (client, server) = world.connect();
        let (mut first, mut second) = if from_client { (client, server) } else { (server, client) };
        let sent = pattern(50_000, 3);
        world.write_all(&mut first, &sent);
        world.rest(Duration::from_millis(30));
        abort(first);
        world.rest(Duration::from_millis(30));
        let (got, end) = world.read_all(&mut second);
        assert!(got == sent, "{from_client}: {} bytes", got.len());
        assert_eq!(end, Some(ErrorKind::ConnectionReset), "{from_client}");
        world.turn_until("the end of the legs", |world| (world.legs() == 0).then_some(()));
    }
}

#[test]
fn reset_after_a_half_close_is_detected() {
    let mut world = World::new(1);
    let (client, mut server) = world.connect();
    client.shutdown(Shutdown::Write).unwrap();
    let (got, end) = world.read_all(&mut server);
    assert_eq!((got.len(), end), (0, None));
    abort(client);
    world.turn_until("the reset", |world| {
        let _ = server.write(b"x");
        (world.legs() == 0).then_some(())
    });
}

#[test]
fn slow_reader_does_not_slow_other_users() {
    slow_reader(false);
}

#[test]
fn slow_reader_does_not_stop_other_flows_of_its_user() {
    slow_reader(true);
}

fn slow_reader(one_user: bool) {
    let mut world = World::new(2);
    world.one_user = one_user;
    let (mut client, mut server) = world.connect();
    let (mut other_client, mut other_server) = world.connect();
    let sent = pattern(32_000_000, 4);
    let mut at = 0;
    let mut idle = 0;
    world.turn_until("a standstill", |_| {
        match client.write(&sent[at..(at + 65_536).min(sent.len())]) {
            Ok(written) => {
                at += written;
                idle = 0;
            }
            Err(_) => idle += 1,
        }
        (idle > 300).then_some(())
    });
    assert!(at < 28_000_000, "{at} bytes were taken for a reader that does not read");
    let small = pattern(1_000_000, 5);
    world.write_all(&mut other_client, &small[..200_000]);
    assert!(world.read_exactly(&mut other_server, 200_000) == small[..200_000]);
    let mut got = Vec::new();
    let mut buffer = vec![0; 65_536];
    world.turn_until("all of it", |_| {
        if at < sent.len() {
            at += client.write(&sent[at..]).unwrap_or(0);
        }
        while let Ok(read) = server.read(&mut buffer) {
            got.extend_from_slice(&buffer[..read]);
        }
        (got.len() == sent.len()).then_some(())
    });
    assert!(got == sent);
}

#[test]
fn thousand_flows_run_at_once() {
    let mut world = World::new(2);
    let mut clients: Vec<(TcpStream, Vec<u8>, usize)> = Vec::new();
    for n in 0..1_000 {
        let mut client = world.open();
        let sent = pattern(1_000 + n * 7, n as u32);
        assert_eq!(client.write(&sent).unwrap(), sent.len());
        client.shutdown(Shutdown::Write).unwrap();
        clients.push((client, sent, 0));
        if n % 50 == 0 {
            world.turn();
        }
    }
    // The servers echo and close.
    let mut servers: Vec<(TcpStream, Vec<u8>, bool)> = Vec::new();
    let mut buffer = vec![0; 65_536];
    let mut done = 0;
    world.turn_until("a thousand echoes", |world| {
        servers.extend(world.accepted.drain(..).map(|server| (server, Vec::new(), false)));
        for (server, held, over) in servers.iter_mut().filter(|(_, _, over)| !over) {
            match server.read(&mut buffer) {
                Ok(0) => {
                    assert_eq!(server.write(held).unwrap(), held.len());
                    server.shutdown(Shutdown::Write).unwrap();
                    *over = true;
                }
                Ok(read) => held.extend_from_slice(&buffer[..read]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        for (client, sent, at) in clients.iter_mut().filter(|(_, sent, at)| *at < sent.len()) {
            while let Ok(read @ 1..) = client.read(&mut buffer) {
                assert!(buffer[..read] == sent[*at..*at + read]);
                *at += read;
            }
            done += usize::from(*at == sent.len());
        }
        (done == 1_000).then_some(())
    });
    world.turn_until("the end of the legs", |world| (world.legs() == 0).then_some(()));
}

#[test]
fn busy_leg_does_not_starve_an_echo() {
    let mut world = World::new(1);
    let (mut busy, mut sink) = world.connect();
    let (mut client, mut server) = world.connect();
    let bulk = pattern(1_000_000, 6);
    let mut buffer = vec![0; 1_000_000];
    let mut moved = 0;
    for _ in 0..20 {
        assert_eq!(client.write(b"?").unwrap(), 1);
        let begun = world.turns;
        let mut answered = false;
        world.turn_until("the echo", |_| {
            let _ = busy.write(&bulk);
            moved += sink.read(&mut buffer).unwrap_or(0);
            let mut byte = [0];
            if !answered && server.read(&mut byte).is_ok_and(|read| read == 1) {
                answered = true;
                assert_eq!(server.write(&byte).unwrap(), 1);
            }
            client.read(&mut byte).is_ok_and(|read| read == 1).then_some(())
        });
        let turns = world.turns - begun;
        assert!(turns < 60, "an echo beside a busy flow took {turns} turns");
    }
    assert!(moved > 1_000_000, "the busy flow moved only {moved} bytes");
}

#[test]
fn idle_half_closed_flow_is_reset() {
    let settings =
        RelaySettings { half_closed_idle: Duration::from_millis(300), ..RelaySettings::default() };
    let mut world = World::with(1, settings);
    let (client, mut server) = world.connect();
    let (whole, mut whole_server) = world.connect();
    client.shutdown(Shutdown::Write).unwrap();
    let (_, end) = world.read_all(&mut server);
    assert_eq!(end, None);
    world.turn_until("the idle limit", |world| (world.legs() == 2).then_some(()));
    // The server's end may have seen the reset as an error of its own.
    let mut whole = whole;
    world.rest(Duration::from_millis(400));
    world.write_all(&mut whole, b"still here");
    assert_eq!(world.read_exactly(&mut whole_server, 10), b"still here");
}

#[test]
fn idle_flow_is_reset_and_a_busy_one_is_not() {
    let settings = RelaySettings { idle: Duration::from_millis(300), ..RelaySettings::default() };
    let mut world = World::with(1, settings);
    let (_idle, _idle_server) = world.connect();
    let (mut busy, mut busy_server) = world.connect();
    world.turn_until("the idle limit", |world| {
        let _ = busy.write(b"x");
        let _ = busy_server.read(&mut [0; 64]);
        (world.legs() == 2).then_some(())
    });
    world.write_all(&mut busy, b"y");
}

#[test]
fn flows_survive_the_loss_of_every_tunnel() {
    let mut world = World::new(0);
    let control = world.add_tunnel();
    let (mut client, mut server) = world.connect();
    let sent = pattern(3_000_000, 8);
    let mut at = 0;
    let mut got = Vec::new();
    let mut buffer = vec![0; 65_536];
    let mut control = Some(control);
    let mut back_at = None;
    world.turn_until("the download", |world| {
        if at < sent.len() {
            at += server.write(&sent[at..]).unwrap_or(0);
        }
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            got.extend_from_slice(&buffer[..read]);
        }
        if got.len() > 1_000_000
            && let Some(control) = control.take()
        {
            control.break_with(CloseReason::TimedOut);
            back_at = Some(Instant::now() + Duration::from_millis(100));
        }
        if back_at.is_some_and(|at| at <= Instant::now()) {
            back_at = None;
            world.add_tunnel();
        }
        (got.len() == sent.len()).then_some(())
    });
    assert!(got == sent);
}

#[test]
fn shutdown_resets_open_flows() {
    let mut world = World::new(1);
    let (mut client, mut server) = world.connect();
    let now = Instant::now();
    world.gateway.relay.abort_all(now);
    assert_eq!(world.read_all(&mut client).1, Some(ErrorKind::ConnectionReset));
    assert_eq!(world.read_all(&mut server).1, Some(ErrorKind::ConnectionReset));
    world.gateway.relay.close_all(now);
    world.turn_until("the end of the tunnels", |world| {
        (world.gateway.relay.tunnel_count() + world.cloud.relay.tunnel_count() == 0).then_some(())
    });
}
