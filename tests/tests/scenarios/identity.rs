//! Permission to join a session. The frames are those of a real gateway, modified on the way.

use std::time::{Duration, Instant};

use polyrail_model::{Destination, HostName, Identity, InstanceId, TunnelMode, Unit, UserId};
use polyrail_session::wire::{Decoder, Frame, RejectCode};
use polyrail_session::{Endpoint, Event, Outlet, Settings, TunnelInfo, TunnelKey};

/// Collects the frames sent on each tunnel.
#[derive(Default)]
struct Wire(Vec<(TunnelKey, Vec<u8>)>);

impl Outlet for Wire {
    fn send(&mut self, tunnel: TunnelKey, _unit: Unit, frames: &[u8]) -> usize {
        self.0.push((tunnel, frames.to_vec()));
        16_384
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

fn info(carrier: &str, peer: &str, exporter: u8) -> TunnelInfo {
    let peer = Identity::new(peer).unwrap();
    TunnelInfo {
        carrier: carrier.to_owned(),
        peer,
        exporter: Some([exporter; 32]),
        backup: false,
        mode: TunnelMode::Tls,
    }
}

/// Everything that the endpoint sends now.
fn sent(endpoint: &mut Endpoint, now: Instant) -> Vec<u8> {
    let mut wire = Wire::default();
    endpoint.transmit(now, &mut wire);
    wire.0.into_iter().flat_map(|(_, frames)| frames).collect()
}

fn events(endpoint: &mut Endpoint) -> Vec<Event> {
    std::iter::from_fn(|| endpoint.poll_event()).collect()
}

fn up(endpoint: &mut Endpoint, now: Instant, key: usize, info: TunnelInfo) {
    endpoint.tunnel_up(now, TunnelKey(key), info);
    endpoint.tunnel_room(TunnelKey(key), 16_384);
}

fn rejected(bytes: &[u8]) -> Option<RejectCode> {
    let mut code = None;
    let look = |frame: Frame<'_>| {
        if let Frame::Reject { code: found, .. } = frame {
            code = Some(found);
        }
    };
    Decoder::default().feed(bytes, look).unwrap();
    code
}

/// A session with one path, and the bytes of a good JOIN for a second one.
fn session() -> (Instant, Endpoint, Endpoint, Vec<u8>) {
    let now = Instant::now();
    let mut gateway = Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]));
    let mut cloud = Endpoint::cloud(now, Settings::default(), [9; 32]);
    up(&mut gateway, now, 1, info("a", "cloud", 1));
    up(&mut cloud, now, 1, info("", "train-7", 1));
    let hello = sent(&mut gateway, now);
    cloud.receive(now, TunnelKey(1), &hello);
    let welcome = sent(&mut cloud, now);
    gateway.receive(now, TunnelKey(1), &welcome);
    assert!(matches!(events(&mut gateway)[0], Event::SessionUp { .. }));
    assert!(matches!(events(&mut cloud)[0], Event::SessionUp { .. }));
    sent(&mut gateway, now);
    up(&mut gateway, now, 2, info("b", "cloud", 2));
    let mut wire = Wire::default();
    gateway.transmit(now, &mut wire);
    let join = wire.0.into_iter().find(|(key, _)| *key == TunnelKey(2)).unwrap().1;
    (now, gateway, cloud, join)
}

/// Feeds a JOIN over a new tunnel of this certificate; returns what the cloud says.
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
fn a_good_join_is_taken_once() {
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
    // The session itself has not noticed.
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
fn a_join_for_an_unknown_session_may_greet_anew() {
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

/// Two processes with one certificate greet by turns.
#[test]
fn one_certificate_in_two_processes_is_alarmed_after_ten_seconds() {
    let start = Instant::now();
    let mut cloud = Endpoint::cloud(start, Settings::default(), [9; 32]);
    let mut alarms = Vec::new();
    for turn in 0..16_u64 {
        let now = start + Duration::from_secs(turn);
        let process = 1 + (turn % 2) as u8;
        let mut gateway = Endpoint::gateway(now, Settings::default(), InstanceId([process; 16]));
        let name = HostName::new("a.example").unwrap();
        gateway.open(now, UserId(1), Destination::Name(name, 80)).unwrap();
        up(&mut gateway, now, 1, info("a", "cloud", 1));
        let hello = sent(&mut gateway, now);
        let key = 100 + turn as usize;
        up(&mut cloud, now, key, info("", "train-7", 1));
        cloud.receive(now, TunnelKey(key), &hello);
        for event in events(&mut cloud) {
            if let Event::Alarm { text } = event {
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
    let note = |frame: Frame<'_>| {
        let name = format!("{frame:?}");
        kinds.push(name.split([' ', '(']).next().unwrap().to_owned());
    };
    Decoder::default().feed(bytes, note).unwrap();
    kinds
}

/// The units that the endpoint sends on one tunnel now.
fn units(endpoint: &mut Endpoint, now: Instant, key: usize) -> Vec<u8> {
    let mut wire = Wire::default();
    endpoint.transmit(now, &mut wire);
    let of_tunnel = wire.0.into_iter().filter(|(tunnel, _)| tunnel.0 == key);
    of_tunnel.flat_map(|(_, frames)| frames).collect()
}

fn paths_up(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::PathUp { .. })).count()
}

#[test]
fn a_gateway_greets_early_with_a_join_or_waits() {
    let now = Instant::now();
    let mut gateway = Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]));
    up(&mut gateway, now, 1, early("a", "cloud"));
    assert_eq!(kinds(&sent(&mut gateway, now)), [] as [&str; 0], "a HELLO cannot go early");
    let late = now + Duration::from_secs(8);
    gateway.tunnel_confirmed(late, TunnelKey(1), [1; 32]);
    assert_eq!(kinds(&sent(&mut gateway, late)), ["Hello"]);
    // The wait for an answer begins with the end of the handshake.
    gateway.on_timeout(now + Duration::from_secs(10));
    assert_eq!(events(&mut gateway), []);
    gateway.on_timeout(late + Duration::from_secs(10));
    assert!(matches!(events(&mut gateway)[..], [Event::CloseTunnel { .. }]));
    // One that never ends its handshake is not kept for ever.
    up(&mut gateway, late, 2, early("a", "cloud"));
    gateway.on_timeout(late + Duration::from_secs(10));
    assert!(matches!(events(&mut gateway)[..], [Event::CloseTunnel { .. }]));

    let (now, mut gateway, mut cloud, _) = session();
    up(&mut gateway, now, 3, early("c", "cloud"));
    let join = units(&mut gateway, now, 3);
    assert_eq!(kinds(&join)[0], "Join");
    up(&mut cloud, now, 3, early("", "train-7"));
    cloud.receive(now, TunnelKey(3), &join);
    assert_eq!(paths_up(&events(&mut cloud)), 1);
    assert_eq!(kinds(&units(&mut cloud, now, 3))[0], "Welcome");
}

