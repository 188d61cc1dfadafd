//! Flows, bindings and users as operators see them.

use std::time::Duration;

use polyrail_model::{BindingId, Destination, FlowName, UserId};
use polyrail_session::{Endpoint, FlowPhase, ResetReason, UserDatagram};

use crate::endpoints::{Pair, drain, session};

/// Delivers everything, and lets delayed acknowledgements follow.
fn settle(pair: &mut Pair) {
    pair.run();
    pair.advance(Duration::from_millis(50));
    pair.run();
}

/// Name, state, bytes sent and received, and carriers of each flow.
fn listed(endpoint: &Endpoint) -> Vec<(String, FlowPhase, u64, u64, String)> {
    let row = |view: polyrail_session::FlowView<'_>| {
        let carriers: Vec<&str> = view.carriers().collect();
        (view.name.to_string(), view.phase, view.sent.0, view.received.0, carriers.join(","))
    };
    endpoint.flows_after(None, None).map(row).collect()
}

fn row(
    name: &str,
    phase: FlowPhase,
    bytes: (u64, u64),
    carriers: &str,
) -> Vec<(String, FlowPhase, u64, u64, String)> {
    vec![(name.to_owned(), phase, bytes.0, bytes.1, carriers.to_owned())]
}

#[test]
fn flow_shows_its_bytes_and_carriers_from_its_open_to_its_end() {
    use FlowPhase::{Closing, HalfClosed, Open, Opening};
    let mut pair = Pair::over(&["a", "b"]);
    let flow = pair.open();
    assert_eq!(listed(&pair.gateway), row("1-tcp-1", Opening, (0, 0), ""));
    pair.gateway.write(pair.now, flow, b"hello");
    settle(&mut pair);
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"hello");
    let [(.., carriers)] = &listed(&pair.gateway)[..] else { panic!("one flow") };
    let carriers = carriers.clone();
    assert!(["a", "b"].contains(&carriers.as_str()), "{carriers}");
    assert_eq!(listed(&pair.gateway), row("1-tcp-1", Opening, (5, 0), &carriers));
    assert_eq!(listed(&pair.cloud), row("1-tcp-1", Opening, (0, 5), &carriers));
    let view = pair.cloud.flows_after(None, None).next().unwrap();
    assert_eq!(view.destination.unwrap().to_string(), "example.com:80");
    assert_eq!((view.user, view.moved_at <= pair.now), (UserId(1), true));
    assert!(view.begun_at <= pair.now);

    pair.cloud.dialed(pair.now, served);
    pair.cloud.write(pair.now, served, b"answer");
    settle(&mut pair);
    assert_eq!(drain(&mut pair.gateway, pair.now, flow), b"answer");
    let states = |pair: &Pair| (listed(&pair.gateway)[0].1, listed(&pair.cloud)[0].1);
    assert_eq!(states(&pair), (Open, Open));
    assert_eq!((listed(&pair.gateway)[0].3, listed(&pair.cloud)[0].2), (6, 6));
    // The other carrier takes over.
    pair.down(if carriers == "a" { 0 } else { 1 });
    pair.gateway.write(pair.now, flow, b"more");
    settle(&mut pair);
    assert_eq!(listed(&pair.gateway)[0].4, "a,b");
    assert_eq!(listed(&pair.cloud)[0].4, "a,b");

    pair.gateway.finish(pair.now, flow);
    settle(&mut pair);
    assert_eq!(states(&pair), (HalfClosed, HalfClosed));
    drain(&mut pair.cloud, pair.now, served);
    pair.cloud.finish(pair.now, served);
    assert_eq!(listed(&pair.cloud)[0].1, Closing);
    assert_eq!((listed(&pair.gateway)[0].2, listed(&pair.cloud)[0].3), (9, 9), "without marks");
    pair.advance(Duration::from_secs(1));
    assert_eq!((listed(&pair.gateway).len(), listed(&pair.cloud).len()), (0, 0));
}

