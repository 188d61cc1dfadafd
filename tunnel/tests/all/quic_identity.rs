//! Certificates over QUIC: in full and resumed handshakes, and with early data.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::pki::{Authority, CLOUD, GATEWAY, LIFE, Node, serial_text};
use crate::common::{BEGIN, TestClock, alert, loopback, name, refused_by};
use crate::quic_world::{self, World, carrier, client};
use polyrail_identity::{CertificateFault, TlsIdentity};
use polyrail_model::Unit;
use polyrail_tunnel::quic::{Client, ServerOptions};
use polyrail_tunnel::{CarrierSpec, CloseReason, Early};

/// The close reasons of both ends.
fn meet(gateway: TlsIdentity, cloud: TlsIdentity, clock: &Arc<TestClock>) -> [CloseReason; 2] {
    let (mut world, address) = World::serving(cloud, clock);
    let outcome = world.outcome(&mut client(gateway, clock), address);
    assert!(world.ends[1].units.is_empty());
    outcome.map(Option::unwrap)
}

#[test]
fn cloud_rejects_gateways_and_the_alert_says_why() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let foreign = theirs.issue(&Node::new("train-7", GATEWAY, 7), &ours);
    let expired = Node { end: BEGIN + 50, ..Node::new("train-7", GATEWAY, 7) };
    let impostor = Node::new("train-7", CLOUD, 8);
    let revoking = TlsIdentity::load(&ours.cloud_revoking(&[7], BEGIN + LIFE)).unwrap();
    let (name, ago) = ("train-7".to_owned(), Duration::from_secs(50));
    let revoked = CertificateFault::Revoked { name: name.clone(), serial: serial_text(7) };
    let wrong_role = CertificateFault::WrongRole { name: name.clone(), wanted: "gateway" };
    let table = [
        (
            TlsIdentity::load(&foreign).unwrap(),
            ours.cloud(),
            alert::UNKNOWN_CA,
            CertificateFault::UnknownAuthority,
        ),
        (
            ours.node(&expired),
            ours.cloud(),
            alert::EXPIRED,
            CertificateFault::Expired { name, ago },
        ),
        (ours.node(&impostor), ours.cloud(), alert::WRONG_ROLE, wrong_role),
        (ours.gateway(), revoking, alert::REVOKED, revoked),
    ];
    for (gateway, cloud, told, found) in table {
        let [near, far] = meet(gateway, cloud, &TestClock::new());
        assert_eq!(near, refused_by(told));
        assert_eq!(far, CloseReason::PeerCertificate(found));
    }
}

#[test]
fn gateway_rejects_clouds_and_the_alert_says_why() {
    let authority = Authority::new();
    let table = [
        (Node::new("other", CLOUD, 2), alert::WRONG_NAME),
        (Node::new("cloud", GATEWAY, 3), alert::WRONG_ROLE),
        (Node { end: BEGIN + 9, ..Node::new("cloud", CLOUD, 4) }, alert::EXPIRED),
    ];
    for (node, complaint) in table {
        let [near, far] = meet(authority.gateway(), authority.node(&node), &TestClock::new());
        assert!(matches!(near, CloseReason::PeerCertificate(_)), "{near}");
        assert_eq!(far, refused_by(complaint));
    }
}

/// The early identity of this node.
fn early(peer: &str, serial: u64) -> Early {
    Early { peer: name(peer), serial: serial_text(serial) }
}

/// A cloud and a gateway that has been there once and has a ticket.
struct Scene {
    world: World,
    authority: Authority,
    clock: Arc<TestClock>,
    client: Client,
    address: SocketAddr,
}

impl Scene {
    fn new() -> Self {
        let authority = Authority::new();
        let clock = TestClock::new();
        let (mut world, address) = World::serving(authority.cloud(), &clock);
        let mut client = client(authority.gateway(), &clock);
        world.pair(&mut client, address);
        // The tickets follow the handshake.
        world.run_for(Duration::from_millis(50));
        Self { world, authority, clock, client, address }
    }

    fn connect(&mut self, early: bool) -> usize {
        let spec = CarrierSpec { early, ..carrier("a") };
        self.world.connect_by(&mut self.client, &spec, self.address)
    }

    /// Has the cloud revoke the gateway's certificate.
    fn revoke(&mut self) {
        let paths = self.authority.cloud_revoking(&[7], BEGIN + LIFE);
        let identity = TlsIdentity::load(&paths).unwrap();
        self.world.listener.as_mut().unwrap().set_identity(identity).unwrap();
    }

