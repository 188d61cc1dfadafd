//! The interception rules in network namespaces: intercepted, rejected and untouched traffic.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{Lab, Namespace, PATIENCE, ask, may_skip, ping, reflect};
use crate::passengers::answer_queries;
use polyrail_gateway::diversion::Diversion;
use polyrail_gateway::intercept::{self, InterceptError, Interception, OnExit, Plan};
use polyrail_gateway::transparent;
use polyrail_model::Families;
use polyrail_session::wire::Offer;

const RULES: &str = "[intercept]\ninterfaces = [\"lan0\", \"lan1\"]\n\
                     bypass = [\"203.0.113.0/24\", \"2001:db8:bb::/48\"]\n";
/// Makes the test program run as the daemon that is killed.
const DAEMON: &str = "POLYRAIL_TEST_DAEMON";
/// The sets of bound source addresses change by themselves.
const BY_ADDRESS: &str = "[users]\nkey = \"address\"\n";
const SECOND: &str = "[[carrier]]\nname = \"second\"\ninterface = \"wan1\"\n";
const DNS: &str = "[dns]\nresolver = \"192.0.2.53:53\"\n";

fn plan(extra: &str) -> Plan {
    Plan::from_config(&Lab::config(&format!("{RULES}{extra}"))).expect("plan")
}

fn apply(gateway: &Namespace, plan: &Plan) -> Result<(), InterceptError> {
    let plan = plan.clone();
    gateway.run(move || intercept::apply(&plan))
}

/// Connects from a namespace, sends "hello", and returns the answer.
fn greet(from: &Namespace, to: &str) -> io::Result<String> {
    let to: SocketAddr = to.parse().expect("address");
    from.run(move || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"hello")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

/// Serves each connection on the port with the text, to which the client's address is added.
fn serve(inside: &Namespace, address: &str, text: &'static str) {
    let address: SocketAddr = address.parse().expect("address");
    inside.run(move || {
        let listener = TcpListener::bind(address).expect("bind");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let peer = stream.peer_addr().expect("peer").ip();
                answer(stream, &format!("{text} {peer}"));
            }
        });
    });
}

fn answer(mut stream: TcpStream, text: &str) {
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).expect("hello");
    stream.write_all(text.as_bytes()).expect("answer");
}

/// The gateway's part: answers every intercepted connection with its destination.
fn take_connections(gateway: &Namespace) {
    gateway.run(|| {
        for listener in transparent::listen(7801, true, true).expect("bind") {
            thread::spawn(move || {
                loop {
                    match listener.accept() {
                        Ok((stream, peer)) => {
                            let stream = TcpStream::from(stream);
                            stream.set_nonblocking(false).expect("blocking");
                            let original = stream.local_addr().expect("address");
                            let text = format!("taken {original} from {}", peer.ip());
                            thread::spawn(move || answer(stream, &text));
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            thread::sleep(Duration::from_millis(2));
                        }
                        Err(error) => panic!("accept: {error}"),
                    }
                }
            });
        }
    });
}

#[test]
fn removed_rules_leave_nothing_behind() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    lab.gateway.sh(
        "nft add table inet theirs; nft add set inet theirs polyrail '{ type ipv4_addr; }'
         ip rule add pref 99 fwmark 0x706f lookup 7801
         ip route add 192.0.2.0/24 dev wan0 table 7801",
    );
    let before = lab.gateway.rules();
    lab.gateway.run(|| intercept::remove().expect("nothing to remove"));
    assert_eq!(lab.gateway.rules(), before);

    for extra in [DNS, "other = \"direct:wan\"\n"] {
        let plan = plan(extra);
        apply(&lab.gateway, &plan).expect("apply");
        let applied = lab.gateway.rules();
        assert!(applied.contains("table inet polyrail"));
        apply(&lab.gateway, &plan).expect("again");
        assert_eq!(lab.gateway.rules(), applied, "applying again changes nothing");
        // The printed script and the applied rules are equal: a shell that runs it changes nothing.
        let text = lab.gateway.run(move || intercept::print(&plan)).expect("print");
        lab.gateway
            .sh(&text.replace("ip -4 rule", "! ip -4 rule").replace("ip -6 rule", "! ip -6 rule"));
        assert_eq!(lab.gateway.rules(), applied);
        lab.gateway.run(|| intercept::remove().expect("remove"));
        assert_eq!(lab.gateway.rules(), before);
    }
}

