//! The dialer over loopback sockets, which the tests' access lists open.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use polyrail_model::{HostName, SessionKey, UserId};

use super::*;

/// The usual user of a dial.
const USER: Dialing = (SessionKey(1), UserId(1));
const WAKER: Token = Token(0);
const TOKENS: Range<usize> = 100..108;

struct Bench {
    poll: mio::Poll,
    waker: Arc<mio::Waker>,
    dialer: Dialer<u32>,
}

impl Bench {
    fn new(allow: &[&str], timeout: Duration) -> Self {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).unwrap());
        let resolver = Resolver::start(waker.clone()).unwrap();
        let allow: Vec<_> = allow.iter().map(|text| text.parse().unwrap()).collect();
        let access = AccessList::new(&allow, &[], &[25]);
        let families = Families::BOTH;
        let settings = DialSettings { timeout, families, user_max: 16, gateway_max: 32 };
        let registry = poll.registry().try_clone().unwrap();
        let dialer = Dialer::new(settings, access, resolver, registry, TOKENS);
        Self { poll, waker, dialer }
    }

    fn loopback() -> Self {
        Self::new(&["127.0.0.0/8", "::1/128"], Duration::from_secs(20))
    }

    /// Runs the loop until a dial ends.
    fn event(&mut self) -> DialEvent<u32> {
        self.until(Dialer::poll_event)
    }

    /// Runs the loop until a lookup ends.
    fn lookup(&mut self) -> LookupEvent<u32> {
        self.until(Dialer::poll_lookup)
    }

    fn until<T>(&mut self, poll: impl Fn(&mut Dialer<u32>) -> Option<T>) -> T {
        let mut events = mio::Events::with_capacity(16);
        loop {
            if let Some(event) = poll(&mut self.dialer) {
                return event;
            }
            let timeout = self.dialer.next_timeout().expect("a dial is under way");
            let wait = timeout.saturating_duration_since(Instant::now());
            self.poll.poll(&mut events, Some(wait)).unwrap();
            let now = Instant::now();
            for event in &events {
                match event.token() {
                    WAKER => self.dialer.on_wake(now),
                    token => self.dialer.on_ready(now, token),
                }
            }
            self.dialer.on_timeout(now);
        }
    }

    #[track_caller]
    fn assert_clean(&self) {
        let Dialer { dials, queries, sockets, timers, .. } = &self.dialer;
        let left = (dials.len(), queries.len(), sockets.len(), timers.len());
        assert_eq!(left, (0, 0, 0, 0), "dials, queries, sockets, timers");
        assert_eq!(self.dialer.next_timeout(), None);
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A port on which nobody listens: it is bound, so that nobody else takes it.
fn closed_port() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

fn named(name: &str, port: u16) -> Destination {
    Destination::Name(HostName::new(name).unwrap(), port)
}

#[test]
fn address_is_connected() {
    let (server, address) = listener();
    let mut bench = Bench::loopback();
    bench.dialer.dial(Instant::now(), 7, USER, &Destination::Address(address));
    let event = bench.event();
    assert_eq!(event.key, 7);
    let (mut stream, to) = event.result.unwrap();
    assert_eq!(to, address);
    let (mut peer, _) = server.accept().unwrap();
    peer.write_all(b"banner").unwrap();
    drop(peer);
    // The stream is not registered: the caller can do so, and finds the bytes that came already.
    bench.poll.registry().register(&mut stream, Token(5), Interest::READABLE).unwrap();
    let mut events = mio::Events::with_capacity(4);
    let mut got = Vec::new();
    while got != b"banner" {
        bench.poll.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
        assert!(!events.is_empty(), "no readiness");
        let mut buffer = [0; 16];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            got.extend_from_slice(&buffer[..n]);
        }
    }
    bench.assert_clean();
}

#[test]
fn name_is_resolved_and_the_listening_family_wins() {
    let (_server, address) = listener();
    let mut bench = Bench::loopback();
    // On most machines localhost is ::1 as well, where nobody listens.
    let destination = named("localhost", address.port());
    bench.dialer.dial(Instant::now(), 1, USER, &destination);
    let event = bench.event();
    assert_eq!(event.destination, destination);
    let (_, to) = event.result.unwrap();
    assert_eq!(to, address);
    bench.assert_clean();
}

