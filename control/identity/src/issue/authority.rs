//! The operator's certificate authority: created once, it issues and revokes.

use std::path::{Path, PathBuf};

use polyrail_model::{HostName, Identity};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use time::{Duration, OffsetDateTime};

use super::publish::{Draft, make_folder, publish, refuse_existing};
use super::record::{CertificateList, Line};
use crate::{
    Certificate, CertificateRole, IdentityError, NodeRole, RevocationList, Serial, files,
    read_certificates, shown,
};

/// An authority's folder, opened for issuing.
pub struct Authority {
    dir: PathBuf,
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate to be issued.
#[derive(Clone, Debug)]
pub struct IssueRequest {
    /// The node's name.
    pub name: Identity,
    /// What the node is.
    pub role: NodeRole,
    /// Validity in days: 1 to [`DAYS_MAX`], not beyond the authority's.
    pub days: u16,
    /// The folder for `NAME.crt` and `NAME.key`.
    pub out: PathBuf,
    /// Whether existing files may be replaced.
    pub force: bool,
}

/// An issued certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate's file.
    pub certificate_file: PathBuf,
    /// The key's file.
    pub key_file: PathBuf,
    /// The certificate's contents.
    pub certificate: Certificate,
}

/// The longest validity of a node's certificate in days.
pub const DAYS_MAX: u16 = 3650;

impl Authority {
    /// Creates an authority in `dir`, with an empty revocation list.
    ///
    /// # Errors
    /// `name` is not 1 to 64 printable characters; an authority exists and `force` is not set; or
    /// files cannot be written.
    pub fn create(dir: &Path, name: &str, force: bool) -> Result<Self, IdentityError> {
        if !(1..=64).contains(&name.len()) || name.chars().any(char::is_control) {
            let reason = format!("{name:?} is not an authority's name: use 1 to 64 characters");
            return Err(IdentityError::Request(reason));
        }
        make_folder(dir)?;
        refuse_existing(dir, &[CERTIFICATE, KEY], force)?;
        let key = KeyPair::generate()?;
        let params = authority_params(name)?;
        let certificate = params.self_signed(&key)?;
        let read = Certificate::from_der(certificate.der()).map_err(IdentityError::Request)?;
        let key_text = key.serialize_pem();
        let issuer = Issuer::new(params, key);
        let crl = revocation_list(&issuer, &read, &[], 0)?;
        let draft = |name, text, mode| Draft { name, text, mode };
        let certificate_text = certificate.pem();
        let drafts = [
            draft(KEY, key_text.as_str(), 0o600),
            draft(CERTIFICATE, &certificate_text, 0o644),
            draft(CRL, &crl, 0o644),
            draft(ISSUED, "", 0o644),
            draft(REVOKED, "", 0o644),
        ];
        publish(dir, &drafts)?;
        Ok(Self { dir: dir.to_owned(), certificate: read, issuer })
    }

    /// Opens the authority in `dir`.
    ///
    /// # Errors
    /// Its files are missing or damaged, or its key is readable by others than its owner.
    pub fn open(dir: &Path) -> Result<Self, IdentityError> {
        let (certificate_file, key_file) = (dir.join(CERTIFICATE), dir.join(KEY));
        let certificate = read_certificates(&certificate_file)?.swap_remove(0);
        if certificate.role != CertificateRole::Authority {
            return Err(IdentityError::content(
                &certificate_file,
                "this is no authority's certificate",
            ));
        }
        let key = read_key(&key_file)?;
        if !certificate.belongs_to(&key) {
            return Err(IdentityError::content(
                &key_file,
                "this key belongs to another certificate",
            ));
        }
        let issuer = Issuer::from_ca_cert_der(&certificate.der().into(), key)?;
        Ok(Self { dir: dir.to_owned(), certificate, issuer })
    }

