//! The text of the rules: nftables and `ip` commands.

use std::fmt::{self, Write};
use std::net::IpAddr;

use ipnet::IpNet;
use polyrail_config::{OtherTraffic, PrivateTraffic, UdpTraffic};
use polyrail_model::Families;

use super::plan::{Hop, Hops, Plan};

/// A sequence of `ip` commands around one nftables transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub(super) routing: Vec<Step>,
    pub(super) ruleset: String,
    /// Routes are set before marks, and removed after them.
    pub(super) routing_first: bool,
}

/// One command line, and the errors that mean that its effect exists already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) line: String,
    pub(super) harmless: &'static [&'static str],
}

/// The commands that remove all our rules and routes.
pub fn removal() -> Script {
    let flush = |family: &str| {
        [
            format!("ip {family} rule flush protocol {PROTOCOL}"),
            format!("ip {family} route flush table all protocol {PROTOCOL}"),
        ]
    };
    let lines = flush("-4").into_iter().chain(flush("-6"));
    let harmless = &["not supported", "FIB table does not exist"];
    Script {
        routing: lines.map(|line| Step { line, harmless }).collect(),
        ruleset: format!("add table {TABLE}\ndelete table {TABLE}\n"),
        routing_first: false,
    }
}

/// The change of the families whose new connections are intercepted, as one transaction in one
/// line.
pub(super) fn families_change(set: &str, families: Families) -> String {
    let flush = format!("flush set {TABLE} {set}");
    match elements(families) {
        None => flush,
        Some(elements) => format!("{flush}; add element {TABLE} {set} {elements}"),
    }
}

impl Script {
    /// The commands that set a plan up. `families` are intercepted at first; if `owned`, the table
    /// belongs to the process that creates it.
    pub(super) fn new(plan: &Plan, hops: Option<&Hops>, families: Families, owned: bool) -> Self {
        Self {
            routing: routing(plan, hops),
            ruleset: Rules::new(plan, families, owned).text,
            routing_first: true,
        }
    }

    fn print_routing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.routing.iter().try_for_each(|step| writeln!(f, "{}", step.line))
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.routing_first {
            writeln!(f, "# An error that a rule exists already can be ignored.")?;
            self.print_routing(f)?;
        }
        write!(f, "nft -f - <<'END'\n{}END\n", self.ruleset)?;
        if !self.routing_first {
            self.print_routing(f)?;
        }
        Ok(())
    }
}

/// Marked packets are delivered locally instead of being forwarded; with `direct:`, packets with
/// the second mark leave through the carrier of `hops` or are rejected.
fn routing(plan: &Plan, hops: Option<&Hops>) -> Vec<Step> {
    let mut lines = Vec::new();
    let mut rule = |family: &str, order: u32, mark: u32, table: u32, routes: &[String]| {
        for route in routes {
            lines.push(format!("ip {family} route replace {route} protocol {PROTOCOL}"));
        }
        lines.push(format!(
            "ip {family} rule add pref {order} fwmark {mark:#x} lookup {table} protocol {PROTOCOL}"
        ));
    };
    for (family, wanted) in [("-4", plan.families.v4), ("-6", plan.families.v6)] {
        if wanted {
            let local = format!("local default dev lo table {}", plan.table);
            rule(family, RULE_ORDER, plan.mark, plan.table, &[local]);
        }
    }
    if plan.direct.is_some() {
        let table = plan.direct_table();
        let Families { v4, v6 } = plan.families;
        let hop4 = hops.and_then(|hops| Some((&hops.interface, hops.v4.as_ref()?)));
        let hop6 = hops.and_then(|hops| Some((&hops.interface, hops.v6.as_ref()?)));
        for (family, wanted, hop) in [("-4", v4, hop4), ("-6", v6, hop6)] {
            if !wanted {
                continue;
            }
            let best = match hop {
                Some((interface, Hop { router: Some(router) })) => {
                    format!("default via {router} dev {interface} table {table} metric 1 onlink")
                }
                Some((interface, Hop { router: None })) => {
                    format!("default dev {interface} table {table} metric 1")
                }
                // Replaces the route of an earlier carrier.
                None => format!("prohibit default table {table} metric 1"),
            };
            let routes = [format!("prohibit default table {table} metric {METRIC_LAST}"), best];
            rule(family, RULE_ORDER + 1, plan.direct_mark(), table, &routes);
        }
    }
    let harmless = &["File exists"];
    lines.into_iter().map(|line| Step { line, harmless }).collect()
}

/// Builds the nftables text.
struct Rules<'a> {
    plan: &'a Plan,
    text: String,
}

