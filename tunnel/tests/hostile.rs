//! Broken, foreign and vanished peers, and unusable carriers.

#![allow(clippy::unwrap_used)] // also in the helpers

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::pki::{Authority, GATEWAY, Node};
use common::raw::RawClient;
use common::{TestClock, World, alert, client, loopback, refused_by, resident};
use polyrail_identity::CertificateFault;
use polyrail_tunnel::tls::{Client, HANDSHAKE_MAX};
use polyrail_tunnel::{CarrierSpec, CloseReason, SocketOptions, TunnelEvent};

/// Runs `act` against a cloud; returns the close reason of the cloud's tunnel.
fn attack(act: impl FnOnce(SocketAddr, Authority) + Send + 'static) -> CloseReason {
    let (mut world, authority, _, address) = World::serving();
    let attacker = thread::spawn(move || act(address, authority));
    world.until("the tunnel over", |ends| ends.first().is_some_and(|end| end.closed.is_some()));
    attacker.join().unwrap();
    let end = &world.ends[0];
    assert!(end.early.is_none() && end.received.is_empty(), "no data is delivered");
    end.closed.clone().unwrap()
}

/// Connects as a valid gateway, then runs `act`.
fn attack_from_within(act: impl FnOnce(RawClient) + Send + 'static) -> CloseReason {
    attack(|address, authority| {
        let paths = authority.issue(&Node::new("train-7", GATEWAY, 7), &authority);
        let mut raw = RawClient::connect(address, &[b"polyrail/1"], Some(&paths));
        assert!(raw.shake());
        // The tickets show that the cloud has finished the handshake.
        assert!(raw.read());
        act(raw);
    })
}

fn until_end(mut raw: RawClient) -> RawClient {
    while raw.read() {}
    raw
}

#[test]
fn client_without_certificate_is_rejected() {
    let reason = attack(|address, _| {
        let mut raw = RawClient::connect(address, &[b"polyrail/1"], None);
        raw.shake();
        until_end(raw);
    });
    assert_eq!(reason, CloseReason::PeerCertificate(CertificateFault::Missing));
}

#[test]
fn endless_handshake_is_cut_off() {
    // A message of 60 kB, in records that TLS would gather.
    let begin = [&[0x16, 3, 1, 0x40, 0, 1, 0, 0xea, 0x60][..], &[0; 16_380]].concat();
    let more = [&[0x16, 3, 1, 0x40, 0][..], &[0; 16_384]].concat();
    let reason = attack(move |address, _| {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.write_all(&[begin, more.clone(), more].concat()).unwrap();
        while tcp.read(&mut [0; 100]).is_ok_and(|read| read > 0) {}
    });
    let detail = format!("more than {HANDSHAKE_MAX} bytes of handshake");
    assert_eq!(reason, CloseReason::ProtocolError { detail });
}

#[test]
fn thousand_half_open_connections_cost_little_and_time_out() {
    const COUNT: usize = 1_000;
    let (mut world, _, _, address) = World::serving();
    let mut hello = Vec::new();
    RawClient::connect(address, &[b"polyrail/1"], None).tls.write_tls(&mut hello).unwrap();
    world.until("the first gone", |ends| ends.first().is_some_and(|end| end.closed.is_some()));
    let before = resident();
    // Some send nothing, some half of their first message, some all of it.
    let mut sockets = Vec::new();
    for number in 0..COUNT {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.write_all(&hello[..hello.len() * (number % 3) / 2]).unwrap();
        sockets.push(tcp);
        if number % 100 == 99 {
            world.until("all accepted", |ends| ends.len() == number + 2);
        }
    }
    for _ in 0..5 {
        world.step();
    }
    let (open, each) = (&mut world.ends[1..], resident().saturating_sub(before) / COUNT);
    assert_eq!(open.len(), COUNT);
    assert!(each < 32 * 1_024, "{each} bytes each");
    for end in open {
        assert!(end.closed.is_none() && end.up.is_none());
        assert!(matches!(end.time_out(), Some(CloseReason::HandshakeTimedOut { .. })));
        assert_eq!(end.tunnel.next_timeout(), None);
    }
    println!("RESULT half_open bytes_each={each}");
}

