//! The datagrams that tunnels drop.

use polyrail_tunnel::{CloseReason, TunnelDrops};

use super::World;

#[test]
fn drops_of_tunnels_are_counted_once_also_after_their_end() {
    let mut world = World::new(0);
    let (first, second) = (world.add_tunnel(), world.add_tunnel());
    first.drop_datagrams(TunnelDrops { queue: 1, expired: 20, ..TunnelDrops::default() });
    second.drop_datagrams(TunnelDrops { expired: 300, ..TunnelDrops::default() });
    let mut wanted = TunnelDrops { queue: 1, expired: 320, ..TunnelDrops::default() };
    world
        .turn_until("two tunnels", |world| (world.gateway.relay.tunnel_count() == 2).then_some(()));
    assert_eq!(world.gateway.relay.datagram_drops(), wanted);
    // Those that waited are counted with its end.
    first.drop_datagrams(TunnelDrops { ended: 4_000, ..TunnelDrops::default() });
    first.break_with(CloseReason::Reset);
    wanted.ended = 4_000;
    world.turn_until("its end", |world| (world.gateway.relay.tunnel_count() == 1).then_some(()));
    assert_eq!(world.gateway.relay.datagram_drops(), wanted);
    assert_eq!(world.cloud.relay.datagram_drops(), TunnelDrops::default());
}