impl<'a> Rules<'a> {
    fn new(plan: &'a Plan, families: Families, owned: bool) -> Self {
        let mut rules = Self { plan, text: String::new() };
        rules.line(0, &format!("add table {TABLE}"));
        rules.line(0, &format!("delete table {TABLE}"));
        rules.line(0, &format!("table {TABLE} {{"));
        if owned {
            rules.line(1, "flags owner");
        }
        rules.sets(families);
        let interfaces = rules.interfaces();
        rules.chain("prerouting", |rules| {
            rules.line(2, "type filter hook prerouting priority mangle; policy accept;");
            rules.line(2, &format!("iifname {interfaces} jump passengers"));
        });
        rules.chain("passengers", Self::passengers);
        rules.chain("flows", |rules| {
            rules.line(2, "meta nfproto != @carried reject with tcp reset");
            rules.line(2, "goto session");
        });
        rules.chain("session", |rules| {
            rules.divert("tcp", rules.plan.port);
            rules.line(2, "reject with tcp reset");
        });
        if let Some(port) = plan.dns_port {
            rules.chain("dns", |rules| rules.datagrams(port));
        }
        if plan.carries_udp {
            rules.chain("datagrams", |rules| {
                // A browser then uses TCP.
                rules.line(2, "meta nfproto != @datagrams reject with icmpx type port-unreachable");
                rules.datagrams(rules.plan.port);
            });
        }
        let mut treatments = std::iter::once(&plan.udp).chain(plan.udp_ports.values());
        if treatments.any(|udp| *udp == UdpTraffic::Other(OtherTraffic::Reject)) {
            rules.chain("refused", |rules| {
                rules.line(2, "reject with icmpx type port-unreachable");
            });
        }
        if plan.direct.is_some() {
            rules.chain("direct", Self::direct);
        }
        rules.masquerade();
        rules.line(0, "}");
        rules
    }

    /// Diverts datagrams of neighbours.
    fn datagrams(&mut self, port: u16) {
        // Else a passenger would spend the quota of a host on another interface, or send answers to
        // outsiders.
        self.line(2, "fib saddr . iif oif missing drop");
        self.bound_senders();
        self.divert("udp", port);
        self.line(2, "reject with icmpx type port-unreachable");
    }

    fn sets(&mut self, families: Families) {
        self.set("carried", "typeof meta nfproto", elements(families));
        if self.plan.carries_udp {
            self.set("datagrams", "typeof meta nfproto", elements(families));
        }
        if self.plan.binds_senders() {
            let [bound4, senders4, bound6, senders6] = SETS;
            for (name, key) in [
                (bound4, "ifname . ipv4_addr"),
                (senders4, "ifname . ipv4_addr . ether_addr"),
                (bound6, "ifname . ipv6_addr"),
                (senders6, "ifname . ipv6_addr . ether_addr"),
            ] {
                self.set(name, &format!("type {key}"), None);
            }
        }
        for (name, kind, prefixes) in self.prefix_sets() {
            let list: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
            if !list.is_empty() {
                let kind = format!("type {kind}; flags interval; auto-merge");
                self.set(name, &kind, Some(format!("{{ {} }}", list.join(", "))));
            }
        }
    }

    /// Drops a query whose source address is bound to another link address.
    fn bound_senders(&mut self) {
        if !self.plan.binds_senders() {
            return;
        }
        let [bound4, senders4, bound6, senders6] = SETS;
        for (header, bound, senders) in [("ip", bound4, senders4), ("ip6", bound6, senders6)] {
            let key = format!("iifname . {header} saddr");
            self.line(2, &format!("{key} @{bound} {key} . ether saddr != @{senders} counter drop"));
        }
    }

    /// Name, type and contents of each set of prefixes.
    fn prefix_sets(&self) -> [(&'static str, &'static str, Vec<IpNet>); 6] {
        let of = |list: &[&str], v4: bool| -> Vec<IpNet> {
            let parsed = list.iter().filter_map(|prefix| prefix.parse::<IpNet>().ok());
            parsed.filter(|prefix| is_v4(prefix) == v4).collect()
        };
        let private: &[&str] =
            if self.plan.private == PrivateTraffic::Bypass { &PRIVATE } else { &[] };
        let bypass = |v4: bool| {
            let nets = self.plan.bypass.iter().map(IpNet::trunc);
            nets.filter(|prefix| is_v4(prefix) == v4).collect()
        };
        [
            ("here4", "ipv4_addr", of(&HERE, true)),
            ("here6", "ipv6_addr", of(&HERE, false)),
            ("bypass4", "ipv4_addr", bypass(true)),
            ("bypass6", "ipv6_addr", bypass(false)),
            ("private4", "ipv4_addr", of(private, true)),
            ("private6", "ipv6_addr", of(private, false)),
        ]
    }

    /// The rules for a passenger's packet. `return` leaves it untouched.
    fn passengers(&mut self) {
        let mark = self.plan.mark;
        self.line(
            2,
            &format!(
                "meta l4proto tcp socket transparent 1 socket wildcard 0 meta mark set {mark:#x} \
                 accept"
            ),
        );
        self.line(2, "fib daddr type { local, broadcast, anycast, multicast } return");
        self.untouched("here");
        let interfaces = self.interfaces();
        self.line(2, &format!("fib daddr oifname {interfaces} return"));
        self.untouched("bypass");
        if self.plan.dns_port.is_some() {
            self.line(2, "udp dport 53 goto dns");
            self.line(2, "tcp dport 53 goto session");
        }
        self.untouched("private");
        self.line(2, "meta l4proto tcp goto flows");
        let udp_ports = self.plan.udp_ports.iter();
        let udp_ports = udp_ports.map(|(ports, udp)| format!("{ports} : goto {}", chain_of(udp)));
        let udp_ports: Vec<String> = udp_ports.collect();
        if !udp_ports.is_empty() {
            self.line(2, &format!("udp dport vmap {{ {} }}", udp_ports.join(", ")));
        }
        self.line(2, &format!("meta l4proto udp goto {}", chain_of(&self.plan.udp)));
        self.line(
            2,
            match self.plan.other {
                OtherTraffic::Reject => "reject with icmpx type admin-prohibited",
                OtherTraffic::Direct(_) => "goto direct",
            },
        );
    }

