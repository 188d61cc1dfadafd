//! Loading an identity: every error names its file and reason.

#![allow(clippy::unwrap_used)] // also in the helpers

mod scratch;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use polyrail_identity::{IdentityPaths, NodeRole, OwnFindings, TlsIdentity};
use scratch::{Authority, BEGIN, CLOUD, GATEWAY, LIFE, Node, write_key};
use time::OffsetDateTime;

fn good(authority: &Authority) -> IdentityPaths {
    let mut paths = authority.issue(&Node::new("train-7", GATEWAY, 7), authority);
    paths.revocations = authority.cloud_revoking(&[], BEGIN + LIFE).revocations;
    paths
}

fn fails_with(paths: &IdentityPaths, file: &Path, reason: &str) {
    let error = TlsIdentity::load(paths).unwrap_err();
    assert_eq!(error.path(), Some(file));
    let error = error.to_string();
    assert!(error.contains(&file.display().to_string()) && error.contains(reason), "{error}");
}

/// The findings about a gateway's files at a time in seconds since 1970.
fn findings(paths: &IdentityPaths, at: u64) -> OwnFindings {
    let at = OffsetDateTime::from_unix_timestamp(at.try_into().unwrap()).unwrap();
    TlsIdentity::load(paths).unwrap().findings(NodeRole::Gateway, at)
}

fn has(texts: &[String], text: &str) {
    assert!(texts.iter().any(|t| t.contains(text)), "{texts:?} lacks {text:?}");
}

#[test]
fn own_certificate_is_judged_at_any_time() {
    let authority = Authority::new();
    let mut node = Node::new("train-7", GATEWAY, 7);
    node.end = BEGIN + 500 * LIFE;
    let paths = authority.issue(&node, &authority);
    assert_eq!(findings(&paths, BEGIN + 1), OwnFindings::default());
    has(&findings(&paths, BEGIN - 1).warnings, "certificate: it begins at");
    has(&findings(&paths, node.end - 29 * 86_400).warnings, "certificate: it ends at");
    let late = findings(&paths, node.end + 1);
    has(&late.ended, "certificate: it ended at");
    assert_eq!((late.errors, late.warnings), (vec![], vec![]));
    has(&findings(&paths, BEGIN + 1_000 * LIFE + 1).ended, "authority: it ended at");
    let paths = IdentityPaths {
        revocations: authority.cloud_revoking(&[7], BEGIN + 10).revocations,
        ..paths
    };
    let found = findings(&paths, BEGIN + 11);
    has(&found.ended, "certificate: revoked since 2027-01-15T08:00:00Z");
    has(&found.warnings, "revocations: a newer list was due at 2027-01-15T08:00:10Z");
}

#[test]
fn own_certificate_that_peers_reject_is_found() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let foreign = foreign.issue(&Node::new("train-7", GATEWAY, 7), &ours);
    has(&findings(&foreign, BEGIN + 1).errors, "certificate: the certificate was not issued by");
    let cloud = ours.issue(&Node::new("cloud", CLOUD, 1), &ours);
    has(&findings(&cloud, BEGIN + 1).errors, "is not one of a gateway");
}

#[test]
fn missing_and_empty_files_are_reported() {
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
fn key_must_be_secret_and_fit() {
    let authority = Authority::new();
    let paths = good(&authority);
    let other = authority.issue(&Node::new("cloud", CLOUD, 2), &authority);
    let wrong = IdentityPaths { key: other.key, ..paths.clone() };
    fails_with(&wrong, &wrong.key, "belongs to another certificate");
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
fn revocation_list_must_be_complete_and_signed_by_the_authority() {
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
    fails_with(&wrong, &list, "revocation list");
    fs::write(&list, whole).unwrap();
    TlsIdentity::load(&wrong).unwrap();
}

#[test]
fn certificate_must_have_one_name_as_common_name_and_dns_name() {
    let authority = Authority::new();
    for dns in [vec!["train-8"], vec!["train-7", "train-8"], vec![]] {
        let node = Node { dns, ..Node::new("train-7", GATEWAY, 7) };
        let paths = authority.issue(&node, &authority);
        fails_with(&paths, &paths.certificate, "(CN=train-7) names no node");
    }
}
