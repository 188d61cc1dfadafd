//! The text of the rules, by configuration.

use std::path::Path;

use polyrail_config::GatewayConfig;

use super::bindings::{Bound, Change, change};
use super::plan::{Hop, Hops};
use super::ruleset::families_change;
use super::system::parse_hop;
use super::*;

const BASE: &str = r#"
[tls]
certificate = "c.pem"
key = "k.pem"
authority = "a.pem"
[cloud]
name = "cloud"
addresses = ["192.0.2.1:4433"]
[[carrier]]
name = "a"
interface = "wwan0"
[[carrier]]
name = "b"
interface = "b\";flush"
[[carrier]]
name = "c"
source = "198.51.100.2"
"#;
const DNS: &str = "[dns]\nresolver = \"192.0.2.53:53\"\n";
const BY_ADDRESS: &str = "[dns]\nresolver = \"192.0.2.53:53\"\n[users]\nkey = \"address\"\n";
const PORTS: &str = "udp_ports = { 500-501 = \"direct:a\", 443 = \"reject\", 7 = \"carry\" }\n";

fn plan_of(tables: &str) -> Result<Plan, InterceptError> {
    let text = format!("{BASE}{tables}");
    Plan::from_config(&GatewayConfig::parse(&text, Path::new("gateway.toml")).unwrap())
}

fn rules(plan: &Plan, hops: Option<&Hops>) -> String {
    Script::new(plan, hops, plan.families, false).to_string()
}

#[test]
fn usual_rules_match_the_golden_file() {
    let plan = plan_of(&format!(
        "[intercept]\ninterfaces = [\"lan0\", \"lan1\"]\n\
         bypass = [\"203.0.113.0/24\", \"2001:db8:5::/48\"]\n{DNS}"
    ));
    assert_eq!(rules(&plan.unwrap(), None), include_str!("golden/usual.txt"));
}

#[test]
fn direct_rules_match_the_golden_file() {
    let plan = plan_of(
        "[intercept]\ninterfaces = [\"lan0\"]\nipv6 = false\nprivate = \"carry\"\n\
         port = 17\nmark = 0xffffffff\ntable = 252\nudp = \"direct:a\"\n\
         other = \"direct:a\"",
    );
    let router = Some("198.51.100.1".parse().unwrap());
    let interface = "wwan0".to_owned();
    let hops = Hops { interface, v4: Some(Hop { router }), v6: Some(Hop { router: None }) };
    assert_eq!(rules(&plan.unwrap(), Some(&hops)), include_str!("golden/direct.txt"));
}

#[test]
fn removal_names_only_our_own_rules() {
    assert_eq!(removal().to_string(), include_str!("golden/removal.txt"));
}

#[test]
fn configurations_change_the_rules() {
    let with = |tables: &str| {
        let plan = plan_of(&format!("[intercept]\ninterfaces = [\"lan0\"]\n{tables}")).unwrap();
        rules(&plan, None)
    };
    let ports = "\t\tip6 daddr @private6 return\n\t\tmeta l4proto tcp goto flows\n\
                 \t\tudp dport vmap { 7 : goto datagrams, 443 : goto refused, \
                 500-501 : goto direct }\n\t\tmeta l4proto udp goto datagrams\n";
    for (tables, line, present) in [
        ("", "elements = { ipv4, ipv6 }", true),
        ("ipv4 = false", "elements = { ipv6 }", true),
        ("ipv4 = false", "tproxy ip to", false),
        ("ipv4 = false", "ip -4 ", false),
        ("ipv6 = false", "tproxy ip6 to", false),
        ("ipv6 = false", "ip -6 ", false),
        ("", "dport 53", false),
        (DNS, "udp dport 53 goto dns", true),
        (DNS, "tproxy ip6 to [::1]:7853", true),
        ("", "@senders4", true),
        ("udp = \"reject\"", "@senders4", false),
        ("", "meta l4proto udp goto datagrams", true),
        ("udp = \"reject\"", "datagrams", false),
        ("udp = \"reject\"", "meta l4proto udp goto refused", true),
        ("udp = \"reject\"", "chain refused", true),
        ("", "chain refused", false),
        ("", "vmap", false),
        (PORTS, ports, true),
        (PORTS, "chain refused", true),
        (PORTS, "chain direct", true),
        (PORTS, "masquerade", true),
        (PORTS, "meta l4proto udp goto datagrams", true),
        ("udp = \"reject\"\nudp_ports = { 9 = \"carry\" }", "chain datagrams", true),
        ("udp = \"reject\"\nudp_ports = { 9 = \"carry\" }", "set datagrams", true),
        ("udp = \"reject\"\nudp_ports = { 9 = \"carry\" }", "@senders4", true),
        ("udp = \"direct:a\"", "meta l4proto udp goto direct", true),
        ("udp = \"direct:a\"", "masquerade", true),
        (DNS, "ether saddr != @senders6 counter drop", true),
        (BY_ADDRESS, "udp dport 53 goto dns", true),
        (BY_ADDRESS, "senders", false),
        ("", "@private4", true),
        ("private = \"carry\"", "@private", false),
        ("private = \"carry\"", "@here4", true),
        ("", "@bypass", false),
        ("bypass = [\"192.0.2.0/24\"]", "@bypass6", false),
        ("", "masquerade", false),
        ("", "flags owner", false),
    ] {
        assert_eq!(with(tables).contains(line), present, "{tables:?} and {line:?}");
    }
    let plan = plan_of("[intercept]\ninterfaces = [\"lan0\"]\n").unwrap();
    let owned = Script::new(&plan, None, Families { v4: true, v6: false }, true);
    assert!(owned.ruleset.contains("\tflags owner\n"));
    assert!(owned.ruleset.contains("elements = { ipv4 }"));
}