#[test]
fn connections_arrive_with_their_destination() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    apply(&lab.gateway, &plan(DNS)).expect("apply");
    let refused = greet(&lab.passenger, "192.0.2.80:80").expect_err("nobody listens");
    assert_eq!(
        refused.kind(),
        ErrorKind::ConnectionRefused,
        "without a daemon, connections are refused"
    );
    take_connections(&lab.gateway);
    for (to, from) in [
        ("192.0.2.80:80", "10.9.0.2"),
        ("233.252.0.1:1", ""),
        ("192.0.2.200:7801", "10.9.0.2"),
        ("[2001:db8:80::80]:443", "fd09::2"),
        ("[2001:db8:ffff::1]:8443", "fd09::2"),
        // TCP queries, even for a private resolver outside.
        ("192.168.77.1:53", "10.9.0.2"),
        ("[fd77::1]:53", "fd09::2"),
    ] {
        if from.is_empty() {
            assert!(greet(&lab.passenger, to).is_err(), "multicast is no destination");
            continue;
        }
        let text = greet(&lab.passenger, to).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!(text, format!("taken {to} from {from}"));
    }
    let text = greet(&lab.neighbour, "192.0.2.80:80").expect("the second interface");
    assert_eq!(text, "taken 192.0.2.80:80 from 10.10.0.2");
    // The listener's own port is unreachable from outside.
    for to in ["10.9.0.1:7801", "[fd09::1]:7801"] {
        let error = greet(&lab.passenger, to).expect_err("the gateway's own address");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn bridge_that_loses_connections_is_found() {
    const SETTING: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    // A kernel without br_netfilter cannot lose them.
    if may_skip() || !std::path::Path::new(SETTING).exists() {
        return;
    }
    let lab = Lab::new();
    lab.gateway.sh("ip addr flush dev lan0; ip link add lan9 type bridge; ip link set lan9 up
         ip link set lan0 master lan9; ip addr add 10.9.0.1/24 dev lan9
         ip addr add fd09::1/64 dev lan9 nodad");
    let config = Lab::config(&format!("[intercept]\ninterfaces = [\"lan9\"]\n{BY_ADDRESS}"));
    let plan = Plan::from_config(&config).expect("plan");
    let interception = lab.gateway.run(move || Interception::start(plan, OnExit::Open));
    let interception = std::sync::Arc::new(interception.expect("start"));
    take_connections(&lab.gateway);
    let losing = || {
        let interception = std::sync::Arc::clone(&interception);
        lab.gateway.run(move || interception.losing_bridges())
    };
    let set = |value: u8| {
        let other = SETTING.replace("-ip", "-ip6");
        let both = format!("echo {value} > {SETTING}; echo {value} > {other}");
        lab.gateway.sh(&both);
    };
    let (v4, v6) = ("192.0.2.80:80", "[2001:db8:80::80]:80");
    set(1);
    for (to, kind) in [(v4, ErrorKind::TimedOut), (v6, ErrorKind::ConnectionRefused)] {
        let error = greet(&lab.passenger, to).expect_err("the bridge loses it");
        assert_eq!(error.kind(), kind, "{to}: {error}");
    }
    let found = losing();
    assert!(found.len() == 2 && found[0].contains("-iptables=0"), "{found:?}");
    set(0);
    assert_eq!(losing(), Vec::<String>::new());
    for to in [v4, v6] {
        assert!(greet(&lab.passenger, to).expect(to).starts_with("taken"), "{to}");
    }
}

#[test]
fn local_and_bypassed_traffic_is_not_intercepted() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    lab.outside.sh(
        "ip route add 10.9.0.0/24 via 198.51.100.1; ip -6 route add fd09::/64 via 2001:db8:100::1",
    );
    apply(&lab.gateway, &plan(DNS)).expect("apply");
    take_connections(&lab.gateway);
    for address in ["0.0.0.0:8080", "[::]:8081"] {
        serve(&lab.outside, address, "outside");
        serve(&lab.gateway, address, "gateway");
        serve(&lab.neighbour, address, "neighbour");
    }
    for (to, by, from) in [
        ("203.0.113.9:8080", "outside", "10.9.0.2"),
        ("[2001:db8:bb::9]:8081", "outside", "fd09::2"),
        ("192.168.77.1:8080", "outside", "10.9.0.2"),
        ("[fd77::1]:8081", "outside", "fd09::2"),
        ("10.9.0.1:8080", "gateway", "10.9.0.2"),
        ("198.51.100.1:8080", "gateway", "10.9.0.2"),
        ("[fd09::1]:8081", "gateway", "fd09::2"),
        ("10.10.0.2:8080", "neighbour", "10.9.0.2"),
        ("[fd10::2]:8081", "neighbour", "fd09::2"),
    ] {
        let text = greet(&lab.passenger, to).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!(text, format!("{by} {from}"), "{to}");
    }
    for (server, to) in [
        (&lab.neighbour, "10.10.0.2"),
        (&lab.neighbour, "[fd10::2]"),
        (&lab.outside, "203.0.113.9"),
        (&lab.outside, "[2001:db8:bb::9]"),
    ] {
        for port in [53, 443, 9000] {
            let to = format!("{to}:{port}");
            reflect(server, &to);
            let (_, text) = ask(&lab.passenger, &to, "q").unwrap_or_else(|e| panic!("{to}: {e}"));
            assert!([&b"10.9.0.2"[..], b"fd09::2"].contains(&&text[..]), "{to}");
        }
    }
    for to in ["203.0.113.9", "10.9.0.1", "10.10.0.2"] {
        ping(&lab.passenger, to).unwrap_or_else(|error| panic!("{to}: {error}"));
    }
}

fn offer(v4: bool, v6: bool) -> Offer {
    Offer { families: Families { v4, v6 }, datagrams: true, ..Offer::default() }
}

#[test]
fn udp_and_the_rest_are_rejected_at_once() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    apply(&lab.gateway, &plan(&format!("udp = \"reject\"\n{DNS}"))).expect("apply");
    for (to, kinds) in [
        ("192.0.2.80:443", &[ErrorKind::ConnectionRefused][..]),
        ("[2001:db8:80::80]:443", &[ErrorKind::ConnectionRefused]),
        // There is no DNS forwarder in this test.
        ("192.0.2.80:53", &[ErrorKind::ConnectionRefused]),
        ("[2001:db8:80::80]:53", &[ErrorKind::ConnectionRefused]),
        ("192.0.2.80:9000", &[ErrorKind::ConnectionRefused]),
        ("[2001:db8:80::80]:9000", &[ErrorKind::ConnectionRefused]),
    ] {
        let begin = Instant::now();
        let error = ask(&lab.passenger, to, "q").expect_err(to);
        assert!(kinds.contains(&error.kind()), "{to}: {error}");
        assert!(begin.elapsed() < PATIENCE / 2, "{to} was rejected after {:?}", begin.elapsed());
    }
    let error = ping(&lab.passenger, "192.0.2.80").expect_err("ICMP is rejected");
    assert_eq!(error.kind(), ErrorKind::HostUnreachable);
}

