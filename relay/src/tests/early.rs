//! A tunnel with early data and without a socket of its own.

use std::time::{Duration, Instant};

use mio::Token;
use polyrail_model::TunnelMode;
use polyrail_session::Event;

use super::shared::Shared;
use super::{Identity, Label, RelayEvent, World};
use crate::fake;

#[test]
fn early_tunnel_counts_as_handshaking_until_it_is_up() {
    let mut world = World::new(0);
    let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
    let (near, far) = fake::pair(&train, &ground, [5; 32]).unwrap();
    let (near, hold) = Shared::new(near, false);
    let label = Label { carrier: "c".to_owned(), ..Label::default() };
    let key = world.gateway.relay.add_tunnel(Box::new(near), label).unwrap();
    world.cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
    let token = hold.token.get().unwrap();

    let mut said = Vec::new();
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        world.gateway.relay.wake(Instant::now(), token);
        said.extend(world.gateway.turn());
        world.turn();
    }
    assert!(matches!(said[..], [RelayEvent::TunnelEarly { tunnel }] if tunnel == key), "{said:?}");
    let relay = &world.gateway.relay;
    assert_eq!((relay.handshaking(TunnelMode::Quic), relay.handshaking(TunnelMode::Tls)), (1, 0));
    let view = relay.tunnel(key).unwrap();
    assert!(view.early && !view.up && view.mode == TunnelMode::Quic && view.carrier == "c");
    assert_eq!((view.peer, view.serial), (Some(&ground), Some("01")), "a reload may revoke it");
    assert_eq!(world.cloud.relay.endpoint_ref().status().sessions.len(), 0);

    assert_eq!(relay.oldest_handshake(TunnelMode::Quic), Some(key));
    assert_eq!(relay.oldest_handshake(TunnelMode::Tls), None);

    hold.confirmed.set(true);
    said.clear();
    let mut turns = 0;
    while !said.iter().any(|e| matches!(e, RelayEvent::Session(Event::SessionUp { .. }))) {
        turns += 1;
        assert!(turns < 1_000, "no session: {said:?}");
        world.gateway.relay.wake(Instant::now(), token);
        said.extend(world.gateway.turn());
        world.turn();
    }
    let up = |e: &RelayEvent| matches!(e, RelayEvent::TunnelUp { tunnel, .. } if *tunnel == key);
    assert_eq!(said.iter().filter(|event| up(event)).count(), 1);
    let relay = &mut world.gateway.relay;
    let view = relay.tunnel(key).unwrap();
    assert!(view.up && !view.early && view.received_bytes > 0 && view.sent_bytes > 0);
    assert_eq!(relay.handshaking(TunnelMode::Quic), 0);
    assert_eq!(relay.tunnels_of(TunnelMode::Quic), 1);
    // Unknown tokens are ignored.
    relay.wake(Instant::now(), Token(token.0 + 1));
    relay.wake(Instant::now(), Token(0));
    relay.wake(Instant::now(), Token(usize::MAX));
    relay.close_tunnel(Instant::now(), key);
    relay.turn(Instant::now());
    assert_eq!(relay.tunnels_of(TunnelMode::Quic), 0);
}
