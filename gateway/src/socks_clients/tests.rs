//! SOCKS5 clients over real sockets.

use std::net::TcpListener;
use std::net::TcpStream as StdStream;

use mio::{Events, Poll};
use polyrail_model::{Bytes, FlowId, InstanceId};
use polyrail_relay::{RelayEvent, RelaySettings};
use polyrail_session::{Endpoint, SessionKey, Settings};

use super::*;

struct Rig {
    poll: Poll,
    events: Events,
    relay: Relay,
    clients: SocksClients,
    listener: TcpListener,
}

impl Rig {
    fn new(policy: SocksReply) -> Self {
        Self::with(policy, Settings::default())
    }

    fn with(policy: SocksReply, settings: Settings) -> Self {
        let poll = Poll::new().unwrap();
        let registry = || poll.registry().try_clone().unwrap();
        let endpoint = Endpoint::gateway(Instant::now(), settings, InstanceId([1; 16]));
        let relay = Relay::new(registry(), endpoint, RelaySettings::default());
        let clients = SocksClients::new(registry(), 1024, policy);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { poll, events: Events::with_capacity(64), relay, clients, listener }
    }

    fn client(&mut self) -> StdStream {
        self.client_of(UserId(3))
    }

    fn client_of(&mut self, user: UserId) -> StdStream {
        let near = StdStream::connect(self.listener.local_addr().unwrap()).unwrap();
        near.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (far, peer) = self.listener.accept().unwrap();
        far.set_nonblocking(true).unwrap();
        let (now, far) = (Instant::now(), TcpStream::from_std(far));
        self.clients.add(now, &mut self.relay, far, peer, user);
        near
    }

    fn turns(&mut self) {
        for _ in 0..5 {
            self.poll.poll(&mut self.events, Some(Duration::from_millis(2))).unwrap();
            let now = Instant::now();
            for event in &self.events {
                if !self.relay.on_event(now, event) {
                    self.clients.on_event(now, &mut self.relay, event);
                }
            }
            self.clients.on_turn(now, &mut self.relay);
            self.relay.turn(now);
            while let Some(event) = self.relay.poll_event() {
                if let RelayEvent::Session(event @ Event::Writable { flow }) = event {
                    self.clients.on_flow(now, &mut self.relay, flow, &event);
                }
            }
        }
    }

    fn set_held(&mut self, held: bool) {
        self.clients.set_held(Instant::now(), &mut self.relay, held);
    }

    fn dialed(&mut self, flow: FlowKey) -> bool {
        self.clients.on_flow(Instant::now(), &mut self.relay, flow, &Event::Dialed { flow })
    }

    fn held(&self) -> u64 {
        self.relay.endpoint_ref().status().sessions[0].memory_sent.0
    }

    fn flows(&self) -> usize {
        self.relay.endpoint_ref().status().sessions.iter().map(|session| session.flows).sum()
    }
}

/// The received bytes, and whether the stream has ended.
fn read_now(stream: &mut StdStream) -> (Vec<u8>, bool) {
    let mut got = Vec::new();
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (got, true),
            Ok(read) => got.extend_from_slice(&buffer[..read]),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                return (got, false);
            }
        }
    }
}

const FLOW: FlowKey = FlowKey { session: SessionKey(1), flow: FlowId(1) };
/// Flows that fill a session's memory.
const OTHERS: u64 = 200;
const HELLO_AND_REQUEST: &[u8] = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.com\x00\x50";
const REPLY: usize = 10;

#[test]
fn requests_wait_while_flows_are_held() {
    let mut rig = Rig::new(SocksReply::Immediate);
    let mut client = rig.client();
    rig.turns();
    rig.set_held(true);
    client.write_all(&[5, 1, 0, 5, 1, 0, 1, 192, 0, 2, 7, 0, 80]).unwrap();
    rig.turns();
    assert_eq!(rig.flows(), 0);
    rig.set_held(false);
    assert_eq!(rig.flows(), 1);
    // A client that leaves meanwhile is removed afterwards.
    let client = rig.client();
    rig.set_held(true);
    drop(client);
    rig.turns();
    rig.set_held(false);
    assert_eq!((rig.flows(), rig.clients.len()), (1, 0));
}

#[test]
fn immediate_reply_is_sent_at_once_and_first_data_is_forwarded() {
    let mut rig = Rig::new(SocksReply::Immediate);
    let mut client = rig.client();
    client.write_all(&[HELLO_AND_REQUEST, b"GET / HTTP/1.1\r\n\r\n"].concat()).unwrap();
    rig.turns();
    let (got, ended) = read_now(&mut client);
    assert_eq!((&got[..4], got.len(), ended), (&b"\x05\x00\x05\x00"[..], 2 + REPLY, false));
    assert_eq!((rig.relay.leg_count(), rig.clients.len(), rig.flows()), (1, 0, 1));
    assert_eq!(rig.held(), 18, "the first data is the flow's");
}

