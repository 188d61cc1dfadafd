//! The destinations that passengers may reach through the cloud.
//!
//! By default these are all globally reachable addresses. The operator opens prefixes with `allow`
//! and closes prefixes with `deny`. **The most specific prefix that covers an address
//! decides; among equals `deny` beats `allow`, and `allow` beats the built-in table.** So
//! `allow = ["10.0.0.0/8"]` opens that network, an additional `deny = ["10.1.0.0/16"]` closes a
//! part of it, and `allow = ["0.0.0.0/0"]` opens no private range, because those are more specific.
//! Metadata services have entries of their own and need their own `allow`.
//!
//! An IPv4-mapped address is the IPv4 address. An address that carries an IPv4 address to a
//! translator or tunnel end (NAT64, 6to4, Teredo) must itself be permitted, and so must the inner
//! one. `deny_ports` are closed on every address, also on allowed ones, and so is port 0.
//!
//! The check runs on each address after name resolution, so a name that changes its addresses
//! gains nothing.

mod special;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv6Net};

/// The destination access list.
#[derive(Clone, Debug)]
pub struct AccessList {
    /// The rules, the most specific first; at equal length in the order of [`Verdict`].
    rules: Vec<Rule>,
    ports: BTreeSet<u16>,
}

/// Why an address is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// It is globally reachable, and no prefix of the operator covers it.
    Global,
    /// The operator's `allow` covers it.
    Allowed,
}

/// Why a destination is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is not permitted: {reason}")]
pub struct Denial {
    /// The requested address.
    pub address: SocketAddr,
    /// The rule that refused it.
    pub reason: DenialReason,
}

/// The rule that refused a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenialReason {
    /// The port is 0 or in `deny_ports`.
    Port,
    /// The address is in a prefix of the operator's `deny`.
    Denied(IpNet),
    /// The address is in a range of the built-in table that no `allow` opens.
    Special(IpNet, &'static str),
    /// The address is one of the cloud's own, and no `allow` names it.
    OwnAddress,
    /// The address carries another address, which is refused.
    Inner(IpAddr, Box<DenialReason>),
}

#[derive(Clone, Debug)]
struct Rule {
    net: IpNet,
    verdict: Verdict,
}

/// Ordered by precedence among prefixes of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Denied,
    Allowed,
    Open,
    Closed(&'static str),
}

impl AccessList {
    /// A list of the built-in table with the operator's prefixes and ports.
    ///
    /// Host bits of a prefix are ignored.
    pub fn new(allow: &[IpNet], deny: &[IpNet], deny_ports: &[u16]) -> Self {
        let mut rules = builtin();
        rules.extend(allow.iter().map(|net| Rule { net: plain(*net), verdict: Verdict::Allowed }));
        rules.extend(deny.iter().map(|net| Rule { net: plain(*net), verdict: Verdict::Denied }));
        rules.sort_by_key(|rule| (std::cmp::Reverse(rule.net.prefix_len()), rule.verdict));
        Self { rules, ports: deny_ports.iter().copied().collect() }
    }

    /// Checks one resolved destination.
    ///
    /// # Errors
    /// The destination is refused; the error says by which rule.
    pub fn check(&self, address: SocketAddr) -> Result<Permit, Denial> {
        let denial = |reason| Denial { address, reason };
        if address.port() == 0 || self.ports.contains(&address.port()) {
            return Err(denial(DenialReason::Port));
        }
        self.check_ip(address.ip()).map_err(denial)
    }

    /// Checks a destination that is this host itself.
    ///
    /// A server's own public address often reaches services that a firewall hides from other hosts,
    /// so it needs an explicit `allow`.
    ///
    /// # Errors
    /// As [`AccessList::check`], and when no `allow` names the address.
    pub fn check_own(&self, address: SocketAddr) -> Result<(), Denial> {
        match self.check(address)? {
            Permit::Allowed => Ok(()),
            Permit::Global => Err(Denial { address, reason: DenialReason::OwnAddress }),
        }
    }

