//! The shutdown of a daemon with idle and with busy flows.

use std::io::{ErrorKind, Write};
use std::net::Shutdown as End;
use std::time::{Duration, Instant};

use polyrail_session::Event;

use super::World;
use crate::{DRAIN_MAX, RelayEvent, Shutdown};

/// Shuts the gateway down; returns how long that took. `each_turn` is called in between.
fn shut_down(world: &mut World, mut each_turn: impl FnMut(Duration)) -> Duration {
    let begin = Instant::now();
    let mut shutdown = Shutdown::default();
    shutdown.begin(begin, &mut world.gateway.relay, "test");
    while !shutdown.is_over() {
        assert!(begin.elapsed() < DRAIN_MAX * 2, "the shutdown does not end");
        world.turn();
        shutdown.on_turn(Instant::now(), &mut world.gateway.relay);
        each_turn(begin.elapsed());
    }
    begin.elapsed()
}

#[test]
fn idle_flows_do_not_delay_the_shutdown() {
    let mut world = World::new(2);
    let (mut client, mut server) = world.connect();
    world.write_all(&mut client, b"request");
    world.read_exactly(&mut server, 7);
    world.write_all(&mut server, b"answer");
    world.read_exactly(&mut client, 6);
    let took = shut_down(&mut world, |_| {});
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(world.read_all(&mut client).1, Some(ErrorKind::ConnectionReset));
    assert_eq!(world.read_all(&mut server).1, Some(ErrorKind::ConnectionReset));
}

#[test]
fn drain_waits_for_idle_flows_and_ends_with_the_last_one_or_at_its_limit() {
    for limit in [Duration::from_secs(60), Duration::from_millis(2_500)] {
        let mut world = World::new(2);
        let (mut client, mut server) = world.connect();
        world.write_all(&mut client, b"request");
        world.read_exactly(&mut server, 7);
        let (begin, mut shutdown) = (Instant::now(), Shutdown::default());
        assert!(shutdown.drain(begin, &mut world.cloud.relay, "test", limit));
        assert!(shutdown.takes_tunnels() && !shutdown.takes_new());
        let mut answered = limit < DRAIN_MAX;
        while !shutdown.is_over() {
            assert!(begin.elapsed() < Duration::from_secs(20), "the drain does not end");
            world.turn();
            shutdown.on_turn(Instant::now(), &mut world.cloud.relay);
            // The flow was idle for longer than a shutdown would wait.
            if !answered && begin.elapsed() > Duration::from_secs(3) {
                assert!(shutdown.drains_until().is_some());
                server.write_all(b"late answer").unwrap();
                server.shutdown(End::Write).unwrap();
                client.shutdown(End::Write).unwrap();
                answered = true;
            }
        }
        let (got, end) = world.read_all(&mut client);
        match limit < DRAIN_MAX {
            true => assert_eq!((got.len(), end), (0, Some(ErrorKind::ConnectionReset))),
            false => assert_eq!((&got[..], end), (&b"late answer"[..], None)),
        }
        assert!(!shutdown.drain(Instant::now(), &mut world.cloud.relay, "test", limit));
    }
}

/// Drains the cloud, with `turn` as the turn of the world. Returns how long the drain took.
fn drain(world: &mut World, mut turn: impl FnMut(&mut World, Duration)) -> Duration {
    let (begin, mut shutdown) = (Instant::now(), Shutdown::default());
    assert!(shutdown.drain(begin, &mut world.cloud.relay, "test", Duration::from_secs(60)));
    while shutdown.drains_until().is_some() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the drain does not end");
        turn(world, begin.elapsed());
        shutdown.on_turn(Instant::now(), &mut world.cloud.relay);
    }
    begin.elapsed()
}

/// A world without flows, whose cloud has a session.
fn idle_world() -> World {
    let mut world = World::new(1);
    drop(world.connect());
    world.turn_until("the end of the flow", |world| (world.legs() == 0).then_some(()));
    world
}

