//! Loading an identity: every fault names its file and reason.

#![allow(clippy::unwrap_used)] // also in the helpers

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::pki::{Authority, CLOUD, GATEWAY, Node, load_error, write_key};
use common::{BEGIN, LIFE, TestClock};
use polyrail_tunnel::{IdentityPaths, TlsIdentity};

fn good(authority: &Authority) -> IdentityPaths {
    let mut paths = authority.issue(&Node::new("train-7", GATEWAY, 7), authority);
    paths.revocations = authority.cloud_revoking(&[], BEGIN + LIFE).revocations;
    paths
}

fn fails_with(paths: &IdentityPaths, file: &std::path::Path, reason: &str) {
    let error = load_error(paths).to_string();
    assert!(error.starts_with(&file.display().to_string()), "{error}");
    assert!(error.contains(reason), "{error}");
}

#[test]
fn a_good_identity_loads_without_warnings() {
    let authority = Authority::new();
    let identity = TlsIdentity::load(&good(&authority)).unwrap();
    assert_eq!(identity.name().as_str(), "train-7");
    // Certificates of ten thousand seconds are always due for renewal.
    let clock = TestClock::new();
    let warnings = identity.warnings(&*clock);
    assert_eq!(warnings, ["our own certificate (train-7) expires in 0 days"]);
    clock.set(BEGIN + 2 * LIFE);
    assert!(identity.warnings(&*clock).iter().any(|w| w.contains("has expired")));
    clock.set(BEGIN - 1);
    assert!(identity.warnings(&*clock).iter().any(|w| w.contains("not valid yet")));
}

#[test]
fn an_identity_of_another_authority_is_warned_of() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let mut node = Node::new("train-7", GATEWAY, 7);
    node.end = BEGIN + 500 * LIFE;
    let clock = TestClock::new();
    clock.set(BEGIN + 1);
    let identity = TlsIdentity::load(&foreign.issue(&node, &ours)).unwrap();
    let all = identity.warnings(&*clock);
    assert!(all.iter().any(|w| w.contains("not issued by the authority")), "{all:?}");
}

#[test]
fn missing_and_empty_files_are_named() {
    let authority = Authority::new();
    let paths = good(&authority);
    let absent = authority.path("absent.pem");
    let mut wrong = paths.clone();
    wrong.certificate.clone_from(&absent);
    fails_with(&wrong, &absent, "No such file");
    let text = authority.path("text.pem");
    fs::write(&text, "hello\n").unwrap();
    for (slot, reason) in [(0, "no certificate"), (1, "no certificate"), (2, "no revocation list")]
    {
        let mut wrong = paths.clone();
        match slot {
            0 => wrong.certificate.clone_from(&text),
            1 => wrong.authority.clone_from(&text),
            _ => wrong.revocations = Some(text.clone()),
        }
        fails_with(&wrong, &text, reason);
    }
}

#[test]
fn a_key_must_be_secret_and_fit() {
    let authority = Authority::new();
    let paths = good(&authority);
    let other = authority.issue(&Node::new("cloud", CLOUD, 2), &authority);
    let wrong = IdentityPaths { key: other.key, ..paths.clone() };
    fails_with(&wrong, &wrong.key, "is not the key of");
    let none = authority.path("none.key");
    write_key(&none, authority.pem());
    fails_with(&IdentityPaths { key: none.clone(), ..paths.clone() }, &none, "no private key");
    for mode in [0o644, 0o640, 0o620, 0o610, 0o604, 0o602, 0o601] {
        fs::set_permissions(&paths.key, fs::Permissions::from_mode(mode)).unwrap();
        let remedy = format!("is mode {mode:04o}: run chmod 600 {}", paths.key.display());
        fails_with(&paths, &paths.key, &remedy);
    }
    for mode in [0o600, 0o400] {
        fs::set_permissions(&paths.key, fs::Permissions::from_mode(mode)).unwrap();
        assert!(TlsIdentity::load(&paths).is_ok(), "mode {mode:o}");
    }
}

#[test]
fn a_revocation_list_must_be_the_authoritys_and_whole() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let paths = good(&ours);
    let list = ours.path("other.crl");
    let wrong = IdentityPaths { revocations: Some(list.clone()), ..paths };
    fs::write(&list, foreign.revocations(&[7], BEGIN + LIFE)).unwrap();
    fails_with(&wrong, &list, "not signed by the authority");
    let whole = ours.revocations(&[7], BEGIN + LIFE);
    let lines: Vec<&str> = whole.lines().collect();
    let short = [&lines[..2], &lines[lines.len() - 1..]].concat().join("\n");
    fs::write(&list, short).unwrap();
    fails_with(&wrong, &list, "not a readable revocation list");
    fs::write(&list, whole).unwrap();
    TlsIdentity::load(&wrong).unwrap();
}
