//! DNS answers from other servers' addresses, and users by link address, in network namespaces.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{Lab, Namespace, ask, may_skip};
use polyrail_config::UserKey;
use polyrail_gateway::intercept::{self, Plan};
use polyrail_gateway::transparent::{Diverted, TransparentUdp};
use polyrail_gateway::users::Users;

const RULES: &str = "[intercept]\ninterfaces = [\"lan0\", \"lan1\"]\n\
                     [dns]\nresolver = \"192.0.2.53:53\"\n";

/// Answers each datagram on this port with the address that was asked.
pub fn answer_queries(gateway: &Namespace, port: u16) {
    let (bound, waiting) = channel();
    gateway.run(move || {
        for mut socket in TransparentUdp::bind_loopback(port, true, true).expect("bind") {
            bound.send(()).expect("the test waits");
            thread::spawn(move || {
                let mut buffer = [0; 1500];
                loop {
                    match socket.receive(&mut buffer) {
                        Ok(datagram) => {
                            let Diverted { length, client, server, .. } = datagram;
                            assert!(socket.serves(client));
                            let told = format!(" asked of {server}");
                            let bytes = [&buffer[..length], told.as_bytes()].concat();
                            socket.reply(server, client, &bytes).expect("reply");
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            thread::sleep(Duration::from_millis(1));
                        }
                        Err(error) => panic!("receive: {error}"),
                    }
                }
            });
        }
    });
    assert_eq!(waiting.iter().count(), 2);
}

#[test]
fn burst_of_short_datagrams_waits_for_a_busy_gateway() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let waiting = lab.gateway.run(|| {
        let mut sockets = TransparentUdp::bind_loopback(7853, true, false).expect("bind");
        let passenger = UdpSocket::bind("127.0.0.1:0").expect("bind");
        for _ in 0..2_000 {
            passenger.send_to(b"x", "127.0.0.1:7853").expect("send");
        }
        std::iter::from_fn(|| sockets[0].receive(&mut [0; 16]).ok()).count()
    });
    assert_eq!(waiting, 2_000);
}

#[test]
fn answers_come_from_the_queried_server() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let plan = Plan::from_config(&Lab::config(RULES)).expect("plan");
    lab.gateway.run(move || intercept::apply(&plan)).expect("apply");
    answer_queries(&lab.gateway, 7853);
    // Public servers, with or without a route, and a private one outside.
    let servers =
        ["192.0.2.80:53", "9.9.9.9:53", "192.168.77.1:53", "[2001:db8:80::80]:53", "[fd77::1]:53"];
    for _ in 0..20 {
        for server in servers {
            // A connected socket receives from no other sender.
            let answer =
                ask(&lab.passenger, server, "q").unwrap_or_else(|e| panic!("{server}: {e}"));
            assert_eq!(answer.0.to_string(), server);
            assert_eq!(answer.1, format!("q asked of {server}").as_bytes());
        }
    }
    // A resolver on the gateway may query the forwarder.
    for server in ["127.0.0.1:7853", "[::1]:7853"] {
        let (_, answer) = ask(&lab.gateway, server, "q").expect(server);
        assert_eq!(answer, format!("q asked of {server}").as_bytes());
    }
    // A passenger may not, because the port is bound to loopback.
    let error = ask(&lab.passenger, "10.9.0.1:7853", "q").expect_err("not from outside");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn query_with_an_address_of_another_interface_is_dropped() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    let plan = Plan::from_config(&Lab::config(RULES)).expect("plan");
    lab.gateway.run(move || intercept::apply(&plan)).expect("apply");
    answer_queries(&lab.gateway, 7853);
    // The victim's socket is open before the query that names it.
    let (ready, opened) = channel();
    let (seen, answers) = channel();
    lab.neighbour.run(move || {
        let socket = UdpSocket::bind("10.10.0.2:4444").expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("timeout");
        ready.send(()).expect("the test waits");
        thread::spawn(move || seen.send(socket.recv(&mut [0; 1500]).ok()));
    });
    opened.recv().expect("the victim listens");
    lab.passenger.sh("ip addr add 10.10.0.2/32 dev lo");
    lab.passenger.run(|| {
        let socket = UdpSocket::bind("10.10.0.2:4444").expect("bind");
        socket.send_to(b"q", "9.9.9.9:53").expect("send");
    });
    let answer = answers.recv().expect("the victim ends");
    assert_eq!(answer, None, "the victim received an answer to another's query");
    ask(&lab.passenger, "9.9.9.9:53", "q").expect("its own address");
}

#[test]
fn addresses_of_one_device_are_one_user() {
    if may_skip() {
        return;
    }
    let lab = Lab::new();
    lab.passenger.sh("ip addr add 10.9.0.77/24 dev eth0; ip addr add fd09::aaaa/64 dev eth0 nodad
         ip addr add fd09::bbbb/64 dev eth0 nodad");
    // The gateway learns each address when it sends to it.
    let addresses = ["10.9.0.2", "10.9.0.77", "fd09::2", "fd09::aaaa", "fd09::bbbb"];
    let known = addresses.map(|text| text.parse::<IpAddr>().expect("address"));
    let neighbour: IpAddr = "10.10.0.2".parse().expect("address");
    for address in known.into_iter().chain([neighbour]) {
        let error = ask(&lab.gateway, &std::net::SocketAddr::new(address, 9).to_string(), "?");
        assert_eq!(error.expect_err("nobody there").kind(), ErrorKind::ConnectionRefused);
    }
    for interfaces in [vec!["lan0".to_owned(), "lan1".to_owned()], vec![]] {
        let names = lab.gateway.run(move || {
            let mut users = Users::new(UserKey::LinkAddress, interfaces).expect("users");
            let begin = Instant::now();
            let strange = "10.9.0.200".parse().expect("address");
            let asked = known.into_iter().chain([neighbour, strange]);
            let names: Vec<_> = asked.map(|ip| users.user(begin, ip)).collect();
            assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
            names
        });
        let (device, others) = names.split_at(known.len());
        assert!(device.iter().all(|name| *name == device[0]), "{device:?}");
        assert!(!others.contains(&device[0]) && others[0] != others[1]);
    }
}