#[test]
fn ports_of_udp_have_their_own_treatment() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let ports = "udp_ports = { 443 = \"reject\", 500 = \"direct:wan\", 9000-9100 = \"reject\" }\n";
    apply(&lab.gateway, &plan(ports)).expect("apply");
    answer_queries(&lab.gateway, 7801);
    for address in ["192.0.2.80", "[2001:db8:80::80]"] {
        reflect(&lab.outside, &format!("{address}:500"));
        for port in [443, 9000, 9050, 9100] {
            let (begin, to) = (Instant::now(), format!("{address}:{port}"));
            let error = ask(&lab.passenger, &to, "q").expect_err(&to);
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
            assert!(begin.elapsed() < PATIENCE / 2, "{to} after {:?}", begin.elapsed());
        }
        for port in [442, 444, 8999, 9101] {
            let to = format!("{address}:{port}");
            let (_, text) = ask(&lab.passenger, &to, "q").unwrap_or_else(|e| panic!("{to}: {e}"));
            assert_eq!(text, format!("q asked of {to}").as_bytes(), "carried");
        }
        let (_, text) = ask(&lab.passenger, &format!("{address}:500"), "q").expect("direct");
        assert!([&b"198.51.100.1"[..], b"2001:db8:100::1"].contains(&&text[..]), "{address}");
    }
}

