//! What is checked of the peer's certificate, after full and resumed handshakes.

#![allow(clippy::unwrap_used)] // also in the helpers

mod common;

use std::time::Duration;

use common::pki::LIFE;
use common::pki::{Authority, CLOUD, GATEWAY, Node, serial_text};
use common::raw::RawClient;
use common::{BEGIN, TestClock, World, client, name, server};
use polyrail_identity::{CertificateFault, TlsIdentity};
use polyrail_tunnel::tls::Client;
use polyrail_tunnel::{CloseReason, PeerComplaint, Side};

/// Connects `gateway`, which sends as soon as it may, to `cloud`; answers with how it ended for
/// the gateway and for the cloud. Where the two do not agree, nothing was handed out.
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

fn complaint(complaint: PeerComplaint) -> Option<CloseReason> {
    Some(CloseReason::PeerRefused(complaint))
}

const NOW: u64 = BEGIN + 100;

#[test]
fn a_good_pair_is_up_and_agrees() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    let address = world.serve(server(authority.cloud(), &clock));
    let outcome = world.outcome(&mut client(authority.gateway(), &clock), address);
    assert_eq!(outcome, [None, None]);
    let [near, far] = [&world.ends[0], &world.ends[1]].map(|end| end.up.clone().unwrap());
    assert_eq!((near.peer, far.peer), (name("cloud"), name("train-7")));
    assert_eq!((near.serial, far.serial), (serial_text(1), serial_text(7)));
    assert_eq!(near.exporter, far.exporter);
    assert_ne!(near.exporter, [0; 32]);
    assert!(!near.resumed && !far.resumed);
    let end = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(BEGIN + LIFE);
    assert_eq!((near.peer_valid_until, far.peer_valid_until), (end, end));
}

#[test]
fn a_gateway_of_another_authority_is_refused() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let paths = foreign.issue(&Node::new("train-7", GATEWAY, 7), &ours);
    let intruder = TlsIdentity::load(&paths).unwrap();
    assert_eq!(
        meet(intruder, ours.cloud(), NOW),
        [complaint(PeerComplaint::UnknownAuthority), fault(CertificateFault::UnknownAuthority)]
    );
}

#[test]
fn a_cloud_of_another_authority_is_refused() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let paths = foreign.issue(&Node::new("cloud", CLOUD, 1), &ours);
    let intruder = TlsIdentity::load(&paths).unwrap();
    assert_eq!(
        meet(ours.gateway(), intruder, NOW),
        [fault(CertificateFault::UnknownAuthority), complaint(PeerComplaint::UnknownAuthority)]
    );
}

#[test]
fn expired_and_future_certificates_are_refused_by_either_side() {
    let authority = Authority::new();
    let long = |name, usage, serial| Node {
        begin: BEGIN - 500,
        end: BEGIN + 2 * LIFE,
        ..Node::new(name, usage, serial)
    };
    let short_gateway = authority.gateway();
    let long_cloud = authority.node(&long("cloud", CLOUD, 2));
    let expired =
        CertificateFault::Expired { name: "train-7".to_owned(), ago: Duration::from_secs(60) };
    assert_eq!(
        meet(short_gateway.clone(), long_cloud.clone(), BEGIN + LIFE + 60),
        [complaint(PeerComplaint::CertificateExpired), fault(expired)]
    );
    let early = CertificateFault::NotYetValid {
        name: "train-7".to_owned(),
        ahead: Duration::from_secs(30),
    };
    assert_eq!(
        meet(short_gateway, long_cloud, BEGIN - 30),
        [complaint(PeerComplaint::CertificateExpired), fault(early)]
    );
    let long_gateway = authority.node(&long("train-8", GATEWAY, 8));
    let expired =
        CertificateFault::Expired { name: "cloud".to_owned(), ago: Duration::from_secs(5) };
    assert_eq!(
        meet(long_gateway, authority.cloud(), BEGIN + LIFE + 5),
        [fault(expired), complaint(PeerComplaint::CertificateExpired)]
    );
}

