//! The authority's output, read back by x509-parser and rustls.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use polyrail_model::Identity;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, Error, RootCertStore};
use tempfile::TempDir;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::authority::{backdated, read_key};
use super::*;
use crate::{
    Certificate, CertificateRole, IdentityError, NodeRole, RevocationList, Serial,
    read_certificates,
};

fn scratch() -> (TempDir, Authority) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path(), "Test rail", false).unwrap();
    (folder, authority)
}

fn request(name: &str, role: NodeRole, out: &Path) -> IssueRequest {
    let name = Identity::new(name).unwrap();
    IssueRequest { name, role, days: 397, out: out.to_owned(), force: false }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(dir: &Path) -> Vec<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

fn roots(dir: &Path) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca.crt")).unwrap()).unwrap();
    Arc::new(roots)
}

fn crls(dir: &Path) -> [CertificateRevocationListDer<'static>; 1] {
    [CertificateRevocationListDer::from_pem_file(dir.join("revoked.crl")).unwrap()]
}

/// A TLS server's verdict on this client certificate.
fn as_client(dir: &Path, file: &Path) -> Result<(), Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(dir), provider())
        .with_crls(crls(dir))
        .build()
        .unwrap();
    let certificate = CertificateDer::from_pem_file(file).unwrap();
    verifier.verify_client_cert(&certificate, &[], UnixTime::now()).map(|_| ())
}

/// A TLS client's verdict on this certificate of the server `name`.
fn as_server(dir: &Path, file: &Path, name: &str) -> Result<(), Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(dir), provider())
        .with_crls(crls(dir))
        .build()
        .unwrap();
    let certificate = CertificateDer::from_pem_file(file).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now()).map(|_| ())
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(default_provider())
}

#[test]
fn created_authority_has_its_files_and_extensions() {
    let (folder, authority) = scratch();
    let dir = folder.path();
    let found = names(dir);
    assert_eq!(found, ["ca.crt", "ca.key", "issued.list", "revoked.crl", "revoked.list"]);
    assert_eq!((mode(&dir.join("ca.key")), mode(&dir.join("ca.crt"))), (0o600, 0o644));
    let certificate = authority.certificate();
    assert_eq!(certificate.role, CertificateRole::Authority);
    assert_eq!(certificate.subject, "CN=Test rail");
    assert!(certificate.is_signed_by(certificate));
    let years = (certificate.not_after - certificate.not_before).as_seconds_f64() / 31_557_600.0;
    assert!((years - 10.0).abs() < 0.01, "{years}");
    let (_, parsed) = X509Certificate::from_der(certificate.der()).unwrap();
    assert_eq!(parsed.basic_constraints().unwrap().unwrap().value.path_len_constraint, Some(0));
    let usage = parsed.key_usage().unwrap().unwrap().value;
    assert!(usage.key_cert_sign() && usage.crl_sign() && !usage.digital_signature());
    let curve = parsed.public_key().algorithm.parameters.as_ref().unwrap().as_oid().unwrap();
    assert_eq!(curve.to_id_string(), "1.2.840.10045.3.1.7");
    let list = RevocationList::read(&dir.join("revoked.crl")).unwrap().swap_remove(0);
    assert!(list.entries.is_empty() && list.is_signed_by(certificate));
}

#[test]
fn no_validity_begins_before_1970() {
    let epoch = OffsetDateTime::UNIX_EPOCH;
    let hour = time::Duration::HOUR;
    for (now, begin) in
        [(epoch, epoch), (epoch + hour / 2, epoch), (epoch + hour * 3, epoch + hour * 2)]
    {
        assert_eq!(backdated(now), begin);
    }
}