#[test]
fn direct_traffic_leaves_through_its_carrier() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    reflect(&lab.outside, "192.0.2.80:9000");
    lab.gateway.sh("ip -6 route del default");
    let plan = plan("udp = \"direct:wan\"\nother = \"direct:wan\"\n");
    lab.gateway.sh("echo 0 > /proc/sys/net/ipv4/ip_forward");
    let error = apply(&lab.gateway, &plan).expect_err("forwarding is off");
    assert!(matches!(error, InterceptError::Forwarding("net.ipv4.ip_forward")), "{error}");
    lab.gateway.sh("echo 1 > /proc/sys/net/ipv4/ip_forward");
    apply(&lab.gateway, &plan).expect("apply");
    let (_, text) = ask(&lab.passenger, "192.0.2.80:9000", "q").expect("an answer from outside");
    assert_eq!(text, b"198.51.100.1", "the source is the gateway's");
    ping(&lab.passenger, "192.0.2.80").expect("an echo");
    let error = ask(&lab.passenger, "[2001:db8:80::80]:9000", "q").expect_err("no v6 route");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);

    // Without the carrier's route, no packet leaves by another route.
    lab.gateway.sh("ip route del default table 7802 metric 1");
    let error = ask(&lab.passenger, "192.0.2.80:9000", "q").expect_err("the carrier is gone");
    assert_eq!(error.kind(), ErrorKind::HostUnreachable);
    lab.gateway.sh("ip link set wan0 down");
    let error = apply(&lab.gateway, &plan).expect_err("no route");
    assert!(matches!(error, InterceptError::DirectRoute(_)), "{error}");
}

#[test]
fn families_are_switched_while_running() {
    if may_skip() {
        return;
    }
    for on_exit in [OnExit::Open, OnExit::Closed] {
        let lab = Lab::new();
        let before = lab.gateway.rules();
        take_connections(&lab.gateway);
        let plan = plan(DNS);
        let start = plan.clone();
        let mut interception =
            lab.gateway.run(move || Interception::start(start, on_exit)).expect("start");
        let to = ["192.0.2.80:80", "[2001:db8:80::80]:80"];
        let mut standing = to.map(|to| {
            let to: SocketAddr = to.parse().expect("address");
            lab.passenger.run(move || TcpStream::connect_timeout(&to, PATIENCE)).expect("connect")
        });
        for (v4, v6) in [(true, true), (true, false), (false, false), (false, true), (true, true)] {
            interception = lab.gateway.run(move || {
                interception.set_offer(offer(v4, v6)).expect("switch");
                interception
            });
            for stream in &mut standing {
                // A piece of "hello" in each state.
                stream.write_all(b"h").expect("an established connection continues");
            }
            for (reachable, to) in [v4, v6].into_iter().zip(to) {
                let outcome = greet(&lab.passenger, to).map_err(|error| error.kind());
                match reachable {
                    true => assert!(outcome.is_ok_and(|text| text.starts_with("taken")), "{to}"),
                    false => assert_eq!(outcome, Err(ErrorKind::ConnectionRefused), "{to}"),
                }
            }
        }
        for (mut stream, to) in standing.into_iter().zip(to) {
            let mut text = String::new();
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            stream.read_to_string(&mut text).expect("an answer");
            assert!(text.starts_with(&format!("taken {to}")), "{text}");
        }
        if on_exit == OnExit::Open {
            let error = apply(&lab.gateway, &plan).expect_err("a daemon holds the table");
            assert!(matches!(error, InterceptError::Held), "{error}");
            let error = lab.gateway.run(intercept::remove).expect_err("a daemon holds the table");
            assert!(matches!(error, InterceptError::Held), "{error}");
        }
        lab.gateway.run(move || drop(interception));
        if on_exit == OnExit::Closed {
            assert!(lab.gateway.rules().contains("table inet polyrail"), "the rules stay");
            // A later daemon replaces the rules of the earlier one.
            let next = lab.gateway.run(move || Interception::start(plan, OnExit::Open));
            lab.gateway.run(move || drop(next.expect("start over")));
        }
        assert_eq!(lab.gateway.rules(), before);
    }
}

