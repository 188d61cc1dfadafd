//! What the admin interface shows of two relays.

use std::time::{Duration, Instant};

use polyrail_admin::{ConnectionPhase, SessionPhase};
use polyrail_model::{Bytes, Identity, TunnelMode};

use super::{World, pattern};
use crate::admin::Survey;

#[test]
fn a_survey_shows_sessions_and_connections() {
    let mut world = World::new(2);
    let (mut client, mut server) = world.connect();
    let sent = pattern(50_000, 3);
    world.write_all(&mut client, &sent);
    assert!(world.read_exactly(&mut server, sent.len()) == sent);
    world.rest(Duration::from_millis(300));
    let now = Instant::now();
    let relay = &world.gateway.relay;
    let survey = Survey::new(now, relay);
    let snapshot = survey.snapshot(&["min_rtt".to_owned()], Bytes::from_mib(16));
    assert_eq!(snapshot.scheduler, ["min_rtt"]);
    assert_eq!((snapshot.legs, snapshot.tunnels.up, snapshot.tunnels.half_open), (1, 2, 0));
    let [session] = &snapshot.sessions[..] else { panic!("{snapshot:?}") };
    assert_eq!((session.peer.as_deref(), session.state), (Some("cloud"), SessionPhase::Up));
    assert_eq!((session.paths, session.flows), (2, 1));
    assert!(session.age_s > 0.2 && session.sent_bytes >= 50_000);
    let connections = survey.connections(relay.tunnel_keys());
    assert_eq!(connections.len(), 2);
    for connection in &connections {
        assert_eq!((connection.state, connection.mode), (ConnectionPhase::Up, TunnelMode::Tls));
        let (session, path) =
            survey.path(polyrail_session::TunnelKey(connection.id as usize)).unwrap();
        assert_eq!(connection.path, Some(path.path.0));
        assert_eq!(session.peer.as_ref().map(Identity::as_str), Some("cloud"));
    }
    let carried: u64 = relay.carried().values().map(|carried| carried.sent_bytes).sum();
    assert!(carried >= 50_000, "{carried}");
}

#[test]
fn what_a_path_carried_stays_when_it_is_gone() {
    let mut world = World::new(2);
    let (mut client, mut server) = world.connect();
    world.write_all(&mut client, &[7; 50_000]);
    world.read_exactly(&mut server, 50_000);
    world.rest(Duration::from_millis(300));
    let before = world.gateway.relay.carried();
    let keys = world.gateway.relay.tunnel_keys();
    world.gateway.relay.close_tunnel(Instant::now(), keys[0]);
    world.rest(Duration::from_millis(300));
    let after = world.gateway.relay.carried();
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert!(before.iter().all(|(name, carried)| after[name].sent_bytes >= carried.sent_bytes));
}