#[test]
fn issued_certificates_contain_what_tunnels_check() {
    let (folder, authority) = scratch();
    let out = folder.path().join("nodes");
    for (name, role) in [("train-7.north_1", NodeRole::Gateway), ("cloud", NodeRole::Cloud)] {
        let issued = authority.issue(&request(name, role, &out)).unwrap();
        assert_eq!(issued.certificate_file, out.join(format!("{name}.crt")));
        assert_eq!((mode(&issued.key_file), mode(&issued.certificate_file)), (0o600, 0o644));
        let read = read_certificates(&issued.certificate_file).unwrap().swap_remove(0);
        assert_eq!(read, issued.certificate);
        assert_eq!(read.identity.as_ref().unwrap().as_str(), name);
        assert!(read.is_signed_by(authority.certificate()));
        assert!(read.belongs_to(&read_key(&issued.key_file).unwrap()));
        let age = OffsetDateTime::now_utc() - read.not_before;
        assert!((3600..3700).contains(&age.whole_seconds()), "{age}");
        assert_eq!((read.not_after - read.not_before).whole_hours(), 397 * 24 + 1);

        let (_, parsed) = X509Certificate::from_der(read.der()).unwrap();
        let usage = parsed.key_usage().unwrap().unwrap().value;
        assert_eq!(usage.flags, 1, "digital signature alone");
        let extended = parsed.extended_key_usage().unwrap().unwrap().value;
        let gateway = role == NodeRole::Gateway;
        assert_eq!((extended.client_auth, extended.server_auth), (gateway, !gateway));
        assert!(!parsed.is_ca() && read.serial.as_bytes().len() <= 16);
        PrivateKeyDer::from_pem_file(&issued.key_file).unwrap();
    }
    assert_eq!(
        names(&out),
        ["cloud.crt", "cloud.key", "train-7.north_1.crt", "train-7.north_1.key"]
    );
}

#[test]
fn rustls_accepts_each_role_on_its_own_side_only() {
    let (folder, authority) = scratch();
    let dir = folder.path();
    let gateway = authority.issue(&request("train-7", NodeRole::Gateway, dir)).unwrap();
    let cloud = authority.issue(&request("0cloud_a", NodeRole::Cloud, dir)).unwrap();
    let (gateway, cloud) = (&gateway.certificate_file, &cloud.certificate_file);
    assert_eq!(as_client(dir, gateway), Ok(()));
    assert_eq!(as_server(dir, cloud, "0cloud_a"), Ok(()));
    assert!(as_client(dir, cloud).is_err());
    assert!(as_server(dir, gateway, "train-7").is_err());
    assert!(as_server(dir, cloud, "cloud").is_err());
    let (other, _) = scratch();
    assert!(as_client(other.path(), gateway).is_err());
}

#[test]
fn revoked_certificates_are_rejected_and_others_accepted() {
    let (folder, authority) = scratch();
    let dir = folder.path();
    let one = authority.issue(&request("one", NodeRole::Gateway, dir)).unwrap();
    let two = authority.issue(&request("two", NodeRole::Gateway, dir)).unwrap();
    let three = authority.issue(&request("three", NodeRole::Gateway, dir)).unwrap();
    let (serial, fresh) = authority.revoke_file(&one.certificate_file).unwrap();
    assert!(fresh && serial == one.certificate.serial);
    let read = || RevocationList::read(&authority.revocations_file()).unwrap().swap_remove(0);
    let first = read();
    assert!(authority.revoke(&two.certificate.serial, false).unwrap());
    assert!(!authority.revoke(&two.certificate.serial, false).unwrap());
    let list = read();
    assert!(list.number > first.number && list.is_signed_by(authority.certificate()));
    assert_eq!(list.entries.len(), 2);
    assert!(list.revoked_since(&one.certificate).is_some());
    let revoked = Err(Error::InvalidCertificate(CertificateError::Revoked));
    assert_eq!(as_client(dir, &one.certificate_file), revoked);
    assert_eq!(as_client(dir, &two.certificate_file), revoked);
    assert_eq!(as_client(dir, &three.certificate_file), Ok(()));

    let unknown: Serial = "0123456789abcdef".parse().unwrap();
    let error = authority.revoke(&unknown, false).unwrap_err().to_string();
    assert!(error.contains("no certificate with the serial 0123456789abcdef"), "{error}");
    assert!(authority.revoke(&unknown, true).unwrap());
    let (other, _) = scratch();
    let error = authority.revoke_file(&other.path().join("ca.crt")).unwrap_err().to_string();
    assert!(error.contains("did not issue it"), "{error}");
}

#[test]
fn damaged_record_is_not_treated_as_empty() {
    let (folder, authority) = scratch();
    let revoked = folder.path().join("revoked.list");
    fs::write(&revoked, "01ab 2026-01-01T00:00:00Z train-1\n01ac 2026\n").unwrap();
    let before = fs::read(authority.revocations_file()).unwrap();
    let error = authority.revoke(&"01".parse().unwrap(), true).unwrap_err().to_string();
    assert!(error.ends_with("revoked.list: line 2 is damaged"), "{error}");
    assert_eq!(fs::read(authority.revocations_file()).unwrap(), before);
}

