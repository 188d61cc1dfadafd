//! Relays of SOCKS5 clients over real sockets of the loopback interface.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};

use mio::{Events, Poll};
use polyrail_config::SocksReply;
use polyrail_model::InstanceId;
use polyrail_relay::RelaySettings;
use polyrail_session::{DatagramStatus, Endpoint, Settings};

use super::*;
use crate::socks_clients::SocksClients;

struct Rig {
    poll: Poll,
    events: Events,
    relay: Relay,
    clients: SocksClients,
    datagrams: Datagrams,
}

const CLIENTS: usize = 1024;
const ASSOCIATIONS: usize = 4096;
const USER: UserId = UserId(3);

impl Rig {
    fn new(bounds: (usize, usize)) -> Self {
        let (poll, now) = (Poll::new().unwrap(), Instant::now());
        let registry = || poll.registry().try_clone().unwrap();
        let endpoint = Endpoint::gateway(now, Settings::default(), InstanceId([1; 16]));
        let relay = Relay::new(registry(), endpoint, RelaySettings::default());
        let clients = SocksClients::new(registry(), CLIENTS, SocksReply::Dialed);
        let bases = (0, ASSOCIATIONS);
        let datagrams = Datagrams::new(now, &registry(), bases, Vec::new(), bounds).unwrap();
        Self { events: Events::with_capacity(64), relay, clients, datagrams, poll }
    }

    fn turns(&mut self) {
        for _ in 0..5 {
            self.poll.poll(&mut self.events, Some(Duration::from_millis(2))).unwrap();
            let now = Instant::now();
            for event in &self.events {
                match event.token().0 {
                    ASSOCIATIONS.. => self.datagrams.on_association(&mut self.relay, event),
                    _ => self.clients.on_event(now, &mut self.relay, event),
                }
            }
            for request in self.clients.take_associations() {
                self.datagrams.associate(now, &mut self.relay, request);
            }
            self.datagrams.on_turn(now, &mut self.relay, |_| UserId(9));
        }
    }

    /// Connects from an address of the loopback network, and asks for a relay.
    fn ask(&mut self, user: UserId, address: &str, port: u16) -> (TcpStream, Vec<u8>) {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, peer) = listener.accept().unwrap();
        far.set_nonblocking(true).unwrap();
        let far = mio::net::TcpStream::from_std(far);
        near.write_all(b"\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00").unwrap();
        near.write_all(&port.to_be_bytes()).unwrap();
        self.clients.add(Instant::now(), &mut self.relay, far, peer, user);
        self.turns();
        near.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut reply = vec![0; if address.contains(':') { 24 } else { 12 }];
        near.read_exact(&mut reply[..12]).unwrap();
        if reply[5] == 4 {
            near.read_exact(&mut reply[12..]).unwrap();
        }
        (near, reply[2..].to_vec())
    }

    /// A client with a relay.
    fn associated(&mut self, address: &str, port: u16) -> (TcpStream, SocketAddr) {
        let (connection, reply) = self.ask(USER, address, port);
        assert_eq!(reply[..3], [5, 0, 0]);
        let (_, port) = reply.split_last_chunk().unwrap();
        (connection, (address.parse::<IpAddr>().unwrap(), u16::from_be_bytes(*port)).into())
    }

    fn counts(&self) -> DatagramStatus {
        self.relay.endpoint_ref().status().sessions[0].datagrams
    }
}

fn client(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    socket
}

const HELLO: &[u8] = b"\0\0\0\x01\xc0\0\x02\x01\0\x35hello";

#[test]
fn datagrams_of_a_client_enter_the_session_and_answers_reach_it() {
    for (address, remote) in [("127.0.0.1", "192.0.2.1:53"), ("::1", "[2001:db8::1]:53")] {
        let mut rig = Rig::new((8, 8));
        let (connection, relay) = rig.associated(address, 0);
        assert_eq!((rig.clients.len(), rig.datagrams.descriptors()), (0, 2));
        let client = client(address);
        client.send_to(HELLO, relay).unwrap();
        rig.turns();
        assert_eq!(rig.counts().bindings, 1);

        let session = rig.relay.endpoint_ref().current().unwrap();
        let (binding, remote) = (BindingId(1), remote.parse().unwrap());
        let payload = b"answer".to_vec();
        let to = Destination::Address(remote);
        let answer = UserDatagram { binding, user: None, remote: to, payload, expedited: false };
        rig.datagrams.deliver(Instant::now(), session, &answer);
        let mut buffer = [0; 64];
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(from, relay);
        assert_eq!(buffer[..length], udp_header::encode(remote, b"answer"));

        connection.shutdown(Shutdown::Write).unwrap();
        rig.turns();
        assert_eq!((rig.counts().bindings, rig.datagrams.descriptors()), (0, 0), "it has ended");
        rig.datagrams.deliver(Instant::now(), session, &answer);
        assert!(client.recv_from(&mut buffer).is_err(), "and its binding with it");
    }
}