#[test]
fn a_certificate_serves_its_own_role_only() {
    let authority = Authority::new();
    let wrong = |name: &str, wanted| CertificateFault::WrongRole { name: name.to_owned(), wanted };
    // A cloud's certificate does not open a session.
    let posing = authority.node(&Node::new("cloud-2", CLOUD, 3));
    assert_eq!(
        meet(posing, authority.cloud(), NOW),
        [complaint(PeerComplaint::WrongRole), fault(wrong("cloud-2", "gateway"))]
    );
    // A gateway's certificate does not impersonate the cloud, not even with its name, nor does
    // one for both roles or for none.
    let both = [CLOUD, GATEWAY].concat();
    for usage in [GATEWAY, &both, &[]] {
        let posing = authority.node(&Node::new("cloud", usage, 4));
        assert_eq!(
            meet(authority.gateway(), posing, NOW),
            [fault(wrong("cloud", "cloud")), complaint(PeerComplaint::WrongRole)]
        );
    }
}

#[test]
fn the_cloud_must_have_the_expected_name() {
    let authority = Authority::new();
    let other = authority.node(&Node::new("cloud-2", CLOUD, 3));
    let wrong = CertificateFault::WrongName {
        expected: "cloud".to_owned(),
        presented: "cloud-2".to_owned(),
    };
    assert_eq!(
        meet(authority.gateway(), other, NOW),
        [fault(wrong), complaint(PeerComplaint::WrongName)]
    );
}

#[test]
fn a_certificate_must_name_its_node_twice_alike() {
    let authority = Authority::new();
    for dns in [vec!["train-8"], vec!["train-7", "train-8"], vec![]] {
        let node = Node { dns, ..Node::new("train-7", GATEWAY, 7) };
        let paths = authority.issue(&node, &authority);
        let error = TlsIdentity::load(&paths).unwrap_err().to_string();
        assert!(error.contains("train-7-7.pem") && error.contains("train-7"), "{error}");
    }
}

#[test]
fn a_revoked_certificate_is_refused() {
    let authority = Authority::new();
    let revoking = authority.cloud_revoking(&[5, 7], BEGIN + LIFE);
    let revoked = CertificateFault::Revoked { name: "train-7".to_owned(), serial: serial_text(7) };
    assert_eq!(
        meet(authority.gateway(), TlsIdentity::load(&revoking).unwrap(), NOW),
        [complaint(PeerComplaint::CertificateRevoked), fault(revoked)]
    );
    // Another one is not.
    let other = authority.node(&Node::new("train-9", GATEWAY, 9));
    assert_eq!(meet(other, TlsIdentity::load(&revoking).unwrap(), NOW), [None, None]);
}

#[test]
fn a_cloud_that_was_revoked_is_refused() {
    let authority = Authority::new();
    let mut paths = authority.issue(&Node::new("train-7", GATEWAY, 7), &authority);
    paths.revocations = authority.cloud_revoking(&[1], BEGIN + LIFE).revocations;
    let revoked = CertificateFault::Revoked { name: "cloud".to_owned(), serial: serial_text(1) };
    assert_eq!(
        meet(TlsIdentity::load(&paths).unwrap(), authority.cloud(), NOW),
        [fault(revoked), complaint(PeerComplaint::CertificateRevoked)]
    );
}

#[test]
fn an_expired_revocation_list_still_revokes() {
    let authority = Authority::new();
    let identity = TlsIdentity::load(&authority.cloud_revoking(&[7], BEGIN + 10)).unwrap();
    let outcome = meet(authority.gateway(), identity, NOW);
    assert_eq!(outcome[0], complaint(PeerComplaint::CertificateRevoked));
}

#[test]
fn sessions_are_resumed_with_a_new_secret() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    let address = world.serve(server(authority.cloud(), &clock));
    let mut client = client(authority.gateway(), &clock);
    assert_eq!(world.outcome(&mut client, address), [None, None]);
    // Eight tickets: eight attempts that race each other are all resumed.
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

