//! Early data over TLS: the saved round trip, rejection, and delivery at most once.

#![allow(clippy::unwrap_used)] // also in the helpers

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::pki::{Authority, CLOUD, GATEWAY, LIFE, Node, serial_text};
use common::relay::Relay;
use common::{BEGIN, TestClock, World, client, name, resident, server};
use polyrail_identity::{CertificateFault, TlsIdentity};
use polyrail_model::Unit;
use polyrail_tunnel::tls::{Client, EARLY_DATA_MAX, TICKETS_MAX};
use polyrail_tunnel::{CONTROL_EXCESS, CloseReason, Early, FRAMES_MAX, SocketOptions};

/// The early identity of this node.
fn early(peer: &str, serial: u64) -> Early {
    Early { peer: name(peer), serial: serial_text(serial) }
}

/// A world with a relay before its cloud, whose gateway holds tickets for the way through it.
struct Scene {
    authority: Authority,
    world: World,
    relay: Relay,
    client: Client,
    cloud_clock: Arc<TestClock>,
    gateway_clock: Arc<TestClock>,
    cloud_address: SocketAddr,
}

impl Scene {
    fn new() -> Self {
        Self::with(|authority| authority.cloud())
    }

    fn with(cloud: impl FnOnce(&Authority) -> TlsIdentity) -> Self {
        let authority = Authority::new();
        let (gateway_clock, cloud_clock) = (TestClock::new(), TestClock::new());
        let mut world = World::new();
        let cloud_address = world.serve(server(cloud(&authority), &cloud_clock));
        let relay = Relay::new(cloud_address);
        let client = client(authority.gateway(), &gateway_clock);
        let mut scene =
            Self { authority, world, relay, client, cloud_clock, gateway_clock, cloud_address };
        let [near, far] = scene.connect(false);
        scene.trips(2);
        assert!([near, far].iter().all(|&end| scene.world.ends[end].up.is_some()));
        scene
    }

    /// Connects through the relay, up to the gateway's first flight.
    fn connect(&mut self, early: bool) -> [usize; 2] {
        let near = self.world.connect_with(&mut self.client, self.relay.address(), early);
        self.relay.settle(&mut self.world);
        [near, near + 1]
    }

    fn pass_up(&mut self) {
        self.relay.pass_up(&mut self.world);
    }

    fn pass_down(&mut self) {
        self.relay.pass_down(&mut self.world);
    }

    /// Passes everything up, then down, so often.
    fn trips(&mut self, count: usize) {
        for _ in 0..count {
            self.pass_up();
            self.pass_down();
        }
    }

    /// Sends what there is room for and lets it reach the relay.
    fn send(&mut self, end: usize, data: &[u8]) -> usize {
        let sent = self.world.ends[end].send(data, 1_400);
        self.relay.settle(&mut self.world);
        sent
    }

    /// Connects with early data in units of `unit` bytes, which reaches the cloud in pieces of
    /// `piece` bytes and is refused there, then sends `late`, too. Returns what the cloud received.
    fn refused(&mut self, early: &[u8], unit: usize, piece: usize, late: &[u8]) -> Vec<u8> {
        let [near, far] = self.connect(true);
        assert!(self.world.ends[near].early.is_some());
        assert_eq!(self.world.ends[near].send(early, unit), early.len());
        self.relay.settle(&mut self.world);
        self.relay.pass_up_in(&mut self.world, piece);
        assert!(self.world.ends[far].early.is_none());
        assert!(self.world.ends[far].received.is_empty());
        self.pass_down();
        assert!(self.world.ends[near].up.is_some());
        assert_eq!(self.send(near, late), late.len());
        self.trips(3);
        let [near, far] = [&self.world.ends[near], &self.world.ends[far]];
        let exporters = [near, far].map(|end| end.up.clone().unwrap().exporter);
        assert_eq!(exporters[0], exporters[1]);
        assert_eq!([&near.closed, &far.closed], [&None, &None]);
        far.received.clone()
    }
}

/// Bytes that differ all along.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// Round trips before the first flight with user data may leave; the connect of TCP is one.
fn trips_before_data(scene: &mut Scene, early: bool) -> usize {
    let [near, far] = scene.connect(early);
    let mut sent = 0;
    for trips in 1..10 {
        if sent == 0 {
            sent = scene.send(near, b"user data");
        }
        scene.pass_up();
        if scene.world.ends[far].received == b"user data" {
            return trips;
        }
        scene.pass_down();
    }
    panic!("no data came");
}

