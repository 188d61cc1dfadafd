//! Flows that are confined to some carriers.

use std::time::Duration;

use polyrail_model::{PathRank, PathWish};
use polyrail_session::{FlowKey, Settings, TunnelKey};

use crate::endpoints::{Pair, drain, session};

const BYTES: usize = 20_000;

/// A flow that the gateway confines to these carriers; returns both ends.
fn confined(pair: &mut Pair, carriers: &[&str]) -> (FlowKey, FlowKey) {
    let flow = pair.open();
    assert!(confine(pair, flow, carriers));
    pair.gateway.write(pair.now, flow, b"?");
    pair.run();
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"?");
    (flow, served)
}

fn confine(pair: &mut Pair, flow: FlowKey, carriers: &[&str]) -> bool {
    let carriers: Vec<String> = carriers.iter().map(|name| (*name).to_owned()).collect();
    pair.gateway.confine(flow, &carriers)
}

/// The tunnels that carried the gateway's units since the last call.
fn used(pair: &mut Pair) -> [bool; 2] {
    let units = std::mem::take(&mut pair.units);
    [0, 1].map(|tunnel| units.iter().any(|(used, _)| *used == tunnel))
}

/// The cloud sends the flow's bytes; returns how many the gateway received.
fn download(pair: &mut Pair, (flow, served): (FlowKey, FlowKey)) -> usize {
    assert_eq!(pair.cloud.write(pair.now, served, &[7; BYTES]), BYTES);
    pair.advance(Duration::from_millis(50));
    drain(&mut pair.gateway, pair.now, flow).len()
}

#[test]
fn confined_flow_uses_its_carriers_alone_and_each_side_decides_for_itself() {
    for (carrier, wanted) in [("a", [true, false]), ("b", [false, true])] {
        let mut pair = Pair::over(&["a", "b"]);
        pair.units.clear();
        let both = confined(&mut pair, &[carrier, "unknown"]);
        pair.gateway.write(pair.now, both.0, &[7; BYTES]);
        pair.run();
        assert_eq!(used(&mut pair), wanted, "{carrier}");
        assert!(pair.cloud.confine(both.1, &[carrier.to_owned()]));
        assert_eq!(download(&mut pair, both), BYTES);
        let traffic = pair.gateway.confined_traffic(session(&pair.gateway));
        let (up, down) = (BYTES as u64 + 1, BYTES as u64);
        assert_eq!(traffic.into_iter().collect::<Vec<_>>(), [(carrier.to_owned(), [up, down])]);
        let of_cloud = pair.cloud.confined_traffic(session(&pair.cloud));
        assert_eq!(of_cloud.values().map(|bytes| bytes[0]).sum::<u64>(), down);
    }
}

#[test]
fn backup_and_secondary_carry_what_is_confined_to_them() {
    for rank in [PathRank::Secondary, PathRank::Backup] {
        let mut pair = Pair::over(&["a", "b"]);
        pair.gateway.set_wish(pair.now, "b", PathWish { rank, ..PathWish::default() });
        pair.run();
        pair.units.clear();
        let (flow, _) = confined(&mut pair, &["b"]);
        pair.gateway.write(pair.now, flow, &[7; BYTES]);
        pair.run();
        assert_eq!(used(&mut pair), [false, true], "{rank:?}");
    }
}

#[test]
fn unknown_carriers_confine_nothing() {
    let mut pair = Pair::over(&["a", "b"]);
    let flow = pair.open();
    assert!(!confine(&mut pair, flow, &["unknown"]) && !confine(&mut pair, flow, &[]));
    pair.gateway.reset(pair.now, flow, polyrail_session::ResetReason::PeerReset);
    assert!(!confine(&mut pair, flow, &["a"]), "it is gone");
}

#[test]
fn confined_flow_without_room_keeps_no_other_flow_waiting() {
    let mut pair = Pair::over(&["a", "b"]);
    let (flow, _) = confined(&mut pair, &["b"]);
    pair.units.clear();
    pair.gateway.tunnel_room(TunnelKey(1), 0);
    pair.gateway.write(pair.now, flow, &[7; BYTES]);
    let other = pair.open();
    pair.gateway.write(pair.now, other, &[7; BYTES]);
    pair.run();
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served).len(), BYTES);
    assert_eq!(used(&mut pair), [true, false]);
    pair.gateway.tunnel_room(TunnelKey(1), 16_384);
    pair.run();
    assert_eq!(used(&mut pair), [false, true], "it goes on when there is room");
}

/// Its data stays, although other flows' data is reinjected over the other carrier.
#[test]
fn confined_flow_waits_for_its_dark_carrier() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.up(1, "b");
    pair.advance(Duration::from_secs(3));
    let (flow, served) = confined(&mut pair, &["b"]);
    pair.dark(1);
    pair.gateway.write(pair.now, flow, &[7; BYTES]);
    pair.advance(Duration::from_secs(10));
    assert_eq!(drain(&mut pair.cloud, pair.now, served).len(), 0);
    pair.down(1);
    pair.advance(Duration::from_secs(1));
    assert_eq!(drain(&mut pair.cloud, pair.now, served).len(), 0, "also when it is down");
    pair.units.clear();
    pair.up(2, "b");
    pair.advance(Duration::from_secs(3));
    let arrived = drain(&mut pair.cloud, pair.now, served).len();
    assert_eq!((arrived, used(&mut pair)), (BYTES, [false; 2]), "a fresh path of it carries all");
}
