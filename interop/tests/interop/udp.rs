//! Passengers' datagrams through both daemons.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::addresses::{Family, GATEWAY, SERVER, SERVER_NAME, SERVER_NAME_V4};
use polyrail_interop::addresses::{SERVER_NAME_V6, SOCKS5_PORT};
use polyrail_interop::carrier::Link;
use polyrail_interop::client::{self, socks5_address};
use polyrail_interop::datagrams::{Association, Call, ECHO_PORT, announced_mtu};
use polyrail_interop::datagrams::{burst, connected, echoes, serve_echo};
use polyrail_interop::lab::Lab;
use polyrail_interop::world::Plan;

use crate::{alone, both_modes, in_both_modes, scenario};

const PATIENCE: Duration = Duration::from_secs(2);
const SHORT: Duration = Duration::from_millis(300);
/// Nothing listens at this port of the server.
const CLOSED_PORT: u16 = 7_008;
/// Addresses behind the server, in both families.
const BEYOND: [&str; 2] = ["198.51.100.200", "2001:db8:51::200"];

#[test]
fn datagrams_of_every_length_cross_in_both_families() -> Result<()> {
    in_both_modes(&Plan::twins(), Duration::from_secs(60), |world| {
        serve_echo(&world.lab.server)?;
        for family in Family::BOTH {
            let socket = connected(&world.lab.passenger, SERVER.at(family, ECHO_PORT))?;
            for length in [0, 1, 200, 1_200, 1_372, 1_452, 2_047, 2_048] {
                ensure!(echoes(&socket, length, PATIENCE)?, "{length} bytes, {family:?}: lost");
            }
            let mtu = announced_mtu(&socket, 2_049, PATIENCE)?;
            let headers = if family == Family::V4 { 28 } else { 48 };
            ensure!(mtu == 2_048 + headers, "MTU {mtu}, {family:?}");
            ensure!(echoes(&socket, 100, PATIENCE)?, "the next one, {family:?}");
            let came = burst(&socket, 20, 1_000, Duration::from_millis(500))?;
            ensure!(came == 20, "{came} of a burst of 20, {family:?}");
        }
        Ok(())
    })
}

/// Beyond the cloud nothing listens at a port, and a link permits 1,280 bytes.
#[test]
fn icmp_errors_from_beyond_the_cloud_reach_the_passenger() -> Result<()> {
    in_both_modes(&Plan::twins(), Duration::from_secs(60), |world| {
        let lab = &world.lab;
        serve_echo(&lab.server)?;
        narrow_link(lab)?;
        for (family, beyond) in Family::BOTH.into_iter().zip(BEYOND) {
            let socket = connected(&lab.passenger, SERVER.at(family, CLOSED_PORT))?;
            let error = echoes(&socket, 100, PATIENCE).expect_err("nothing listens");
            let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            ensure!(kind == Some(ErrorKind::ConnectionRefused), "{error:#}, {family:?}");

            let beyond = SocketAddr::new(beyond.parse()?, 7);
            let mtu = announced_mtu(&connected(&lab.passenger, beyond)?, 1_400, PATIENCE)?;
            ensure!(mtu == 1_280, "MTU {mtu}, {family:?}");
            let route = lab.passenger.tool("ip", &format!("route get {}", beyond.ip()))?;
            ensure!(route.contains("mtu 1280"), "the passenger's kernel: {route}");

            // An error about one destination costs no datagram to another.
            let echo = SERVER.at(family, ECHO_PORT);
            let any = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
            let socket = lab.passenger.run(|| UdpSocket::bind(any))??;
            socket.set_read_timeout(Some(PATIENCE))?;
            for to in [SERVER.at(family, CLOSED_PORT), echo] {
                socket.send_to(b"x", to)?;
                std::thread::sleep(SHORT);
            }
            ensure!(socket.recv_from(&mut [0; 9])? == (1, echo), "{family:?}: lost");
        }
        Ok(())
    })
}

