//! The rules for joining a session. The frames are those of a gateway, with modifications.

use std::time::{Duration, Instant};

use polyrail_model::InstanceId;
use polyrail_session::wire::{Frame, RejectCode};
use polyrail_session::{Endpoint, Event, Settings, TunnelInfo, TunnelKey};

use crate::endpoints::{cloud, connect, events, frames, gateway, info, post, sent, sent_on, up};

fn rejected(bytes: &[u8]) -> Option<RejectCode> {
    let mut code = None;
    frames(bytes, |frame| {
        if let Frame::Reject { code: found, .. } = frame {
            code = Some(*found);
        }
    });
    code
}

/// A session with one path, and the bytes of a good JOIN for a second one.
fn session() -> (Instant, Endpoint, Endpoint, Vec<u8>) {
    let now = Instant::now();
    let (mut gateway, mut cloud) = (gateway(now), cloud(now, 9));
    connect(&mut gateway, &mut cloud, now, 1, "a");
    let hello = sent(&mut gateway, now);
    cloud.receive(now, TunnelKey(1), &hello);
    let welcome = sent(&mut cloud, now);
    gateway.receive(now, TunnelKey(1), &welcome);
    assert!(matches!(events(&mut gateway)[0], Event::SessionUp { .. }));
    assert!(matches!(events(&mut cloud)[0], Event::SessionUp { .. }));
    sent(&mut gateway, now);
    up(&mut gateway, now, 2, info("b", "cloud", 2));
    let join = sent_on(&mut gateway, now, 2);
    (now, gateway, cloud, join)
}

/// Feeds a JOIN over a new tunnel with this certificate and returns the cloud's answer.
fn join(cloud: &mut Endpoint, now: Instant, key: usize, peer: &str, join: &[u8]) -> Answer {
    up(cloud, now, key, info("", peer, 50 + key as u8));
    cloud.receive(now, TunnelKey(key), join);
    let events = events(cloud);
    let closes = TunnelKey(key);
    let closed =
        |event: &Event| matches!(event, Event::CloseTunnel { tunnel, .. } if *tunnel == closes);
    let joined = events.iter().any(|event| matches!(event, Event::PathUp { .. }));
    Answer { code: rejected(&sent(cloud, now)), closed: events.iter().any(closed), joined }
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    code: Option<RejectCode>,
    closed: bool,
    joined: bool,
}

const REFUSED: fn(RejectCode) -> Answer =
    |code| Answer { code: Some(code), closed: true, joined: false };

#[test]
fn join_is_accepted_once() {
    let (now, _, mut cloud, frames) = session();
    let good = Answer { code: None, closed: false, joined: true };
    assert_eq!(join(&mut cloud, now, 2, "train-7", &frames), good);
    let replayed = join(&mut cloud, now, 3, "train-7", &frames);
    assert_eq!(replayed, REFUSED(RejectCode::Replayed));
}

#[test]
fn a_join_of_another_certificate_is_refused() {
    let (now, _, mut cloud, frames) = session();
    let stranger = join(&mut cloud, now, 2, "train-8", &frames);
    assert_eq!(stranger, REFUSED(RejectCode::NotYours));
    // The session is not affected.
    assert!(join(&mut cloud, now, 3, "train-7", &frames).joined);
}

#[test]
fn a_join_with_a_wrong_proof_is_refused() {
    let (now, _, mut cloud, frames) = session();
    for place in [20, 35, 51] {
        let mut wrong = frames.clone();
        wrong[place] ^= 1;
        let answer = join(&mut cloud, now, place, "train-7", &wrong);
        assert_eq!(answer, REFUSED(RejectCode::NotYours), "byte {place}");
    }
    assert!(join(&mut cloud, now, 3, "train-7", &frames).joined);
}

#[test]
fn tunnel_may_greet_again_after_a_join_for_an_unknown_session() {
    let (now, _, mut cloud, frames) = session();
    let mut unknown = frames.clone();
    unknown[4] ^= 1;
    let answer = join(&mut cloud, now, 2, "train-7", &unknown);
    let open = Answer { code: Some(RejectCode::Unknown), closed: false, joined: false };
    assert_eq!(answer, open);
    cloud.receive(now, TunnelKey(2), &frames);
    assert!(events(&mut cloud).iter().any(|event| matches!(event, Event::PathUp { .. })));
}