#[test]
fn reset_flow_is_listed_until_the_peer_answers() {
    let mut pair = Pair::over(&["a"]);
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"hello");
    pair.run();
    pair.dark(0);
    pair.gateway.reset(pair.now, flow, ResetReason::Idle);
    pair.run();
    let [(_, phase, ..)] = listed(&pair.gateway)[..] else { panic!("one flow") };
    assert_eq!(phase, FlowPhase::Resetting);
    let flows: Vec<usize> = pair.gateway.users(pair.now).map(|view| view.flows).collect();
    assert_eq!(flows, [0], "it is not open");
}

#[test]
fn list_continues_after_a_name_and_has_flows_before_bindings() {
    let mut pair = Pair::over(&["a"]);
    for _ in 0..3 {
        pair.open();
    }
    let key = session(&pair.gateway);
    let remote = Destination::Address(([192, 0, 2, 1], 443).into());
    for binding in [7, 9] {
        let (binding, user) = (BindingId(binding), Some(UserId(2)));
        let payload = vec![0; 100];
        let remote = remote.clone();
        let datagram = UserDatagram { binding, user, remote, payload, expedited: false };
        pair.gateway.send_datagram(pair.now, key, datagram);
    }
    settle(&mut pair);
    let names = |after: Option<&str>| -> Vec<String> {
        let after = after.map(|name| name.parse::<FlowName>().unwrap());
        let views = pair.gateway.flows_after(after, None);
        views.map(|view| view.name.to_string()).collect()
    };
    let all = ["1-tcp-1", "1-tcp-2", "1-tcp-3", "1-udp-7", "1-udp-9"];
    assert_eq!(names(None), all);
    for (at, name) in all.iter().enumerate() {
        assert_eq!(names(Some(name)), all[at + 1..], "{name}");
    }
    assert_eq!(names(Some("1-tcp-99")), all[3..]);
    assert_eq!(names(Some("0-udp-99")), all);
    assert!(names(Some("2-tcp-1")).is_empty());
    let other = polyrail_session::SessionKey(2);
    assert_eq!(pair.gateway.flows_after(None, Some(other)).count(), 0);

    for (side, sent, received) in [(&pair.gateway, 100, 0), (&pair.cloud, 0, 100)] {
        let binding = side.flows_after("1-udp-1".parse().ok(), None).next().unwrap();
        assert_eq!((binding.sent.0, binding.received.0), (sent, received));
        assert_eq!((binding.destination, binding.user), (Some(&remote), UserId(2)));
        assert_eq!(binding.carriers().collect::<Vec<_>>(), ["a"]);
    }
}

#[test]
fn user_is_listed_with_its_bytes_for_five_minutes_after_its_last() {
    let mut pair = Pair::over(&["a"]);
    let key = session(&pair.gateway);
    let remote = Destination::Address(([192, 0, 2, 1], 443).into());
    let (binding, user) = (BindingId(7), Some(UserId(2)));
    let payload = vec![0; 100];
    let datagram = UserDatagram { binding, user, remote, payload, expedited: false };
    pair.gateway.send_datagram(pair.now, key, datagram);
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"hello");
    settle(&mut pair);
    let served = pair.opened();
    drain(&mut pair.cloud, pair.now, served);
    pair.gateway.reset(pair.now, flow, ResetReason::Idle);
    settle(&mut pair);
    let rows = |endpoint: &Endpoint, now| {
        let row = |view: polyrail_session::UserView| {
            let traffic = view.traffic.map(|traffic| (traffic.sent.0, traffic.received.0));
            (view.user.0, view.flows, traffic)
        };
        let mut rows: Vec<_> = endpoint.users(now).map(row).collect();
        rows.sort_unstable();
        rows
    };
    let at = pair.now;
    assert_eq!(rows(&pair.gateway, at), [(1, 0, Some((5, 0))), (2, 0, Some((100, 0)))]);
    assert_eq!(rows(&pair.cloud, at), [(1, 0, Some((0, 5))), (2, 0, Some((0, 100)))]);
    let later = at + Duration::from_secs(300);
    assert!(rows(&pair.gateway, later).is_empty());
    let view = |now| pair.gateway.user(now, key, UserId(2));
    assert!(view(at).is_some() && view(later).is_none());
    assert!(pair.gateway.user(at, key, UserId(3)).is_none());
}
