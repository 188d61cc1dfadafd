//! SOCKS5 clients over real sockets.

use std::net::TcpListener;
use std::net::TcpStream as StdStream;

use mio::{Events, Poll};
use polyrail_model::{FlowId, InstanceId};
use polyrail_relay::RelaySettings;
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
    fn new(policy: ReplyPolicy) -> Self {
        let poll = Poll::new().unwrap();
        let registry = || poll.registry().try_clone().unwrap();
        let endpoint = Endpoint::gateway(Instant::now(), Settings::default(), InstanceId([1; 16]));
        let relay = Relay::new(registry(), endpoint, RelaySettings::default());
        let clients = SocksClients::new(registry(), 1024, policy);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { poll, events: Events::with_capacity(64), relay, clients, listener }
    }

    fn client(&mut self) -> StdStream {
        let near = StdStream::connect(self.listener.local_addr().unwrap()).unwrap();
        near.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (far, peer) = self.listener.accept().unwrap();
        far.set_nonblocking(true).unwrap();
        let (now, far) = (Instant::now(), TcpStream::from_std(far));
        self.clients.add(now, &mut self.relay, far, peer, UserId(3));
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
            self.relay.turn(now);
            while self.relay.poll_event().is_some() {}
        }
    }

    fn flows(&self) -> usize {
        self.relay.endpoint_ref().status().sessions.iter().map(|session| session.flows).sum()
    }
}

/// What has come so far, and whether the end of the stream has.
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
const HELLO_AND_REQUEST: &[u8] = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.com\x00\x50";
const REPLY: usize = 10;

#[test]
fn an_eager_client_is_answered_at_once_and_its_first_data_rides_along() {
    let mut rig = Rig::new(ReplyPolicy::Immediate);
    let mut client = rig.client();
    client.write_all(&[HELLO_AND_REQUEST, b"GET / HTTP/1.1\r\n\r\n"].concat()).unwrap();
    rig.turns();
    let (got, ended) = read_now(&mut client);
    assert_eq!((&got[..4], got.len(), ended), (&b"\x05\x00\x05\x00"[..], 2 + REPLY, false));
    assert_eq!((rig.relay.leg_count(), rig.clients.len(), rig.flows()), (1, 0, 1));
    let held = rig.relay.endpoint_ref().status().sessions[0].memory_sent;
    assert_eq!(held.0, 18, "the first data is the flow's");
}

#[test]
fn the_true_outcome_is_told_when_it_is_wanted() {
    let mut rig = Rig::new(ReplyPolicy::Dialed);
    let mut client = rig.client();
    client.write_all(HELLO_AND_REQUEST).unwrap();
    rig.turns();
    assert_eq!(read_now(&mut client), (b"\x05\x00".to_vec(), false), "nothing before the dial");
    assert!(rig.clients.on_dialed(Instant::now(), &mut rig.relay, FLOW));
    rig.turns();
    let (got, ended) = read_now(&mut client);
    assert_eq!((&got[..2], got.len(), ended), (&b"\x05\x00"[..], REPLY, false));
    assert_eq!((rig.relay.leg_count(), rig.clients.len()), (1, 0));
    assert!(!rig.clients.on_dialed(Instant::now(), &mut rig.relay, FLOW), "it is the relay's now");
}

#[test]
fn a_failed_dial_gives_its_code_and_an_orderly_end() {
    for (reason, code) in [
        (ResetReason::Refused, 5),
        (ResetReason::Unreachable, 4),
        (ResetReason::SessionLost, 3),
        (ResetReason::TimedOut, 6),
        (ResetReason::Forbidden, 2),
        (ResetReason::NameNotFound, 4),
        (ResetReason::Overload, 1),
    ] {
        let mut rig = Rig::new(ReplyPolicy::Dialed);
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
fn nonsense_is_answered_and_ended() {
    let mut rig = Rig::new(ReplyPolicy::Immediate);
    let mut client = rig.client();
    client.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n").unwrap();
    rig.turns();
    assert_eq!(read_now(&mut client), (b"\x05\xff".to_vec(), true));
    drop(client);
    rig.turns();
    assert_eq!((rig.clients.len(), rig.flows()), (0, 0));
}

#[test]
fn a_client_that_leaves_before_the_dial_takes_its_flow_along() {
    let mut rig = Rig::new(ReplyPolicy::Dialed);
    let mut client = rig.client();
    client.write_all(HELLO_AND_REQUEST).unwrap();
    rig.turns();
    assert_eq!(rig.flows(), 1);
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    rig.turns();
    assert_eq!(rig.clients.len(), 0);
    let known = rig.clients.on_dialed(Instant::now(), &mut rig.relay, FLOW);
    assert!(!known, "the flow is not waited for any more");
}

#[test]
fn a_client_that_never_asks_is_dropped() {
    let mut rig = Rig::new(ReplyPolicy::Immediate);
    let mut client = rig.client();
    client.write_all(b"\x05").unwrap();
    rig.turns();
    let now = Instant::now();
    rig.clients.on_timeout(now + NEGOTIATION_MAX - Duration::from_secs(1));
    assert_eq!(rig.clients.len(), 1);
    rig.clients.on_timeout(now + NEGOTIATION_MAX + Duration::from_secs(2));
    assert_eq!((rig.clients.len(), rig.clients.next_timeout()), (0, None));
    assert!(read_now(&mut client).1);
}
