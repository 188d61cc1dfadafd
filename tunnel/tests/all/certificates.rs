//! The checks of the peer's certificate, after full and resumed handshakes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::pki::{Authority, CLOUD, GATEWAY, LIFE, Node, serial_text};
use crate::common::raw::RawClient;
use crate::common::{BEGIN, TestClock, World, alert, client, name, refused_by, server};
use polyrail_identity::{CertificateFault, TlsIdentity};
use polyrail_tunnel::CloseReason;
use polyrail_tunnel::tls::Client;
use rcgen::ExtendedKeyUsagePurpose;

/// Connects `gateway`, which sends as soon as possible, to `cloud`; returns the close reasons of
/// both ends. If either rejects the other, no data was delivered.
fn meet(gateway: TlsIdentity, cloud: TlsIdentity, seconds: u64) -> [Option<CloseReason>; 2] {
    let clock = TestClock::new();
    clock.set(seconds);
    let mut world = World::new();
    let address = world.serve(server(cloud, &clock));
    let data = [7; 5_000];
    let outcome = world.outcome_of(&mut client(gateway, &clock), address, true, &data);
    let cloud = &world.ends[1];
    if outcome == [None, None] {
        assert_eq!(cloud.received, data);
    } else {
        assert!(cloud.up.is_none() && cloud.early.is_none() && cloud.received.is_empty());
    }
    outcome
}

fn fault(fault: CertificateFault) -> Option<CloseReason> {
    Some(CloseReason::PeerCertificate(fault))
}

fn complaint(alert: u8) -> Option<CloseReason> {
    Some(refused_by(alert))
}

const NOW: u64 = BEGIN + 100;

#[test]
fn valid_pair_is_up_with_the_same_secret() {
    let (mut world, authority, clock, address) = World::serving();
    let outcome = world.outcome(&mut client(authority.gateway(), &clock), address);
    assert_eq!(outcome, [None, None]);
    let [near, far] = [&world.ends[0], &world.ends[1]].map(|end| end.up.clone().unwrap());
    assert_eq!((near.peer, far.peer), (name("cloud"), name("train-7")));
    assert_eq!((near.serial, far.serial), (serial_text(1), serial_text(7)));
    assert_eq!(near.exporter, far.exporter);
    assert_ne!(near.exporter, [0; 32]);
    assert!(!near.resumed && !far.resumed);
}

/// A certificate that is valid from 500 s before the others' begin until long after their end.
fn long<'a>(name: &'a str, usage: &'a [ExtendedKeyUsagePurpose], serial: u64) -> Node<'a> {
    Node { begin: BEGIN - 500, end: BEGIN + 2 * LIFE, ..Node::new(name, usage, serial) }
}

fn wrong_role(name: &str, wanted: &'static str) -> CertificateFault {
    CertificateFault::WrongRole { name: name.to_owned(), wanted }
}

fn revoked(name: &str, serial: u64) -> CertificateFault {
    CertificateFault::Revoked { name: name.to_owned(), serial: serial_text(serial) }
}

#[test]
fn cloud_rejects_gateways_and_the_alert_says_why() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let name = || "train-7".to_owned();
    let foreign = foreign.issue(&Node::new("train-7", GATEWAY, 7), &ours);
    let cloud = ours.node(&long("cloud", CLOUD, 2));
    let revoking = ours.cloud_revoking(&[5, 7], BEGIN + LIFE);
    let revoking = TlsIdentity::load(&revoking).unwrap();
    // An expired list still counts.
    let expired_list = TlsIdentity::load(&ours.cloud_revoking(&[7], BEGIN + 10)).unwrap();
    let ahead = Duration::from_secs(30);
    let (expired, early) = (
        CertificateFault::Expired { name: name(), ago: Duration::from_secs(60) },
        CertificateFault::NotYetValid { name: name(), ahead },
    );
    let gateway = ours.gateway();
    let table = [
        (
            TlsIdentity::load(&foreign).unwrap(),
            ours.cloud(),
            NOW,
            alert::UNKNOWN_CA,
            CertificateFault::UnknownAuthority,
        ),
        (gateway.clone(), cloud.clone(), BEGIN + LIFE + 60, alert::EXPIRED, expired),
        (gateway.clone(), cloud, BEGIN - 30, alert::EXPIRED, early),
        (
            ours.node(&Node::new("cloud-2", CLOUD, 3)),
            ours.cloud(),
            NOW,
            alert::WRONG_ROLE,
            wrong_role("cloud-2", "gateway"),
        ),
        (gateway.clone(), revoking.clone(), NOW, alert::REVOKED, revoked("train-7", 7)),
        (gateway, expired_list, NOW, alert::REVOKED, revoked("train-7", 7)),
    ];
    for (gateway, cloud, at, told, found) in table {
        assert_eq!(meet(gateway, cloud, at), [complaint(told), fault(found)]);
    }
    let other = ours.node(&Node::new("train-9", GATEWAY, 9));
    assert_eq!(meet(other, revoking, NOW), [None, None]);
}

