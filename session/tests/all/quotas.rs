//! Caps on flows: of one user, and of all users together.

use std::time::Duration;

use crate::endpoints::{Pair, drain};
use polyrail_model::{Destination, HostName, NodeRole, UserId};
use polyrail_session::limits::{FLOWS_RESERVED, OWN_USER, TEST_USER};
use polyrail_session::{Event, FlowKey, OpenError, ResetReason, Settings};

fn open(pair: &mut Pair, user: u64) -> Result<FlowKey, OpenError> {
    let destination = Destination::Name(HostName::new("a.example").unwrap(), 80);
    pair.gateway.open(pair.now, UserId(user), destination)
}

#[test]
fn user_beyond_its_cap_is_refused_on_both_sides_and_others_are_not() {
    let few = Settings { user_flows_max: 3, ..Settings::default() };
    for capped in [NodeRole::Gateway, NodeRole::Cloud] {
        let mut pair = Pair::new(Settings::default());
        pair.up(0, "a");
        let side = if capped == NodeRole::Gateway { &mut pair.gateway } else { &mut pair.cloud };
        side.set_settings(pair.now, few.clone());
        let opened: Vec<_> = (0..5).map(|_| open(&mut pair, 66)).collect();
        pair.advance(Duration::from_millis(100));
        let quota = |flow| Event::Reset { flow, reason: ResetReason::Quota };
        for (at, flow) in opened.into_iter().enumerate() {
            match flow {
                Ok(flow) => assert_eq!(pair.at_gateway.contains(&quota(flow)), at >= 3),
                Err(error) => assert_eq!((error, at >= 3), (OpenError::TooManyOfUser, true)),
            }
        }
        let other = open(&mut pair, 7).unwrap();
        pair.advance(Duration::from_millis(100));
        assert!(!pair.at_gateway.contains(&quota(other)), "{capped:?}");
        assert_eq!(pair.cloud.users(pair.now).map(|view| view.flows).sum::<usize>(), 4);
    }
}

#[test]
fn cap_of_a_user_leaves_names_and_speed_tests_their_flows() {
    let mut pair = Pair::new(Settings { user_flows_max: 1, ..Settings::default() });
    pair.up(0, "a");
    let mut opened = Vec::new();
    for (user, wanted) in [(OWN_USER, FLOWS_RESERVED), (TEST_USER, FLOWS_RESERVED), (UserId(66), 1)]
    {
        let flows = (0..20).map_while(|_| open(&mut pair, user.0).ok());
        let before = opened.len();
        opened.extend(flows.collect::<Vec<_>>());
        assert_eq!(opened.len() - before, wanted, "{user}");
    }
    pair.advance(Duration::from_millis(100));
    let flows: usize = pair.cloud.users(pair.now).map(|view| view.flows).sum();
    assert_eq!(flows, opened.len(), "the cloud has refused none");
}

#[test]
fn heaviest_user_sheds_its_most_idle_flow_for_others_and_names_have_a_reserve() {
    for capped in [NodeRole::Gateway, NodeRole::Cloud] {
        let mut pair = Pair::new(Settings::default());
        pair.up(0, "a");
        let full = Settings { flows_max: 10, ..Settings::default() };
        let side = if capped == NodeRole::Gateway { &mut pair.gateway } else { &mut pair.cloud };
        side.set_settings(pair.now, full);
        let mut heavy: Vec<_> = (0..10).map(|_| open(&mut pair, 66).unwrap()).collect();
        pair.advance(Duration::from_millis(100));
        // The first is the only one that moved a byte lately.
        pair.gateway.write(pair.now, heavy[0], b"busy");
        pair.advance(Duration::from_millis(100));
        if capped == NodeRole::Cloud {
            // The cloud's caller has read it.
            let served = pair.at_cloud.iter().find_map(|event| match event {
                Event::Opened { flow, .. } if flow.flow == heavy[0].flow => Some(*flow),
                _ => None,
            });
            drain(&mut pair.cloud, pair.now, served.unwrap());
        }
        let others: Vec<_> = (1..4).map(|user| open(&mut pair, user).unwrap()).collect();
        pair.advance(Duration::from_millis(100));
        let shed = |flow| Event::Reset { flow, reason: ResetReason::Quota };
        heavy.retain(|flow| !pair.at_gateway.contains(&shed(*flow)));
        assert_eq!(heavy.len(), 7, "{capped:?}");
        assert_eq!(heavy[0].flow.0, 1, "the busy one stays");
        let is_open = |flow| !pair.at_gateway.iter().any(|event| *event == shed(flow));
        assert!(others.iter().all(|&flow| is_open(flow)));
        // The heaviest itself gets no more.
        let refused = match open(&mut pair, 66) {
            Err(error) => error == OpenError::TooManyFlows,
            Ok(flow) => {
                pair.advance(Duration::from_millis(100));
                let reason = ResetReason::Overload;
                pair.at_gateway.contains(&Event::Reset { flow, reason })
            }
        };
        assert!(refused, "{capped:?}");
        // The gateway's own flows have places beyond the bound.
        let own: Vec<_> =
            (0..FLOWS_RESERVED).map(|_| open(&mut pair, OWN_USER.0).unwrap()).collect();
        pair.advance(Duration::from_millis(100));
        let of_own = pair.cloud.users(pair.now).find(|view| view.user == OWN_USER);
        assert_eq!(of_own.map(|view| view.flows), Some(own.len()), "{capped:?}");
        assert_eq!(heavy.iter().filter(|flow| pair.at_gateway.contains(&shed(**flow))).count(), 0);
    }
}

#[test]
fn heaviest_user_sheds_flows_that_the_peer_has_reset_and_nobody_reads() {
    for capped in [NodeRole::Gateway, NodeRole::Cloud] {
        let mut pair = Pair::new(Settings::default());
        pair.up(0, "a");
        let full = Settings { flows_max: 4, ..Settings::default() };
        let side = if capped == NodeRole::Gateway { &mut pair.gateway } else { &mut pair.cloud };
        side.set_settings(pair.now, full);
        let heavy: Vec<_> = (0..4).map(|_| open(&mut pair, 66).unwrap()).collect();
        pair.advance(Duration::from_millis(100));
        let served = |event: &Event| match event {
            Event::Opened { flow, .. } => Some(*flow),
            _ => None,
        };
        let served: Vec<_> = pair.at_cloud.iter().filter_map(served).collect();
        for (at_gateway, at_cloud) in heavy.into_iter().zip(served) {
            let (peer, flow) = match capped {
                NodeRole::Gateway => (&mut pair.cloud, at_cloud),
                NodeRole::Cloud => (&mut pair.gateway, at_gateway),
            };
            assert_eq!(peer.write(pair.now, flow, b"unread"), 6);
            peer.reset(pair.now, flow, ResetReason::PeerReset);
        }
        pair.advance(Duration::from_millis(100));
        let other = open(&mut pair, 7).unwrap();
        pair.advance(Duration::from_millis(100));
        let refused = Event::Reset { flow: other, reason: ResetReason::Overload };
        assert!(!pair.at_gateway.contains(&refused), "{capped:?}");
    }
}