    fn direct(&mut self) {
        let mark = self.plan.direct_mark();
        let Families { v4, v6 } = self.plan.families;
        for (family, wanted) in [("ipv4", v4), ("ipv6", v6)] {
            if wanted {
                self.line(2, &format!("meta nfproto {family} meta mark set {mark:#x} accept"));
            }
        }
        self.line(2, "reject with icmpx type admin-prohibited");
    }

    fn masquerade(&mut self) {
        if self.plan.direct.is_none() {
            return;
        }
        let mark = self.plan.direct_mark();
        self.chain("postrouting", |rules| {
            rules.line(2, "type nat hook postrouting priority srcnat; policy accept;");
            rules.line(2, &format!("meta mark {mark:#x} masquerade"));
        });
    }

    /// Diverts to the listener on loopback. Without a listener the rule does not match.
    fn divert(&mut self, protocol: &str, port: u16) {
        let Plan { families, mark, .. } = *self.plan;
        let targets = [
            (families.v4, "ipv4", format!("ip to 127.0.0.1:{port}")),
            (families.v6, "ipv6", format!("ip6 to [::1]:{port}")),
        ];
        for (_, family, target) in targets.into_iter().filter(|(wanted, ..)| *wanted) {
            self.line(
                2,
                &format!(
                    "meta nfproto {family} meta l4proto {protocol} tproxy {target} meta mark set \
                     {mark:#x} accept"
                ),
            );
        }
    }

    fn untouched(&mut self, set: &str) {
        let sets = self.prefix_sets();
        for (suffix, header) in [("4", "ip"), ("6", "ip6")] {
            let name = format!("{set}{suffix}");
            if sets.iter().any(|(other, _, prefixes)| *other == name && !prefixes.is_empty()) {
                self.line(2, &format!("{header} daddr @{name} return"));
            }
        }
    }

    fn interfaces(&self) -> String {
        let quoted: Vec<String> =
            self.plan.interfaces.iter().map(|name| format!("\"{name}\"")).collect();
        format!("{{ {} }}", quoted.join(", "))
    }

    fn set(&mut self, name: &str, kind: &str, elements: Option<String>) {
        self.line(1, &format!("set {name} {{"));
        kind.split("; ").for_each(|line| self.line(2, line));
        if let Some(elements) = elements {
            self.line(2, &format!("elements = {elements}"));
        }
        self.line(1, "}");
    }

    fn chain(&mut self, name: &str, body: impl FnOnce(&mut Self)) {
        self.line(1, &format!("chain {name} {{"));
        body(self);
        self.line(1, "}");
    }

    fn line(&mut self, depth: usize, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{}{text}", "\t".repeat(depth));
    }
}

fn elements(families: Families) -> Option<String> {
    let names: Vec<&str> = [(families.v4, "ipv4"), (families.v6, "ipv6")]
        .into_iter()
        .filter_map(|(wanted, name)| wanted.then_some(name))
        .collect();
    (!names.is_empty()).then(|| format!("{{ {} }}", names.join(", ")))
}

/// The chain of this treatment.
fn chain_of(udp: &UdpTraffic) -> &'static str {
    match udp {
        UdpTraffic::Carry => "datagrams",
        UdpTraffic::Other(OtherTraffic::Reject) => "refused",
        UdpTraffic::Other(OtherTraffic::Direct(_)) => "direct",
    }
}

fn is_v4(prefix: &IpNet) -> bool {
    matches!(prefix.addr(), IpAddr::V4(_))
}

/// Our table.
pub(super) const TABLE: &str = "inet polyrail";

/// The sets of bound source addresses and of those with their link address, by family.
pub(super) const SETS: [&str; 4] = ["bound4", "senders4", "bound6", "senders6"];

/// The protocol number (`rtm_protocol`) that marks our routes and routing rules.
pub(super) const PROTOCOL: u8 = 112;

/// The preference of our routing rules: after the kernel's local table, before the usual rules.
const RULE_ORDER: u32 = 100;

/// After the carrier's route. (`ip -6 route flush` ignores the last metric.)
const METRIC_LAST: u32 = 1_000_000;

/// Never intercepted and never rejected: loopback and link-local (RFC 6890).
const HERE: [&str; 4] = ["127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10"];

/// Private by RFC 1918, RFC 6598 (shared by carriers' NAT) and RFC 4193.
const PRIVATE: [&str; 5] =
    ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];
