//! The address families that this host reaches.
//!
//! A family counts when the host has a default route of it, or an address of it that is neither
//! loopback nor link-local (for IPv6: a global one). Gateways reject the other family, so that
//! browsers fall back at once. The check sends no packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use polyrail_model::Families;

/// The families of `wanted` that this host reaches; `wanted` if it reaches none.
pub(crate) fn families(wanted: Families) -> Families {
    let own = own_addresses();
    let found = reached(wanted, &own, routed(FAR_V4), routed(FAR_V6));
    if found == (Families { v4: false, v6: false }) {
        tracing::warn!("this host has neither a default route nor a global address");
        return wanted;
    }
    for (missing, family, key) in [
        (wanted.v4 && !found.v4, "IPv4", "dial.ipv4"),
        (wanted.v6 && !found.v6, "IPv6", "dial.ipv6"),
    ] {
        if missing {
            tracing::info!("this host does not reach {family}: gateways reject it ({key})");
        }
    }
    found
}

fn reached(wanted: Families, own: &[IpAddr], routed_v4: bool, routed_v6: bool) -> Families {
    let v4 = routed_v4 || own.iter().any(|ip| matches!(ip, IpAddr::V4(ip) if is_useful_v4(*ip)));
    let v6 = routed_v6 || own.iter().any(|ip| matches!(ip, IpAddr::V6(ip) if is_global_v6(*ip)));
    Families { v4: wanted.v4 && v4, v6: wanted.v6 && v6 }
}

fn is_useful_v4(ip: Ipv4Addr) -> bool {
    !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified()
}

/// Global unicast (RFC 4291 2.4, as assigned by IANA).
fn is_global_v6(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xe000 == 0x2000
}

fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .collect()
}

/// Whether the kernel has a way to an address; connecting a datagram socket sends nothing.
fn routed(far: IpAddr) -> bool {
    let any: IpAddr = match far {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0));
    socket.and_then(|socket| socket.connect(SocketAddr::new(far, 9))).is_ok()
}

/// Distant addresses: a root name server of each family.
const FAR_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4));
const FAR_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_is_reached_by_route_or_address() {
        let ips = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<_>>();
        let v4_only = Families { v4: true, v6: false };
        let quiet = ips(&["127.0.0.1", "::1", "fe80::1", "169.254.1.1", "fd00::1"]);
        let cases = [
            (quiet.clone(), false, false, Families { v4: false, v6: false }),
            (quiet.clone(), true, false, v4_only),
            (quiet, false, true, Families { v4: false, v6: true }),
            (ips(&["10.1.2.3"]), false, false, v4_only),
            (ips(&["10.1.2.3", "2001:db8::1"]), false, false, Families::BOTH),
        ];
        for (own, routed_v4, routed_v6, expected) in cases {
            let found = reached(Families::BOTH, &own, routed_v4, routed_v6);
            assert_eq!(found, expected, "{own:?} {routed_v4} {routed_v6}");
        }
        assert_eq!(reached(v4_only, &[], true, true), v4_only);
    }
}