#[test]
fn lookup_finds_a_permitted_address_without_a_connection() {
    let (server, address) = listener();
    server.set_nonblocking(true).unwrap();
    let mut bench = Bench::new(&["127.0.0.0/8"], Duration::from_secs(20));
    let destination = named("localhost", address.port());
    for (key, permitted) in [(1, true), (2, false)] {
        if !permitted {
            bench.dialer.access = AccessList::new(&[], &[], &[]);
        }
        bench.dialer.look_up(Instant::now(), key, USER, destination.clone());
        let event = bench.lookup();
        assert_eq!((event.key, event.destination), (key, destination.clone()));
        match event.result {
            Ok(found) => assert_eq!((found, permitted), (address, true)),
            Err(error) => assert!(matches!(error, DialError::Forbidden(_)) && !permitted),
        }
        bench.assert_clean();
    }
    assert!(server.accept().is_err(), "a lookup connects");
}

#[test]
fn closed_port_is_refused() {
    let (_holder, address) = closed_port();
    let mut bench = Bench::loopback();
    bench.dialer.dial(Instant::now(), 1, USER, &Destination::Address(address));
    assert_eq!(bench.event().result.unwrap_err(), DialError::Refused(address));
    bench.assert_clean();
}

#[test]
fn forbidden_addresses_fail_at_once_by_address_and_name() {
    let (server, address) = listener();
    server.set_nonblocking(true).unwrap();
    let mut bench = Bench::new(&[], Duration::from_secs(20));
    let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", address.port()).parse().unwrap();
    let port = address.port();
    let all =
        [Destination::Address(address), Destination::Address(mapped), named("localhost", port)];
    for destination in &all {
        bench.dialer.dial(Instant::now(), 1, USER, destination);
        let event = bench.event();
        assert_eq!(event.destination, *destination);
        let error = event.result.unwrap_err();
        assert!(matches!(error, DialError::Forbidden(_)), "{destination}: {error:?}");
    }
    assert!(server.accept().is_err(), "a forbidden server was contacted");
    bench.assert_clean();
}

#[test]
fn connection_to_this_host_needs_an_allow_rule() {
    let (_server, address) = listener();
    let mut bench = Bench::loopback();
    bench.dialer.dial(Instant::now(), 1, USER, &Destination::Address(address));
    // No machine that tests run on has a global address of its own for certain: a list that no
    // longer names the address stands for one that never did.
    bench.dialer.access = AccessList::new(&[], &[], &[]);
    let error = bench.event().result.unwrap_err();
    assert!(matches!(error, DialError::Forbidden(_)), "{error:?}");
    bench.assert_clean();
}

#[test]
fn unanswered_dial_ends_at_its_deadline() {
    // A listener whose queue is full answers nothing more.
    let (server, address) = listener();
    let socket = socket2::SockRef::from(&server);
    socket.listen(0).unwrap();
    let _first = std::net::TcpStream::connect(address).unwrap();
    let timeout = Duration::from_millis(300);
    let mut bench = Bench::new(&["127.0.0.0/8"], timeout);
    let start = Instant::now();
    bench.dialer.dial(start, 1, USER, &Destination::Address(address));
    let event = bench.event();
    assert_eq!(event.destination, Destination::Address(address));
    assert_eq!(event.result.unwrap_err(), DialError::TimedOut(timeout));
    assert!(start.elapsed() >= timeout);
    bench.assert_clean();
}

#[test]
fn cancelled_dial_ends_without_an_event() {
    let (_server, address) = listener();
    let mut bench = Bench::loopback();
    let now = Instant::now();
    bench.dialer.dial(now, 1, USER, &Destination::Address(address));
    bench.dialer.dial(now, 2, USER, &named("localhost", address.port()));
    assert_eq!(bench.dialer.len(), 2);
    assert_eq!(bench.dialer.descriptors(), PARALLEL_MAX + LOOKUP_SOCKETS, "a race and a lookup");
    for key in [1, 2, 3] {
        bench.dialer.cancel(Instant::now(), key);
    }
    bench.assert_clean();
    bench.dialer.dial(now, 3, USER, &Destination::Address(address));
    assert_eq!(bench.event().key, 3);
    bench.assert_clean();
}

#[test]
fn attempts_beyond_the_limit_are_overload() {
    let (server, address) = listener();
    socket2::SockRef::from(&server).listen(0).unwrap();
    let _first = std::net::TcpStream::connect(address).unwrap();
    let mut bench = Bench::loopback();
    let count = u32::try_from(TOKENS.len()).unwrap();
    for key in 0..=count {
        bench.dialer.dial(Instant::now(), key, USER, &Destination::Address(address));
    }
    let event = bench.event();
    assert_eq!(event.key, count);
    assert!(matches!(event.result, Err(DialError::Overload(_))), "{event:?}");
    for key in 0..count {
        bench.dialer.cancel(Instant::now(), key);
    }
    bench.assert_clean();
}

