//! A node's identity: its certificate and key, the authority it trusts, the revocation lists.
//!
//! A [`TlsIdentity`] is loaded whole from PEM files or not at all, never changes afterwards and is
//! cheap to clone; a reload creates another. `judge` decides about certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use polyrail_model::Identity;
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use time::OffsetDateTime;

use crate::{
    Certificate, CertificateFault, CertificateRole, IdentityError, NodeRole, RevocationList,
    Serial, files, read_certificates, shown,
};

/// Where a node's certificate files are; all are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityPaths {
    /// The node's certificate, first, then the chain up to the authority, if any.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The operator's authority; several certificates while one replaces another.
    pub authority: PathBuf,
    /// The authority's revocation lists.
    pub revocations: Option<PathBuf>,
}

impl IdentityPaths {
    /// The files by kind.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            ("certificate", Some(&self.certificate)),
            ("key", Some(&self.key)),
            ("authority", Some(&self.authority)),
            ("revocations", self.revocations.as_ref()),
        ];
        files.into_iter().filter_map(|(kind, file)| Some((kind, file?.as_path())))
    }
}

/// A node's own certificate and key, the authority it trusts, and its revocation lists.
#[derive(Clone, Debug)]
pub struct TlsIdentity(Arc<Contents>);

#[derive(Debug)]
struct Contents {
    name: Identity,
    own: Certificate,
    key: Arc<SingleCertAndKey>,
    key_der: PrivateKeyDer<'static>,
    chain: Vec<CertificateDer<'static>>,
    authorities: Vec<Certificate>,
    roots: Arc<RootCertStore>,
    gateway_verifier: Arc<dyn ClientCertVerifier>,
    lists: Vec<RevocationList>,
    provider: Arc<CryptoProvider>,
}

/// Problems of an identity that loads. Each text begins with the kind of file concerned
/// (`certificate`, `authority`, `revocations`) and a colon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnFindings {
    /// Peers reject the certificate at any time.
    pub errors: Vec<String>,
    /// Peers reject the certificate by now: it has expired or is revoked.
    pub ended: Vec<String>,
    /// It will be rejected soon, or something else needs attention.
    pub warnings: Vec<String>,
}

impl TlsIdentity {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// A file is missing, unreadable or has the wrong contents; the key does not belong to the
    /// certificate, or group or others can read, write or execute it; the authority did not sign a
    /// revocation list.
    pub fn load(paths: &IdentityPaths) -> Result<Self, IdentityError> {
        let provider = Arc::new(ring::default_provider());
        let mut links = read_certificates(&paths.certificate)?;
        let chain: Vec<_> = links.iter().map(der).collect();
        let own = links.swap_remove(0);
        let name = own.identity.clone().ok_or_else(|| {
            let fault = CertificateFault::NoIdentity { subject: own.subject.clone() };
            IdentityError::content(&paths.certificate, fault.to_string())
        })?;
        let key_der = PrivateKeyDer::from_pem_slice(&files::read_key(&paths.key)?)
            .map_err(|error| format!("there is no private key in it: {error}"))
            .map_err(|reason| IdentityError::content(&paths.key, reason))?;
        let key = certified(&chain, &key_der, &provider, paths)?;
        let authorities = read_certificates(&paths.authority)?;
        let roots = Arc::new(root_store(&authorities, &paths.authority)?);
        let gateway_verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .map_err(|error| IdentityError::Tls(error.to_string()))?;
        let lists = paths.revocations.as_deref().map_or(Ok(Vec::new()), |file| {
            let lists = RevocationList::read(file)?;
            let foreign =
                |list: &&RevocationList| !authorities.iter().any(|a| list.is_signed_by(a));
            match lists.iter().find(foreign) {
                Some(list) => Err(IdentityError::content(
                    file,
                    format!(
                        "the revocation list of {} is not signed by the authority",
                        list.issuer
                    ),
                )),
                None => Ok(lists),
            }
        })?;
        let contents = Contents {
            name,
            own,
            key,
            key_der,
            chain,
            authorities,
            roots,
            gateway_verifier,
            lists,
            provider,
        };
        Ok(Self(Arc::new(contents)))
    }

    /// The node's own name, from its certificate.
    pub fn name(&self) -> &Identity {
        &self.0.name
    }

