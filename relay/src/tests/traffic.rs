//! Traffic totals of a relay.

use std::time::{Duration, Instant};

use super::World;

#[test]
fn traffic_of_a_closed_path_is_kept() {
    let mut world = World::new(2);
    let (mut client, mut server) = world.connect();
    world.write_all(&mut client, &[7; 50_000]);
    world.read_exactly(&mut server, 50_000);
    world.rest(Duration::from_millis(300));
    let before = world.gateway.relay.traffic();
    let keys = world.gateway.relay.tunnel_keys();
    world.gateway.relay.close_tunnel(Instant::now(), keys[0]);
    world.rest(Duration::from_millis(300));
    let after = world.gateway.relay.traffic();
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert!(before.iter().all(|(name, carried)| after[name].sent_bytes >= carried.sent_bytes));
}
