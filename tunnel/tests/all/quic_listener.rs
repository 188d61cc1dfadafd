//! What strangers do to a QUIC listener: floods, garbage, other versions, other protocols.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::pki::{Authority, GATEWAY, Node};
use crate::common::{TestClock, loopback};
use crate::quic_world::wire::Tap;
use crate::quic_world::{World, client};
use polyrail_identity::{CertificateFault, IdentityPaths};
use polyrail_model::Unit;
use polyrail_tunnel::CloseReason;
use polyrail_tunnel::quic::{Listener, STREAMS_MAX, ServerOptions};

/// A QUIC client that is not ours, over a plain socket.
struct Raw {
    socket: UdpSocket,
    connection: quiche::Connection,
    peer: SocketAddr,
}

impl Raw {
    /// With no certificate, offering `protocol`, trusting everybody.
    fn new(peer: SocketAddr, protocol: &[u8]) -> Self {
        Self::with(peer, protocol, None)
    }

    fn with(peer: SocketAddr, protocol: &[u8], identity: Option<&IdentityPaths>) -> Self {
        let socket = UdpSocket::bind(loopback()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION).unwrap();
        config.set_application_protos(&[protocol]).unwrap();
        config.verify_peer(false);
        if let Some(identity) = identity {
            let path = |path: &Path| path.to_str().unwrap().to_owned();
            config.load_cert_chain_from_pem_file(&path(&identity.certificate)).unwrap();
            config.load_priv_key_from_pem_file(&path(&identity.key)).unwrap();
        }
        config.set_initial_max_data(1 << 20);
        config.set_initial_max_stream_data_uni(1 << 20);
        config.set_initial_max_streams_uni(100);
        let local = socket.local_addr().unwrap();
        let id: [u8; 8] = std::array::from_fn(|at| (local.port() >> (at % 2 * 8)) as u8);
        let id = quiche::ConnectionId::from_ref(&id);
        let connection = quiche::connect(Some("cloud"), &id, local, peer, &mut config).unwrap();
        Self { socket, connection, peer }
    }

    fn turn(&mut self) {
        while self.knock() {}
        while self.read_once() {}
    }

    /// Sends one datagram, the first one or an answer to a Retry; false if there is none.
    fn knock(&mut self) -> bool {
        let mut buffer = [0; 2_000];
        let Ok((length, _)) = self.connection.send(&mut buffer) else { return false };
        self.socket.send_to(&buffer[..length], self.peer).unwrap();
        true
    }

    /// Takes in one datagram; false if none came.
    fn read_once(&mut self) -> bool {
        let mut buffer = [0; 2_000];
        let Ok(length) = self.socket.recv(&mut buffer) else { return false };
        let to = self.socket.local_addr().unwrap();
        let info = quiche::RecvInfo { from: self.peer, to };
        let _ = self.connection.recv(&mut buffer[..length], info);
        true
    }

    /// Runs until the cloud has ended the connection, and does `act` each time; the error.
    fn refused(&mut self, world: &mut World, act: impl Fn(&mut Self)) -> (bool, u64) {
        let give_up = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(error) = self.connection.peer_error() {
                return (error.is_app, error.error_code);
            }
            assert!(Instant::now() < give_up, "{}", world.told());
            self.turn();
            if self.connection.is_established() {
                act(self);
            }
            world.step();
        }
    }
}

fn serving(options: ServerOptions) -> (World, SocketAddr, Authority) {
    let authority = Authority::new();
    let mut world = World::new();
    let address = world.serve(authority.cloud(), options, &TestClock::new(), loopback());
    (world, address, authority)
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let (mut world, address, _authority) = serving(ServerOptions::default());
    let mut raw = Raw::new(address, b"polyrail/1");
    let error = raw.refused(&mut world, |raw| {
        let _ = raw.connection.stream_send(2, b"\x01\x00\x01x", false);
        let _ = raw.connection.stream_send(6, b"\x00data", true);
    });
    // certificate_required (RFC 8446 6.2).
    assert_eq!(error, (false, 0x100 + 116));
    let end = &world.ends[0];
    let missing = CloseReason::PeerCertificate(CertificateFault::Missing);
    assert_eq!((end.closed.clone(), end.units.len(), end.up.is_some()), (Some(missing), 0, false));
}

