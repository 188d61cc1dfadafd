//! Certificate faults that the hooks of TLS libraries find.
//!
//! A hook can only choose the alert for the peer. It keeps the exact fault for this side's log in a
//! slot of the thread, because hooks run inside a call of the tunnel, which empties the slot.

use std::cell::RefCell;

use polyrail_identity::{CertificateFault, PeerVerifier};
use rustls::pki_types::CertificateDer;

thread_local! {
    static FAULT: RefCell<Option<CertificateFault>> = const { RefCell::new(None) };
}

/// Judges the peer in a hook; `alert` translates its fault.
pub(crate) fn judge<A>(
    verifier: &PeerVerifier,
    chain: &[CertificateDer<'_>],
    alert: impl FnOnce(&CertificateFault) -> A,
) -> Result<(), A> {
    verifier.judge(chain).map(|_| ()).map_err(|fault| {
        let alert = alert(&fault);
        FAULT.replace(Some(fault));
        alert
    })
}

/// The fault for which a hook rejected a peer since the last call, on this thread.
pub(crate) fn take() -> Option<CertificateFault> {
    FAULT.take()
}