#[test]
fn another_application_protocol_is_rejected() {
    const FOREIGN: &[&[u8]] = &[b"h2"];
    for alpn in [FOREIGN, &[]] {
        let reason = attack(move |address, authority| {
            let paths = authority.issue(&Node::new("train-7", GATEWAY, 7), &authority);
            let mut raw = RawClient::connect(address, alpn, Some(&paths));
            raw.shake();
            until_end(raw);
        });
        assert_eq!(reason, CloseReason::WrongProtocol, "offered {alpn:?}");
    }
}

#[test]
fn garbage_instead_of_a_handshake_is_rejected() {
    for garbage in [&b"GET / HTTP/1.1\r\nHost: cloud\r\n\r\n"[..], &[0xff; 600], b"SSH-2.0-x\r\n"] {
        let reason = attack(move |address, _| {
            let mut tcp = TcpStream::connect(address).unwrap();
            tcp.write_all(garbage).unwrap();
            let _ = tcp.read(&mut [0; 100]);
        });
        assert_eq!(reason, CloseReason::NotTls, "{garbage:?}");
    }
}

#[test]
fn garbage_record_ends_an_established_tunnel() {
    let forged = [&[0x17, 3, 3, 0, 64][..], &[0xaa; 64]].concat();
    let oversized = [&[0x17, 3, 3, 0xff, 0xff][..], &[0xaa; 20_000]].concat();
    let untyped = vec![0xee; 64];
    for garbage in [forged, oversized, untyped] {
        let start = garbage[..5].to_vec();
        let reason = attack_from_within(move |mut raw| {
            raw.write_bare(&garbage);
            until_end(raw);
        });
        assert_eq!(reason, CloseReason::BadRecord, "{start:x?}");
    }
}

#[test]
fn peer_that_vanishes_in_the_handshake_is_detected() {
    let reason = attack(|address, _| {
        let mut raw = RawClient::connect(address, &[b"polyrail/1"], None);
        let mut hello = Vec::new();
        raw.tls.write_tls(&mut hello).unwrap();
        raw.write_bare(&hello[..hello.len() / 2]);
        raw.cut();
        let _ = raw.tcp.read(&mut [0; 100]);
    });
    assert_eq!(reason, CloseReason::ClosedInHandshake);
    let reason = attack(|address, _| {
        let mut raw = RawClient::connect(address, &[b"polyrail/1"], None);
        raw.tls.write_tls(&mut raw.tcp).unwrap();
        raw.tcp.read_exact(&mut [0; 1]).unwrap();
        raw.reset();
    });
    assert_eq!(reason, CloseReason::ClosedInHandshake);
}

#[test]
fn ends_of_an_established_tunnel_are_distinguished() {
    assert_eq!(
        attack_from_within(|mut raw| {
            raw.tls.send_close_notify();
            raw.tls.write_tls(&mut raw.tcp).unwrap();
            until_end(raw);
        }),
        CloseReason::PeerClosed
    );
    assert_eq!(attack_from_within(|mut raw| raw.cut()), CloseReason::Cut);
    assert_eq!(attack_from_within(RawClient::reset), CloseReason::Reset);
}

#[test]
fn silent_peer_reaches_the_handshake_timeout() {
    let (mut world, _, _, address) = World::serving();
    let _silent = TcpStream::connect(address).unwrap();
    world.until("accepted", |ends| ends.len() == 1);
    let tunnel = &mut world.ends[0].tunnel;
    let due = tunnel.next_timeout().unwrap();
    tunnel.on_timeout(due - Duration::from_millis(1));
    assert_eq!(tunnel.poll_event(), None);
    tunnel.on_timeout(due);
    let after = Duration::from_secs(10);
    let reason = CloseReason::HandshakeTimedOut { after };
    assert_eq!(tunnel.poll_event(), Some(TunnelEvent::Closed(reason)));
    assert_eq!((tunnel.next_timeout(), tunnel.poll_event()), (None, None));
}