/// A link behind the server that permits 1,280 bytes.
fn narrow_link(lab: &Lab) -> Result<()> {
    lab.server.sysctl("net.ipv4.ip_forward", "1")?;
    lab.server.sysctl("net.ipv6.conf.all.forwarding", "1")?;
    lab.server.tool("ip", "link add narrow type veth peer name far")?;
    lab.server.tool("ip", "link set narrow mtu 1280 up")?;
    for (family, beyond) in Family::BOTH.into_iter().zip(BEYOND) {
        lab.server.tool("ip", &format!("route add {beyond} dev narrow"))?;
        let router = SERVER.of(family);
        lab.cloud.tool("ip", &format!("route add {beyond} via {router}"))?;
    }
    Ok(())
}

#[test]
fn passenger_who_floods_closed_ports_takes_no_icmp_error_of_another() -> Result<()> {
    let plan = Plan::twins().gateway("users.key", "address");
    scenario(&plan, Duration::from_secs(60), |world| {
        let lab = &world.lab;
        narrow_link(lab)?;
        // The server's kernel limits no type of error.
        lab.server.sysctl("net.ipv4.icmp_ratemask", "0")?;
        lab.passenger.tool("ip", "addr add 10.71.0.100/24 dev wlan0")?;
        let closed = SERVER.at(Family::V4, CLOSED_PORT);
        let flooder = lab.passenger.run(|| UdpSocket::bind("10.71.0.100:0"))??;
        let flood = || (0..300).try_for_each(|_| flooder.send_to(b"x", closed).map(drop));
        let beyond = connected(&lab.passenger, SocketAddr::new(BEYOND[0].parse()?, 7))?;
        // The gateway is stopped while both send.
        world.gateway.signal(Signal::SIGSTOP)?;
        flood()?;
        let mtu = std::thread::scope(|scope| {
            let goes_on = scope.spawn(|| {
                std::thread::sleep(SHORT);
                world.gateway.signal(Signal::SIGCONT)
            });
            let mtu = announced_mtu(&beyond, 1_400, PATIENCE);
            goes_on.join().map_err(|_| anyhow!("a thread panicked"))??;
            mtu
        })?;
        ensure!(mtu == 1_280, "MTU {mtu}");
        flood()?;
        // Datagrams may be lost on a busy machine.
        let asked = connected(&lab.passenger, closed)?;
        let error = (0..5).find_map(|_| echoes(&asked, 100, PATIENCE).err());
        let error = error.context("no error came")?;
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        ensure!(kind == Some(ErrorKind::ConnectionRefused), "{error:#}");
        Ok(())
    })
}

#[test]
fn socks_clients_datagrams_cross_in_both_families() -> Result<()> {
    in_both_modes(&Plan::twins(), Duration::from_secs(60), |world| {
        serve_echo(&world.lab.server)?;
        for family in Family::BOTH {
            let proxy = GATEWAY.at(family, SOCKS5_PORT);
            let association = Association::open(&world.lab.passenger, proxy)?;
            for server in SERVER.both(ECHO_PORT) {
                let to = socks5_address(server);
                for length in [0, 1, 200, 1_200, 1_452, 2_048] {
                    let came = association.echoes(&to, length, PATIENCE)?;
                    ensure!(came, "{length} bytes to {server} through {proxy}: lost");
                }
                let too_long = association.echoes(&to, 2_049, Duration::from_millis(300))?;
                ensure!(!too_long, "too long, {server} through {proxy}");
            }
        }
        Ok(())
    })
}

