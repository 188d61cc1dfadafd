//! Who we are and whom we trust: a node's certificate and key, the authority, the revocations.
//!
//! A [`TlsIdentity`] is loaded whole from PEM files or not at all, never changes afterwards and is
//! cheap to clone; a reload makes another. The judgement of a peer is in `inspect`.

mod inspect;
mod judge;
mod revocation;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use polyrail_model::Identity;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::Clock;
pub(crate) use inspect::{Inspection, Role};
pub(crate) use judge::Judge;
use revocation::Revocations;

/// Where a node's certificate files are; all are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityPaths {
    /// The node's certificate, first, and what lies between it and the authority, if anything.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The operator's authority; several certificates while one replaces another.
    pub authority: PathBuf,
    /// The authority's revocation lists.
    pub revocations: Option<PathBuf>,
}

/// A node's own certificate and key, the authority it trusts, and the revocations it knows.
#[derive(Clone, Debug)]
pub struct TlsIdentity(Arc<Contents>);

#[derive(Debug)]
pub(crate) struct Contents {
    name: Identity,
    key: Arc<SingleCertAndKey>,
    key_der: PrivateKeyDer<'static>,
    chain: Vec<CertificateDer<'static>>,
    authorities: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    gateways: Arc<dyn ClientCertVerifier>,
    revocations: Revocations,
    provider: Arc<CryptoProvider>,
}

/// Why an identity cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("{}: cannot be read: {detail}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's words.
        detail: String,
    },
    /// A file does not hold what it should.
    #[error("{}: {detail}", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// What is wrong in it.
        detail: String,
    },
    /// Group or others can read, write or execute the private key.
    #[error("{} is mode {mode:04o}: run chmod 600 {}", file.display(), file.display())]
    KeyExposed {
        /// The file.
        file: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// TLS refuses the combination.
    #[error("TLS cannot be set up: {detail}")]
    Tls {
        /// What TLS says.
        detail: String,
    },
}

impl TlsIdentity {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// A file is missing, unreadable or not what it should be; the key is not the certificate's,
    /// or group or others can read, write or execute it; a revocation list is not signed by the
    /// authority.
    pub fn load(paths: &IdentityPaths) -> Result<Self, LoadError> {
        let provider = Arc::new(crate::tls::provider());
        let chain = certificates(&paths.certificate)?;
        let name = own_name(&chain, &paths.certificate)?;
        let key = private_key(&paths.key)?;
        let key_der = key.clone_key();
        let certified = CertifiedKey::from_der(chain.clone(), key, &provider).map_err(|error| {
            let detail = match error {
                rustls::Error::InconsistentKeys(_) => {
                    format!("is not the key of {}", paths.certificate.display())
                }
                other => format!("not a usable private key: {other}"),
            };
            LoadError::Content { file: paths.key.clone(), detail }
        })?;
        let authorities = certificates(&paths.authority)?;
        let roots = Arc::new(root_store(&authorities, &paths.authority)?);
        let gateways = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| LoadError::Tls { detail: error.to_string() })?;
        let revocations = match &paths.revocations {
            Some(file) => Revocations::new(&revocation_lists(file)?, &authorities)
                .map_err(|detail| LoadError::Content { file: file.clone(), detail })?,
            None => Revocations::default(),
        };
        let key = Arc::new(SingleCertAndKey::from(certified));
        Ok(Self(Arc::new(Contents {
            name,
            key,
            key_der,
            chain,
            authorities,
            roots,
            gateways,
            revocations,
            provider,
        })))
    }

    /// The node's own name, from its certificate.
    pub fn name(&self) -> &Identity {
        &self.0.name
    }

    /// Whether a certificate that the authority issued under this serial number
    /// ([`Established::serial`](crate::Established::serial)) is revoked: for ending tunnels that
    /// were up before a reload.
    pub fn is_revoked(&self, serial: &str) -> bool {
        self.0.revocations.has_serial(serial)
    }

    /// What works but deserves the operator's attention, one sentence each.
    pub fn warnings(&self, clock: &dyn Clock) -> Vec<String> {
        let now = clock.since_epoch();
        let mut warnings = self.0.revocations.warnings(now);
        warnings.extend(inspect::validity_warning("our own certificate", &self.0.chain[0], now));
        for authority in &self.0.authorities {
            warnings.extend(inspect::validity_warning("the authority", authority, now));
        }
        let unfit = |role| {
            use crate::CertificateFault::{UnknownAuthority, WrongRole};
            let verdict = inspect::check_chain(&self.0, &self.0.chain, role, now);
            matches!(verdict, Err(UnknownAuthority | WrongRole { .. }))
        };
        if unfit(Role::Gateway) && unfit(Role::Cloud) {
            warnings.push(format!(
                "our own certificate ({}) was not issued by the authority configured here, or is \
                 neither a gateway's nor a cloud's",
                self.0.name
            ));
        }
        warnings
    }

    pub(crate) fn key(&self) -> Arc<SingleCertAndKey> {
        self.0.key.clone()
    }

    /// The certificate chain, our own certificate first.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.chain
    }

    /// The private key as the file has it.
    pub(crate) fn key_der(&self) -> &[u8] {
        self.0.key_der.secret_der()
    }

    pub(crate) fn provider(&self) -> Arc<CryptoProvider> {
        self.0.provider.clone()
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.0
    }
}

/// How long before its end a certificate is worth a warning: renewal is overdue by then.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

/// Largest file that is read: a revocation list of some 25,000 certificates.
const FILE_MAX: u64 = 1 << 20;

fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
    let failure = |detail: String| LoadError::Read { file: file.to_owned(), detail };
    let metadata = fs::metadata(file).map_err(|error| failure(error.to_string()))?;
    if metadata.len() > FILE_MAX {
        return Err(failure(format!("it is larger than {FILE_MAX} bytes")));
    }
    fs::read(file).map_err(|error| failure(error.to_string()))
}

/// All items of one kind in a PEM file; at least one.
fn items<T: PemObject>(file: &Path, what: &str) -> Result<Vec<T>, LoadError> {
    let content = |detail| LoadError::Content { file: file.to_owned(), detail };
    let text = read(file)?;
    let found = T::pem_slice_iter(&text)
        .collect::<Result<Vec<T>, _>>()
        .map_err(|error| content(format!("not readable as PEM: {error}")))?;
    if found.is_empty() { Err(content(format!("there is no {what} in it"))) } else { Ok(found) }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    items(file, "certificate (\"BEGIN CERTIFICATE\")")
}

fn revocation_lists(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, LoadError> {
    items(file, "revocation list (\"BEGIN X509 CRL\")")
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, LoadError> {
    let text = read(file)?;
    let mode = fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode() & 0o7777);
    if mode & 0o077 != 0 {
        return Err(LoadError::KeyExposed { file: file.to_owned(), mode });
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| LoadError::Content {
        file: file.to_owned(),
        detail: format!("there is no private key in it: {error}"),
    })
}

fn own_name(chain: &[CertificateDer<'_>], file: &Path) -> Result<Identity, LoadError> {
    inspect::node_name(&chain[0])
        .map_err(|fault| LoadError::Content { file: file.to_owned(), detail: fault.to_string() })
}

fn root_store(
    authorities: &[CertificateDer<'static>],
    file: &Path,
) -> Result<RootCertStore, LoadError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| LoadError::Content {
            file: file.to_owned(),
            detail: format!("not usable as an authority: {error}"),
        })?;
    }
    Ok(roots)
}