/// The close reason of a client's connect to a server that is not a cloud.
fn connect_to(spec: CarrierSpec, address: SocketAddr) -> CloseReason {
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    let mut client: Client = client(authority.gateway(), &clock);
    match client.connect(Instant::now(), &spec, address) {
        Err(reason) => reason,
        Ok(tunnel) => {
            let near = world.add(tunnel);
            world.until("over", |ends| ends[near].closed.is_some());
            assert!(world.ends[near].up.is_none());
            world.ends[near].closed.clone().unwrap()
        }
    }
}

/// A server that answers the first bytes with `answer`, then closes.
fn impostor(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut tcp = listener.accept().unwrap().0;
        let _ = tcp.read(&mut [0; 4096]);
        tcp.write_all(answer).unwrap();
    });
    address
}

#[test]
fn foreign_servers_are_distinguished() {
    let http = impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert_eq!(connect_to(CarrierSpec::default(), http), CloseReason::NotTls);
    let closing = impostor(b"");
    assert_eq!(connect_to(CarrierSpec::default(), closing), CloseReason::ClosedInHandshake);
    let old = impostor(&[0x15, 3, 1, 0, 2, 2, 70]); // the alert protocol_version
    let refused = refused_by(alert::OLD_VERSION);
    assert_eq!(connect_to(CarrierSpec::default(), old), refused);
    let foreign = impostor(&[0x15, 3, 3, 0, 2, 2, alert::WRONG_PROTOCOL]);
    assert_eq!(connect_to(CarrierSpec::default(), foreign), refused_by(alert::WRONG_PROTOCOL));
}

#[test]
fn closed_port_is_reported_as_refused() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let peer = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(connect_to(CarrierSpec::default(), peer), CloseReason::Refused { peer });
}

#[test]
fn unanswered_connect_times_out() {
    // With a full queue of one, the kernel drops further connects.
    let kind = socket2::Type::STREAM;
    let full = socket2::Socket::new(socket2::Domain::IPV4, kind, None).unwrap();
    full.bind(&loopback().into()).unwrap();
    full.listen(0).unwrap();
    let peer = full.local_addr().unwrap().as_socket().unwrap();
    let _first = TcpStream::connect(peer).unwrap();
    let after = Duration::from_millis(200);
    let options = SocketOptions { connect_timeout: after, ..SocketOptions::default() };
    let spec = CarrierSpec { options, ..CarrierSpec::default() };
    let authority = Authority::new();
    let mut client = client(authority.gateway(), &TestClock::new());
    let mut tunnel = client.connect(Instant::now(), &spec, peer).unwrap();
    let due = tunnel.next_timeout().unwrap();
    tunnel.on_timeout(due);
    let reason = CloseReason::ConnectTimedOut { peer, after };
    assert_eq!(tunnel.poll_event(), Some(TunnelEvent::Closed(reason)));
}

#[test]
fn unusable_carrier_is_reported_with_its_cause() {
    let peer: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let spec = CarrierSpec { interface: Some("wwan-none".to_owned()), ..CarrierSpec::default() };
    let unusable = |spec, text: &str| {
        let reason = connect_to(spec, peer);
        assert!(matches!(&reason, CloseReason::Unusable(why) if why.contains(text)), "{reason}");
    };
    unusable(spec, "interface \"wwan-none\" does not exist");
    for (source, text) in
        [("192.0.2.77", "is not on this host"), ("::1", "different address families")]
    {
        let spec = CarrierSpec { source: Some(source.parse().unwrap()), ..CarrierSpec::default() };
        unusable(spec, text);
    }
    let options = SocketOptions { congestion: Some("warp".to_owned()), ..SocketOptions::default() };
    let spec = CarrierSpec { options, ..CarrierSpec::default() };
    let CloseReason::CongestionControl { wanted, available } = connect_to(spec, peer) else {
        panic!("another reason");
    };
    assert_eq!(wanted, "warp");
    assert!(available.split(' ').any(|name| name == "reno" || name == "cubic"), "{available}");
}