#[test]
fn a_peer_that_breaks_the_rules_of_units_is_told_so() {
    let (mut world, address, authority) = serving(ServerOptions::default());
    let paths = authority.issue(&Node::new("train-7", GATEWAY, 7), &authority);
    let mut raw = Raw::with(address, b"polyrail/1", Some(&paths));
    let error = raw.refused(&mut world, |raw| {
        let _ = raw.connection.stream_send(6, b"\x00\x00\x01xy", true);
    });
    assert_eq!(error, (true, 1));
    assert!(matches!(world.ends[0].closed, Some(CloseReason::ProtocolError { .. })));
}

#[test]
fn a_gateway_with_a_proven_address_gets_in_when_all_places_are_taken() {
    let options = ServerOptions { half_open_max: 20, retry_above: 16, ..ServerOptions::default() };
    let (mut world, address, authority) = serving(options);
    let mut knocking: Vec<Raw> = (0..30).map(|_| Raw::new(address, b"polyrail/1")).collect();
    for raw in &mut knocking {
        assert!(raw.knock());
        world.step();
    }
    world.run_for(Duration::from_millis(50));
    // Clients that must prove their address do so, and stop there.
    for raw in &mut knocking[16..] {
        raw.read_once();
        assert!(raw.knock());
        world.step();
    }
    world.run_for(Duration::from_millis(50));
    let figures = |world: &World| {
        let listener = world.listener.as_ref().unwrap();
        (listener.half_open(), listener.counters().begun, listener.counters().refused)
    };
    assert_eq!(figures(&world), (20, 20, 10));
    world.run_for(Duration::from_millis(2_050));
    // All handshakes had their time: the oldest gives way.
    let mut ours = client(authority.gateway(), &TestClock::new());
    let near = world.connect(&mut ours, address);
    world.until("up", |ends| {
        ends[near].up.is_some() && ends.last().is_some_and(|end| end.up.is_some())
    });
    // The listener reads the tunnels' reports in its next turn.
    world.step();
    assert_eq!(figures(&world), (19, 21, 10));
    let closed: Vec<_> = world.ends.iter().filter_map(|end| end.closed.as_ref()).collect();
    assert!(matches!(closed[..], [CloseReason::HandshakeTimedOut { .. }]), "{closed:?}");
    // One address alone takes a quarter of the places by proofs: the fifth, and then those of its
    // four older handshakes. The last one finds none that had its time.
    let mut more: Vec<Raw> = (0..6).map(|_| Raw::new(address, b"polyrail/1")).collect();
    for raw in &mut more {
        assert!(raw.knock());
        world.run_for(Duration::from_millis(5));
        raw.read_once();
        assert!(raw.knock());
        world.run_for(Duration::from_millis(5));
    }
    assert_eq!(figures(&world), (20, 26, 11));
}

#[test]
fn another_protocol_is_refused() {
    let (mut world, address, _authority) = serving(ServerOptions::default());
    let mut raw = Raw::new(address, b"h3");
    // no_application_protocol (RFC 7301 3.2).
    assert_eq!(raw.refused(&mut world, |_| ()), (false, 0x100 + 120));
    world.until("over", |ends| ends[0].closed.is_some());
    assert_eq!(world.ends[0].closed, Some(CloseReason::WrongProtocol));
}