#[test]
fn dialed_policy_reports_the_result_of_the_dial() {
    let mut rig = Rig::new(SocksReply::Dialed);
    let mut client = rig.client();
    client.write_all(HELLO_AND_REQUEST).unwrap();
    rig.turns();
    assert_eq!(read_now(&mut client), (b"\x05\x00".to_vec(), false), "nothing before the dial");
    assert!(rig.dialed(FLOW));
    rig.turns();
    let (got, ended) = read_now(&mut client);
    assert_eq!((&got[..2], got.len(), ended), (&b"\x05\x00"[..], REPLY, false));
    assert_eq!((rig.relay.leg_count(), rig.clients.len()), (1, 0));
    assert!(!rig.dialed(FLOW), "it is the relay's now");
}

#[test]
fn failed_dial_is_replied_and_closed_in_order() {
    for (reason, code) in [
        (ResetReason::Refused, 5),
        (ResetReason::Unreachable, 4),
        (ResetReason::SessionLost, 3),
        (ResetReason::TimedOut, 6),
        (ResetReason::Forbidden, 2),
        (ResetReason::NameNotFound, 4),
        (ResetReason::Overload, 1),
    ] {
        let mut rig = Rig::new(SocksReply::Dialed);
        let mut client = rig.client();
        client.write_all(&[HELLO_AND_REQUEST, b"early data"].concat()).unwrap();
        rig.turns();
        assert!(rig.clients.on_gone(Instant::now(), &mut rig.relay, FLOW, reason));
        rig.turns();
        let (got, ended) = read_now(&mut client);
        assert_eq!((got[3], ended), (code, true), "{reason:?}");
        drop(client);
        rig.turns();
        assert_eq!((rig.clients.len(), rig.relay.leg_count()), (0, 0), "{reason:?}");
    }
}

#[test]
fn invalid_requests_are_replied_and_closed() {
    let mut rig = Rig::new(SocksReply::Immediate);
    let mut client = rig.client();
    client.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n").unwrap();
    rig.turns();
    assert_eq!(read_now(&mut client), (b"\x05\xff".to_vec(), true));
    drop(client);
    rig.turns();
    assert_eq!((rig.clients.len(), rig.flows()), (0, 0));
}

#[test]
fn client_that_disconnects_before_the_dial_resets_its_flow() {
    let mut rig = Rig::new(SocksReply::Dialed);
    let mut client = rig.client();
    client.write_all(HELLO_AND_REQUEST).unwrap();
    rig.turns();
    assert_eq!(rig.flows(), 1);
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    rig.turns();
    assert_eq!(rig.clients.len(), 0);
    assert!(!rig.dialed(FLOW), "the flow is not waited for any more");
}

#[test]
fn client_without_request_is_disconnected() {
    let mut rig = Rig::new(SocksReply::Immediate);
    let mut client = rig.client();
    client.write_all(b"\x05").unwrap();
    rig.turns();
    let now = Instant::now();
    rig.clients.on_turn(now + NEGOTIATION_MAX - Duration::from_secs(1), &mut rig.relay);
    assert_eq!(rig.clients.len(), 1);
    rig.clients.on_turn(now + NEGOTIATION_MAX + Duration::from_secs(2), &mut rig.relay);
    assert_eq!((rig.clients.len(), rig.clients.next_timeout()), (0, None));
    assert!(read_now(&mut client).1);
}

#[test]
fn first_data_waits_for_room_in_the_flow() {
    for policy in [SocksReply::Immediate, SocksReply::Dialed] {
        let mut rig = Rig::with(policy, Settings { memory: Bytes(1 << 20), ..Settings::default() });
        let now = Instant::now();
        let mut client = rig.client();
        client.write_all(&HELLO_AND_REQUEST[..HELLO_AND_REQUEST.len() - 1]).unwrap();
        rig.turns();
        // Other flows use up the session's memory; a new flow still gets room for a segment.
        let to = Destination::Address("192.0.2.1:80".parse().unwrap());
        let open = |_| rig.relay.endpoint().open(now, UserId(4), to.clone()).unwrap();
        let others: Vec<FlowKey> = (0..OTHERS).map(open).collect();
        for flow in &others {
            rig.relay.endpoint().write(now, *flow, &[0; 1 << 20]);
        }
        let full = rig.held();
        let end = &HELLO_AND_REQUEST[HELLO_AND_REQUEST.len() - 1..];
        let first = vec![1; 3 * polyrail_scheduler::SEGMENT as usize - 200];
        client.write_all(&[end, &first[..]].concat()).unwrap();
        rig.turns();
        let taken = rig.held() - full;
        assert!(taken >= polyrail_scheduler::SEGMENT && taken < first.len() as u64, "{taken}");
        rig.dialed(FlowKey { session: SessionKey(1), flow: FlowId(OTHERS + 1) });
        rig.turns();
        client.write_all(b"and more").unwrap();
        rig.turns();
        let waits = (rig.relay.leg_count(), rig.clients.len());
        assert_eq!(waits, (0, 1), "a leg would read what follows first");
        for flow in others {
            rig.relay.endpoint().reset(now, flow, ResetReason::Internal);
        }
        rig.turns();
        let (got, ended) = read_now(&mut client);
        assert_eq!((got.len(), ended), (2 + REPLY, false));
        assert_eq!((rig.relay.leg_count(), rig.clients.len()), (1, 0));
        assert_eq!(rig.held(), first.len() as u64 + 8, "all of it, and what followed");
    }
}

