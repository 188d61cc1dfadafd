//! Carriers with a cloud at the other end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use polyrail_admin::{AdminEvent, PathPhase, RestartWish};
use polyrail_identity::{NodeRole, SystemClock};
use polyrail_model::{Bitrate, PathRank, PathWish};
use polyrail_relay::Label;
use polyrail_tunnel::{SocketOptions, tls};

use crate::side::Side;

use super::{CONFIG, World, identity, restart};

/// A cloud that serves TLS.
struct Cloud {
    side: Side,
    listener: TcpListener,
    server: tls::Server,
}

impl Cloud {
    fn new(world: &World) -> Self {
        let identity = identity(&world.authority, world.folder.path(), "cloud", NodeRole::Cloud);
        let options = SocketOptions::default();
        let server = tls::Server::new(identity, options, Arc::new(SystemClock)).unwrap();
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        Self { side: Side::cloud(), listener, server }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        while let Ok((socket, _)) = self.listener.accept() {
            let tunnel = self.server.accept(now, socket).unwrap();
            self.side.relay.add_tunnel(tunnel, Label::default()).unwrap();
        }
        self.side.turn();
    }
}

#[test]
fn an_operator_a_modem_in_another_cell_and_a_reload_renew_a_path_that_is_up() {
    let mut world = World::new();
    let mut cloud = Cloud::new(&world);
    let address = cloud.listener.local_addr().unwrap().to_string();
    let text = CONFIG.replace("127.0.0.1:9", &address).replace("\"auto\"", "\"tls\"");
    world.reload(&text);
    let limit = Instant::now() + Duration::from_secs(20);
    let mut turn = |world: &mut World| {
        assert!(Instant::now() < limit, "{:?}", world.state("a"));
        world.turn();
        cloud.turn();
    };
    while world.state("a").state != PathPhase::Up {
        turn(&mut world);
    }
    world.carriers.take_events();
    for (count, wish, cause) in [
        (1, RestartWish::Wanted, "an operator asked for it"),
        (2, RestartWish::Cell, "the modem changed its cell"),
    ] {
        let old = world.state("a").local_address.unwrap();
        world.set("a", restart(wish)).unwrap();
        while world.state("a").counters.restarts < count {
            turn(&mut world);
        }
        let state = world.state("a");
        assert_eq!(state.state, PathPhase::Up);
        assert_ne!(state.local_address, Some(old), "a connection of its own");
        turn(&mut world);
        let events = world.carriers.take_events();
        let restarted = |event: &AdminEvent| {
            matches!(event, AdminEvent::PathRestarted { path, reason, .. }
                if path == "a" && reason == cause)
        };
        assert!(events.iter().any(restarted), "{events:?}");
        let down = |event: &AdminEvent| matches!(event, AdminEvent::PathDown { .. });
        assert!(!events.iter().any(down), "{events:?}");
    }
    // The cloud follows without another connection.
    let keys = "metered = true\nrole = \"secondary\"\nrate_limit = \"20 Mbit/s\"";
    world.reload(&text.replace("\"127.0.0.1\"", &format!("\"127.0.0.1\"\n{keys}")));
    let rate_limit = Some(Bitrate::from_mbps(20.0));
    let wish = PathWish { rank: PathRank::Secondary, metered: true, rate_limit };
    let follows = |cloud: &Cloud| {
        let sessions = cloud.side.relay.endpoint_ref().status().sessions;
        sessions.iter().flat_map(|session| &session.paths).any(|path| path.wish == wish)
    };
    while !follows(&cloud) {
        assert!(Instant::now() < limit, "{:?}", world.state("a"));
        world.turn();
        cloud.turn();
    }
    let state = world.state("a");
    assert_eq!((state.state, state.counters.restarts), (PathPhase::Up, 2));
    assert_eq!(state.rate_limit_bits_per_s, Some(20_000_000));
}
