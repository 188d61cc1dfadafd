//! The built-in table of special address ranges, with the source of each.
//!
//! It follows the IANA special-purpose address registries (RFC 6890, updated by RFC 8190) and adds
//! the metadata services of cloud providers. The anycast addresses that the registries call global
//! but that mean "the nearest box" (PCP, TURN, DNS-SD) stay denied: the nearest box is ours.

/// The status of a range in the built-in table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// Reachable for everyone.
    Open,
    /// Closed unless the operator opens it; the text names the range.
    Closed(&'static str),
}

use Status::{Closed, Open};

/// IPv4: ranges that are not listed are open.
pub(super) const V4: &[(&str, Status)] = &[
    ("0.0.0.0/0", Open),
    ("0.0.0.0/8", Closed("this network")), // RFC 791 3.2, RFC 1122 3.2.1.3
    ("0.0.0.0/32", Closed("the unspecified address")), // RFC 1122 3.2.1.3
    ("10.0.0.0/8", Closed("private")),     // RFC 1918
    ("100.64.0.0/10", Closed("carrier-grade NAT")), // RFC 6598
    ("127.0.0.0/8", Closed("loopback")),   // RFC 1122 3.2.1.3
    ("169.254.0.0/16", Closed("link-local")), // RFC 3927
    ("172.16.0.0/12", Closed("private")),  // RFC 1918
    ("192.0.0.0/24", Closed("IETF protocol assignments")), // RFC 6890 2.1
    ("192.0.2.0/24", Closed("documentation")), // RFC 5737, TEST-NET-1
    ("192.88.99.0/24", Closed("6to4 relay anycast")), // RFC 7526
    ("192.168.0.0/16", Closed("private")), // RFC 1918
    ("198.18.0.0/15", Closed("benchmarking")), // RFC 2544, RFC 6815
    ("198.51.100.0/24", Closed("documentation")), // RFC 5737, TEST-NET-2
    ("203.0.113.0/24", Closed("documentation")), // RFC 5737, TEST-NET-3
    ("224.0.0.0/4", Closed("multicast")),  // RFC 5771
    ("240.0.0.0/4", Closed("reserved")),   // RFC 1112 4
    ("255.255.255.255/32", Closed("broadcast")), // RFC 919 7, RFC 8190 2.2
    // Metadata services return credentials. They have entries of their own, so that opening the
    // range around one does not open it.
    ("169.254.169.254/32", Closed("cloud metadata")), // AWS, Azure, Google, OpenStack
    ("169.254.170.2/32", Closed("cloud metadata")),   // AWS ECS task credentials
    ("169.254.170.23/32", Closed("cloud metadata")),  // AWS EKS pod identity
    ("100.100.100.200/32", Closed("cloud metadata")), // Alibaba Cloud
    ("192.0.0.192/32", Closed("cloud metadata")),     // Oracle Cloud (classic)
    ("168.63.129.16/32", Closed("cloud metadata")),   // Azure WireServer, a public address
];

/// IPv6: ranges that are not listed are closed.
pub(super) const V6: &[(&str, Status)] = &[
    ("::/0", Closed("not global unicast")),         // RFC 4291 2.4
    ("2000::/3", Open),                             // RFC 3587 2: global unicast
    ("::/128", Closed("the unspecified address")),  // RFC 4291 2.5.2
    ("::1/128", Closed("loopback")),                // RFC 4291 2.5.3
    ("::/96", Closed("IPv4-compatible")),           // RFC 4291 2.5.5.1, deprecated
    ("::ffff:0:0:0/96", Closed("IPv4-translated")), // RFC 2765 2.1, obsolete
    ("64:ff9b::/96", Open), // RFC 6052 2.1: NAT64; the inner address decides
    ("64:ff9b:1::/48", Closed("local NAT64")), // RFC 8215
    ("100::/64", Closed("discard-only")), // RFC 6666
    ("100:0:0:1::/64", Closed("dummy prefix")), // RFC 9780
    ("2001::/23", Closed("IETF protocol assignments")), // RFC 2928
    ("2001::/32", Open),    // RFC 4380: Teredo; the inner addresses decide
    ("2001:2::/48", Closed("benchmarking")), // RFC 5180
    ("2001:3::/32", Open),  // RFC 7450: AMT
    ("2001:4:112::/48", Open), // RFC 7535: AS112-v6
    ("2001:10::/28", Closed("ORCHID")), // RFC 4843, deprecated
    ("2001:20::/28", Closed("ORCHIDv2")), // RFC 7343: not routed
    ("2001:db8::/32", Closed("documentation")), // RFC 3849
    ("2002::/16", Open),    // RFC 3056: 6to4; the inner address decides
    ("3fff::/20", Closed("documentation")), // RFC 9637
    ("5f00::/16", Closed("segment routing")), // RFC 9602
    ("fc00::/7", Closed("unique local")), // RFC 4193
    ("fe80::/10", Closed("link-local")), // RFC 4291 2.5.6
    ("fec0::/10", Closed("site-local")), // RFC 3879
    ("ff00::/8", Closed("multicast")), // RFC 4291 2.7
    ("fd00:ec2::254/128", Closed("cloud metadata")), // AWS
    ("fd00:ec2::23/128", Closed("cloud metadata")), // AWS EKS pod identity
    ("fd20:ce::254/128", Closed("cloud metadata")), // Google
];
