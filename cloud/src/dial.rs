//! Dialling: from a flow's destination to a connection, or to the reason of the failure.
//!
//! `admission` decides which dial begins next, `race` how it proceeds (happy eyeballs, RFC 8305),
//! both without sockets or clock; `dialer` connects them to the resolver and to non-blocking
//! sockets. Each address is resolved, then checked against the access list, then connected, so a
//! forbidden address never receives a packet.

mod admission;
mod dialer;
mod failures;
mod race;

pub use admission::{Admission, Dialing, Quotas};
pub use dialer::{DIAL_DESCRIPTORS, DIALS_MAX, DialEvent, DialSettings, Dialer, LookupEvent};
pub(crate) use failures::Failures;
pub use race::{ATTEMPT_DELAY, Attempt, PARALLEL_MAX, Race, Step, candidates};

use std::io;
use std::net::SocketAddr;

use polyrail_session::ResetReason;

use crate::access::Denial;
use crate::resolve::ResolveError;

/// Why a destination has no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The server's host answered and refuses the port.
    #[error("{0} refuses connections")]
    Refused(SocketAddr),
    /// Nothing answered in time.
    #[error("no answer in {0:?}")]
    TimedOut(std::time::Duration),
    /// The user has too many dials under way or waiting.
    #[error("the user's quota of dials is used up: {0}")]
    Quota(&'static str),
    /// The cloud has no descriptor, port or slot left.
    #[error("the cloud is at its limit: {0}")]
    Overload(String),
    /// The network reports that the address is unreachable.
    #[error("{0} is unreachable: {1}")]
    Unreachable(SocketAddr, String),
    /// The cloud does not offer the address family of any of the addresses.
    #[error("the cloud reaches no address family of the destination")]
    NoFamily,
    /// The access list permits none of the addresses.
    #[error("{0}")]
    Forbidden(#[from] Denial),
    /// The name has no address.
    #[error("{0}")]
    Name(#[from] ResolveError),
}

impl DialError {
    /// The meaning of a failed `connect` to `address`.
    pub fn from_connect(address: SocketAddr, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED | libc::ECONNRESET) => Self::Refused(address),
            // The kernel timed out before the dial's deadline.
            Some(libc::ETIMEDOUT) => Self::TimedOut(race::KERNEL_PATIENCE),
            Some(
                libc::EMFILE
                | libc::ENFILE
                | libc::ENOBUFS
                | libc::ENOMEM
                | libc::EADDRNOTAVAIL
                | libc::EAGAIN,
            ) => Self::Overload(error.to_string()),
            _ => Self::Unreachable(address, error.to_string()),
        }
    }

    /// The reason that the gateway, and through it the passenger, receives.
    pub fn reset_reason(&self) -> ResetReason {
        match self {
            Self::Refused(_) => ResetReason::Refused,
            Self::TimedOut(_) => ResetReason::TimedOut,
            Self::Quota(_) => ResetReason::Quota,
            Self::Overload(_) | Self::Name(ResolveError::Overload) => ResetReason::Overload,
            Self::Unreachable(..) | Self::NoFamily => ResetReason::Unreachable,
            // The name may exist: no name server answered.
            Self::Name(ResolveError::Temporary(_)) => ResetReason::Unreachable,
            Self::Name(ResolveError::NotFound(_)) => ResetReason::NameNotFound,
            Self::Forbidden(_) => ResetReason::Forbidden,
        }
    }

    /// The priority of the error if the attempts of one dial failed in different ways; the highest
    /// is reported. A refusal is more specific than a timeout, a timeout more than a missing route
    /// (which a host without IPv6 has for every IPv6 address), and an attempt more than none.
    fn weight(&self) -> u8 {
        match self {
            Self::Refused(_) => 6,
            Self::TimedOut(_) => 5,
            Self::Overload(_) | Self::Quota(_) => 4,
            Self::Unreachable(..) => 3,
            Self::Forbidden(_) => 2,
            Self::NoFamily => 1,
            Self::Name(_) => 0,
        }
    }

    /// The more specific of two errors; the earlier one if they are equal.
    fn or(self, later: Self) -> Self {
        if later.weight() > self.weight() { later } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_become_reasons() {
        let address = SocketAddr::from(([9, 0, 0, 1], 80));
        let cases = [
            (libc::ECONNREFUSED, ResetReason::Refused),
            (libc::ECONNRESET, ResetReason::Refused),
            (libc::ETIMEDOUT, ResetReason::TimedOut),
            (libc::ENETUNREACH, ResetReason::Unreachable),
            (libc::EHOSTUNREACH, ResetReason::Unreachable),
            (libc::EACCES, ResetReason::Unreachable),
            (libc::EMFILE, ResetReason::Overload),
            (libc::EADDRNOTAVAIL, ResetReason::Overload),
        ];
        for (code, reason) in cases {
            let error = DialError::from_connect(address, &io::Error::from_raw_os_error(code));
            assert_eq!(error.reset_reason(), reason, "{error}");
        }
        let name = |error| DialError::Name(error).reset_reason();
        assert_eq!(name(ResolveError::NotFound("x".into())), ResetReason::NameNotFound);
        assert_eq!(name(ResolveError::Temporary("x".into())), ResetReason::Unreachable);
        assert_eq!(name(ResolveError::Overload), ResetReason::Overload);
        assert_eq!(DialError::Quota("x").reset_reason(), ResetReason::Quota);
        assert_eq!(DialError::NoFamily.reset_reason(), ResetReason::Unreachable);
    }
}
