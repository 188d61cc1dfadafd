//! DNS queries with forged source addresses, on a link that two devices share.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{Lab, Namespace, ask, may_skip};
use polyrail_config::UserKey;
use polyrail_gateway::diversion::Diversion;
use polyrail_gateway::transparent::TransparentUdp;
use polyrail_gateway::users::Users;
use polyrail_model::UserId;

const RULES: &str = "[dns]\nresolver = \"192.0.2.53:53\"\n\
                     [intercept]\ninterfaces = [\"lan9\"]\n";

type Queries = Arc<Mutex<Vec<(IpAddr, UserId)>>>;

/// A gateway whose DNS forwarder echoes every query and notes its source and user, with a victim
/// and an attacker on its link.
struct Shared {
    lab: Lab,
    _switch: Namespace,
    victim: Namespace,
    attacker: Namespace,
    queries: Queries,
    diversion: Diversion,
}

impl Shared {
    fn new(extra: &str) -> Self {
        let (lab, victim, attacker) = (Lab::new(), Namespace::new(), Namespace::new());
        let switch = lab.share_link(&[&victim, &attacker]);
        // The attacker forges the source of IP packets, not ARP.
        attacker.sh("echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce
             echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore");
        let queries = Queries::default();
        let noted = Arc::clone(&queries);
        let config = Lab::config(&format!("{RULES}{extra}"));
        let diversion = lab.gateway.run(move || {
            let interfaces = vec!["lan9".to_owned()];
            let users = Users::new(UserKey::LinkAddress, interfaces).expect("users");
            let users = Arc::new(Mutex::new(users));
            for mut socket in TransparentUdp::bind_loopback(7853, true, true).expect("bind") {
                let (noted, users) = (Arc::clone(&noted), Arc::clone(&users));
                thread::spawn(move || {
                    let mut buffer = [0; 1500];
                    loop {
                        let Ok(datagram) = socket.receive(&mut buffer) else {
                            thread::sleep(Duration::from_millis(1));
                            continue;
                        };
                        let source = datagram.client.ip();
                        let user = users.lock().expect("lock").user(Instant::now(), source);
                        noted.lock().expect("lock").push((source, user));
                        let bytes = &buffer[..datagram.length];
                        // Best effort: a forged address has no route.
                        let _ = socket.reply(datagram.server, datagram.client, bytes);
                    }
                });
            }
            Diversion::start(&config).expect("interception")
        });
        Self { lab, _switch: switch, victim, attacker, queries, diversion }
    }

    /// The users of the queries from an address so far.
    fn users_of(&self, source: &str) -> Vec<UserId> {
        let source: IpAddr = source.parse().expect("address");
        let queries = self.queries.lock().expect("lock");
        queries.iter().filter(|(from, _)| *from == source).map(|(_, user)| *user).collect()
    }

    fn wait_until_bound(&self, address: &str, since: Instant) {
        let command = "nft list set inet polyrail senders4; nft list set inet polyrail senders6";
        while !self.lab.gateway.sh(command).contains(&format!(" . {address} . ")) {
            assert!(since.elapsed() < Duration::from_secs(15), "{address} is not bound");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The attacker sends queries from each source address.
    fn forge(&self, sources: &[&str], count: usize) {
        for source in sources {
            let source: IpAddr = source.parse().expect("address");
            let length = if source.is_ipv4() { 32 } else { 128 };
            self.attacker.sh(&format!("ip addr replace {source}/{length} dev lo nodad"));
            let to: SocketAddr = if source.is_ipv4() { V4 } else { V6 }.parse().expect("address");
            self.attacker.run(move || {
                let socket = UdpSocket::bind((source, 4444)).expect("bind");
                for _ in 0..count {
                    socket.send_to(b"forged", to).expect("send");
                }
            });
        }
        thread::sleep(Duration::from_millis(300));
    }
}

const V4: &str = "9.9.9.9:53";
const V6: &str = "[2001:db8:80::80]:53";

#[test]
fn query_with_a_neighbours_address_is_dropped() {
    if may_skip() {
        return;
    }
    for exit in ["on_exit = \"open\"\n", "on_exit = \"closed\"\n"] {
        let shared = Shared::new(exit);
        for server in [V4, V6] {
            let begin = Instant::now();
            ask(&shared.victim, server, "q").expect("the first query of a device");
            ask(&shared.attacker, server, "q").expect("the attacker's own address");
            assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        }
        for address in ["10.12.0.2", "fd12::2"] {
            shared.wait_until_bound(address, Instant::now());
        }
        // A socket of the victim sees answers to forged queries.
        let seen = shared.victim.run(|| UdpSocket::bind("10.12.0.2:4444").expect("bind"));
        seen.set_nonblocking(true).expect("non-blocking");
        shared.forge(&["10.12.0.2", "fd12::2"], 200);
        assert!(seen.recv(&mut [0; 100]).is_err(), "the victim received an answer");
        for (address, server) in [("10.12.0.2", V4), ("fd12::2", V6)] {
            assert_eq!(shared.users_of(address).len(), 1, "{address}: a forged query counted");
            ask(&shared.victim, server, "q").expect("the victim's own query");
        }
        let (victim, attacker) = (shared.users_of("10.12.0.2"), shared.users_of("10.12.0.3"));
        assert_eq!(victim[0], victim[1]);
        assert_ne!(victim[0], attacker[0]);
        assert_eq!(*shared.users_of("fd12::2").last().expect("query"), victim[0]);
        let Shared { lab, diversion, .. } = shared;
        lab.gateway.run(move || drop(diversion));
    }
}

#[test]
fn forged_addresses_without_a_neighbour_share_one_quota_and_outsiders_get_no_answer() {
    if may_skip() {
        return;
    }
    let shared = Shared::new("");
    shared.forge(&["10.12.0.77", "10.12.0.78", "fd12::77"], 1);
    let strangers: Vec<_> = ["10.12.0.77", "10.12.0.78", "fd12::77"]
        .into_iter()
        .flat_map(|address| shared.users_of(address))
        .collect();
    assert_eq!(strangers, vec![strangers[0]; 3]);
    ask(&shared.victim, V4, "q").expect("a known neighbour");
    assert_ne!(shared.users_of("10.12.0.2"), [strangers[0]]);
    let outsiders = ["192.0.2.80", "198.18.0.5", "2001:db8:80::99", "10.9.0.2"];
    shared.forge(&outsiders, 5);
    for outsider in outsiders {
        assert!(shared.users_of(outsider).is_empty(), "{outsider} was answered");
    }
}

#[test]
fn devices_behind_a_router_and_devices_with_a_new_link_address_are_served() {
    if may_skip() {
        return;
    }
    let shared = Shared::new("");
    // Even if somebody on the link claims the address of a device behind the router.
    shared.lab.gateway.sh("ip route add 10.77.0.0/24 via 10.12.0.2
         ip neigh replace 10.77.0.5 lladdr 02:00:00:00:00:99 dev lan9 nud reachable");
    shared.victim.sh("ip addr add 10.77.0.5/32 dev lo");
    ask(&shared.victim, V4, "q").expect("the router itself");
    shared.wait_until_bound("10.12.0.2", Instant::now());
    let answer = shared.victim.run(|| {
        let socket = UdpSocket::bind("10.77.0.5:4444").expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(2))).expect("timeout");
        socket.send_to(b"q", V4).expect("send");
        socket.recv(&mut [0; 100])
    });
    assert_eq!(answer.expect("the device behind the router"), 1);

    // The address moves to a device with another link address.
    shared.victim.sh("ip link set eth0 down; ip link set eth0 address 02:00:00:00:00:77
         ip link set eth0 up; ip route replace default via 10.12.0.1");
    let moved = Instant::now();
    while ask(&shared.victim, V4, "q").is_err() {
        assert!(moved.elapsed() < Duration::from_secs(10), "the new device is locked out");
    }
}
