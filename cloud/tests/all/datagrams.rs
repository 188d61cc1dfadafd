//! Passengers' datagrams beyond a real cloud: mapping, filtering, access list and quotas.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use polyrail_identity::{Authority, NodeRole};
use polyrail_model::{BindingId, Destination, HostName, UserId};
use polyrail_relay::RelayEvent;
use polyrail_session::{Event, UserDatagram};

use crate::common::{Cloud, Gateway, issue};

/// A cloud with two gateways of one path each; the folder holds their files.
fn joined(open_files: u64, tables: &str) -> (tempfile::TempDir, Cloud, [Gateway; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(dir, "Test", false).unwrap();
    issue(&authority, dir, "c", NodeRole::Cloud);
    let cloud = Cloud::start_within(open_files, dir, "", tables);
    let gateways = ["train-7", "train-8"].map(|name| {
        let mut gateway = Gateway::new(&issue(&authority, dir, name, NodeRole::Gateway).0);
        let tunnel = gateway.connect_quic("a", cloud.address);
        gateway.until_path(tunnel);
        gateway
    });
    (folder, cloud, gateways)
}

fn send(gateway: &mut Gateway, binding: u64, user: u64, to: SocketAddr, payload: &[u8]) {
    send_to(gateway, (binding, user), Destination::Address(to), payload);
}

fn send_to(
    gateway: &mut Gateway,
    (binding, user): (u64, u64),
    remote: Destination,
    payload: &[u8],
) {
    let session = gateway.relay.endpoint_ref().current().unwrap();
    let (binding, user, payload) = (BindingId(binding), Some(UserId(user)), payload.to_vec());
    let datagram = UserDatagram { binding, user, remote, payload, expedited: false };
    gateway.relay.endpoint().send_datagram(Instant::now(), session, datagram);
}

/// Turns the gateway's loop until the server receives; the sender's address and the payload.
fn arrives(
    gateway: &mut Gateway,
    server: &UdpSocket,
    within: Duration,
) -> Option<(SocketAddr, u8)> {
    server.set_nonblocking(true).unwrap();
    let until = Instant::now() + within;
    let mut buffer = [0; 2_048];
    while Instant::now() < until {
        gateway.turn();
        match server.recv_from(&mut buffer) {
            Ok((_, from)) => return Some((from, buffer[0])),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    None
}

fn received(gateway: &mut Gateway) -> UserDatagram {
    gateway.until("datagram", |event| match event {
        RelayEvent::Session(Event::Datagram { datagram, .. }) => Some(datagram),
        _ => None,
    })
}

fn server(address: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    (socket, at)
}

const ALLOW: &str = "[access]\nallow = [\"127.0.0.0/8\"]\n";
const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn binding_has_one_socket_for_all_destinations_and_strangers_reach_no_passenger() {
    let (_folder, _cloud, [mut gateway, _]) = joined(1_024, ALLOW);
    let ((one, at_one), (two, at_two)) = (server("127.0.0.1"), server("127.0.0.2"));
    let (stranger, _) = server("127.0.0.3");
    send(&mut gateway, 7, 1, at_one, b"1");
    let (mapped, _) = arrives(&mut gateway, &one, SOON).unwrap();
    send(&mut gateway, 7, 1, at_two, b"2");
    assert_eq!(arrives(&mut gateway, &two, SOON), Some((mapped, b'2')), "the same socket");
    send(&mut gateway, 8, 1, at_one, b"3");
    let (other, _) = arrives(&mut gateway, &one, SOON).unwrap();
    assert_ne!(other.port(), mapped.port(), "another binding");

    stranger.send_to(b"s", mapped).unwrap();
    two.send_to(b"a", mapped).unwrap();
    let answer = received(&mut gateway);
    assert_eq!((answer.binding, answer.payload), (BindingId(7), b"a".to_vec()));
    assert_eq!(answer.remote, Destination::Address(at_two));
}

#[test]
fn datagrams_to_forbidden_destinations_and_of_too_many_endpoints_go_nowhere() {
    let tables = "[access]\nallow = [\"127.0.0.1/32\"]\n[session]\nuser_flows_max = 2\n";
    let (_folder, _cloud, [mut gateway, _]) = joined(1_024, tables);
    let ((open, at_open), (closed, at_closed)) = (server("127.0.0.1"), server("127.0.0.2"));
    send(&mut gateway, 1, 1, at_closed, b"x");
    assert_eq!(arrives(&mut gateway, &closed, SHORT), None, "forbidden");
    for (binding, user, passes) in [(1, 1, true), (2, 1, true), (3, 1, false), (4, 2, true)] {
        send(&mut gateway, binding, user, at_open, b"y");
        let within = if passes { SOON } else { SHORT };
        let came = arrives(&mut gateway, &open, within).is_some();
        assert_eq!(came, passes, "binding {binding} of user {user}");
    }
}

#[test]
fn datagrams_to_a_name_arrive_and_are_answered_from_its_address() {
    let (_folder, cloud, [mut gateway, _]) = joined(1_024, ALLOW);
    let (server, at) = server("127.0.0.1");
    let named = |name| Destination::Name(HostName::new(name).unwrap(), at.port());
    // A lookup of another name of the binding comes first, and fails.
    for (name, payload) in [("missing.invalid", b"x"), ("localhost", b"1"), ("localhost", b"2")] {
        send_to(&mut gateway, (7, 1), named(name), payload);
    }
    let mut came = Vec::new();
    while came.len() < 2 {
        let (from, payload) = arrives(&mut gateway, &server, SOON).unwrap();
        came.push(payload);
        server.send_to(b"a", from).unwrap();
    }
    came.sort_unstable();
    assert_eq!(came, b"12");
    assert_eq!(received(&mut gateway).remote, Destination::Address(at));
    cloud.until_logged("missing.invalid");
    send_to(&mut gateway, (7, 1), named("localhost"), b"3");
    assert_eq!(arrives(&mut gateway, &server, SHORT).unwrap().1, b'3', "the name is known");
}

#[test]
fn gateway_with_the_most_endpoints_makes_room_for_another_one() {
    // 256 files, 64 of them reserved: 24 bindings.
    let (_folder, _cloud, [mut many, mut few]) = joined(256, ALLOW);
    let (server, at) = server("127.0.0.1");
    for binding in 1..=30 {
        send(&mut many, binding, binding, at, b"m");
        let came = arrives(&mut many, &server, if binding <= 24 { SOON } else { SHORT });
        assert_eq!(came.is_some(), binding <= 24, "binding {binding}");
    }
    for binding in 1..=12 {
        send(&mut few, binding, 1, at, b"f");
        assert!(arrives(&mut few, &server, SOON).is_some(), "binding {binding} of the other");
    }
    send(&mut few, 13, 1, at, b"f");
    assert!(arrives(&mut few, &server, SHORT).is_none(), "no more than the first one has");
}

#[test]
fn user_with_the_most_endpoints_makes_room_for_another_one_of_the_same_gateway() {
    let (_folder, _cloud, [mut gateway, mut other]) = joined(256, ALLOW);
    let (server, at) = server("127.0.0.1");
    for binding in 1..=30 {
        send(&mut gateway, binding, 1, at, b"m");
        let came = arrives(&mut gateway, &server, if binding <= 24 { SOON } else { SHORT });
        assert_eq!(came.is_some(), binding <= 24, "binding {binding}");
    }
    let mut mapped = Vec::new();
    for binding in 101..=112 {
        send(&mut gateway, binding, 2, at, b"f");
        mapped.push(arrives(&mut gateway, &server, SOON).expect("the other user").0);
    }
    send(&mut gateway, 113, 2, at, b"f");
    assert!(arrives(&mut gateway, &server, SHORT).is_none(), "no more than the first one has");
    // Of two users with as many each, the latter gives one up for a third user.
    send(&mut gateway, 114, 3, at, b"f");
    assert!(arrives(&mut gateway, &server, SOON).is_some(), "a third user");
    // Another gateway takes from the one with the most, and there from the user with the most.
    send(&mut other, 1, 1, at, b"f");
    assert!(arrives(&mut other, &server, SOON).is_some(), "another gateway");
    for (binding, mapped) in (102..=112).zip(&mapped[1..]) {
        send(&mut gateway, binding, 2, at, b"k");
        let (from, _) = arrives(&mut gateway, &server, SOON).expect("it is kept");
        assert_eq!(from, *mapped, "binding {binding} has another socket");
    }
}

/// Rows: the filtering, and whether the passenger receives from the address and port to which it
/// has sent, from another port of that address, from another address, and from one that the access
/// list forbids.
#[test]
fn filtering_decides_whose_datagrams_a_passenger_receives() {
    for (filtering, wanted) in [
        ("address", [true, true, false, false]),
        ("endpoint", [true, false, false, false]),
        ("none", [true, true, true, false]),
    ] {
        let tables = format!(
            "[access]\nallow = [\"127.0.0.1/32\", \"127.0.0.2/32\"]\n\
             [udp]\nfiltering = \"{filtering}\"\n"
        );
        let (_folder, _cloud, [mut gateway, _]) = joined(1_024, &tables);
        let (contacted, at) = server("127.0.0.1");
        let (forbidden, _) = server("127.0.0.3");
        send(&mut gateway, 7, 1, at, b"1");
        let (mapped, _) = arrives(&mut gateway, &contacted, SOON).unwrap();
        let others = [server("127.0.0.1").0, server("127.0.0.2").0, forbidden];
        // The last one ends the row: it is received in any case.
        for (number, from) in (0..).zip(others.iter().chain([&contacted])) {
            from.send_to(&[number], mapped).unwrap();
        }
        let (mut came, until) = ([false; 4], Instant::now() + SOON);
        while !came[3] {
            assert!(Instant::now() < until, "{filtering}: {came:?}");
            for event in gateway.turn() {
                if let RelayEvent::Session(Event::Datagram { datagram, .. }) = event {
                    came[usize::from(datagram.payload[0])] = true;
                }
            }
        }
        came.rotate_right(1);
        assert_eq!(came, wanted, "{filtering}");
        assert_eq!(arrives(&mut gateway, &others[1], SHORT), None, "nobody sent to it");
    }
}
