//! The part of an address that one host controls, for limits per address.

use std::net::IpAddr;

/// The address itself, of IPv6 its /64: one host can use all addresses of it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => {
            let mut octets = ip.octets();
            octets[8..].fill(0);
            IpAddr::from(octets)
        }
        ip => ip,
    }
}