#[test]
fn invalid_configurations_are_rejected() {
    let none = plan_of("[socks5]\nlisten = [\"[::1]:1080\"]");
    assert!(matches!(none, Err(InterceptError::NotConfigured)));
    for name in ["lan\\\"", "lan*", "-6", "a;b", "{x}"] {
        let plan = plan_of(&format!("[intercept]\ninterfaces = [\"{name}\"]"));
        assert!(matches!(plan, Err(InterceptError::Interface(_))), "{name} passed");
    }
    let plan = plan_of("[intercept]\ninterfaces = [\"lan0\"]\nother = \"direct:b\"");
    assert!(matches!(plan, Err(InterceptError::Interface(_))));
}

#[test]
fn direct_traffic_without_a_route_is_rejected() {
    let plan = plan_of("[intercept]\ninterfaces = [\"lan0\"]\nother = \"direct:a\"").unwrap();
    let text = rules(&plan, None);
    for family in ["-4", "-6"] {
        let best = format!("ip {family} route replace prohibit default table 7802 metric 1 proto");
        assert!(text.contains(&best), "{text}");
        assert!(text.contains(&format!("ip {family} rule add pref 101 fwmark 0x7070")), "{text}");
    }
    let router = Some("198.51.100.1".parse().unwrap());
    let hops = Hops { interface: "wwan1".to_owned(), v4: Some(Hop { router }), v6: None };
    let text = rules(&plan, Some(&hops));
    assert!(text.contains("default via 198.51.100.1 dev wwan1 table 7802 metric 1 onlink"));
    assert!(text.contains("ip -6 route replace prohibit default table 7802 metric 1 proto"));
}

#[test]
fn direct_traffic_prefers_the_named_carrier_and_avoids_unusable_ones() {
    let carrier = |name: &str, more: &str| {
        format!("[[carrier]]\nname = \"{name}\"\ninterface = \"if-{name}\"\n{more}\n")
    };
    let text = [
        carrier("d", "role = \"backup\""),
        carrier("e", ""),
        carrier("f", "role = \"never\""),
        carrier("g", "enabled = false"),
        carrier("h", "role = \"secondary\""),
        "[intercept]\ninterfaces = [\"lan0\"]\nother = \"direct:h\"".to_owned(),
    ];
    let plan = plan_of(&text.concat()).unwrap();
    // The interface of "b" is unsafe in a rule, and "c" has none.
    assert_eq!(plan.direct.unwrap(), ["if-h", "wwan0", "if-e", "if-d"]);
}

#[test]
fn families_change_in_one_transaction() {
    let change = |v4, v6| families_change("carried", Families { v4, v6 });
    assert_eq!(change(false, false), "flush set inet polyrail carried");
    assert_eq!(
        change(true, false),
        "flush set inet polyrail carried; add element inet polyrail carried { ipv4 }"
    );
}