    /// Sends early data and runs until both ends are over.
    fn early_and_over(&mut self) -> [CloseReason; 2] {
        let near = self.connect(true);
        self.world.ends[near].drain();
        assert!(self.world.ends[near].early.is_some());
        self.world.ends[near].send(Unit::Greeting, b"early");
        self.world.until("over", |ends| {
            ends.len() > near + 1 && ends[near..].iter().all(|end| end.closed.is_some())
        });
        let far = &self.world.ends[near + 1];
        assert!(far.units.is_empty() && far.early.is_none() && far.up.is_none());
        [0, 1].map(|end| self.world.ends[near + end].closed.clone().unwrap())
    }
}

#[test]
fn a_second_handshake_is_resumed_and_shows_the_same_peer() {
    let mut scene = Scene::new();
    let near = scene.connect(false);
    scene.world.until_up(near);
    for (end, peer) in [(near, "cloud"), (near + 1, "train-7")] {
        let end = &scene.world.ends[end];
        let up = end.up.as_ref().unwrap();
        assert!(up.resumed && end.early.is_none());
        assert_eq!(up.peer, name(peer));
    }
    let exporters = [0, 1].map(|end| scene.world.ends[near + end].up.as_ref().unwrap().exporter);
    assert_eq!(exporters[0], exporters[1]);
    assert_ne!(exporters[0], scene.world.ends[0].up.as_ref().unwrap().exporter);
    // Another carrier has no ticket.
    let other = CarrierSpec { early: true, ..carrier("b") };
    let [near, far] = scene.world.pair_by(&mut scene.client, &other, scene.address);
    for end in [near, far] {
        let end = &scene.world.ends[end];
        assert!(!end.up.as_ref().unwrap().resumed && end.early.is_none());
    }
}

#[test]
fn early_data_arrives_with_the_first_flight() {
    let mut scene = Scene::new();
    let near = scene.connect(true);
    scene.world.ends[near].drain();
    assert_eq!(scene.world.ends[near].early, Some(early("cloud", 1)));
    let room = scene.world.ends[near].tunnel.room();
    assert!((8_000..16_000).contains(&room), "{room}");
    scene.world.ends[near].send(Unit::Greeting, b"join");
    scene.world.ends[near].send(Unit::Data { tag: 1 }, &[7; 3_000]);
    // Only the cloud runs: nothing but the client's first flight can have come.
    let far = near + 1;
    scene.world.until_far("early", near, |ends| ends.len() > far && ends[far].units.len() == 2);
    let cloud = &mut scene.world.ends[far];
    assert!(cloud.up.is_none());
    assert_eq!(cloud.early, Some(early("train-7", 7)));
    assert_eq!(cloud.units, [b"join".to_vec(), vec![7; 3_000]]);
    // It answers before the handshake is over.
    cloud.send(Unit::Control, b"welcome");
    scene.world.until("answered", |ends| ends[near].units == [b"welcome"]);
    scene.world.until("up", |ends| ends[near..].iter().all(|end| end.up.is_some()));
    let up = scene.world.ends[far].up.as_ref().unwrap();
    assert!(up.resumed);
    assert_eq!(up.exporter, scene.world.ends[near].up.as_ref().unwrap().exporter);
}

#[test]
fn early_data_that_a_restarted_cloud_refuses_is_sent_again() {
    let mut scene = Scene::new();
    scene.world.ends[0].tunnel.close(Instant::now());
    scene.world.until("over", |ends| ends.iter().all(|end| end.closed.is_some()));
    scene.world.drop_end(1);
    scene.world.restart_cloud(scene.authority.cloud(), &scene.clock, scene.address);
    let near = scene.connect(true);
    scene.world.ends[near].drain();
    assert!(scene.world.ends[near].early.is_some());
    scene.world.ends[near].send(Unit::Greeting, b"join");
    for tag in 0..5 {
        scene.world.ends[near].send(Unit::Data { tag }, &[tag as u8; 2_000]);
    }
    let far = near + 1;
    scene.world.until("all there", |ends| ends.len() > far && ends[far].units.len() == 6);
    let cloud = &scene.world.ends[far];
    assert!(cloud.early.is_none() && !cloud.up.as_ref().unwrap().resumed);
    assert_eq!(cloud.units[0], b"join");
    assert!(!scene.world.ends[near].up.as_ref().unwrap().resumed);
    scene.world.transfer(near, far, 100, 1_400);
}

#[test]
fn a_revoked_gateway_is_not_resumed() {
    let mut scene = Scene::new();
    scene.revoke();
    let near = scene.connect(false);
    scene.world.until("over", |ends| {
        ends.len() > near + 1 && ends[near..].iter().all(|end| end.closed.is_some())
    });
    let cloud = &scene.world.ends[near + 1];
    assert!(cloud.up.is_none() && cloud.units.is_empty());
    let reason = cloud.closed.as_ref().unwrap();
    assert!(matches!(reason, CloseReason::PeerCertificate(CertificateFault::Revoked { .. })));
    let complaint = refused_by(alert::REVOKED);
    assert_eq!(scene.world.ends[near].closed, Some(complaint));
}