/// As by the first release: UDP is refused at once, TCP is not affected.
#[test]
fn cloud_that_carries_no_datagrams_has_them_rejected() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    take_connections(&lab.gateway);
    answer_queries(&lab.gateway, 7801);
    let plan = plan("");
    let mut interception =
        lab.gateway.run(move || Interception::start(plan, OnExit::Open)).expect("start");
    for datagrams in [true, false, true] {
        interception = lab.gateway.run(move || {
            let offer = Offer { datagrams, ..offer(true, true) };
            interception.set_offer(offer).expect("switch");
            interception
        });
        for address in ["192.0.2.80", "[2001:db8:80::80]"] {
            let text = greet(&lab.passenger, &format!("{address}:80")).expect(address);
            assert!(text.starts_with("taken"), "{address}: {text}");
            let begin = Instant::now();
            let answer = ask(&lab.passenger, &format!("{address}:443"), "q");
            match datagrams {
                true => drop(answer.expect(address)),
                false => {
                    let kind = answer.map_err(|error| error.kind());
                    assert_eq!(kind.expect_err(address), ErrorKind::ConnectionRefused);
                    assert!(begin.elapsed() < PATIENCE / 2, "after {:?}", begin.elapsed());
                }
            }
        }
    }
}

#[test]
fn killed_daemon_leaves_no_rules() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = lab.gateway.run(|| {
        std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "interception::daemon_that_is_killed", "--ignored"])
            .env(DAEMON, "1")
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("spawn")
    });
    let table = || lab.gateway.sh("nft list tables").contains("inet polyrail");
    let wait = |wanted: bool| {
        let begin = Instant::now();
        while table() != wanted {
            assert!(begin.elapsed() < Duration::from_secs(10), "the table is there: {}", !wanted);
            thread::sleep(Duration::from_millis(10));
        }
    };
    wait(true);
    thread::sleep(Duration::from_millis(100));
    daemon.kill().expect("kill");
    daemon.wait().expect("wait");
    wait(false);
    // The next daemon starts over the routing that the killed one left; then all is gone.
    let plan = plan("");
    let next = lab.gateway.run(move || Interception::start(plan, OnExit::Open));
    lab.gateway.run(move || drop(next.expect("start over")));
    assert!(!lab.gateway.rules().contains("7801"));
}

#[test]
fn rules_are_restored_after_their_holder_dies() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let diversion = divert(&lab, &format!("{RULES}{BY_ADDRESS}"));
    let rules = lab.gateway.rules();
    let killed = signal_holder(&lab, "KILL");
    // Nobody asks for it.
    wait_for("the rules are back", || {
        ![String::new(), killed.clone()].contains(&holder(&lab)) && lab.gateway.rules() == rules
    });
    lab.gateway.run(move || drop(diversion));
    assert!(!lab.gateway.rules().contains("polyrail"));
}

#[test]
fn rules_are_restored_while_the_direct_carrier_is_down() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let diversion = divert(&lab, &format!("{RULES}other = \"direct:wan\"\n{BY_ADDRESS}"));
    let table = "nft list table inet polyrail";
    lab.gateway.sh("ip link set wan0 down");
    let before = lab.gateway.sh(table);
    let killed = signal_holder(&lab, "KILL");
    wait_for("the rules are back", || {
        let table = lab.gateway.sh(&format!("{table} || true"));
        ![String::new(), killed.clone()].contains(&holder(&lab)) && table == before
    });
    lab.gateway.sh("ip link set wan0 up; ip route add default via 198.51.100.2");
    let direct = "ip route show table 7802";
    assert!(!lab.gateway.sh(direct).contains("default via"), "lost with the interface");
    diversion.routes_changed();
    wait_for("the route is back", || lab.gateway.sh(direct).contains("default via"));
}

