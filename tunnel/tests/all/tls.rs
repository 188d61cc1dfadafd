//! A TLS tunnel between honest ends.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::common::fake;
use crate::common::pki::{Authority, GATEWAY, Node};
use crate::common::raw::{RawClient, record_lengths};
use crate::common::{End, TestClock, World, client, loopback, name};
use polyrail_model::{Bytes, Unit};
use polyrail_tunnel::tls::Listener;
use polyrail_tunnel::{CarrierSpec, CloseReason, FRAMES_MAX, SocketOptions, TunnelDrops};

/// A world with one tunnel that is up: end 0 is the gateway's, end 1 the cloud's.
fn up() -> World {
    let (mut world, authority, clock, address) = World::serving();
    let outcome = world.outcome(&mut client(authority.gateway(), &clock), address);
    assert_eq!(outcome, [None, None]);
    world
}

/// Bytes that repeat with no short period.
fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let step = |x: &mut u32| {
        *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((*x >> 24) as u8)
    };
    std::iter::repeat_n((), length).scan(seed, |x, ()| step(x)).collect()
}

#[test]
fn both_directions_carry_bytes_in_order() {
    let mut world = up();
    let (down, uplink) = (pattern(20_000_000, 1), pattern(3_000_000, 2));
    let (mut down_sent, mut up_sent, mut unit) = (0, 0, 1);
    while down_sent < down.len() || up_sent < uplink.len() {
        unit = unit * 7 % FRAMES_MAX + 1;
        down_sent += world.ends[1].send(&down[down_sent..], unit);
        up_sent += world.ends[0].send(&uplink[up_sent..], unit);
        let now = Instant::now();
        assert!(world.ends[0].tunnel.sample(now).is_some());
        assert!(world.ends[1].tunnel.sample(now).is_some());
        world.step();
    }
    world.until("all there", |ends| {
        ends[0].received.len() == down.len() && ends[1].received.len() == uplink.len()
    });
    assert!(world.ends[0].received == down && world.ends[1].received == uplink);
    let sample = world.ends[1].tunnel.sample(Instant::now()).unwrap();
    assert!(sample.acked >= Bytes(down.len() as u64) && sample.delivery_rate.is_some());
    assert_eq!((sample.unsent, sample.timeouts), (Bytes::ZERO, 0));
}

#[test]
fn each_datagram_that_does_not_leave_is_counted_once() {
    let (mut world, authority, clock, address) = World::serving();
    let near = world.connect(&mut client(authority.gateway(), &clock), address);
    let fresh = Unit::Datagram { expires: Instant::now() + Duration::from_secs(60) };
    world.ends[near].tunnel.send(fresh, b"early");
    world.until("both ends up", |ends| ends.len() == 2 && ends.iter().all(|it| it.up.is_some()));
    let mut wanted = TunnelDrops { early: 1, ..TunnelDrops::default() };
    assert_eq!(world.ends[near].tunnel.datagram_drops(), wanted);

    world.ends[1].reading = false;
    let mut bulk = 0;
    while world.ends[near].tunnel.room() > 0 {
        bulk += world.ends[near].send(&[0; FRAMES_MAX], FRAMES_MAX);
    }
    // Control may exceed the room, and datagrams wait behind so many bytes; 64 may.
    world.ends[near].tunnel.send(Unit::Control, &[0; 4_090]);
    bulk += 4_090;
    let soon = Unit::Datagram { expires: Instant::now() };
    (0..100).for_each(|_| world.ends[near].tunnel.send(soon, b"soon"));
    wanted.queue = 36;
    assert_eq!(world.ends[near].tunnel.datagram_drops(), wanted);
    (0..30).for_each(|_| world.ends[near].tunnel.send(fresh, b"fresh"));
    wanted.queue += 30;
    world.ends[1].reading = true;
    let all = bulk + 30 * b"fresh".len();
    for _ in 0..2_000 {
        world.step();
        world.ends[near].tunnel.flush(Instant::now());
        if world.ends[1].received.len() == all {
            break;
        }
    }
    wanted.expired = 34;
    assert_eq!(world.ends[near].tunnel.datagram_drops(), wanted);
    assert!(world.ends[1].received.ends_with(b"freshfresh") && bulk + 150 == all);

    world.ends[near].tunnel.close(Instant::now());
    world.ends[near].tunnel.send(fresh, b"later");
    wanted.ended = 1;
    assert_eq!(world.ends[near].tunnel.datagram_drops(), wanted);
}

