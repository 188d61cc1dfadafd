//! An ICMP error about a passenger's datagram, as a gateway decodes it.
//!
//! Promises: nothing panics, a decoded error has a possible MTU, and it survives encoding.

use polyrail_relay::{IcmpCause, IcmpError, MTU_MIN};

/// Decodes the bytes.
pub fn icmp_error(data: &[u8]) {
    let Ok(Some(error)) = IcmpError::decode(data) else { return };
    if let IcmpCause::TooBig { mtu } = error.cause {
        assert!(mtu >= MTU_MIN, "{mtu}");
    }
    assert_eq!(IcmpError::decode(&error.encode()), Ok(Some(error)));
}