#[test]
fn user_data_leaves_after_one_round_trip_with_early_data_and_after_two_without() {
    let mut scene = Scene::new();
    assert_eq!(trips_before_data(&mut scene, true), 1, "resumed with early data");
    scene.pass_down();
    assert_eq!(trips_before_data(&mut scene, false), 2, "resumed without");
    assert!(scene.world.ends.last().unwrap().up.as_ref().unwrap().resumed);
    scene.client.set_identity(scene.authority.gateway()).unwrap();
    assert_eq!(trips_before_data(&mut scene, true), 2, "full");
    assert!(!scene.world.ends.last().unwrap().up.as_ref().unwrap().resumed);
}

#[test]
fn the_cloud_answers_early_data_in_its_first_flight() {
    let mut scene = Scene::new();
    let [near, far] = scene.connect(true);
    assert_eq!(scene.world.ends[near].early, Some(early("cloud", 1)));
    assert!(scene.world.ends[near].up.is_none());
    scene.send(near, b"join and segment");
    scene.pass_up();
    let cloud = &scene.world.ends[far];
    assert_eq!(cloud.early, Some(early("train-7", 7)));
    assert_eq!((&cloud.received[..], cloud.up.is_none()), (&b"join and segment"[..], true));
    scene.send(far, b"welcome");
    scene.pass_down();
    let gateway = &scene.world.ends[near];
    assert_eq!(gateway.received, b"welcome");
    assert!(gateway.up.as_ref().unwrap().resumed);
    scene.send(near, b", more");
    scene.pass_up();
    let cloud = &scene.world.ends[far];
    assert_eq!(cloud.received, b"join and segment, more");
    let exporter = cloud.up.as_ref().unwrap().exporter;
    assert_eq!(exporter, scene.world.ends[near].up.as_ref().unwrap().exporter);
    assert_eq!(cloud.up.as_ref().unwrap().serial, serial_text(7));
}

#[test]
fn a_cloud_that_ends_an_early_tunnel_is_still_heard() {
    let mut scene = Scene::new();
    let [near, far] = scene.connect(true);
    scene.send(near, b"join");
    scene.pass_up();
    scene.world.ends[far].tunnel.send(Unit::Greeting, b"no such session");
    scene.world.ends[far].tunnel.close(Instant::now());
    scene.relay.settle(&mut scene.world);
    scene.pass_down();
    let gateway = &scene.world.ends[near];
    assert_eq!(gateway.received, b"no such session");
    assert_eq!(gateway.closed, Some(CloseReason::PeerClosed));
    assert_eq!(scene.world.ends[far].time_out(), Some(CloseReason::Local));
}

#[test]
fn early_data_is_bounded_and_what_exceeds_it_follows_in_order() {
    let mut scene = Scene::new();
    let [near, far] = scene.connect(true);
    let room = scene.world.ends[near].tunnel.room();
    assert!((11_800..EARLY_DATA_MAX).contains(&room), "{room}");
    let data = pattern(60_000);
    let sent = scene.send(near, &data);
    assert!((11_800..=room).contains(&sent), "{sent}");
    assert_eq!(scene.world.ends[near].tunnel.room(), 0);
    // Control may exceed the room.
    let more = sent + CONTROL_EXCESS;
    scene.world.ends[near].tunnel.send(Unit::Control, &data[sent..more]);
    scene.pass_up();
    assert!(scene.world.ends[far].received == data[..sent], "the excess is no early data");
    scene.pass_down();
    let rest = scene.send(near, &data[more..more + 10_000]);
    scene.pass_up();
    assert!(scene.world.ends[far].received == data[..more + rest]);
}

#[test]
fn a_unit_larger_than_early_data_begins_early() {
    let mut scene = Scene::new();
    let [near, far] = scene.connect(true);
    let data = pattern(FRAMES_MAX);
    scene.world.ends[near].tunnel.send(Unit::Data { tag: 1 }, &data);
    scene.world.ends[near].tunnel.flush(Instant::now());
    scene.relay.settle(&mut scene.world);
    assert_eq!(scene.world.ends[near].tunnel.room(), 0);
    scene.pass_up();
    let early = scene.world.ends[far].received.len();
    assert!((11_800..FRAMES_MAX).contains(&early), "{early}");
    scene.pass_down();
    scene.pass_up();
    assert!(scene.world.ends[far].received == data);
}