#[test]
fn gateway_rejects_clouds_and_the_alert_says_why() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let gateway = ours.node(&long("train-8", GATEWAY, 8));
    let foreign = foreign.issue(&Node::new("cloud", CLOUD, 1), &ours);
    let mut paths = ours.issue(&Node::new("train-7", GATEWAY, 7), &ours);
    paths.revocations = ours.cloud_revoking(&[1], BEGIN + LIFE).revocations;
    let both = [CLOUD, GATEWAY].concat();
    let posing = |usage: &[_]| ours.node(&Node::new("cloud", usage, 4));
    let ago = Duration::from_secs(5);
    let expired = CertificateFault::Expired { name: "cloud".to_owned(), ago };
    let wrong_name = CertificateFault::WrongName {
        expected: "cloud".to_owned(),
        presented: "cloud-2".to_owned(),
    };
    let table = [
        (
            TlsIdentity::load(&foreign).unwrap(),
            NOW,
            CertificateFault::UnknownAuthority,
            alert::UNKNOWN_CA,
        ),
        (ours.cloud(), BEGIN + LIFE + 5, expired, alert::EXPIRED),
        (posing(GATEWAY), NOW, wrong_role("cloud", "cloud"), alert::WRONG_ROLE),
        (posing(&both), NOW, wrong_role("cloud", "cloud"), alert::WRONG_ROLE),
        (posing(&[]), NOW, wrong_role("cloud", "cloud"), alert::WRONG_ROLE),
        (ours.node(&Node::new("cloud-2", CLOUD, 3)), NOW, wrong_name, alert::WRONG_NAME),
    ];
    for (cloud, at, found, told) in table {
        assert_eq!(meet(gateway.clone(), cloud, at), [fault(found), complaint(told)]);
    }
    let outcome = meet(TlsIdentity::load(&paths).unwrap(), ours.cloud(), NOW);
    assert_eq!(outcome, [fault(revoked("cloud", 1)), complaint(alert::REVOKED)]);
}

#[test]
fn sessions_are_resumed_with_a_new_secret() {
    let (mut world, authority, clock, address) = World::serving();
    let mut client = client(authority.gateway(), &clock);
    assert_eq!(world.outcome(&mut client, address), [None, None]);
    // Eight tickets: eight racing attempts are all resumed.
    let begin = world.ends.len();
    for _ in 0..8 {
        world.connect(&mut client, address);
    }
    world.until("all up", |ends| ends.len() == begin + 16 && ends.iter().all(|e| e.up.is_some()));
    let ups: Vec<_> = world.ends.iter().map(|end| end.up.clone().unwrap()).collect();
    assert!(ups[begin..].iter().all(|up| up.resumed), "{ups:?}");
    let names = ups.iter().filter(|up| up.peer == name("train-7") && up.serial == serial_text(7));
    assert_eq!(names.count(), 9);
    let mut secrets: Vec<_> = ups.iter().map(|up| up.exporter).collect();
    secrets.sort_unstable();
    secrets.dedup();
    assert_eq!(secrets.len(), 9, "one secret a connection");
}

/// A world whose gateway connected at this time, and has tickets.
fn warm(seconds: u64) -> (World, Authority, Arc<TestClock>, SocketAddr, Client) {
    let (mut world, authority, clock, address) = World::serving();
    clock.set(seconds);
    let mut client = client(authority.gateway(), &clock);
    assert_eq!(world.outcome(&mut client, address), [None, None]);
    (world, authority, clock, address, client)
}

#[test]
fn session_of_a_revoked_certificate_is_not_resumed() {
    let (mut world, authority, _, address, mut client) = warm(NOW);
    let first = world.ends[1].up.clone().unwrap();
    let revoking = authority.cloud_revoking(&[7], BEGIN + LIFE);
    let identity = TlsIdentity::load(&revoking).unwrap();
    assert!(identity.is_revoked(&first.serial), "the live tunnel's can be found out");
    assert!(!identity.is_revoked(&serial_text(8)));
    world.server.as_mut().unwrap().set_identity(identity).unwrap();
    let revoked = revoked("train-7", 7);
    // The resumed handshake succeeds, and our check after it rejects the gateway.
    let outcome = world.outcome(&mut client, address);
    assert_eq!(outcome, [Some(CloseReason::PeerClosed), fault(revoked.clone())]);
    assert!(world.ends[2].up.as_ref().unwrap().resumed);
    assert!(world.ends[3].up.is_none());
    // The client has dropped its tickets, so the next attempt shows the reason.
    let outcome = world.outcome(&mut client, address);
    assert_eq!(outcome, [complaint(alert::REVOKED), fault(revoked)]);
}

#[test]
fn reload_applies_to_handshakes_in_progress() {
    let (mut world, authority, _, address) = World::serving();
    let paths = authority.issue(&Node::new("train-7", GATEWAY, 7), &authority);
    let mut raw = RawClient::connect(address, &[b"polyrail/1"], Some(&paths));
    world.until("accepted", |ends| ends.len() == 1);
    let revoking = TlsIdentity::load(&authority.cloud_revoking(&[7], BEGIN + LIFE)).unwrap();
    world.server.as_mut().unwrap().set_identity(revoking).unwrap();
    let gateway = std::thread::spawn(move || {
        raw.shake();
        while raw.read() {}
    });
    world.until("over", |ends| ends[0].closed.is_some());
    gateway.join().unwrap();
    let revoked = revoked("train-7", 7);
    assert_eq!(world.ends[0].closed, fault(revoked));
}

#[test]
fn session_of_an_expired_certificate_is_not_resumed() {
    let (mut world, _, clock, address, mut client) = warm(BEGIN + LIFE - 10);
    clock.set(BEGIN + LIFE + 10);
    // Both certificates have expired; the client checks the cloud's first.
    let outcome = world.outcome(&mut client, address);
    let expired =
        CertificateFault::Expired { name: "cloud".to_owned(), ago: Duration::from_secs(10) };
    assert_eq!(outcome[0], fault(expired));
    assert!(world.ends[3].up.is_none());
}

#[test]
fn gateway_reloads_its_identity() {
    let (mut world, authority, _, address, mut client) = warm(NOW);
    let renewed = authority.node(&Node::new("train-7", GATEWAY, 77));
    client.set_identity(renewed).unwrap();
    assert_eq!(world.outcome(&mut client, address), [None, None]);
    let up = world.ends[3].up.clone().unwrap();
    assert_eq!((up.serial, up.resumed), (serial_text(77), false));
}