#[test]
fn early_data_under_a_revoked_ticket_is_refused_before_any_unit_is_handed_out() {
    let mut scene = Scene::new();
    scene.revoke();
    let [near, far] = scene.early_and_over();
    assert_eq!(near, refused_by(alert::REVOKED));
    assert!(matches!(far, CloseReason::PeerCertificate(CertificateFault::Revoked { .. })));
    // The ticket is gone: the next attempt is a full handshake, which tells the same.
    let near = scene.connect(true);
    scene.world.until("over", |ends| ends.len() > near && ends[near].closed.is_some());
    assert!(scene.world.ends[near].early.is_none());
}

#[test]
fn early_data_of_a_certificate_that_expired_meanwhile_is_refused() {
    let mut scene = Scene::new();
    let node = Node { end: BEGIN + 200, ..Node::new("train-7", GATEWAY, 9) };
    scene.client = client(scene.authority.node(&node), &scene.clock);
    scene.world.pair(&mut scene.client, scene.address);
    scene.world.run_for(Duration::from_millis(50));
    scene.clock.set(BEGIN + 300);
    let [near, far] = scene.early_and_over();
    assert_eq!(near, refused_by(alert::EXPIRED));
    assert!(matches!(far, CloseReason::PeerCertificate(CertificateFault::Expired { .. })));
}

#[test]
fn replayed_early_data_is_not_handed_out_twice() {
    let mut scene = Scene::new();
    let tap = quic_world::wire::Tap::new(scene.address);
    let spec = CarrierSpec { early: true, ..carrier("a") };
    // A ticket for the tap's address.
    scene.world.pair_by(&mut scene.client, &spec, tap.address());
    scene.world.run_for(Duration::from_millis(50));
    tap.record();
    let near = scene.world.connect_by(&mut scene.client, &spec, tap.address());
    scene.world.ends[near].drain();
    assert!(scene.world.ends[near].early.is_some());
    scene.world.ends[near].send(Unit::Greeting, b"join");
    scene.world.until_up(near);
    scene.world.ends[near].tunnel.close(Instant::now());
    scene.world.until("over", |ends| ends.iter().skip(near).all(|end| end.closed.is_some()));
    scene.world.drop_end(near + 1);
    tap.replay(scene.address);
    scene.world.run_for(Duration::from_millis(200));
    let handed: usize = scene.world.ends[near + 2..].iter().map(|end| end.units.len()).sum();
    assert_eq!((handed, scene.world.ends.len()), (0, near + 2), "{}", scene.world.told());
}

#[test]
fn a_new_identity_gets_no_tickets_of_the_old_one() {
    let mut scene = Scene::new();
    // This one is under way, with the old identity, when the new one comes.
    let near = scene.connect(true);
    scene.client.set_identity(scene.authority.gateway()).unwrap();
    scene.world.until_up(near);
    scene.world.run_for(Duration::from_millis(50));
    let near = scene.connect(true);
    scene.world.until_up(near);
    let end = &scene.world.ends[near];
    assert!(end.early.is_none() && !end.up.as_ref().unwrap().resumed);
}

#[test]
fn early_data_passes_although_the_address_must_be_proved() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    let options = ServerOptions { retry_above: 0, ..ServerOptions::default() };
    let address = world.serve(authority.cloud(), options, &clock, loopback());
    let mut client = client(authority.gateway(), &clock);
    world.pair(&mut client, address);
    world.run_for(Duration::from_millis(50));
    let spec = CarrierSpec { early: true, ..carrier("a") };
    let near = world.connect_by(&mut client, &spec, address);
    world.ends[near].drain();
    assert!(world.ends[near].early.is_some());
    world.ends[near].send(Unit::Greeting, b"join");
    world.ends[near].send(Unit::Data { tag: 1 }, &[7; 3_000]);
    world.until("all there and up", |ends| {
        ends.len() == near + 2
            && ends[near + 1].units.len() == 2
            && ends[near..].iter().all(|end| end.up.is_some())
    });
    assert_eq!(world.listener.as_ref().unwrap().counters().retries, 2);
    let cloud = &world.ends[near + 1];
    assert!(cloud.early.is_some() && cloud.up.as_ref().unwrap().resumed);
    assert_eq!(cloud.units, [b"join".to_vec(), vec![7; 3_000]]);
}