#[test]
fn a_caller_that_ignores_the_room_of_early_data_is_stopped() {
    let mut scene = Scene::new();
    let [near, _] = scene.connect(true);
    for _ in 0..4 {
        scene.world.ends[near].tunnel.send(Unit::Control, &[0; FRAMES_MAX]);
    }
    scene.world.step();
    assert!(matches!(&scene.world.ends[near].closed, Some(CloseReason::Internal { .. })));
}

#[test]
fn restarted_cloud_refuses_early_data_and_receives_it_once_after_the_handshake() {
    let all = usize::MAX;
    let table =
        [(11_800, 1_400, all), (500, 1, 100), (11_800, 1_400, 300), (12_000, 16_000, 1_448)];
    for (early, unit, piece) in table {
        let mut scene = Scene::new();
        scene.world.server = Some(server(scene.authority.cloud(), &scene.cloud_clock));
        let (early, late) = (pattern(early), pattern(3_000));
        assert!(scene.refused(&early, unit, piece, &late) == [early, late].concat());
        assert!(!scene.world.ends.last().unwrap().up.as_ref().unwrap().resumed);
    }
}

#[test]
fn clocks_that_disagree_cost_early_data_and_nothing_else() {
    let mut scene = Scene::new();
    scene.cloud_clock.set(BEGIN + 100 + 90);
    let (early, late) = (pattern(9_000), pattern(3_000));
    assert!(scene.refused(&early, 1_400, usize::MAX, &late) == [early, late].concat());
    assert!(scene.world.ends.last().unwrap().up.as_ref().unwrap().resumed);
}

/// Sends the bytes to the cloud over a connection of their own; the end there.
fn replay(scene: &mut Scene, bytes: &[u8]) -> (TcpStream, usize) {
    let far = scene.world.ends.len();
    let mut socket = TcpStream::connect(scene.cloud_address).unwrap();
    socket.write_all(bytes).unwrap();
    scene.world.until("the replay accepted", |ends| ends.len() == far + 1);
    for _ in 0..5 {
        scene.world.step();
    }
    (socket, far)
}

#[test]
fn replayed_early_data_is_not_handed_out_twice() {
    let mut scene = Scene::new();
    let [near, far] = scene.connect(true);
    scene.send(near, b"once");
    scene.pass_up();
    assert_eq!(scene.world.ends[far].received, b"once");
    let recorded = scene.relay.links.last().unwrap().sent.clone();
    for _ in 0..3 {
        let (mut socket, copy) = replay(&mut scene, &recorded);
        let end = &scene.world.ends[copy];
        assert!(end.early.is_none() && end.up.is_none() && end.received.is_empty());
        // The cloud answers with a full handshake, in which a copy gets nowhere.
        assert!(socket.read(&mut [0; 100]).unwrap() > 0);
    }
    scene.pass_down();
    scene.pass_up();
    assert_eq!(scene.world.ends[far].received, b"once");
    assert!(scene.world.ends[far].up.is_some());
}

#[test]
fn many_copies_of_early_data_cost_little_and_time_out() {
    const COUNT: usize = 300;
    let mut scene = Scene::new();
    let [near, far] = scene.connect(true);
    scene.send(near, &pattern(11_800));
    scene.pass_up();
    assert_eq!(scene.world.ends[far].received.len(), 11_800);
    let recorded = scene.relay.links.last().unwrap().sent.clone();
    let first = scene.world.ends.len();
    let before = resident();
    let mut sockets = Vec::new();
    for number in 0..COUNT {
        let mut socket = TcpStream::connect(scene.cloud_address).unwrap();
        socket.write_all(&recorded).unwrap();
        sockets.push(socket);
        scene.world.until("accepted", |ends| ends.len() == first + number + 1);
    }
    for _ in 0..5 {
        scene.world.step();
    }
    let each = resident().saturating_sub(before) / COUNT;
    assert!(each < 64 * 1_024, "{each} bytes each");
    println!("RESULT half_open_with_refused_early_data bytes_each={each}");
    for end in &mut scene.world.ends[first..] {
        assert!(end.early.is_none() && end.received.is_empty() && end.closed.is_none());
        assert!(matches!(end.time_out(), Some(CloseReason::HandshakeTimedOut { .. })));
    }
}