    /// The authority's own certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Issues a node's key and certificate.
    ///
    /// # Errors
    /// The name is not valid in a certificate, the validity is too long, files exist and `force` is
    /// not set, or files cannot be written.
    pub fn issue(&self, request: &IssueRequest) -> Result<Issued, IdentityError> {
        check_name(&request.name)?;
        let not_after = self.end_of_life(request.days)?;
        let stem = &request.name;
        let (certificate_name, key_name) = (format!("{stem}.crt"), format!("{stem}.key"));
        make_folder(&request.out)?;
        refuse_existing(&request.out, &[&certificate_name, &key_name], request.force)?;

        let key = KeyPair::generate()?;
        let params = node_params(&request.name, request.role, not_after)?;
        let signed = params.signed_by(&key, &self.issuer)?;
        let certificate = Certificate::from_der(signed.der()).map_err(IdentityError::Request)?;
        // Recorded first, so that every certificate can be revoked by its serial number.
        let (serial, name) = (certificate.serial.clone(), Some(request.name.clone()));
        let line = Line { serial, time: not_after, name };
        CertificateList::read(&self.dir.join(ISSUED))?.add(line)?;
        let (key_text, certificate_text) = (key.serialize_pem(), signed.pem());
        let drafts = [
            Draft { name: &key_name, text: &key_text, mode: 0o600 },
            Draft { name: &certificate_name, text: &certificate_text, mode: 0o644 },
        ];
        publish(&request.out, &drafts)?;
        Ok(Issued {
            certificate_file: request.out.join(certificate_name),
            key_file: request.out.join(key_name),
            certificate,
        })
    }

    /// Revokes a serial number and rewrites the list; true if it was not revoked before.
    ///
    /// # Errors
    /// No certificate with this serial number is on record and `unknown_too` is not set, or files
    /// cannot be written.
    pub fn revoke(&self, serial: &Serial, unknown_too: bool) -> Result<bool, IdentityError> {
        let issued = CertificateList::read(&self.dir.join(ISSUED))?;
        let known = issued.find(serial);
        if known.is_none() && !unknown_too {
            let reason = format!(
                "no certificate with the serial {serial} was issued here; name its file, or use \
                 --force"
            );
            return Err(IdentityError::Request(reason));
        }
        let name = known.and_then(|line| line.name.clone());
        let mut revoked = CertificateList::read(&self.dir.join(REVOKED))?;
        let fresh = revoked.find(serial).is_none();
        if fresh {
            let line = Line { serial: serial.clone(), time: OffsetDateTime::now_utc(), name };
            revoked.add(line)?;
        }
        self.write_revocations(&revoked)?;
        Ok(fresh)
    }

    /// Revokes the certificate in a file, which this authority must have signed.
    ///
    /// # Errors
    /// As [`Self::revoke`]; or the file holds no certificate of this authority.
    pub fn revoke_file(&self, file: &Path) -> Result<(Serial, bool), IdentityError> {
        let certificate = read_certificates(file)?.swap_remove(0);
        let authority = certificate.role == CertificateRole::Authority;
        if !certificate.is_signed_by(&self.certificate) || authority {
            return Err(IdentityError::content(file, "this authority did not issue it to a node"));
        }
        let fresh = self.revoke(&certificate.serial, true)?;
        Ok((certificate.serial, fresh))
    }

    /// The file of the revocation list.
    pub fn revocations_file(&self) -> PathBuf {
        self.dir.join(CRL)
    }

    fn write_revocations(&self, revoked: &CertificateList) -> Result<(), IdentityError> {
        let file = self.revocations_file();
        let last = if file.exists() { RevocationList::read(&file)?[0].number } else { 0 };
        let text = revocation_list(&self.issuer, &self.certificate, revoked.lines(), last)?;
        publish(&self.dir, &[Draft { name: CRL, text: &text, mode: 0o644 }])
    }