#[test]
fn dials_beyond_the_quota_wait_and_are_refused_after_the_timeout() {
    let (silent, dead) = listener();
    socket2::SockRef::from(&silent).listen(0).unwrap();
    let _held = std::net::TcpStream::connect(dead).unwrap();
    let (_server, address) = listener();
    let timeout = Duration::from_millis(300);
    let mut bench = Bench::new(&["127.0.0.0/8"], timeout);
    let settings = DialSettings { user_max: 2, ..bench.dialer.settings };
    bench.dialer.set_rules(settings, bench.dialer.access.clone());
    let begun = Instant::now();
    for key in 0..5 {
        bench.dialer.dial(begun, key, USER, &Destination::Address(dead));
    }
    let other = (SessionKey(1), UserId(2));
    bench.dialer.dial(begun, 9, other, &Destination::Address(address));
    let event = bench.event();
    assert_eq!((event.key, event.dialing), (9, other), "another user is not delayed");
    assert!(event.result.is_ok() && begun.elapsed() < timeout);
    assert_eq!(bench.dialer.of_user(USER), (2, 3));
    let ends: Vec<DialEvent<u32>> = (0..5).map(|_| bench.event()).collect();
    let of = |key: u32| ends.iter().find(|end| end.key == key).unwrap().result.as_ref();
    for key in [0, 1] {
        assert_eq!(of(key).unwrap_err(), &DialError::TimedOut(timeout));
    }
    // Two take the places of the first two; one has waited for too long.
    let refused = (2..5).filter(|&key| matches!(of(key), Err(DialError::Quota(_)))).count();
    assert_eq!(refused, 1, "{ends:?}");
    bench.assert_clean();
}

#[test]
fn names_without_an_answer_take_the_places_of_their_user_only() {
    let (_server, address) = listener();
    let mut bench = Bench::loopback();
    let lookup = |name: HostName| async move {
        if name.as_str().starts_with("silent") {
            std::future::pending::<()>().await;
        }
        Ok(vec![[127, 0, 0, 1].into()])
    };
    bench.dialer.resolver = Resolver::with_lookup(bench.waker.clone(), lookup).unwrap();
    let settings = DialSettings { user_max: 10, ..bench.dialer.settings };
    bench.dialer.set_rules(settings, bench.dialer.access.clone());
    let now = Instant::now();
    for key in 0..16 {
        bench.dialer.dial(now, key, USER, &named(&format!("silent{key}.example"), 80));
    }
    assert_eq!((bench.dialer.of_user(USER), bench.dialer.queries.len()), ((10, 6), 10));
    let other = (SessionKey(1), UserId(2));
    bench.dialer.dial(now, 99, other, &named("www.example", address.port()));
    let event = bench.event();
    assert_eq!((event.key, event.result.unwrap().1), (99, address));
    (0..16).for_each(|key| bench.dialer.cancel(now, key));
    bench.assert_clean();
}

#[test]
fn waiting_dials_begin_only_as_descriptors_become_free() {
    let (silent, dead) = listener();
    socket2::SockRef::from(&silent).listen(0).unwrap();
    let _held = std::net::TcpStream::connect(dead).unwrap();
    let mut bench = Bench::loopback();
    let pending = |_: HostName| std::future::pending();
    bench.dialer.resolver = Resolver::with_lookup(bench.waker.clone(), pending).unwrap();
    let now = Instant::now();
    for destination in [Destination::Address(dead), named("silent.example", 80)] {
        bench.dialer.set_descriptors_max(now, DIAL_DESCRIPTORS - 1);
        for key in 0..16 {
            bench.dialer.dial(now, key, USER, &destination);
        }
        assert_eq!(bench.dialer.of_user(USER), (0, 16));
        let mut before = 0;
        for max in [DIAL_DESCRIPTORS, 2 * DIAL_DESCRIPTORS + 3, 3 * DIAL_DESCRIPTORS] {
            bench.dialer.set_descriptors_max(now, max);
            let begun = bench.dialer.of_user(USER).0;
            assert!(bench.dialer.descriptors() <= max && begun > before, "{begun} with {max}");
            before = begun;
        }
        assert!(before < 16);
        (0..16).for_each(|key| bench.dialer.cancel(now, key));
        bench.assert_clean();
    }
}