#[test]
fn socks_client_sends_to_names_until_its_connection_ends() -> Result<()> {
    in_both_modes(&Plan::twins().proxy_alone(), Duration::from_secs(60), |world| {
        serve_echo(&world.lab.server)?;
        let association = Association::open(&world.lab.passenger, world.proxy())?;
        let port = ECHO_PORT.to_be_bytes();
        let named = |name: &str| [&[3, name.len() as u8], name.as_bytes(), &port].concat();
        for name in [SERVER_NAME, SERVER_NAME_V4, SERVER_NAME_V6] {
            for length in [0, 1_200] {
                let came = association.echoes(&named(name), length, PATIENCE)?;
                ensure!(came, "{length} bytes to {name}: lost");
            }
        }
        let missing = association.echoes(&named("no.polyrail.test"), 1, SHORT)?;
        ensure!(!missing, "an echo of nobody");

        // Neither another address nor another port of the client's host may use the relay.
        let relay = association.socket.peer_addr()?;
        for stranger in [&world.lab.gateway, &world.lab.passenger] {
            let to = socks5_address(SERVER.at(Family::V4, ECHO_PORT));
            connected(stranger, relay)?.send(&[&[0; 3], &to[..], b"stranger"].concat())?;
        }
        association.socket.set_read_timeout(Some(SHORT))?;
        ensure!(association.socket.recv(&mut [0; 64]).is_err(), "a stranger's datagram passed");
        let own = socks5_address(SERVER.at(Family::V4, ECHO_PORT));
        ensure!(association.echoes(&own, 100, PATIENCE)?, "the client's own afterwards");

        association.connection.shutdown(std::net::Shutdown::Both)?;
        std::thread::sleep(SHORT);
        ensure!(!association.echoes(&own, 100, SHORT)?, "the relay outlives its connection");
        Ok(())
    })
}

#[test]
fn socks_relay_is_refused_if_udp_is_not_carried() -> Result<()> {
    let plan = Plan::twins().gateway("intercept.udp", "reject");
    scenario(&plan, Duration::from_secs(30), |world| {
        let mut stream = client::connect(&world.lab.passenger, world.proxy())?;
        let (code, _) = client::request(&mut stream, 3, "0.0.0.0:0".parse()?)?;
        ensure!(code == 7, "SOCKS5 reply {code}");
        Ok(())
    })
}

/// The call has copies on the other carrier.
#[test]
fn call_survives_a_dark_carrier() -> Result<()> {
    let plan = Plan::new().carrier("near", Link::new(20.0, 30)).carrier("far", Link::new(20.0, 60));
    alone(|| {
        both_modes(&plan, Duration::from_secs(60), |world| {
            serve_echo(&world.lab.server)?;
            let socket = connected(&world.lab.passenger, SERVER.at(Family::V4, ECHO_PORT))?;
            let calling = std::thread::spawn(move || Call::make(&socket, Duration::from_secs(9)));
            std::thread::sleep(Duration::from_secs(3));
            world.carriers[0].dark_for(&world.lab, Duration::from_secs(3))?;
            let call = calling.join().map_err(|_| anyhow!("the call panicked"))??;
            let bad = call.bad(Duration::from_millis(150));
            let (all, repeated) = (call.round_trips.len(), call.repeated);
            println!("{bad} of {all} packets lost or late, {repeated} repeated");
            ensure!(repeated == 0, "{repeated} repeated");
            ensure!(bad <= 5, "{bad} lost or late: {:?}", call.round_trips);
            Ok(())
        })
    })
}

#[test]
fn rejected_ports_are_refused_at_once_and_others_are_carried() -> Result<()> {
    let plan = Plan::twins()
        .gateway("intercept.udp_ports.443", "reject")
        .gateway("intercept.udp_ports.27000-27100", "reject");
    in_both_modes(&plan, Duration::from_secs(60), |world| {
        serve_echo(&world.lab.server)?;
        for family in Family::BOTH {
            for port in [443, 27_050] {
                let socket = connected(&world.lab.passenger, SERVER.at(family, port))?;
                let begin = Instant::now();
                let error = echoes(&socket, 100, PATIENCE).expect_err("rejected");
                let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                ensure!(kind == Some(ErrorKind::ConnectionRefused), "{error:#}, {family:?}");
                ensure!(begin.elapsed() < PATIENCE / 2, "after {:?}", begin.elapsed());
            }
            let socket = connected(&world.lab.passenger, SERVER.at(family, ECHO_PORT))?;
            ensure!(echoes(&socket, 100, PATIENCE)?, "{family:?}: lost");
        }
        Ok(())
    })
}
