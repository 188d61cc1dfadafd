//! The process's limit of open descriptors.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors reserved for tunnels, listeners and the admin socket, so that passengers cannot use
/// up all.
pub const RESERVED_DESCRIPTORS: u64 = 64;

/// The maximum number of users' sockets with this limit.
pub fn flows_within(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(RESERVED_DESCRIPTORS)).unwrap_or(usize::MAX)
}

/// Raises the soft limit of open descriptors to the hard limit; returns the limit in effect.
///
/// Every flow needs one descriptor, and the usual soft limit of 1,024 is far below what a train
/// needs. A failure leaves the limit as it was.
pub fn raise_descriptor_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return hard;
    }
    soft
}