#[test]
fn relay_takes_datagrams_of_one_endpoint_of_its_client_alone() {
    let (first, other, stranger) = (client("127.0.0.1"), client("127.0.0.1"), client("127.0.0.2"));
    let port = first.local_addr().unwrap().port();
    // Without a port, the first datagram chooses it.
    for (asked, senders) in [
        (0, &[(&stranger, false), (&first, true), (&other, false), (&first, true)][..]),
        (port, &[(&other, false), (&stranger, false), (&first, true), (&other, false)]),
    ] {
        let mut rig = Rig::new((8, 8));
        let (_connection, relay) = rig.associated("127.0.0.1", asked);
        for (turn, (sender, enters)) in senders.iter().enumerate() {
            rig.datagrams.bindings.clear();
            sender.send_to(HELLO, relay).unwrap();
            rig.turns();
            let entered = rig.datagrams.bindings.by_id.len() == 1;
            assert_eq!(entered, *enters, "datagram {turn}, port {asked}");
        }
    }
}

#[test]
fn malformed_datagrams_and_those_to_a_cloud_without_datagrams_are_dropped() {
    let mut rig = Rig::new((8, 8));
    let (_connection, relay) = rig.associated("127.0.0.1", 0);
    let client = client("127.0.0.1");
    for malformed in [&b""[..], b"\0\0", b"\0\0\x01\x01\xc0\0\x02\x01\0\x35", &HELLO[..9]] {
        client.send_to(malformed, relay).unwrap();
    }
    rig.turns();
    assert_eq!(rig.counts().bindings, 0);
    rig.datagrams.set_carried(false);
    client.send_to(HELLO, relay).unwrap();
    rig.turns();
    assert_eq!(rig.counts().bindings, 0);
    assert_eq!(rig.ask(USER, "127.0.0.1", 0).1[..2], [5, ReplyCode::CommandNotSupported as u8]);
    rig.datagrams.set_carried(true);
    client.send_to(HELLO, relay).unwrap();
    rig.turns();
    assert_eq!(rig.counts().bindings, 1);
}

#[test]
fn associations_of_a_user_and_of_all_are_bounded() {
    for bounds in [(2, 8), (8, 2)] {
        let mut rig = Rig::new(bounds);
        let mut held = vec![rig.associated("127.0.0.1", 0), rig.associated("127.0.0.1", 0)];
        let (mut refused, reply) = rig.ask(USER, "127.0.0.1", 0);
        assert_eq!(reply[..2], [5, ReplyCode::GeneralFailure as u8], "{bounds:?}");
        assert_eq!(refused.read(&mut [0]).unwrap(), 0, "closed in order");
        // Another user gets one; at the bound of all users at the cost of the first one.
        let (_other, reply) = rig.ask(UserId(4), "127.0.0.1", 0);
        assert_eq!(reply[..2], [5, ReplyCode::Succeeded as u8], "{bounds:?}");
        assert_eq!(rig.datagrams.associations.of_user(USER), 2 - bounds.0 / 8);
        held.pop();
        rig.turns();
        let (_next, reply) = rig.ask(USER, "127.0.0.1", 0);
        assert_eq!(reply[1], ReplyCode::Succeeded as u8, "one has ended, {bounds:?}");
    }
}

#[test]
fn user_with_few_bindings_displaces_the_oldest_of_the_user_with_the_most() {
    let now = Instant::now();
    let mut bindings = Bindings::new(BINDINGS_MAX);
    let sender = |number: usize| {
        let ip = IpAddr::from(((10 << 24) + number as u32).to_be_bytes());
        Sender::Intercepted(SocketAddr::new(ip, 9))
    };
    let at = |ms| now + Duration::from_millis(ms);
    let many =
        (0..BINDINGS_MAX).filter(|&it| bindings.of(at(it as u64), sender(it), USER).is_some());
    assert_eq!(many.count(), BINDINGS_MAX);
    assert_eq!(bindings.of(at(0), sender(BINDINGS_MAX), USER), None, "the one with the most");
    let oldest = *bindings.by_id.first_key_value().unwrap().0;
    assert!(bindings.of(at(0), sender(BINDINGS_MAX), UserId(4)).is_some());
    assert_eq!((bindings.by_id.len(), &bindings.displaced[..]), (BINDINGS_MAX, &[oldest][..]));
    assert!(!bindings.by_sender.contains_key(&sender(0)));
}

#[test]
fn new_servers_that_answer_a_user_are_limited() {
    let now = Instant::now();
    let mut replies = Replies::new(now);
    let client = SocketAddr::from(([127, 0, 0, 1], 9));
    // Without the capability no socket opens, and that is another error.
    let mut over = |user, number: u32| {
        let [_, second, third, fourth] = number.to_be_bytes();
        let server = SocketAddr::from(([127, second, third, fourth], 9));
        let sent = replies.send(now, UserId(user), (server, client), b"x");
        sent.is_err_and(|error| error.kind() == io::ErrorKind::QuotaExceeded)
    };
    let most = NEW_REPLIES_OF_USER as u32;
    assert_eq!((1..=most).filter(|&number| over(1, number)).count(), 0);
    assert!(over(1, most + 1) && !over(2, most + 2));
}