#[test]
fn a_copy_that_comes_first_takes_the_ticket_but_never_comes_up() {
    let mut scene = Scene::new();
    let near = scene.world.connect_with(&mut scene.client, scene.relay.address(), true);
    scene.relay.settle(&mut scene.world);
    let far = near + 1;
    scene.send(near, b"data");
    let recorded = scene.relay.links.last().unwrap().sent.clone();
    let (socket, copy) = replay(&mut scene, &recorded);
    let end = &scene.world.ends[copy];
    assert!(end.early.is_some() && end.up.is_none());
    drop(socket);
    // The gateway's own connection is a full one, and loses nothing.
    scene.trips(3);
    assert!(scene.world.ends[far].early.is_none());
    assert!(!scene.world.ends[far].up.as_ref().unwrap().resumed);
    assert_eq!(scene.world.ends[far].received, b"data");
    assert_eq!(scene.world.ends[copy].closed, Some(CloseReason::ClosedInHandshake));
}

/// Sends early data that the cloud's judge refuses; answers with why.
fn refused_by_judge(scene: &mut Scene) -> CloseReason {
    let [near, far] = scene.connect(true);
    assert_eq!(scene.send(near, b"secret"), 6);
    scene.pass_up();
    let cloud = &scene.world.ends[far];
    assert!(cloud.early.is_none() && cloud.up.is_none() && cloud.received.is_empty());
    let reason = cloud.closed.clone().unwrap();
    scene.pass_down();
    assert!(scene.world.ends[near].received.is_empty());
    assert_eq!(scene.world.ends[near].closed, Some(CloseReason::PeerClosed));
    // The gateway has dropped its tickets: the next attempt is a full one and tells it why.
    let [near, _] = scene.connect(true);
    assert!(scene.world.ends[near].early.is_none());
    scene.trips(2);
    let told = scene.world.ends[near].closed.clone();
    assert!(matches!(told, Some(CloseReason::PeerRefused(_))), "{told:?}");
    reason
}

#[test]
fn early_data_is_judged_by_the_reloaded_identity() {
    let other = Authority::new();
    let (name, serial) = ("train-7".to_owned(), serial_text(7));
    for revoke in [true, false] {
        let mut scene = Scene::new();
        let (paths, fault) = if revoke {
            let paths = scene.authority.cloud_revoking(&[7], BEGIN + LIFE);
            (paths, CertificateFault::Revoked { name: name.clone(), serial: serial.clone() })
        } else {
            let paths = scene.authority.issue(&Node::new("cloud", CLOUD, 1), &other);
            (paths, CertificateFault::UnknownAuthority)
        };
        let identity = TlsIdentity::load(&paths).unwrap();
        scene.world.server.as_mut().unwrap().set_identity(identity).unwrap();
        assert_eq!(refused_by_judge(&mut scene), CloseReason::PeerCertificate(fault));
    }
}

#[test]
fn early_data_of_a_certificate_that_expired_meanwhile_is_refused() {
    let mut scene = Scene::with(|authority| {
        authority.node(&Node { end: BEGIN + 3 * LIFE, ..Node::new("cloud", CLOUD, 1) })
    });
    for clock in [&scene.gateway_clock, &scene.cloud_clock] {
        clock.set(BEGIN + LIFE + 10);
    }
    let ago = Duration::from_secs(10);
    let expired = CertificateFault::Expired { name: "train-7".to_owned(), ago };
    assert_eq!(refused_by_judge(&mut scene), CloseReason::PeerCertificate(expired));
}

#[test]
fn a_revocation_between_early_data_and_the_end_of_the_handshake_counts() {
    let mut scene = Scene::new();
    let [near, far] = scene.connect(true);
    scene.send(near, b"early");
    scene.pass_up();
    assert!(scene.world.ends[far].early.is_some());
    let revoking = scene.authority.cloud_revoking(&[7], BEGIN + LIFE);
    let identity = TlsIdentity::load(&revoking).unwrap();
    scene.world.server.as_mut().unwrap().set_identity(identity).unwrap();
    scene.pass_down();
    scene.send(near, b", late");
    scene.pass_up();
    let cloud = &scene.world.ends[far];
    assert_eq!((&cloud.received[..], cloud.up.is_none()), (&b"early"[..], true));
    let revoked = CertificateFault::Revoked { name: "train-7".to_owned(), serial: serial_text(7) };
    assert_eq!(cloud.closed, Some(CloseReason::PeerCertificate(revoked)));
}

#[test]
fn a_cloud_whose_certificate_expired_meanwhile_gets_no_early_data() {
    let mut scene = Scene::new();
    scene.gateway_clock.set(BEGIN + LIFE + 10);
    let [near, far] = scene.connect(true);
    assert!(scene.world.ends[near].early.is_none());
    assert_eq!(scene.world.ends[near].tunnel.room(), 0);
    scene.pass_up();
    scene.pass_down();
    let ago = Duration::from_secs(10);
    let expired = CertificateFault::Expired { name: "cloud".to_owned(), ago };
    assert_eq!(scene.world.ends[near].closed, Some(CloseReason::PeerCertificate(expired)));
    assert!(scene.world.ends[far].received.is_empty());
}