#[test]
fn stopped_reader_limits_the_sender() {
    let mut world = up();
    world.ends[1].reading = false;
    let data = pattern(64 << 20, 3);
    let mut sent = 0;
    for _ in 0..50 {
        sent += world.ends[0].send(&data[sent..], FRAMES_MAX);
        world.step();
    }
    assert_eq!(world.ends[0].tunnel.room(), 0);
    assert!(sent < 32 << 20, "{sent} bytes went to a reader that reads nothing");
    let unsent = world.ends[0].tunnel.sample(Instant::now()).unwrap().unsent;
    assert!(unsent < Bytes::from_kib(1024), "{unsent} wait in the tunnel and the kernel");
    // A few control frames still fit.
    world.ends[0].tunnel.send(Unit::Control, &[0x55; 4_096]);
    assert!(world.ends[0].closed.is_none());
    world.ends[1].reading = true;
    world.until("all there", |ends| ends[1].received.len() == sent + 4_096);
    assert!(world.ends[1].received[..sent] == data[..sent]);
    world.until("room again", |ends| ends[0].tunnel.room() > 0);
}

#[test]
fn caller_that_ignores_room_is_stopped() {
    let mut world = up();
    world.ends[1].reading = false;
    // The kernel's buffers, then the tunnel's bound.
    for _ in 0..(64 << 20) / FRAMES_MAX {
        world.ends[0].tunnel.send(Unit::Control, &[0; FRAMES_MAX]);
    }
    world.step();
    assert!(matches!(&world.ends[0].closed, Some(CloseReason::Internal { .. })));
}

#[test]
fn graceful_close_delivers_all_data_first() {
    let mut world = up();
    let data = pattern(300_000, 4);
    let mut sent = 0;
    while sent < data.len() {
        sent += world.ends[0].send(&data[sent..], 5_000);
        world.step();
    }
    world.ends[0].tunnel.close(Instant::now());
    assert_eq!(world.ends[0].tunnel.room(), 0);
    world.ends[0].tunnel.send(Unit::Control, b"too late");
    world.until("over", |ends| ends.iter().all(|end| end.closed.is_some()));
    assert!(world.ends[1].received == data);
    let reasons = world.ends.iter().map(|end| end.closed.clone().unwrap());
    assert_eq!(reasons.collect::<Vec<_>>(), [CloseReason::Local, CloseReason::PeerClosed]);
    for End { tunnel, .. } in &mut world.ends {
        assert_eq!((tunnel.room(), tunnel.sample(Instant::now())), (0, None));
        assert_eq!((tunnel.receive(&mut |_| ()), tunnel.poll_event()), (0, None));
    }
}

#[test]
fn graceful_close_times_out() {
    let mut world = up();
    world.ends[0].tunnel.close(Instant::now());
    assert_eq!(world.ends[0].time_out(), Some(CloseReason::Local));
}

#[test]
fn attempt_can_be_closed() {
    let mut world = World::new();
    let authority = Authority::new();
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let mut client = client(authority.gateway(), &TestClock::new());
    let near = world.connect(&mut client, listener.local_addr().unwrap());
    world.ends[near].tunnel.close(Instant::now());
    world.ends[near].drain();
    assert_eq!(world.ends[near].closed, Some(CloseReason::Local));
}

