//! The life of a QUIC tunnel between well-meaning ends.

use std::time::{Duration, Instant};

use crate::common::pki::Authority;
use crate::common::{TestClock, name};
use crate::quic_world::{World, client, numbered};
use polyrail_model::{TunnelMode, Unit};
use polyrail_tunnel::CloseReason;
use polyrail_tunnel::quic::ServerOptions;

/// A world with one tunnel that is up: end 0 is the gateway's, end 1 the cloud's.
fn up() -> World {
    let authority = Authority::new();
    let clock = TestClock::new();
    let (mut world, address) = World::serving(authority.cloud(), &clock);
    world.pair(&mut client(authority.gateway(), &clock), address);
    world
}

#[test]
fn both_ends_know_each_other() {
    let mut world = up();
    let up: Vec<_> = world.ends.iter().map(|end| end.up.clone().unwrap()).collect();
    assert_eq!((&up[0].peer, &up[1].peer), (&name("cloud"), &name("train-7")));
    assert_eq!(up[0].exporter, up[1].exporter);
    assert!(!up[0].resumed && up[0].handshake < Duration::from_secs(5));
    assert_eq!(world.ends[0].tunnel.mode(), TunnelMode::Quic);
    assert_eq!(world.ends[0].tunnel.peer_addr(), world.ends[1].tunnel.local_addr());
    assert_eq!(world.ends[1].tunnel.peer_addr(), world.ends[0].tunnel.local_addr());
    let error = world.ends[0].tunnel.set_congestion("cubic").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn data_goes_both_ways_in_whole_units() {
    let mut world = up();
    for (count, size) in [(2_000, 1_400), (500, 16_384), (3_000, 40), (1, 4)] {
        world.transfer(0, 1, count, size);
        world.transfer(1, 0, count, size);
    }
    let sample = world.ends[0].tunnel.sample(Instant::now()).unwrap();
    assert!(sample.acked.0 > 10_000_000 && sample.delivery_rate.is_some());
    assert!(sample.srtt > Duration::ZERO && sample.rtt_min <= sample.srtt);
    assert!(sample.sent_packets > 7_000);
}

#[test]
fn control_units_keep_their_order() {
    let mut world = up();
    let units: Vec<Vec<u8>> = (0..500u32).map(|n| vec![n as u8; 1 + n as usize * 30]).collect();
    let mut sent = 0;
    while world.ends[1].units.len() < units.len() {
        while sent < units.len() && world.ends[0].tunnel.room() > 0 {
            world.ends[0].tunnel.send(Unit::Control, &units[sent]);
            sent += 1;
        }
        world.ends[0].tunnel.flush(Instant::now());
        world.step();
    }
    assert!(world.ends[1].units == units);
}

#[test]
fn an_orderly_end_delivers_everything_first() {
    let mut world = up();
    let mut sent = 0;
    while sent < 200 {
        while sent < 200 && world.ends[0].tunnel.room() > 0 {
            let tag = world.tag();
            world.ends[0].tunnel.send(Unit::Data { tag }, &numbered(sent, 9_000));
            sent += 1;
        }
        world.step();
    }
    let begin = Instant::now();
    world.ends[0].tunnel.close(begin);
    assert_eq!(world.ends[0].tunnel.room(), 0);
    world.ends[0].tunnel.send(Unit::Control, b"too late");
    world.until("over", |ends| ends.iter().all(|end| end.closed.is_some()));
    assert!(begin.elapsed() < Duration::from_millis(1_400), "{:?}", begin.elapsed());
    assert_eq!(world.ends[1].units.len(), 200);
    let reasons = world.ends.iter().map(|end| end.closed.clone().unwrap());
    assert_eq!(reasons.collect::<Vec<_>>(), [CloseReason::Local, CloseReason::PeerClosed]);
    for end in &mut world.ends {
        assert_eq!((end.tunnel.room(), end.tunnel.sample(Instant::now())), (0, None));
        assert_eq!((end.tunnel.receive(&mut |_| ()), end.tunnel.poll_event()), (0, None));
        assert_eq!(end.tunnel.next_timeout(), None);
    }
}

#[test]
fn a_tunnel_takes_ipv6() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    let options = ServerOptions::default();
    let address = world.serve(authority.cloud(), options, &clock, "[::1]:0".parse().unwrap());
    let [near, far] = world.pair(&mut client(authority.gateway(), &clock), address);
    world.transfer(near, far, 500, 5_000);
    world.transfer(far, near, 500, 5_000);
    assert_eq!(world.ends[near].tunnel.peer_addr(), Some(address));
    assert_eq!(world.ends[far].tunnel.peer_addr(), world.ends[near].tunnel.local_addr());
}