#[test]
fn a_tunnel_that_does_not_greet_is_closed() {
    let (now, _, mut cloud, _) = session();
    up(&mut cloud, now, 5, info("", "train-9", 5));
    let late = now + Duration::from_secs(10);
    assert!(cloud.next_timeout().is_some_and(|at| at <= late));
    cloud.on_timeout(late);
    let reasons = events(&mut cloud).into_iter().filter_map(|event| match event {
        Event::CloseTunnel { tunnel: TunnelKey(5), reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), ["no greeting in time"]);
}

/// A carrier delivers a greeting when its process has already begun the next session.
#[test]
fn delayed_greeting_of_an_earlier_session_is_refused() {
    let now = Instant::now();
    let mut cloud = cloud(now, 9);
    let hello = |session: u8, tunnel: usize, exporter: u8| {
        let mut gateway = Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]));
        post(&mut gateway, now);
        (1..=2).for_each(|key| up(&mut gateway, now, key, info("a", "cloud", exporter)));
        let mut hello = sent_on(&mut gateway, now, tunnel);
        let process = hello.windows(12).position(|bytes| bytes == [7; 12]).unwrap();
        hello[process + 15] = session;
        hello
    };
    // A greeting on the second tunnel has another number than one on the first.
    let (earlier, later) = (hello(1, 2, 53), hello(2, 1, 52));
    assert!(join(&mut cloud, now, 2, "train-7", &later).joined);
    assert_eq!(join(&mut cloud, now, 3, "train-7", &earlier), REFUSED(RejectCode::Superseded));
}

/// Two processes with one certificate greet alternately.
#[test]
fn one_certificate_in_two_processes_causes_an_alarm_after_ten_seconds() {
    let start = Instant::now();
    let mut cloud = cloud(start, 9);
    let mut alarms = Vec::new();
    for turn in 0..16_u64 {
        let now = start + Duration::from_secs(turn);
        let process = 1 + (turn % 2) as u8;
        let mut gateway = Endpoint::gateway(now, Settings::default(), InstanceId([process; 16]));
        post(&mut gateway, now);
        up(&mut gateway, now, 1, info("a", "cloud", 1));
        let hello = sent(&mut gateway, now);
        let key = 100 + turn as usize;
        up(&mut cloud, now, key, info("", "train-7", 1));
        cloud.receive(now, TunnelKey(key), &hello);
        for event in events(&mut cloud) {
            if let Event::Alarm { text, .. } = event {
                alarms.push((turn, text));
            }
        }
        sent(&mut cloud, now);
    }
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    assert!(alarms[0].0 >= 10 && alarms[0].1.contains("train-7"), "{alarms:?}");
    assert_eq!(cloud.status().sessions.len(), 1);
}

fn early(carrier: &str, peer: &str) -> TunnelInfo {
    TunnelInfo { exporter: None, ..info(carrier, peer, 0) }
}

fn kinds(bytes: &[u8]) -> Vec<String> {
    let mut kinds = Vec::new();
    frames(bytes, |frame| {
        let name = format!("{frame:?}");
        kinds.push(name.split([' ', '(']).next().unwrap().to_owned());
    });
    kinds
}

fn paths_up(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::PathUp { .. })).count()
}

#[test]
fn gateway_sends_a_join_but_no_hello_as_early_data() {
    let now = Instant::now();
    let mut gateway = gateway(now);
    up(&mut gateway, now, 1, early("a", "cloud"));
    assert_eq!(kinds(&sent(&mut gateway, now)), [] as [&str; 0], "a HELLO cannot go early");
    let late = now + Duration::from_secs(8);
    gateway.tunnel_confirmed(late, TunnelKey(1), [1; 32]);
    assert_eq!(kinds(&sent(&mut gateway, late)), ["Hello"]);
    // The timeout of the answer begins with the end of the handshake.
    gateway.on_timeout(now + Duration::from_secs(10));
    assert_eq!(events(&mut gateway), []);
    gateway.on_timeout(late + Duration::from_secs(10));
    assert!(matches!(events(&mut gateway)[..], [Event::CloseTunnel { .. }]));
    // A tunnel that never ends its handshake is closed.
    up(&mut gateway, late, 2, early("a", "cloud"));
    gateway.on_timeout(late + Duration::from_secs(10));
    assert!(matches!(events(&mut gateway)[..], [Event::CloseTunnel { .. }]));

    let (now, mut gateway, mut cloud, _) = session();
    up(&mut gateway, now, 3, early("c", "cloud"));
    let join = sent_on(&mut gateway, now, 3);
    assert_eq!(kinds(&join)[0], "Join");
    up(&mut cloud, now, 3, early("", "train-7"));
    cloud.receive(now, TunnelKey(3), &join);
    assert_eq!(paths_up(&events(&mut cloud)), 1);
    assert_eq!(kinds(&sent_on(&mut cloud, now, 3))[0], "Welcome");
}