/// A client that has tickets of a live session.
fn warm(world: &mut World, authority: &Authority, clock: &std::sync::Arc<TestClock>) -> Client {
    let address = world.serve(server(authority.cloud(), clock));
    let mut client = client(authority.gateway(), clock);
    assert_eq!(world.outcome(&mut client, address), [None, None]);
    client
}

#[test]
fn a_session_whose_certificate_was_revoked_meanwhile_is_not_resumed() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    let mut client = warm(&mut world, &authority, &clock);
    let first = world.ends[1].up.clone().unwrap();
    let revoking = authority.cloud_revoking(&[7], BEGIN + LIFE);
    let identity = TlsIdentity::load(&revoking).unwrap();
    assert!(identity.is_revoked(&first.serial), "the live tunnel's can be found out");
    assert!(!identity.is_revoked(&serial_text(8)));
    world.server.as_mut().unwrap().set_identity(identity).unwrap();
    let address = world.ends[0].tunnel.peer_addr().unwrap();
    let revoked = CertificateFault::Revoked { name: "train-7".to_owned(), serial: serial_text(7) };
    // The resumed handshake itself succeeds: it is our check behind it that refuses.
    let outcome = world.outcome(&mut client, address);
    assert_eq!(outcome, [Some(CloseReason::PeerClosed), fault(revoked.clone())]);
    assert!(world.ends[2].up.as_ref().unwrap().resumed);
    assert!(world.ends[3].up.is_none());
    // The client has forgotten its tickets, so the next attempt tells its operator why.
    let outcome = world.outcome(&mut client, address);
    assert_eq!(outcome, [complaint(PeerComplaint::CertificateRevoked), fault(revoked)]);
}

#[test]
fn a_reload_counts_for_handshakes_under_way() {
    let authority = Authority::new();
    let mut world = World::new();
    let address = world.serve(server(authority.cloud(), &TestClock::new()));
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
    let revoked = CertificateFault::Revoked { name: "train-7".to_owned(), serial: serial_text(7) };
    assert_eq!(world.ends[0].closed, fault(revoked));
}

#[test]
fn a_session_whose_certificate_expired_meanwhile_is_not_resumed() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    clock.set(BEGIN + LIFE - 10);
    let mut client = warm(&mut world, &authority, &clock);
    let address = world.ends[0].tunnel.peer_addr().unwrap();
    clock.set(BEGIN + LIFE + 10);
    // Both certificates end then; the client is the first to see the other's.
    let outcome = world.outcome(&mut client, address);
    let expired =
        CertificateFault::Expired { name: "cloud".to_owned(), ago: Duration::from_secs(10) };
    assert_eq!(outcome[0], fault(expired));
    assert!(world.ends[3].up.is_none());
}

#[test]
fn a_gateway_reloads_its_identity() {
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    let mut client = warm(&mut world, &authority, &clock);
    let address = world.ends[0].tunnel.peer_addr().unwrap();
    let renewed = authority.node(&Node::new("train-7", GATEWAY, 77));
    client.set_identity(renewed).unwrap();
    assert_eq!(world.outcome(&mut client, address), [None, None]);
    let up = world.ends[3].up.clone().unwrap();
    assert_eq!((up.serial, up.resumed), (serial_text(77), false));
}

#[test]
fn every_reason_says_who_can_act() {
    let table = [
        (CloseReason::PeerRefused(PeerComplaint::CertificateRevoked), Side::Here),
        (CloseReason::PeerRefused(PeerComplaint::UnknownAuthority), Side::Either),
        (fault(CertificateFault::Missing).unwrap(), Side::Peer),
        (CloseReason::NotTls, Side::Peer),
        (CloseReason::TimedOut, Side::Network),
        (CloseReason::Local, Side::Nobody),
    ];
    for (reason, side) in table {
        assert_eq!(reason.side(), side, "{reason}");
        assert_eq!(reason.is_orderly(), side == Side::Nobody);
    }
}
