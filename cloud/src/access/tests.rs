//! Every range at both edges, what lies beside it, and the precedence of the operator's rules.

use super::*;

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|t| t.parse().unwrap()).collect()
}

fn list(allow: &[&str], deny: &[&str]) -> AccessList {
    AccessList::new(&nets(allow), &nets(deny), &[25])
}

fn permits(list: &AccessList, ip: &str) -> bool {
    list.check(SocketAddr::new(ip.parse().unwrap(), 443)).is_ok()
}

#[track_caller]
fn assert_table(list: &AccessList, open: &str, closed: &str) {
    for ip in open.split_whitespace() {
        assert!(permits(list, ip), "{ip} is refused");
    }
    for ip in closed.split_whitespace() {
        assert!(!permits(list, ip), "{ip} passes");
    }
}

#[test]
fn default_v4_ranges_hold_at_their_edges() {
    let open = "\
        1.0.0.0 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 \
        126.255.255.255 128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 \
        191.255.255.255 192.0.1.0 192.0.1.255 192.0.3.0 192.88.98.255 192.88.100.0 \
        192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 \
        203.0.112.255 203.0.114.0 223.255.255.255 168.63.129.15 168.63.129.17";
    let closed = "\
        0.0.0.0 0.0.0.1 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 \
        100.100.100.200 127.0.0.0 127.0.0.1 127.255.255.255 169.254.0.0 169.254.255.255 \
        169.254.169.254 169.254.170.2 172.16.0.0 172.31.255.255 192.0.0.0 192.0.0.192 \
        192.0.0.255 192.0.2.0 192.0.2.255 192.88.99.0 192.88.99.255 192.168.0.0 \
        192.168.255.255 198.18.0.0 198.19.255.255 198.51.100.0 198.51.100.255 \
        203.0.113.0 203.0.113.255 224.0.0.0 239.255.255.255 240.0.0.0 255.255.255.254 \
        255.255.255.255 168.63.129.16";
    assert_table(&list(&[], &[]), open, closed);
}

#[test]
fn default_v6_ranges_hold_at_their_edges() {
    let open = "\
        2000:: 2000::1 2001:3::1 2001:4:112::1 2001:200:: 2001:4860:4860::8888 \
        2001:db7:ffff:ffff:ffff:ffff:ffff:ffff 2001:db9:: 2003:: \
        3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff 3fff:1000:: \
        3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 2620:4f:8000::1";
    let closed = "\
        :: ::1 ::2 ::8.8.8.8 ::ffff:0:8.8.8.8 64:ff9b:1:: 64:ff9b:1::8.8.8.8 \
        64:ff9b:1:ffff:ffff:ffff:ffff:ffff 100:: 100::ffff:ffff:ffff:ffff 100:0:0:1::1 \
        1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 2001:1::1 2001:2:: 2001:2:0:ffff:: \
        2001:10:: 2001:1f:ffff:: 2001:20:: 2001:2f:ffff:: 2001:db8:: \
        2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff \
        3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff 4000:: 5f00:: 5f00:ffff:: fbff:: \
        fc00:: fd00:ec2::254 fd00:ec2::23 fd20:ce::254 \
        fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff fe00:: fe80:: fe80::1 febf:ffff:: fec0:: \
        feff:ffff:: ff00:: ff02::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    assert_table(&list(&[], &[]), open, closed);
}

#[test]
fn an_embedded_v4_address_is_checked_too() {
    // Teredo carries the server at bits 32 to 63 and the inverted client in the last 32.
    let open = "\
        ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1 2001:0:808:808:0:0:f7f7:f7f7";
    let closed = "\
        ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0.0.0.0 \
        64:ff9b::127.0.0.1 64:ff9b::192.168.1.1 64:ff9b::255.255.255.255 \
        64:ff9b::100.100.100.200 2002:7f00:1::1 2002:a00:1:: 2002:c0a8:101::1 \
        2002:a9fe:a9fe:: 2001:0:7f00:1:0:0:f7f7:f7f7 2001:0:808:808:0:0:80ff:fffe \
        2001:0:808:808::f5ff:fffe";
    assert_table(&list(&[], &[]), open, closed);
    let opened = list(&["64:ff9b:1::/48", "2002::/16", "10.0.0.0/8"], &[]);
    let open = "64:ff9b:1::8.8.8.8 64:ff9b:1::10.0.0.1 2002:a00:1:: ::ffff:10.0.0.1";
    assert_table(&opened, open, "64:ff9b:1::127.0.0.1 2002:7f00:1::");
}