#[test]
fn direct_traffic_fails_over_and_returns() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let second = lab.second_outside();
    for outside in [&lab.outside, &second] {
        for address in ["192.0.2.80:9000", "[2001:db8:80::80]:9000"] {
            reflect(outside, address);
        }
    }
    let source = |to: &str| match ask(&lab.passenger, to, "q") {
        Ok((_, text)) => String::from_utf8(text).expect("an address"),
        Err(error) => error.kind().to_string(),
    };
    let leaves_by = |v4: &str, v6: &str| {
        wait_for(&format!("traffic leaves from {v4} and {v6}"), || {
            source("192.0.2.80:9000") == v4 && source("[2001:db8:80::80]:9000") == v6
        });
    };
    let (host, denied) = (ErrorKind::HostUnreachable, ErrorKind::PermissionDenied);
    let rejected = || leaves_by(&host.to_string(), &denied.to_string());
    let first = || leaves_by("198.51.100.1", "2001:db8:100::1");
    // The second carrier has no IPv6.
    let by_second = || leaves_by("198.51.101.1", &denied.to_string());
    let routes =
        "ip route add default via 198.51.100.2; ip -6 route add default via 2001:db8:100::2";

    // As at boot, no carrier has a route. The traffic of `direct:` does not follow other routes.
    lab.gateway.sh("ip route del default; ip -6 route del default
         ip link add spare type veth peer name end; ip link set end up; ip link set spare up
         ip route add default dev spare");
    let tables = format!("{RULES}udp = \"direct:wan\"\n{BY_ADDRESS}{SECOND}");
    let mut diversion = divert(&lab, &tables);
    rejected();
    assert!(lab.gateway.rules().contains("table inet polyrail"), "the rest is intercepted");
    lab.gateway.sh(&format!("ip route del default; {routes}"));
    first();
    lab.gateway.sh("ip route add default via 198.51.101.2 metric 9; ip link set wan0 down");
    diversion.routes_changed();
    by_second();
    // The addresses of IPv6 are lost with the interface.
    lab.gateway.sh(&format!(
        "ip link set wan0 up; ip addr add 2001:db8:100::1/64 dev wan0 nodad; {routes}"
    ));
    first();
    diversion.set_direct(vec!["wan1".to_owned(), "wan0".to_owned()]);
    by_second();
    diversion.set_direct(Vec::new());
    rejected();
    diversion.set_direct(vec!["wan0".to_owned()]);
    first();
    lab.gateway.run(move || drop(diversion));
    assert!(!lab.gateway.rules().contains("proto 112"));
}

#[test]
fn changes_of_the_rules_do_not_block_the_caller() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let diversion = divert(&lab, RULES);
    signal_holder(&lab, "STOP");
    let begin = Instant::now();
    diversion.set_offer(offer(false, true));
    diversion.set_offer(offer(true, false));
    // The change itself times out after seconds.
    assert!(begin.elapsed() < Duration::from_secs(1), "the caller is blocked");
    thread::sleep(Duration::from_secs(4));
    signal_holder(&lab, "CONT");
    wait_for("the change is applied", || {
        let carried = lab.gateway.sh("nft list set inet polyrail carried");
        carried.contains("ipv4") && !carried.contains("ipv6")
    });
}

/// Interception as the daemon runs it.
fn divert(lab: &Lab, tables: &str) -> Diversion {
    let config = Lab::config(tables);
    lab.gateway.run(move || Diversion::start(&config)).expect("start")
}

/// The process number of the `nft` that holds the table; empty when there is none.
fn holder(lab: &Lab) -> String {
    let script = "here=$(readlink /proc/self/ns/net)
         for p in $(pgrep -fx 'nft -i'); do
             if [ \"$(readlink /proc/$p/ns/net)\" = \"$here\" ]; then echo $p; fi
         done";
    lab.gateway.sh(script).trim().to_owned()
}

/// Signals the holder and returns its process number.
fn signal_holder(lab: &Lab, signal: &str) -> String {
    let holder = holder(lab);
    lab.gateway.sh(&format!("kill -{signal} {holder}"));
    holder
}

fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !reached() {
        assert!(begin.elapsed() < Duration::from_secs(15), "not reached: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "the process that `killed_daemon_leaves_no_rules` kills"]
fn daemon_that_is_killed() {
    // Outside a namespace it would change the machine's own rules.
    if std::env::var_os(DAEMON).is_none() {
        return;
    }
    let _interception = Interception::start(plan(""), OnExit::Open).expect("start");
    thread::sleep(Duration::from_secs(60));
}
