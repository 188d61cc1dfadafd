//! The datagrams that tunnels drop.

use polyrail_tunnel::{CloseReason, DatagramDrops};

use super::World;

#[test]
fn drops_of_tunnels_are_counted_once_also_after_their_end() {
    let mut world = World::new(0);
    let (first, second) = (world.add_tunnel(), world.add_tunnel());
    first.drop_datagrams(DatagramDrops { queue: 1, expired: 20, ..DatagramDrops::default() });
    second.drop_datagrams(DatagramDrops { expired: 300, ..DatagramDrops::default() });
    let mut wanted = DatagramDrops { queue: 1, expired: 320, ..DatagramDrops::default() };
    world
        .turn_until("two tunnels", |world| (world.gateway.relay.tunnel_count() == 2).then_some(()));
    assert_eq!(world.gateway.relay.datagram_drops(), wanted);
    // Those that waited are counted with its end.
    first.drop_datagrams(DatagramDrops { ended: 4_000, ..DatagramDrops::default() });
    first.break_with(CloseReason::Reset);
    wanted.ended = 4_000;
    world.turn_until("its end", |world| (world.gateway.relay.tunnel_count() == 1).then_some(()));
    assert_eq!(world.gateway.relay.datagram_drops(), wanted);
    assert_eq!(world.cloud.relay.datagram_drops(), DatagramDrops::default());
}