#[test]
fn a_flood_of_half_open_handshakes_costs_a_bounded_number_of_connections() {
    let options = ServerOptions { half_open_max: 20, retry_above: 8, ..ServerOptions::default() };
    let (mut world, address, authority) = serving(options);
    let mut knocking: Vec<Raw> = (0..200).map(|_| Raw::new(address, b"polyrail/1")).collect();
    for raw in &mut knocking {
        assert!(raw.knock());
        world.step();
    }
    world.run_for(Duration::from_millis(100));
    let listener = world.listener.as_ref().unwrap();
    let counters = listener.counters();
    assert_eq!((listener.half_open(), counters.begun), (8, 8));
    assert!(counters.retries >= 192, "{counters:?}");
    // Those who prove their address get in, up to the bound.
    for raw in &mut knocking {
        raw.turn();
        raw.knock();
        world.step();
    }
    world.run_for(Duration::from_millis(100));
    assert!(world.listener.as_ref().unwrap().half_open() <= 20);
    // A gateway of ours waits for room, and then proves its address without noticing.
    for end in 0..world.ends.len() {
        world.drop_end(end);
    }
    let mut few: Vec<Raw> = (0..8).map(|_| Raw::new(address, b"polyrail/1")).collect();
    for raw in &mut few {
        assert!(raw.knock());
        world.step();
    }
    world.run_for(Duration::from_millis(50));
    assert_eq!(world.listener.as_ref().unwrap().half_open(), 8);
    let retries = world.listener.as_ref().unwrap().counters().retries;
    let mut ours = client(authority.gateway(), &TestClock::new());
    let near = world.connect(&mut ours, address);
    world.until("up", |ends| {
        ends[near].up.is_some() && ends.last().is_some_and(|end| end.up.is_some())
    });
    assert!(world.listener.as_ref().unwrap().counters().retries > retries);
    let far = world.ends.len() - 1;
    world.transfer(near, far, 50, 5_000);
}

#[test]
fn floods_of_invalid_first_packets_are_asked_for_a_proof() {
    let (mut world, address, authority) = serving(ServerOptions::default());
    let socket = UdpSocket::bind(loopback()).unwrap();
    // An Initial of version 1 with ids of 8 bytes, and nothing that its keys open.
    let ids = [&[8][..], &[1; 8], &[8], &[2; 8]].concat();
    let head = [&[0xc0, 0, 0, 0, 1], &ids[..], &[0, 0x44, 0x96]].concat();
    let mut datagram = [7; 1_200];
    datagram[..head.len()].copy_from_slice(&head);
    for number in 0..1_000 {
        socket.send_to(&datagram, address).unwrap();
        if number % 10 == 9 {
            world.step();
        }
    }
    // A sound one behind some that take new tokens.
    let mut honest = Raw::new(address, b"polyrail/1");
    for _ in 0..20 {
        socket.send_to(&datagram, address).unwrap();
    }
    assert!(honest.knock());
    (0..5).for_each(|_| world.step());
    let counters = world.listener.as_ref().unwrap().counters();
    assert!(counters.refused >= 100 && counters.retries >= 100, "{counters:?}");
    assert_eq!(counters.begun, 0, "it is asked for a proof");
    let [near, far] = world.pair(&mut client(authority.gateway(), &TestClock::new()), address);
    world.transfer(near, far, 50, 5_000);
}

#[test]
fn fuzz_garbage_begins_nothing_and_hurts_nobody() {
    let (mut world, address, authority) = serving(ServerOptions::default());
    let clock = TestClock::new();
    let [near, far] = world.pair(&mut client(authority.gateway(), &clock), address);
    let socket = UdpSocket::bind(loopback()).unwrap();
    let mut state = 0x1234_5678u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    for round in 0..3_000u32 {
        let length = match round % 4 {
            0 => random() as usize % 40,
            1 => 1_200 + random() as usize % 200,
            _ => random() as usize % 1_400,
        };
        let mut datagram: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        if round % 3 == 0 && length > 20 {
            // Looks like a client's first packet.
            datagram[..6].copy_from_slice(&[0xc0 | random() as u8 & 0xf, 0, 0, 0, 1, 8]);
        }
        socket.send_to(&datagram, address).unwrap();
        if round % 50 == 0 {
            world.step();
        }
    }
    world.run_for(Duration::from_millis(100));
    let listener = world.listener.as_ref().unwrap();
    assert_eq!((world.ends.len(), listener.half_open()), (2, 0));
    assert!(listener.counters().dropped > 1_000);
    world.transfer(near, far, 200, 1_400);
}

