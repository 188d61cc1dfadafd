//! Judges one daemon's peers, always by the newest identity, so that a reload also applies to
//! handshakes in progress and to resumed sessions.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use polyrail_model::Identity;
use rustls::pki_types::CertificateDer;

use crate::{CertificateFault, Clock, NodeRole, Peer, TlsIdentity};

/// Judges certificate chains by the current time and the current revocation lists.
#[derive(Debug)]
pub struct PeerVerifier {
    /// Behind a lock because rustls and BoringSSL want verifiers that threads can share.
    identity: RwLock<TlsIdentity>,
    role: NodeRole,
    expected: Option<Identity>,
    clock: Arc<dyn Clock>,
}

impl PeerVerifier {
    /// Accepts gateways of any name.
    pub fn of_gateways(identity: TlsIdentity, clock: Arc<dyn Clock>) -> Self {
        let identity = RwLock::new(identity);
        Self { identity, role: NodeRole::Gateway, expected: None, clock }
    }

    /// Accepts the cloud named `expected`.
    pub fn of_cloud(identity: TlsIdentity, expected: Identity, clock: Arc<dyn Clock>) -> Self {
        let identity = RwLock::new(identity);
        Self { identity, role: NodeRole::Cloud, expected: Some(expected), clock }
    }

    /// Judges by another identity from now on.
    pub fn set_identity(&self, identity: TlsIdentity) {
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    /// The newest identity.
    pub fn identity(&self) -> TlsIdentity {
        self.identity.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time (since 1970) by which certificates are judged.
    pub fn now(&self) -> Duration {
        self.clock.since_epoch()
    }

    /// Judges a chain, the peer's own certificate first, by the current time.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> Result<Peer, CertificateFault> {
        self.identity().judge(chain, self.role, self.expected.as_ref(), self.now())
    }
}
