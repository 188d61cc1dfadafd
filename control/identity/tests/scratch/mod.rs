//! A scratch authority that issues the certificates of tests, right or wrong.

#![allow(dead_code, clippy::unwrap_used)] // each test uses its part

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use polyrail_identity::{IdentityPaths, TlsIdentity};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber,
};
use tempfile::TempDir;
use time::OffsetDateTime;

/// When the scratch certificates begin to be valid, in seconds since 1970.
pub const BEGIN: u64 = 1_800_000_000;
/// How long they are valid, in seconds.
pub const LIFE: u64 = 10_000;
pub const GATEWAY: &[ExtendedKeyUsagePurpose] = &[ExtendedKeyUsagePurpose::ClientAuth];
pub const CLOUD: &[ExtendedKeyUsagePurpose] = &[ExtendedKeyUsagePurpose::ServerAuth];

pub struct Authority {
    pub folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// The contents of a certificate.
pub struct Node<'a> {
    pub name: &'a str,
    pub dns: Vec<&'a str>,
    pub usage: &'a [ExtendedKeyUsagePurpose],
    pub serial: u64,
    pub begin: u64,
    pub end: u64,
}

impl<'a> Node<'a> {
    pub fn new(name: &'a str, usage: &'a [ExtendedKeyUsagePurpose], serial: u64) -> Self {
        Self { name, dns: vec![name], usage, serial, begin: BEGIN, end: BEGIN + LIFE }
    }
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Scratch authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (date(BEGIN - 1_000), date(BEGIN + 1_000 * LIFE));
        let pem = params.self_signed(&key).unwrap().pem();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("authority.pem"), &pem).unwrap();
        Self { folder, issuer: Issuer::new(params, key), pem }
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Writes a certificate and key; returns the paths of its identity under `trusted`.
    pub fn issue(&self, node: &Node<'_>, trusted: &Authority) -> IdentityPaths {
        let key = KeyPair::generate().unwrap();
        let dns: Vec<String> = node.dns.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(dns).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, node.name);
        params.extended_key_usages = node.usage.to_vec();
        params.serial_number = Some(serial(node.serial));
        (params.not_before, params.not_after) = (date(node.begin), date(node.end));
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let stem = format!("{}-{}", node.name, node.serial);
        let paths = IdentityPaths {
            certificate: self.path(&format!("{stem}.pem")),
            key: self.path(&format!("{stem}.key")),
            authority: trusted.path("authority.pem"),
            revocations: None,
        };
        fs::write(&paths.certificate, certificate).unwrap();
        write_key(&paths.key, &key.serialize_pem());
        paths
    }

    /// The identity of a valid node.
    pub fn node(&self, node: &Node<'_>) -> TlsIdentity {
        TlsIdentity::load(&self.issue(node, self)).unwrap()
    }

    pub fn gateway(&self) -> TlsIdentity {
        self.node(&Node::new("train-7", GATEWAY, 7))
    }

    pub fn cloud(&self) -> TlsIdentity {
        self.node(&Node::new("cloud", CLOUD, 1))
    }

    /// The cloud's paths with a list that revokes `serials`.
    pub fn cloud_revoking(&self, serials: &[u64], next_update: u64) -> IdentityPaths {
        let mut paths = self.issue(&Node::new("cloud", CLOUD, 1), self);
        let file = self.path(&format!("{serials:?}-{next_update}.crl"));
        fs::write(&file, self.revocations(serials, next_update)).unwrap();
        paths.revocations = Some(file);
        paths
    }

    pub fn revocations(&self, serials: &[u64], next_update: u64) -> String {
        let revoked = |&number: &u64| RevokedCertParams {
            serial_number: serial(number),
            revocation_time: date(BEGIN),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date(BEGIN),
            next_update: date(next_update),
            crl_number: serial(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }
}

pub fn write_key(path: &Path, pem: &str) {
    fs::write(path, pem).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn serial(number: u64) -> SerialNumber {
    // Long, and with the first bit set, so that DER puts a zero before it.
    let bytes = [&[0xf0; 8][..], &number.to_be_bytes()].concat();
    SerialNumber::from_slice(&bytes)
}

pub fn serial_text(number: u64) -> String {
    format!("{}{number:016x}", "f0".repeat(8))
}

fn date(seconds: u64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds.try_into().unwrap()).unwrap()
}