    fn check_ip(&self, address: IpAddr) -> Result<Permit, DenialReason> {
        let address = address.to_canonical();
        let permit = self.decide(address)?;
        if let IpAddr::V6(outer) = address {
            for inner in carried(outer).into_iter().flatten() {
                self.decide(IpAddr::V4(inner))
                    .map_err(|reason| DenialReason::Inner(inner.into(), Box::new(reason)))?;
            }
        }
        Ok(permit)
    }

    fn decide(&self, address: IpAddr) -> Result<Permit, DenialReason> {
        // The built-in table covers both families, so a rule is always found.
        match self.rules.iter().find(|rule| rule.net.contains(&address)) {
            Some(Rule { verdict: Verdict::Open, .. }) => Ok(Permit::Global),
            Some(Rule { verdict: Verdict::Allowed, .. }) => Ok(Permit::Allowed),
            Some(Rule { net, verdict: Verdict::Closed(what) }) => {
                Err(DenialReason::Special(*net, what))
            }
            Some(Rule { net, verdict: Verdict::Denied }) => Err(DenialReason::Denied(*net)),
            None => Err(DenialReason::Special(IpNet::from(address), "in no known range")),
        }
    }
}

impl fmt::Display for DenialReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port => write!(f, "the port is in access.deny_ports, or 0"),
            Self::Denied(net) => write!(f, "{net} is in access.deny"),
            Self::Special(net, what) => {
                write!(f, "{net} is closed by default ({what}); access.allow can open it")
            }
            Self::OwnAddress => {
                write!(f, "it is an address of the cloud itself; access.allow can open it")
            }
            Self::Inner(inner, reason) => write!(f, "it carries {inner}, and {reason}"),
        }
    }
}

fn builtin() -> Vec<Rule> {
    let rule = |(net, status): &(&str, special::Status)| {
        let net = net.parse().expect("the built-in table parses; a test reads all of it");
        let verdict = match status {
            special::Status::Open => Verdict::Open,
            special::Status::Closed(what) => Verdict::Closed(what),
        };
        Rule { net, verdict }
    };
    special::V4.iter().chain(special::V6).map(rule).collect()
}

/// A prefix without host bits; one inside the IPv4-mapped range is the IPv4 prefix it stands for.
fn plain(net: IpNet) -> IpNet {
    let net = net.trunc();
    match (net, net.addr().to_canonical()) {
        (IpNet::V6(v6), IpAddr::V4(v4)) if v6.prefix_len() >= MAPPED_BITS => {
            IpNet::new(v4.into(), v6.prefix_len() - MAPPED_BITS).unwrap_or(net)
        }
        _ => net,
    }
}

/// The IPv4 addresses that an IPv6 address carries to a translator or tunnel end.
fn carried(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let octets = address.octets();
    let at = |i: usize| Ipv4Addr::new(octets[i], octets[i + 1], octets[i + 2], octets[i + 3]);
    if NAT64.contains(&address) || NAT64_LOCAL.contains(&address) {
        // RFC 6052 2.2. A local prefix shorter than /96 has the address elsewhere; it is closed by
        // default.
        [Some(at(12)), None]
    } else if SIX_TO_FOUR.contains(&address) {
        [Some(at(2)), None]
    } else if TEREDO.contains(&address) {
        // The server in clear, the client's address inverted.
        [Some(at(4)), Some(Ipv4Addr::from_bits(!at(12).to_bits()))]
    } else {
        [None, None]
    }
}

/// The length of `::ffff:0:0/96` (RFC 4291 2.5.5.2).
const MAPPED_BITS: u8 = 96;
/// RFC 6052 2.1.
const NAT64: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
/// RFC 8215.
const NAT64_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48);
/// RFC 3056 2.
const SIX_TO_FOUR: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16);
/// RFC 4380 4.
const TEREDO: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32);