#[test]
fn dropped_tunnel_is_detected_by_the_peer() {
    let mut world = up();
    let (placeholder, _) = fake::pair(&name("train-7"), &name("cloud"), [0; 32]).unwrap();
    drop(std::mem::replace(&mut world.ends[0].tunnel, Box::new(placeholder)));
    world.ends[0].reading = false;
    world.ends[0].up = None;
    world.until("over", |ends| ends[1].closed.is_some());
    assert_eq!(world.ends[1].closed, Some(CloseReason::Cut));
}

#[test]
fn one_send_is_one_record() {
    let (mut world, authority, _, address) = World::serving();
    let paths = authority.issue(&Node::new("train-7", GATEWAY, 7), &authority);
    let reader = std::thread::spawn(move || {
        let mut raw = RawClient::connect(address, &[b"polyrail/1"], Some(&paths));
        assert!(raw.shake());
        raw.wire.clear();
        raw.read();
        while raw.read() {
            let mut plaintext = [0; 65_536];
            while std::io::Read::read(&mut raw.tls.reader(), &mut plaintext).is_ok_and(|n| n > 0) {}
        }
        raw.wire
    });
    world.until("up", |ends| ends.first().is_some_and(|end| end.up.is_some()));
    let sizes = [100, FRAMES_MAX, 5_000, 1];
    for size in sizes {
        world.until("room", |ends| ends[0].tunnel.room() > 0);
        world.ends[0].tunnel.send(Unit::Control, &vec![7; size]);
    }
    world.ends[0].tunnel.close(Instant::now());
    world.until("over", |ends| ends[0].closed.is_some());
    let lengths = record_lengths(&reader.join().unwrap());
    // Content type and tag: 17 bytes. The last record is the close notice.
    let expected: Vec<usize> = sizes.iter().map(|size| size + 17).chain([19]).collect();
    assert_eq!(lengths[lengths.len() - 5..], expected);
}

#[test]
fn carrier_socket_is_bound_with_its_options() {
    let (mut world, authority, clock, address) = World::serving();
    let mut client = client(authority.gateway(), &clock);
    let source: IpAddr = "127.0.0.2".parse().unwrap();
    let options = SocketOptions { congestion: Some("reno".to_owned()), ..Default::default() };
    let spec = CarrierSpec {
        name: "b".to_owned(),
        interface: Some("lo".to_owned()),
        source: Some(source),
        options,
        ..CarrierSpec::default()
    };
    let near = world.add(client.connect(Instant::now(), &spec, address).unwrap());
    world.until("up", |ends| ends.len() == 2 && ends.iter().all(|end| end.up.is_some()));
    let end = &world.ends[near];
    assert_eq!(end.tunnel.local_addr().unwrap().ip(), source);
    assert_eq!(end.tunnel.peer_addr(), Some(address));
    assert_eq!(world.ends[1].tunnel.peer_addr().unwrap().ip(), source);
    assert!(end.up.as_ref().unwrap().handshake < Duration::from_secs(10));
    let cloud = &mut world.ends[1];
    cloud.tunnel.set_congestion("reno").unwrap();
    let error = cloud.tunnel.set_congestion("warp").unwrap_err().to_string();
    assert!(error.contains("\"warp\" cannot be used here; available are: "), "{error}");
}

#[test]
fn ipv6_wildcard_accepts_both_families() {
    let listener = Listener::bind("[::]:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["127.0.0.1", "::1"] {
        let host: IpAddr = host.parse().unwrap();
        let near = std::net::TcpStream::connect((host, port)).unwrap();
        let (_, peer) = std::iter::repeat_with(|| listener.accept().unwrap())
            .inspect(|_| std::thread::sleep(Duration::from_millis(1)))
            .take(1_000)
            .flatten()
            .next()
            .unwrap();
        assert_eq!(peer, near.local_addr().unwrap(), "plain, not mapped");
    }
    assert!(listener.accept().unwrap().is_none());
    // A restarted cloud can bind the port at once.
    let address = listener.local_addr().unwrap();
    drop(listener);
    Listener::bind(address).unwrap();
}