#[test]
fn a_cloud_takes_no_hello_before_the_end_of_the_handshake() {
    let now = Instant::now();
    let mut gateway = Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]));
    let mut cloud = Endpoint::cloud(now, Settings::default(), [9; 32]);
    up(&mut gateway, now, 1, info("a", "cloud", 1));
    let hello = sent(&mut gateway, now);
    up(&mut cloud, now, 1, early("", "train-7"));
    cloud.receive(now, TunnelKey(1), &hello);
    assert!(matches!(events(&mut cloud)[..], [Event::CloseTunnel { .. }]));
    assert_eq!(rejected(&sent(&mut cloud, now)), Some(RejectCode::Protocol));
    assert!(cloud.status().sessions.is_empty());
}

#[test]
fn replayed_early_data_does_nothing() {
    let (now, mut gateway, mut cloud, _) = session();
    let name = HostName::new("a.example").unwrap();
    let flow = gateway.open(now, UserId(1), Destination::Name(name, 80)).unwrap();
    // The session's only hope: data goes behind the JOIN at once.
    gateway.tunnel_down(now, TunnelKey(1));
    gateway.tunnel_down(now, TunnelKey(2));
    gateway.write(now, flow, b"POST /pay");
    up(&mut gateway, now, 3, early("a", "cloud"));
    let recorded = units(&mut gateway, now, 3);
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
        assert_eq!(rejected(&units(&mut cloud, now, key)), Some(RejectCode::Replayed));
    }
    assert_eq!(cloud.status(), before);
    // Nor does it help to be another gateway.
    up(&mut cloud, now, 9, early("", "train-8"));
    cloud.receive(now, TunnelKey(9), &recorded);
    assert_eq!(rejected(&units(&mut cloud, now, 9)), Some(RejectCode::NotYours));
    assert_eq!(cloud.status(), before);
}

#[test]
fn an_early_join_that_a_new_cloud_does_not_know_becomes_a_hello_after_the_handshake() {
    let (now, mut gateway, _, _) = session();
    gateway.tunnel_down(now, TunnelKey(1));
    gateway.tunnel_down(now, TunnelKey(2));
    let name = HostName::new("a.example").unwrap();
    let flow = gateway.open(now, UserId(1), Destination::Name(name, 80)).unwrap();
    gateway.write(now, flow, b"POST /pay");
    let mut cloud = Endpoint::cloud(now, Settings::default(), [10; 32]);
    up(&mut gateway, now, 3, early("a", "cloud"));
    up(&mut cloud, now, 3, early("", "train-7"));
    cloud.receive(now, TunnelKey(3), &units(&mut gateway, now, 3));
    assert_eq!(events(&mut cloud), [], "neither the tunnel nor its data found a home");
    gateway.receive(now, TunnelKey(3), &units(&mut cloud, now, 3));
    let lost = Event::Reset { flow, reason: polyrail_session::ResetReason::SessionLost };
    assert!(events(&mut gateway).contains(&lost));
    assert_eq!(kinds(&units(&mut gateway, now, 3)), [] as [&str; 0]);
    cloud.tunnel_confirmed(now, TunnelKey(3), [3; 32]);
    gateway.tunnel_confirmed(now, TunnelKey(3), [3; 32]);
    let hello = units(&mut gateway, now, 3);
    assert_eq!(kinds(&hello), ["Hello"]);
    cloud.receive(now, TunnelKey(3), &hello);
    assert_eq!(paths_up(&events(&mut cloud)), 1);
    gateway.receive(now, TunnelKey(3), &units(&mut cloud, now, 3));
    assert_eq!(paths_up(&events(&mut gateway)), 1);
}