#[test]
fn most_specific_prefix_decides_and_deny_wins_a_tie() {
    let l = list(
        &["10.0.0.0/8", "10.1.2.0/24", "192.168.0.0/16", "fd00::/8", "203.0.113.7/32"],
        &["10.1.0.0/16", "192.168.0.0/16", "8.8.0.0/16", "2a00::/16"],
    );
    let open = "10.0.0.1 10.2.0.1 10.1.2.3 fd12::1 203.0.113.7 8.9.0.1";
    let closed = "10.1.3.1 192.168.0.1 8.8.8.8 2a00::1 203.0.113.8 fc00::1";
    assert_table(&l, open, closed);
    // The order in which rules are written does not matter, and host bits are ignored.
    let tie = AccessList::new(&nets(&["10.9.9.9/8"]), &nets(&["10.7.7.7/8"]), &[]);
    assert!(!permits(&tie, "10.0.0.1"));
}

#[test]
fn wide_allow_opens_no_special_range() {
    let l = list(&["0.0.0.0/0", "::/0", "169.254.0.0/16", "100.64.0.0/10", "fd00::/8"], &[]);
    let open = "8.8.8.8 4000::1 169.254.1.1 100.64.0.1 fd00::1";
    let closed = "\
        10.0.0.1 127.0.0.1 ::1 fe80::1 224.0.0.1 169.254.169.254 100.100.100.200 \
        fd00:ec2::254 ::ffff:127.0.0.1";
    assert_table(&l, open, closed);
    assert!(permits(&list(&["169.254.169.254/32"], &[]), "169.254.169.254"));
}

#[test]
fn rules_for_mapped_prefixes_are_rules_for_ipv4() {
    let l = list(&["::ffff:10.0.0.0/104"], &["::ffff:8.8.8.0/120"]);
    assert_table(&l, "10.1.1.1 ::ffff:10.1.1.1 8.8.9.8", "8.8.8.8 ::ffff:8.8.8.8");
}

#[test]
fn denied_ports_stay_closed_everywhere() {
    let l = list(&["127.0.0.0/8"], &[]);
    let check = |text: &str| l.check(text.parse().unwrap()).map_err(|denial| denial.reason);
    assert_eq!(check("127.0.0.1:24"), Ok(Permit::Allowed));
    assert_eq!(check("8.8.8.8:26"), Ok(Permit::Global));
    for refused in ["127.0.0.1:25", "8.8.8.8:25", "[2003::1]:25", "8.8.8.8:0", "127.0.0.1:0"] {
        assert_eq!(check(refused), Err(DenialReason::Port), "{refused}");
    }
    assert_eq!(AccessList::new(&[], &[], &[]).check("8.8.8.8:25".parse().unwrap()).ok(), {
        Some(Permit::Global)
    });
}

#[test]
fn own_address_needs_an_allow_rule() {
    let own = "203.0.114.9:9090".parse().unwrap();
    let denial = list(&[], &[]).check_own(own).unwrap_err();
    assert_eq!(denial.reason, DenialReason::OwnAddress);
    assert_eq!(list(&["203.0.114.9/32"], &[]).check_own(own), Ok(()));
    assert!(list(&[], &["203.0.114.0/24"]).check_own(own).is_err());
}

#[test]
fn denial_names_its_rule() {
    let l = list(&[], &["8.8.8.0/24"]);
    let text = |ip: &str| l.check(ip.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(
        text("127.0.0.1:80"),
        "127.0.0.1:80 is not permitted: 127.0.0.0/8 is closed by default (loopback); access.allow \
         can open it"
    );
    assert_eq!(text("8.8.8.8:80"), "8.8.8.8:80 is not permitted: 8.8.8.0/24 is in access.deny");
    assert!(text("[64:ff9b::10.0.0.1]:80").contains("it carries 10.0.0.1, and 10.0.0.0/8"));
}

#[test]
fn built_in_table_is_well_formed() {
    for (text, _) in special::V4.iter().chain(special::V6) {
        let net: IpNet = text.parse().unwrap();
        assert_eq!(net, net.trunc(), "{text} has host bits");
    }
    assert!(special::V4.iter().all(|(text, _)| !text.contains(':')));
    assert!(special::V6.iter().all(|(text, _)| text.contains(':')));
}