    fn end_of_life(&self, days: u16) -> Result<OffsetDateTime, IdentityError> {
        let end = OffsetDateTime::now_utc() + Duration::days(i64::from(days));
        if !(1..=DAYS_MAX).contains(&days) {
            return Err(IdentityError::Request(format!(
                "{days} days are not between 1 and {DAYS_MAX}"
            )));
        }
        if end > self.certificate.not_after {
            let until = shown(self.certificate.not_after);
            let reason = format!("{days} days are too many: the authority itself ends at {until}");
            return Err(IdentityError::Request(reason));
        }
        Ok(end)
    }
}

/// A private key that this crate can sign with.
pub(super) fn read_key(path: &Path) -> Result<KeyPair, IdentityError> {
    let text = String::from_utf8(files::read_key(path)?).unwrap_or_default();
    KeyPair::from_pem(&text)
        .map_err(|_| IdentityError::content(path, "this is not a private key in PEM (PKCS #8)"))
}

/// A certificate's DNS name is stricter than a node's name, and `ca.*` are the authority's files.
fn check_name(name: &Identity) -> Result<(), IdentityError> {
    let text = name.as_str();
    let last = text.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
    if HostName::new(text).is_err() || numeric || text.ends_with('.') {
        let reason = format!(
            "{text:?} cannot be a DNS name: no empty label, none that begins or ends with '-', \
             and no last label of digits alone"
        );
        return Err(IdentityError::Request(reason));
    }
    if text == "ca" {
        return Err(IdentityError::Request("\"ca\" is the authority's own name".to_owned()));
    }
    Ok(())
}

fn authority_params(name: &str) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(random_serial()?);
    params.not_before = backdated(OffsetDateTime::now_utc());
    params.not_after = OffsetDateTime::now_utc() + AUTHORITY_LIFE;
    Ok(params)
}

fn node_params(
    name: &Identity,
    role: NodeRole,
    not_after: OffsetDateTime,
) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(name.as_str());
    params.subject_alt_names = vec![SanType::DnsName(name.as_str().try_into()?)];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match role {
        NodeRole::Gateway => ExtendedKeyUsagePurpose::ClientAuth,
        NodeRole::Cloud => ExtendedKeyUsagePurpose::ServerAuth,
    }];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(random_serial()?);
    params.not_before = backdated(OffsetDateTime::now_utc());
    params.not_after = not_after;
    Ok(params)
}

/// A little earlier, for peers whose clocks are slow; not before 1970, which verifiers reject.
pub(super) fn backdated(now: OffsetDateTime) -> OffsetDateTime {
    (now - BACKDATED).max(OffsetDateTime::UNIX_EPOCH)
}

fn subject(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn random_serial() -> Result<SerialNumber, IdentityError> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| IdentityError::Request("the system returned no random bytes".to_owned()))?;
    Ok(SerialNumber::from_slice(&bytes))
}

/// A signed list as PEM, with a number above `last`.
fn revocation_list(
    issuer: &Issuer<'_, KeyPair>,
    authority: &Certificate,
    revoked: &[Line],
    last: u64,
) -> Result<String, IdentityError> {
    let now = OffsetDateTime::now_utc();
    let number = u64::try_from(now.unix_timestamp()).unwrap_or(0).max(last.saturating_add(1));
    let entry = |line: &Line| RevokedCertParams {
        serial_number: SerialNumber::from_slice(line.serial.as_bytes()),
        revocation_time: line.time,
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: backdated(now),
        // No service distributes a new list by a date: a list holds until it is replaced.
        next_update: authority.not_after.max(now + Duration::DAY),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    Ok(params.signed_by(issuer)?.pem()?)
}

const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
const CRL: &str = "revoked.crl";
const ISSUED: &str = "issued.list";
const REVOKED: &str = "revoked.list";

/// How far the begin of a validity lies in the past: nodes' clocks may be slow.
const BACKDATED: Duration = Duration::HOUR;
/// Ten years of 365.25 days.
const AUTHORITY_LIFE: Duration = Duration::hours(87_660);