#[test]
fn sessions_outlive_a_reload_of_the_cloud_but_not_of_the_gateway() {
    let mut scene = Scene::new();
    let renewed = scene.authority.node(&Node::new("cloud", CLOUD, 2));
    scene.world.server.as_mut().unwrap().set_identity(renewed).unwrap();
    assert_eq!(trips_before_data(&mut scene, true), 1);
    scene.pass_down();
    // A connect that was under way with the old identity finds no ticket either.
    let near = scene.world.connect_with(&mut scene.client, scene.relay.address(), true);
    let renewed = scene.authority.node(&Node::new("train-7", GATEWAY, 77));
    scene.client.set_identity(renewed).unwrap();
    scene.relay.settle(&mut scene.world);
    assert!(scene.world.ends[near].early.is_none());
    let [near, _] = scene.connect(true);
    assert!(scene.world.ends[near].early.is_none());
}

#[test]
fn connects_that_nobody_answered_cost_no_tickets() {
    let mut scene = Scene::new();
    for _ in 0..3 * TICKETS_MAX {
        let near = scene.world.connect_with(&mut scene.client, scene.relay.address(), true);
        // Given up before the socket was connected.
        scene.world.ends[near].tunnel.close(Instant::now());
    }
    scene.relay.settle(&mut scene.world);
    let first = scene.world.ends.len();
    for _ in 0..TICKETS_MAX {
        scene.world.connect_with(&mut scene.client, scene.relay.address(), true);
    }
    scene.relay.settle(&mut scene.world);
    let with_ticket =
        |end: &&common::End| end.early.as_ref().is_some_and(|e| e.peer == name("cloud"));
    assert_eq!(scene.world.ends[first..].iter().filter(with_ticket).count(), TICKETS_MAX);
}

#[test]
fn tickets_do_not_run_out_over_many_restarts() {
    let mut scene = Scene::new();
    for restart in 0..12 {
        // Three attempts race; two of them are given up before their handshake is over.
        let first = scene.world.ends.len();
        for _ in 0..3 {
            scene.world.connect_with(&mut scene.client, scene.relay.address(), true);
        }
        scene.relay.settle(&mut scene.world);
        for near in first..first + 3 {
            assert!(scene.world.ends[near].early.is_some(), "restart {restart}, attempt {near}");
        }
        scene.send(first, b"data");
        scene.pass_up();
        for near in first + 1..first + 3 {
            scene.world.ends[near].tunnel.close(Instant::now());
        }
        for _ in 0..2 {
            scene.pass_down();
            scene.pass_up();
        }
        let winner = scene.world.ends[first].up.as_ref();
        assert!(winner.is_some_and(|up| up.resumed), "restart {restart}");
    }
}

#[test]
fn early_data_can_be_switched_off() {
    let mut scene = Scene::new();
    let [near, far] = scene.connect(false);
    assert_eq!(scene.world.ends[near].tunnel.room(), 0);
    scene.world.ends[near].tunnel.send(Unit::Control, b"too early");
    scene.trips(3);
    let [near, far] = [&scene.world.ends[near], &scene.world.ends[far]];
    assert!(near.early.is_none() && far.early.is_none());
    assert!(near.up.as_ref().unwrap().resumed && far.up.as_ref().unwrap().resumed);
    assert!(far.received.is_empty());
    // Enabled but unused, it is a resumed handshake.
    let [near, far] = scene.connect(true);
    scene.trips(3);
    let [near, far] = [&scene.world.ends[near], &scene.world.ends[far]];
    assert!(near.early.is_some() && far.early.is_none());
    assert!(near.up.as_ref().unwrap().resumed && far.up.as_ref().unwrap().resumed);
}

#[test]
fn an_early_tunnel_runs_into_the_handshake_timeout() {
    let mut scene = Scene::new();
    let [near, far] = scene.connect(true);
    scene.send(near, b"early");
    scene.pass_up();
    for end in [near, far] {
        let after = SocketOptions::default().handshake_timeout;
        let reason = scene.world.ends[end].time_out();
        assert_eq!(reason, Some(CloseReason::HandshakeTimedOut { after }));
    }
}