fn bound(senders: &[(&str, u8)]) -> Bound {
    let each = senders.iter().map(|(address, last)| {
        (("lan0".to_owned(), address.parse().unwrap()), [2, 0, 0, 0, 0, *last])
    });
    each.collect()
}

#[test]
fn sets_follow_the_neighbour_tables() {
    let wanted = bound(&[("10.9.0.2", 1), ("fd09::2", 1)]);
    assert_eq!(change(None, &Bound::new()), None);
    let Change { line, proof, after } = change(None, &wanted).unwrap();
    assert_eq!(
        line,
        "flush set inet polyrail bound4; flush set inet polyrail senders4; \
         flush set inet polyrail bound6; flush set inet polyrail senders6; \
         add element inet polyrail bound4 { \"lan0\" . 10.9.0.2 }; \
         add element inet polyrail senders4 { \"lan0\" . 10.9.0.2 . 02:00:00:00:00:01 }; \
         add element inet polyrail bound6 { \"lan0\" . fd09::2 }; \
         add element inet polyrail senders6 { \"lan0\" . fd09::2 . 02:00:00:00:00:01 }"
    );
    assert_eq!(proof, ("senders6 { \"lan0\" . fd09::2 . 02:00:00:00:00:01 }".to_owned(), true));
    assert_eq!(after, wanted);
    assert_eq!(change(Some(&wanted), &wanted), None);

    // Another device has the address, and the other address has expired.
    let next = bound(&[("10.9.0.2", 3)]);
    let Change { line, proof, after } = change(Some(&wanted), &next).unwrap();
    assert_eq!(
        line,
        "delete element inet polyrail bound4 { \"lan0\" . 10.9.0.2 }; \
         delete element inet polyrail senders4 { \"lan0\" . 10.9.0.2 . 02:00:00:00:00:01 }; \
         delete element inet polyrail bound6 { \"lan0\" . fd09::2 }; \
         delete element inet polyrail senders6 { \"lan0\" . fd09::2 . 02:00:00:00:00:01 }; \
         add element inet polyrail bound4 { \"lan0\" . 10.9.0.2 }; \
         add element inet polyrail senders4 { \"lan0\" . 10.9.0.2 . 02:00:00:00:00:03 }"
    );
    assert_eq!(proof, ("senders4 { \"lan0\" . 10.9.0.2 . 02:00:00:00:00:03 }".to_owned(), true));
    assert_eq!(after, next);
}

#[test]
fn change_of_the_sets_fits_in_a_pipe() {
    let many = |first: u32, link| -> Bound {
        let place = |n: u32| {
            let address = std::net::Ipv6Addr::from(u128::MAX - u128::from(n));
            ("lan0-567890123".to_owned(), address.into())
        };
        (first..first + 1000).map(|n| (place(n), [2, 0, 0, 0, 0, link])).collect()
    };
    let (mut applied, mut rounds) = (many(0, 1), 0);
    for wanted in [many(0, 2), many(5000, 1), Bound::new()] {
        while let Some(next) = change(Some(&applied), &wanted) {
            assert!(next.line.len() < 65_536, "{} bytes", next.line.len());
            (applied, rounds) = (next.after, rounds + 1);
        }
        assert_eq!(applied, wanted);
    }
    assert!(rounds < 30, "{rounds}");
}

#[test]
fn default_routes_are_parsed() {
    let hop = |text: &str| parse_hop(text).map(|hop| hop.router.map(|ip| ip.to_string()));
    assert_eq!(hop(""), None);
    assert_eq!(hop("default via 198.51.100.1 proto dhcp metric 100 \n"), {
        Some(Some("198.51.100.1".to_owned()))
    });
    assert_eq!(hop("default scope link \n"), Some(None));
    assert_eq!(hop("default via fe80::1 table 7 metric 1024 pref medium"), {
        Some(Some("fe80::1".to_owned()))
    });
    assert_eq!(hop("default via inet6 fe80::1 proto ra"), Some(Some("fe80::1".to_owned())));
    let both = "default via 10.0.0.9 table 7802 proto 112 metric 1 onlink \n\
                default via 10.0.0.1 proto static";
    assert_eq!(hop(both), Some(Some("10.0.0.1".to_owned())));
    assert_eq!(hop("default via 10.0.0.9 metric 100 linkdown \n"), None);
    assert_eq!(hop("unreachable default table 7802 proto 112 metric 4294967295"), None);
}