    /// Whether an authority has revoked its certificate with this serial number
    /// ([`Peer::serial`](crate::Peer::serial)): for closing tunnels that were up before a reload.
    pub fn is_revoked(&self, serial: &str) -> bool {
        let serial: Option<Serial> = serial.parse().ok();
        serial.is_some_and(|serial| self.0.lists.iter().any(|l| l.entries.contains_key(&serial)))
    }

    /// The problems of our own certificate as a node of this role, and of the authority's files, at
    /// the time `now`.
    pub fn findings(&self, role: NodeRole, now: OffsetDateTime) -> OwnFindings {
        let mut found = OwnFindings::default();
        let since_epoch = Duration::from_secs(now.unix_timestamp().try_into().unwrap_or(0));
        match self.judge(&self.0.chain, role, None, since_epoch) {
            // The validity is reported below.
            Ok(_)
            | Err(CertificateFault::Expired { .. } | CertificateFault::NotYetValid { .. }) => {}
            Err(CertificateFault::Revoked { .. }) => {
                let since = self.revoked_since(&self.0.own).map(shown).unwrap_or_default();
                found.ended.push(format!("certificate: revoked since {since}"));
            }
            Err(fault) => found.errors.push(format!("certificate: {fault}")),
        }
        found.validity("certificate", &self.0.own, now);
        for authority in &self.0.authorities {
            found.validity("authority", authority, now);
        }
        for due in self.0.lists.iter().filter_map(|list| list.next_update) {
            if due < now {
                found.warnings.push(format!(
                    "revocations: a newer list was due at {}: later revocations are unknown here",
                    shown(due)
                ));
            }
        }
        found
    }

    /// Our certificate and key for rustls.
    pub fn key(&self) -> Arc<SingleCertAndKey> {
        self.0.key.clone()
    }

    /// The certificate chain, our own certificate first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.chain
    }

    /// The private key in DER.
    pub fn key_der(&self) -> &[u8] {
        self.0.key_der.secret_der()
    }

    /// The algorithms that certificates are verified with.
    pub fn provider(&self) -> &Arc<CryptoProvider> {
        &self.0.provider
    }

    pub(crate) fn roots(&self) -> &RootCertStore {
        &self.0.roots
    }

    pub(crate) fn gateway_verifier(&self) -> &dyn ClientCertVerifier {
        &*self.0.gateway_verifier
    }

    /// When a certificate was revoked by its issuer.
    pub(crate) fn revoked_since(&self, certificate: &Certificate) -> Option<OffsetDateTime> {
        self.0.lists.iter().find_map(|list| list.revoked_since(certificate))
    }
}

impl OwnFindings {
    fn validity(&mut self, what: &str, certificate: &Certificate, now: OffsetDateTime) {
        let (from, until) = (certificate.not_before, certificate.not_after);
        if now > until {
            self.ended.push(format!("{what}: it ended at {}", shown(until)));
        } else if now < from {
            self.warnings.push(format!("{what}: it begins at {} only", shown(from)));
        } else if until - now < EXPIRY_WARNING {
            self.warnings.push(format!("{what}: it ends at {}", shown(until)));
        }
    }
}

fn der(certificate: &Certificate) -> CertificateDer<'static> {
    CertificateDer::from(certificate.der().to_vec())
}

fn certified(
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    provider: &CryptoProvider,
    paths: &IdentityPaths,
) -> Result<Arc<SingleCertAndKey>, IdentityError> {
    let certified = CertifiedKey::from_der(chain.to_vec(), key.clone_key(), provider);
    let certified = certified.map_err(|error| {
        let reason = match error {
            rustls::Error::InconsistentKeys(_) => {
                format!("it belongs to another certificate than {}", paths.certificate.display())
            }
            other => format!("not a usable private key: {other}"),
        };
        IdentityError::content(&paths.key, reason)
    })?;
    Ok(Arc::new(SingleCertAndKey::from(certified)))
}

fn root_store(authorities: &[Certificate], file: &Path) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        if authority.role != CertificateRole::Authority {
            return Err(IdentityError::content(file, "this is no authority's certificate"));
        }
        roots.add(der(authority)).map_err(|error| {
            IdentityError::content(file, format!("unusable authority: {error}"))
        })?;
    }
    Ok(roots)
}

/// How long before its end a certificate causes a warning.
const EXPIRY_WARNING: time::Duration = time::Duration::days(30);