#[test]
fn hello_before_the_end_of_the_handshake_is_refused() {
    let now = Instant::now();
    let (mut gateway, mut cloud) = (gateway(now), cloud(now, 9));
    up(&mut gateway, now, 1, info("a", "cloud", 1));
    let hello = sent(&mut gateway, now);
    up(&mut cloud, now, 1, early("", "train-7"));
    cloud.receive(now, TunnelKey(1), &hello);
    assert!(matches!(events(&mut cloud)[..], [Event::CloseTunnel { .. }]));
    assert_eq!(rejected(&sent(&mut cloud, now)), Some(RejectCode::Protocol));
    assert!(cloud.status().sessions.is_empty());
}

#[test]
fn replayed_early_data_has_no_effect() {
    let (now, mut gateway, mut cloud, _) = session();
    // No other path is left: data follows the JOIN at once.
    gateway.tunnel_down(now, TunnelKey(1));
    gateway.tunnel_down(now, TunnelKey(2));
    post(&mut gateway, now);
    up(&mut gateway, now, 3, early("a", "cloud"));
    let recorded = sent_on(&mut gateway, now, 3);
    assert!(kinds(&recorded).contains(&"Open".to_owned()), "{:?}", kinds(&recorded));
    up(&mut cloud, now, 3, early("", "train-7"));
    cloud.receive(now, TunnelKey(3), &recorded);
    let first = events(&mut cloud);
    let opened = |events: &[Event]| {
        events.iter().filter(|event| matches!(event, Event::Opened { .. })).count()
    };
    assert_eq!((paths_up(&first), opened(&first)), (1, 1));
    sent(&mut cloud, now);
    let before = cloud.status();
    for key in 4..8 {
        up(&mut cloud, now, key, early("", "train-7"));
        cloud.receive(now, TunnelKey(key), &recorded);
        let events = events(&mut cloud);
        assert!(matches!(events[..], [Event::CloseTunnel { .. }]), "{events:?}");
        assert_eq!(rejected(&sent_on(&mut cloud, now, key)), Some(RejectCode::Replayed));
    }
    assert_eq!(cloud.status(), before);
    // Another gateway is refused as well.
    up(&mut cloud, now, 9, early("", "train-8"));
    cloud.receive(now, TunnelKey(9), &recorded);
    assert_eq!(rejected(&sent_on(&mut cloud, now, 9)), Some(RejectCode::NotYours));
    assert_eq!(cloud.status(), before);
}

#[test]
fn early_join_for_an_unknown_session_is_followed_by_a_hello() {
    let (now, mut gateway, _, _) = session();
    gateway.tunnel_down(now, TunnelKey(1));
    gateway.tunnel_down(now, TunnelKey(2));
    let flow = post(&mut gateway, now);
    let mut cloud = cloud(now, 10);
    up(&mut gateway, now, 3, early("a", "cloud"));
    up(&mut cloud, now, 3, early("", "train-7"));
    cloud.receive(now, TunnelKey(3), &sent_on(&mut gateway, now, 3));
    assert_eq!(events(&mut cloud), [], "the tunnel and its data belong to no session");
    gateway.receive(now, TunnelKey(3), &sent_on(&mut cloud, now, 3));
    let lost = Event::Reset { flow, reason: polyrail_session::ResetReason::SessionLost };
    assert!(events(&mut gateway).contains(&lost));
    assert_eq!(kinds(&sent_on(&mut gateway, now, 3)), [] as [&str; 0]);
    cloud.tunnel_confirmed(now, TunnelKey(3), [3; 32]);
    gateway.tunnel_confirmed(now, TunnelKey(3), [3; 32]);
    let hello = sent_on(&mut gateway, now, 3);
    assert_eq!(kinds(&hello), ["Hello"]);
    cloud.receive(now, TunnelKey(3), &hello);
    assert_eq!(paths_up(&events(&mut cloud)), 1);
    gateway.receive(now, TunnelKey(3), &sent_on(&mut cloud, now, 3));
    assert_eq!(paths_up(&events(&mut gateway)), 1);
}
