//! The shutdown of a daemon with idle and with busy flows.

use std::io::{ErrorKind, Write};
use std::net::Shutdown as End;
use std::time::{Duration, Instant};

use super::World;
use crate::{DRAIN_MAX, Shutdown};

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