#[test]
fn flow_reset_in_the_turn_of_its_dial_has_no_leg() {
    let mut rig = Rig::new(SocksReply::Dialed);
    let mut client = rig.client();
    client.write_all(HELLO_AND_REQUEST).unwrap();
    rig.turns();
    assert!(rig.dialed(FLOW));
    assert!(
        rig.clients.next_timeout().is_some_and(|at| at <= Instant::now()),
        "to be gone on with"
    );
    assert!(rig.clients.on_gone(Instant::now(), &mut rig.relay, FLOW, ResetReason::PeerReset));
    rig.turns();
    let (got, ended) = read_now(&mut client);
    assert_eq!((got.len(), ended), (2 + REPLY, true), "the client gets its reply and the end");
    assert_ne!(got[3], 0);
    drop(client);
    rig.turns();
    assert_eq!((rig.clients.len(), rig.relay.leg_count()), (0, 0));
}

#[test]
fn endless_dial_times_out() {
    let mut rig = Rig::new(SocksReply::Dialed);
    let mut client = rig.client();
    client.write_all(HELLO_AND_REQUEST).unwrap();
    rig.turns();
    let now = Instant::now();
    rig.clients.on_turn(now + DIAL_MAX - Duration::from_secs(1), &mut rig.relay);
    assert_eq!(read_now(&mut client), (b"\x05\x00".to_vec(), false), "it waits");
    rig.clients.on_turn(now + DIAL_MAX + Duration::from_secs(1), &mut rig.relay);
    let (got, ended) = read_now(&mut client);
    assert_eq!((got[1], got.len(), ended), (ReplyCode::TtlExpired as u8, REPLY, true));
    assert_eq!(rig.flows(), 0, "the flow was reset");
    drop(client);
    rig.turns();
    assert_eq!((rig.clients.len(), rig.relay.leg_count()), (0, 0));
}

#[test]
fn data_of_the_server_counts_as_dialed() {
    let mut rig = Rig::new(SocksReply::Dialed);
    let mut client = rig.client();
    client.write_all(HELLO_AND_REQUEST).unwrap();
    rig.turns();
    let event = Event::Writable { flow: FLOW };
    assert!(rig.clients.on_flow(Instant::now(), &mut rig.relay, FLOW, &event));
    rig.turns();
    assert_eq!(read_now(&mut client), (b"\x05\x00".to_vec(), false), "room proves nothing");
    let event = Event::Readable { flow: FLOW };
    assert!(rig.clients.on_flow(Instant::now(), &mut rig.relay, FLOW, &event));
    rig.turns();
    let (got, ended) = read_now(&mut client);
    assert_eq!((&got[..2], got.len(), ended), (&b"\x05\x00"[..], REPLY, false));
    assert_eq!((rig.relay.leg_count(), rig.clients.len()), (1, 0));
}

#[test]
fn server_listens_on_an_address_that_the_host_does_not_have_yet() {
    for address in ["192.0.2.77:0", "[2001:db8::77]:0"] {
        let address: SocketAddr = address.parse().unwrap();
        let listener = super::listen(address).unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), address.ip());
    }
    let taken = super::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = super::listen(taken.local_addr().unwrap()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn user_with_too_many_clients_is_refused_and_others_are_not() {
    let mut rig = Rig::new(SocksReply::Immediate);
    let held: Vec<_> = (0..CLIENTS_USER_MAX).map(|_| rig.client_of(UserId(66))).collect();
    assert!(rig.clients.take_refused().is_empty());
    let (mut beyond, _other) = (rig.client_of(UserId(66)), rig.client_of(UserId(7)));
    assert!(beyond.read(&mut [0]).is_err(), "it is reset");
    let refused = rig.clients.take_refused();
    assert_eq!(refused, [(beyond.local_addr().unwrap(), OpenError::TooManyOfUser)]);
    assert_eq!(rig.clients.len(), CLIENTS_USER_MAX + 1);
    drop(held);
    rig.turns();
    assert_eq!(rig.clients.users.get(&UserId(66)), None);
}