#[test]
fn drain_waits_for_a_gateway_that_has_not_heard_of_it() {
    let mut world = idle_world();
    world.gateway.relay.close_all(Instant::now());
    world.turn_until("darkness", |world| {
        (world.gateway.relay.tunnel_count() + world.cloud.relay.tunnel_count() == 0).then_some(())
    });
    let mut client = world.open();
    let (dark, mut server) = (Duration::from_secs(3), None);
    let took = drain(&mut world, |world, elapsed| {
        world.turn();
        if elapsed > dark && server.is_none() {
            world.add_tunnel();
            let mut dialed = world.turn_until("the dial", |world| world.accepted.pop_front());
            dialed.write_all(b"late").unwrap();
            dialed.shutdown(End::Write).unwrap();
            client.shutdown(End::Write).unwrap();
            server = Some(dialed);
        }
    });
    assert!(took > dark, "{took:?}");
    let (got, end) = world.read_all(&mut client);
    assert_eq!((&got[..], end), (&b"late"[..], None));
}

#[test]
fn drain_without_flows_ends_although_a_gateway_leaves_after_it_has_heard() {
    let mut world = idle_world();
    let mut left = false;
    let took = drain(&mut world, |world, elapsed| {
        world.turn();
        if elapsed > Duration::from_secs(1) && !std::mem::replace(&mut left, true) {
            world.gateway.relay.close_all(Instant::now());
        }
    });
    let least = Duration::from_secs(2);
    assert!(left && (least..least * 2).contains(&took), "{took:?}");
}

#[test]
fn drain_waits_for_the_bytes_before_a_reset() {
    let mut world = World::new(1);
    let (mut client, server) = world.connect();
    let (silence, mut server) = (Duration::from_secs(4), Some(server));
    let took = drain(&mut world, |world, elapsed| match server.take() {
        Some(mut socket) if elapsed > Duration::from_secs(1) => {
            socket.write_all(b"the last bytes").unwrap();
            (0..10).for_each(|_| drop(world.cloud.turn()));
            super::abort(socket);
        }
        Some(socket) => {
            server = Some(socket);
            world.turn();
        }
        // The gateway is silent, so that only the cloud's session holds the flow.
        None if elapsed < silence => drop(world.cloud.turn()),
        None => world.turn(),
    });
    assert!(took > silence, "{took:?}");
    let (got, end) = world.read_all(&mut client);
    assert_eq!((&got[..], end), (&b"the last bytes"[..], Some(ErrorKind::ConnectionReset)));
}

#[test]
fn flows_that_still_dial_are_reset_at_the_end() {
    let mut world = World::new(1);
    let (mut client, leg) = super::socket_pair();
    world.carry(leg);
    let is_opened = |event: &RelayEvent| matches!(event, RelayEvent::Session(Event::Opened { .. }));
    // Its server does not answer: the cloud has no leg.
    while !world.cloud.turn().iter().any(is_opened) {
        world.gateway.turn();
    }
    let (begin, mut shutdown) = (Instant::now(), Shutdown::default());
    shutdown.begin(begin, &mut world.cloud.relay, "test");
    shutdown.begin(begin, &mut world.cloud.relay, "at once");
    world.turn_until("the end", |world| {
        shutdown.on_turn(Instant::now(), &mut world.cloud.relay);
        shutdown.is_over().then_some(())
    });
    assert_eq!(world.read_all(&mut client).1, Some(ErrorKind::ConnectionReset));
}

#[test]
fn busy_flow_finishes_during_the_shutdown() {
    let mut world = World::new(2);
    let (mut client, mut server) = world.connect();
    let (pause, pieces) = (Duration::from_millis(100), 12);
    let mut sent = 0;
    let took = shut_down(&mut world, |elapsed| {
        if sent < pieces && elapsed >= pause * sent {
            server.write_all(&[7; 1_000]).unwrap();
            sent += 1;
            if sent == pieces {
                server.shutdown(End::Write).unwrap();
            }
        }
    });
    assert!(took >= pause * (pieces - 1), "{took:?}");
    let (got, end) = world.read_all(&mut client);
    // The other direction is still open: only its end is a reset.
    assert_eq!(got.len(), 12_000, "{end:?}");
}
