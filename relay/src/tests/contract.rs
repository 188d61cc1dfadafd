//! The drain contract of tunnels: flushes, withdrawals and timeouts, which data does not show.

use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use polyrail_scheduler::ChainSpec;
use polyrail_session::limits::TUNNELS_MAX;
use polyrail_session::{PathStatus, TunnelKey};
use polyrail_tunnel::CloseReason;

use super::shared::{Call, Hold, Shared};
use super::{Identity, Label, RelayEvent, World};
use crate::fake;

/// A tunnel without sockets of its own at both ends, and the holds on them.
struct Line {
    near: (TunnelKey, Rc<Hold>),
    far: (TunnelKey, Rc<Hold>),
}

impl Line {
    /// Makes it a path of the world's session.
    fn new(world: &mut World, carrier: &str) -> Self {
        let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
        let (near, far) = fake::pair(&train, &ground, [77; 32]).unwrap();
        let ((near, near_hold), (far, far_hold)) =
            (Shared::new(near, true), Shared::new(far, true));
        let label = Label { carrier: carrier.to_owned(), ..Label::default() };
        let near = world.gateway.relay.add_tunnel(Box::new(near), label).unwrap();
        let far = world.cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
        let line = Self { near: (near, near_hold), far: (far, far_hold) };
        let limit = Instant::now() + Duration::from_secs(20);
        while line.path(world).is_none_or(|path| path.unproven) {
            assert!(Instant::now() < limit, "no path");
            line.wake(world);
            world.turn();
        }
        let settled = Instant::now() + Duration::from_millis(50);
        while Instant::now() < settled {
            line.wake(world);
            world.turn();
        }
        line
    }

    fn wake(&self, world: &mut World) {
        let now = Instant::now();
        world.gateway.relay.wake(now, self.near.1.token.get().unwrap());
        world.cloud.relay.wake(now, self.far.1.token.get().unwrap());
    }

    fn path(&self, world: &World) -> Option<PathStatus> {
        let status = world.gateway.relay.endpoint_ref().status();
        let mut paths = status.sessions.into_iter().flat_map(|session| session.paths);
        paths.find(|path| path.tunnel == self.near.0)
    }
}

#[test]
fn tunnel_that_received_is_flushed_even_if_the_session_sends_nothing() {
    let mut world = World::new(0);
    let line = Line::new(&mut world, "a");
    line.near.1.take_calls();
    let now = Instant::now();
    world.gateway.relay.wake(now, line.near.1.token.get().unwrap());
    world.gateway.relay.turn(now);
    let calls = line.near.1.take_calls();
    assert_eq!(calls.iter().filter(|call| **call == Call::Flush).count(), 1, "{calls:?}");
    world.gateway.relay.turn(now);
    assert_eq!(line.near.1.take_calls(), [], "no event");
}

#[test]
fn withdrawal_is_flushed_at_once_and_frees_room() {
    let mut world = World::new(1);
    let line = Line::new(&mut world, "b");
    let redundant = ChainSpec::named("redundant").unwrap();
    world.gateway.relay.endpoint().set_chain(Instant::now(), redundant);
    let (mut client, mut server) = world.connect();
    world.rest(Duration::from_millis(50));
    // From now on the second tunnel is not woken: the first one delivers all data.
    let hold = &line.near.1;
    hold.bound.set(Some(1_000));
    for round in 0..3 {
        hold.take_calls();
        client.write_all(&[round; 1_000]).unwrap();
        assert_eq!(world.read_exactly(&mut server, 1_000), [round; 1_000]);
        world.rest(Duration::from_millis(50));
        let calls = hold.take_calls();
        assert!(calls.contains(&Call::Data), "round {round}: its room was not reported: {calls:?}");
        assert!(calls.contains(&Call::Withdraw), "round {round}: {calls:?}");
        assert_eq!(calls.last(), Some(&Call::Flush), "round {round}: {calls:?}");
    }
}

#[test]
fn data_read_at_a_timeout_is_received() {
    let mut world = World::new(0);
    let line = Line::new(&mut world, "a");
    let (now, hold) = (Instant::now(), &line.near.1);
    hold.deaf.set(true);
    hold.timeout.set(Some(now + Duration::from_millis(30)));
    line.wake(&mut world);
    world.gateway.relay.turn(now);
    let received = |world: &World| world.gateway.relay.tunnel(line.near.0).unwrap().received_bytes;
    let before = received(&world);
    world.cloud.relay.endpoint().go_away(now, "maintenance");
    world.cloud.turn();
    assert_eq!(received(&world), before);
    world.rest(Duration::from_millis(100));
    assert_eq!(hold.timeout.get(), None, "the timer did not run");
    assert!(received(&world) > before);
}

#[test]
fn given_up_tunnel_with_a_finished_handshake_closes_gracefully() {
    let mut world = World::new(1);
    let line = Line::new(&mut world, "a");
    let tunnel = line.near.0;
    let relay = &mut world.gateway.relay;
    relay.give_up(Instant::now(), tunnel);
    assert!(relay.tunnel(tunnel).is_some_and(|view| !view.up));
    assert!(line.path(&world).is_none(), "the session does not use it");
    let said = world.gateway.turn();
    let over = |event: &RelayEvent| {
        matches!(event, RelayEvent::TunnelClosed { tunnel: over, reason, .. }
            if *over == tunnel && *reason == CloseReason::Local)
    };
    assert!(said.iter().any(over), "{said:?}");
    let (mut client, mut server) = world.connect();
    world.write_all(&mut client, b"over the other one");
    assert_eq!(world.read_exactly(&mut server, 18), b"over the other one");
}

#[test]
fn closing_tunnels_count_for_their_certificate_until_they_are_gone() {
    let mut world = World::new(0);
    let mut others = Vec::new();
    let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
    let mut add = |world: &mut World| {
        let (near, far) = fake::pair(&train, &ground, [1; 32]).unwrap();
        far.control().linger();
        world.cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
        others.push(near);
        world.cloud.turn()
    };
    let refused = |events: Vec<RelayEvent>| {
        events.iter().any(|event| matches!(event, RelayEvent::TunnelRefused { .. }))
    };
    for _ in 0..TUNNELS_MAX {
        assert!(!refused(add(&mut world)));
    }
    world.cloud.relay.close_all(Instant::now());
    assert!(refused(add(&mut world)), "128 tunnels are closing");
    assert_eq!(world.cloud.relay.tunnel_count(), TUNNELS_MAX + 1);
}