#[test]
fn other_versions_are_told_which_one_is_spoken() {
    let (mut world, address, _authority) = serving(ServerOptions::default());
    let socket = UdpSocket::bind(loopback()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut hello = vec![0xc0, 0x0a, 0x1a, 0x2a, 0x3a, 8];
    hello.extend_from_slice(&[7; 8]);
    hello.push(4);
    hello.extend_from_slice(&[9; 4]);
    let mut answer = [0; 200];
    socket.send_to(&hello, address).unwrap();
    world.run_for(Duration::from_millis(30));
    assert!(socket.recv(&mut answer).is_err(), "a short one is not answered: amplification");
    hello.resize(1_200, 0);
    socket.send_to(&hello, address).unwrap();
    world.run_for(Duration::from_millis(30));
    let length = socket.recv(&mut answer).unwrap();
    assert_eq!(answer[1..5], [0; 4]);
    assert!(answer[..length].windows(4).any(|bytes| bytes == [0, 0, 0, 1]));
    assert!(world.ends.is_empty());
}

#[test]
fn a_restarted_cloud_ends_the_connections_of_its_predecessor() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let identity = authority.cloud();
    let (mut world, address) = World::serving(identity.clone(), &clock);
    let tap = Tap::new(address);
    let [near, far] = world.pair(&mut client(authority.gateway(), &clock), tap.address());
    world.transfer(near, far, 50, 1_400);
    tap.redirect(world.crash(far, identity, &clock));
    let begin = Instant::now();
    world.ends[near].send(Unit::Data { tag: 1_000_000 }, &[0; 1_000]);
    world.until("noticed", |ends| ends[near].closed.is_some());
    assert_eq!(world.ends[near].closed, Some(CloseReason::Reset));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(world.listener.as_ref().unwrap().counters().resets > 0);
}

#[test]
fn a_tunnel_that_is_dropped_is_noticed_by_the_peer() {
    let (mut world, address, authority) = serving(ServerOptions::default());
    let [near, far] = world.pair(&mut client(authority.gateway(), &TestClock::new()), address);
    world.drop_end(near);
    world.until("over", |ends| ends[far].closed.is_some());
    assert_eq!(world.ends[far].closed, Some(CloseReason::Cut));
}

#[test]
fn nobody_there_is_noticed_at_once() {
    let authority = Authority::new();
    let mut world = World::new();
    let free = UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let near = world.connect(&mut client(authority.gateway(), &TestClock::new()), free);
    world.until_within(Duration::from_secs(3), "over", |ends| ends[near].closed.is_some());
    assert_eq!(world.ends[near].closed, Some(CloseReason::Refused { peer: free }));
}

#[test]
fn many_small_units_pass_although_streams_are_bounded() {
    let (mut world, address, authority) = serving(ServerOptions::default());
    let [near, far] = world.pair(&mut client(authority.gateway(), &TestClock::new()), address);
    world.transfer(near, far, 2 * STREAMS_MAX as u32 + 1_000, 20);
}

#[test]
fn listener_at_another_address_cannot_reset_a_connection() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let identity = authority.cloud();
    let (mut world, address) = World::serving(identity.clone(), &clock);
    let tap = Tap::new(address);
    let [near, far] = world.pair(&mut client(authority.gateway(), &clock), tap.address());
    world.transfer(near, far, 20, 1_400);
    let elsewhere = "127.0.0.2:0".parse().unwrap();
    let mut other = Listener::bind(elsewhere, identity, ServerOptions::default(), clock).unwrap();
    tap.redirect(other.local_addr());
    world.ends[near].send(Unit::Data { tag: 1_000_000 }, &[0; 1_000]);
    for _ in 0..10 {
        world.run_for(Duration::from_millis(20));
        other.on_ready(Instant::now(), true, false);
        other.receive(Instant::now());
    }
    assert!(other.counters().resets > 0, "{:?}", other.counters());
    assert_eq!(world.ends[near].closed, None);
    tap.redirect(address);
    world.until("the unit", |ends| ends[far].units.contains(&vec![0; 1_000]));
}
