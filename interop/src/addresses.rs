//! The addresses of the lab, all from documentation, private or unique-local ranges.
//!
//! ```text
//! passenger --lan0-- gateway ==wan0..wanN== cloud --srv0-- server
//!                              (emulated)
//! ```
//!
//! The cloud's default access list refuses documentation prefixes, so the lab's `cloud.toml`
//! permits those of the server. The tests of refusals use other prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The passenger on the gateway's first LAN.
pub const PASSENGER: Pair = pair([10, 71, 0, 2], [0xfd71, 0, 0, 2]);
/// The gateway on that LAN, the passenger's default router.
pub const GATEWAY: Pair = pair([10, 71, 0, 1], [0xfd71, 0, 0, 1]);
/// The cloud's public addresses, reached through every carrier.
pub const CLOUD: Pair = pair([192, 0, 2, 1], [0x2001, 0xdb8, 1, 1]);
/// The cloud on the network of the server.
pub const CLOUD_INSIDE: Pair = pair([198, 51, 100, 1], [0x2001, 0xdb8, 0x51, 1]);
/// The web server, which the cloud's access list permits.
pub const SERVER: Pair = pair([198, 51, 100, 10], [0x2001, 0xdb8, 0x51, 0x10]);
/// The same server without Polyrail: listed in `bypass` and routed over the first carrier.
pub const SERVER_DIRECT: Pair = pair([198, 51, 100, 11], [0x2001, 0xdb8, 0x51, 0x11]);
/// An unused address in a permitted prefix: the cloud's dial finds no neighbour.
pub const NOBODY: Pair = pair([198, 51, 100, 99], [0x2001, 0xdb8, 0x51, 0x99]);
/// An address of the server that the cloud's access list refuses.
pub const FORBIDDEN: Pair = pair([198, 18, 0, 10], [0x2001, 2, 0, 0x10]);
/// The resolver in the passenger's settings. It does not exist; the forwarder answers for it.
pub const RESOLVER: Pair = pair([192, 0, 2, 53], [0x2001, 0xdb8, 1, 0x53]);

/// A resolver in a private range that the train does not have, as set on a device at home.
pub const RESOLVER_AT_HOME: Pair = pair([192, 168, 88, 1], [0xfd88, 0, 0, 1]);

/// The prefixes that the cloud's access list permits.
pub const OPENED: [&str; 2] = ["198.51.100.0/24", "2001:db8:51::/64"];
/// The prefixes that the gateway does not intercept.
pub const BYPASS: [&str; 2] = ["198.51.100.11/32", "2001:db8:51::11/128"];

/// The web server's name, known to the lab's resolver.
pub const SERVER_NAME: &str = "www.polyrail.test";
/// A name with only an IPv4 address.
pub const SERVER_NAME_V4: &str = "v4.polyrail.test";
/// A name with only an IPv6 address.
pub const SERVER_NAME_V6: &str = "v6.polyrail.test";

/// Where the cloud accepts gateways.
pub const CLOUD_PORT: u16 = 4433;
/// Where the web server listens.
pub const WEB_PORT: u16 = 80;
/// Where the gateway offers SOCKS5 on its LAN.
pub const SOCKS5_PORT: u16 = 1080;

/// Both addresses of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The IPv4 address.
    pub v4: Ipv4Addr,
    /// The IPv6 address.
    pub v6: Ipv6Addr,
}

impl Pair {
    /// The address of one family.
    pub fn of(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => IpAddr::V4(self.v4),
            Family::V6 => IpAddr::V6(self.v6),
        }
    }

    /// The address of one family with a port.
    pub fn at(self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.of(family), port)
    }

    /// The address as the host of a URL.
    pub fn host(self, family: Family) -> String {
        match family {
            Family::V4 => self.v4.to_string(),
            Family::V6 => format!("[{}]", self.v6),
        }
    }

    /// Both addresses with a port.
    pub fn both(self, port: u16) -> [SocketAddr; 2] {
        [self.at(Family::V4, port), self.at(Family::V6, port)]
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// `4` or `6`, as in the flags of many programs.
    pub fn digit(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }
}

/// The gateway's first host number on each carrier.
pub const GATEWAY_HOST: u8 = 2;

/// Another address of the passenger's device, as a user of its own: 3 to 254
/// ([`Lab::add_users`](crate::lab::Lab::add_users)).
pub fn user(number: u8) -> IpAddr {
    IpAddr::from([10, 71, 0, number])
}

/// The gateway's first addresses on carrier `index`.
pub fn carrier_gateway(index: u8) -> Pair {
    carrier_host(index, GATEWAY_HOST)
}

/// The address that each USB modem gives the gateway, and its own.
pub const MODEM_HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 8, 100);
/// The address of each USB modem on the gateway's side.
pub const MODEM_ROUTER: Ipv4Addr = Ipv4Addr::new(192, 168, 8, 1);

/// The addresses of a host number on carrier `index`.
pub fn carrier_host(index: u8, host: u8) -> Pair {
    pair([10, 80, index, host], [0xfd80, index as u16, 0, host as u16])
}

/// The cloud side's addresses on carrier `index`.
pub fn carrier_cloud(index: u8) -> Pair {
    pair([10, 80, index, 1], [0xfd80, index as u16, 0, 1])
}

/// The IPv6 address is given by its first three groups and its last one; the others are zero.
const fn pair(v4: [u8; 4], v6: [u16; 4]) -> Pair {
    Pair {
        v4: Ipv4Addr::new(v4[0], v4[1], v4[2], v4[3]),
        v6: Ipv6Addr::new(v6[0], v6[1], v6[2], 0, 0, 0, 0, v6[3]),
    }
}