#[test]
fn existing_files_are_replaced_only_with_force() {
    let (folder, authority) = scratch();
    let dir = folder.path();
    let before = fs::read(dir.join("ca.key")).unwrap();
    let error = Authority::create(dir, "Other", false).err().unwrap().to_string();
    assert!(error.contains("ca.crt exists already; --force replaces it"), "{error}");
    assert_eq!(fs::read(dir.join("ca.key")).unwrap(), before);

    let mut again = request("train-7", NodeRole::Gateway, dir);
    let first = authority.issue(&again).unwrap();
    assert!(matches!(authority.issue(&again), Err(IdentityError::Exists { .. })));
    fs::remove_file(&first.certificate_file).unwrap();
    let error = authority.issue(&again).unwrap_err().to_string();
    assert!(error.contains("train-7.key exists already"), "{error}");
    again.force = true;
    let second = authority.issue(&again).unwrap();
    assert_ne!(first.certificate.serial, second.certificate.serial);
    assert!(second.certificate.belongs_to(&read_key(&second.key_file).unwrap()));

    Authority::create(dir, "Other", true).unwrap();
    assert_ne!(fs::read(dir.join("ca.key")).unwrap(), before);
    assert_eq!(fs::read(dir.join("issued.list")).unwrap(), b"");
}

#[test]
fn authority_with_a_foreign_key_is_refused() {
    let ((folder, _), (other, _)) = (scratch(), scratch());
    fs::copy(other.path().join("ca.key"), folder.path().join("ca.key")).unwrap();
    let error = Authority::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("belongs to another certificate"), "{error}");
    fs::write(folder.path().join("ca.key"), "garbage").unwrap();
    let error = Authority::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("not a private key"), "{error}");
}

#[test]
fn invalid_requests_are_refused() {
    let (folder, authority) = scratch();
    let dir = folder.path();
    for name in ["ca", "10.0.0.1", "7", "train.7", "a..b", "a-", "a."] {
        let error = authority.issue(&request(name, NodeRole::Gateway, dir)).unwrap_err();
        assert!(matches!(error, IdentityError::Request(_)), "{name}: {error}");
    }
    for days in [0, 3651, u16::MAX] {
        let mut bad = request("x", NodeRole::Gateway, dir);
        bad.days = days;
        assert!(authority.issue(&bad).is_err(), "{days} days passed");
    }
    assert_eq!(names(dir).len(), 5, "nothing was left behind");
    for name in ["", &"x".repeat(65), "a\nb"] {
        assert!(Authority::create(&dir.join("new"), name, false).is_err(), "{name:?} passed");
    }
}

#[test]
fn failed_write_leaves_nothing_behind() {
    let (folder, authority) = scratch();
    let out = folder.path().join("out");
    // The certificate cannot replace a folder of its name.
    fs::create_dir_all(out.join("train-7.crt")).unwrap();
    let mut wanted = request("train-7", NodeRole::Gateway, &out);
    wanted.force = true;
    assert!(authority.issue(&wanted).is_err());
    assert_eq!(names(&out), ["train-7.crt", "train-7.key"]);
    fs::remove_dir(out.join("train-7.crt")).unwrap();
    let issued = authority.issue(&wanted).unwrap();
    assert!(issued.certificate.belongs_to(&read_key(&issued.key_file).unwrap()));
}

#[test]
fn garbage_is_not_a_certificate() {
    let (folder, authority) = scratch();
    let file = folder.path().join("x.crt");
    let good = fs::read_to_string(folder.path().join("ca.crt")).unwrap();
    let cut: String = good
        .lines()
        .enumerate()
        .filter(|(n, _)| *n != 3)
        .map(|(_, l)| l)
        .fold(String::new(), |text, line| text + line + "\n");
    let key = fs::read_to_string(folder.path().join("ca.key")).unwrap();
    for bad in ["", "garbage", &cut, &key, &format!("{good}{key}")] {
        fs::write(&file, bad).unwrap();
        assert!(read_certificates(&file).is_err(), "{bad:?} passed");
        assert!(RevocationList::read(&file).is_err(), "{bad:?} passed as a list");
    }
    fs::write(&file, format!("{good}{good}")).unwrap();
    assert_eq!(read_certificates(&file).unwrap().len(), 2);
    // A flipped bit shows in the signature.
    let mut der = authority.certificate().der().to_vec();
    let last = der.len() - 1;
    der[last] ^= 1;
    let forged = Certificate::from_der(&der);
    assert!(forged.is_err() || !forged.unwrap().is_signed_by(authority.certificate()));
}
