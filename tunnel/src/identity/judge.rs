//! The judge of one daemon's peers: always by the newest identity, so that a reload also counts
//! for handshakes under way and for sessions that are resumed.

use std::sync::{Arc, PoisonError, RwLock};

use polyrail_model::Identity;
use rustls::pki_types::CertificateDer;

use super::{Inspection, Role, TlsIdentity};
use crate::{CertificateFault, Clock};

/// Judges certificate chains by the current time and the current revocations.
#[derive(Debug)]
pub(crate) struct Judge {
    identity: RwLock<TlsIdentity>,
    wanted: Role,
    expected: Option<Identity>,
    clock: Arc<dyn Clock>,
}

impl Judge {
    /// Accepts gateways, whatever their name.
    pub(crate) fn of_gateways(identity: TlsIdentity, clock: Arc<dyn Clock>) -> Self {
        Self { identity: RwLock::new(identity), wanted: Role::Gateway, expected: None, clock }
    }

    /// Accepts the cloud named `expected`.
    pub(crate) fn of_cloud(
        identity: TlsIdentity,
        expected: Identity,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let identity = RwLock::new(identity);
        Self { identity, wanted: Role::Cloud, expected: Some(expected), clock }
    }

    /// Judges by another identity from now on.
    pub(crate) fn replace_identity(&self, identity: TlsIdentity) {
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    /// Judges a chain of DER certificates, the peer's own first.
    pub(crate) fn inspect(&self, chain: &[&[u8]]) -> Result<Inspection, CertificateFault> {
        let chain: Vec<_> = chain.iter().map(|&der| CertificateDer::from(der)).collect();
        let identity = self.identity.read().unwrap_or_else(PoisonError::into_inner).clone();
        let now = self.clock.since_epoch();
        identity.contents().inspect(&chain, self.wanted, self.expected.as_ref(), now)
    }
}
