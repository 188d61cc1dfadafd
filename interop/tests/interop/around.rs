//! What interception does with traffic that is not a TCP flow for the session.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::namespace::Namespace;
use polyrail_interop::addresses::{
    BYPASSED, Family, ONBOARD, PASSENGER, RESOLVER, RESOLVER_AT_HOME, SERVER, SERVER_DIRECT,
    SERVER_NAME, SERVER_NAME_V6,
};
use polyrail_interop::world::Plan;
use polyrail_interop::{client, dns, services};

use crate::scenario;

const BOUND: Duration = Duration::from_secs(15);
const PORT: u16 = 7000;

#[test]
fn udp_is_rejected_at_once_so_that_browsers_use_tcp() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        for family in Family::BOTH {
            let (took, error) = refused_datagram(&world.lab.passenger, SERVER.at(family, 443))?;
            println!("UDP 443: {error} after {took:?}");
            ensure!(took < Duration::from_millis(500), "rejected only after {took:?}");
            refused_datagram(&world.lab.passenger, SERVER.at(family, 12345))?;
        }
        Ok(())
    })
}

/// Sends a datagram and waits for the error that an ICMP answer causes.
fn refused_datagram(passenger: &Namespace, to: SocketAddr) -> Result<(Duration, std::io::Error)> {
    let socket = udp_socket(passenger, to)?;
    let started = Instant::now();
    socket.send(b"hello")?;
    let error = socket.recv(&mut [0; 100]).err().context("an answer came")?;
    let timed_out =
        matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
    ensure!(!timed_out, "no rejection of UDP to {to} came");
    Ok((started.elapsed(), error))
}

fn udp_socket(namespace: &Namespace, to: SocketAddr) -> Result<UdpSocket> {
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0".parse()? } else { "[::]:0".parse()? };
    let socket = namespace.run(|| UdpSocket::bind(any))??;
    socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    socket.connect(to)?;
    Ok(socket)
}

#[test]
fn dns_is_answered_over_udp_and_tcp_whatever_resolver_the_client_names() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let passenger = &world.lab.passenger;
        // A public resolver that does not exist, and one that a device brings from home.
        for resolver in [RESOLVER, RESOLVER_AT_HOME] {
            for family in Family::BOTH {
                let to = resolver.at(family, 53);
                let over_udp = passenger.run(|| dns::ask_udp(to, SERVER_NAME, family))?;
                let over_udp = over_udp.with_context(|| format!("UDP, {to}"))?;
                ensure!(over_udp == [SERVER.of(family)], "{over_udp:?} from {to}");
                let names = [SERVER_NAME, SERVER_NAME_V6];
                let over_tcp = passenger.run(|| dns::ask_tcp(to, &names, Family::V6))?;
                let over_tcp = over_tcp.with_context(|| format!("TCP, {to}"))?;
                ensure!(over_tcp == [[SERVER.of(Family::V6)], [SERVER.of(Family::V6)]]);
            }
        }
        let unknown = passenger.run(|| {
            dns::ask_udp(RESOLVER.at(Family::V4, 53), "nobody.polyrail.test", Family::V4)
        })?;
        ensure!(unknown.is_err(), "an unknown name has addresses: {unknown:?}");
        let (udp, tcp) =
            (world.asked.udp.load(Ordering::Relaxed), world.asked.tcp.load(Ordering::Relaxed));
        ensure!(udp == 0 && tcp > 0, "the resolver was asked {udp} times over UDP, {tcp} over TCP");
        Ok(())
    })
}

#[test]
fn many_dns_queries_at_once_are_all_answered() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let mut threads = Vec::new();
        for index in 0..100 {
            let family = Family::BOTH[index % 2];
            threads.push(client::thread(&world.lab.passenger, move || {
                dns::ask_udp(RESOLVER.at(family, 53), SERVER_NAME, family)
            })?);
        }
        for thread in threads {
            let answer = thread.join().ok().context("a client panicked")??;
            ensure!(answer.len() == 1, "{answer:?}");
        }
        Ok(())
    })
}

#[test]
fn bypassed_and_on_link_destinations_are_untouched() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let (onboard, server) = (&world.lab.onboard, &world.lab.server);
        for family in Family::BOTH {
            for address in [ONBOARD.at(family, PORT), BYPASSED.at(family, PORT)] {
                services::serve_whoami(onboard, address)?;
                services::serve_whoami_udp(onboard, address)?;
            }
            services::serve_whoami(server, SERVER_DIRECT.at(family, PORT))?;
            services::serve_whoami(server, SERVER.at(family, PORT))?;
            let passenger = PASSENGER.of(family);
            for to in [ONBOARD, BYPASSED, SERVER_DIRECT] {
                let seen = seen_as(&world.lab.passenger, to.at(family, PORT))?;
                ensure!(seen == passenger, "{to:?} sees {seen}");
            }
            for to in [ONBOARD, BYPASSED] {
                let socket = udp_socket(&world.lab.passenger, to.at(family, PORT))?;
                socket.send(b"?")?;
                let mut answer = [0; 100];
                let length = socket.recv(&mut answer).context("UDP to a server on board")?;
                ensure!(answer[..length] == *passenger.to_string().as_bytes());
            }
            let carried = seen_as(&world.lab.passenger, SERVER.at(family, PORT))?;
            ensure!(carried != passenger, "the server was reached without the session");
        }
        Ok(())
    })
}

/// The address under which a server sees the passenger.
fn seen_as(passenger: &Namespace, to: SocketAddr) -> Result<IpAddr> {
    let mut text = String::new();
    client::connect(passenger, to)?.read_to_string(&mut text)?;
    text.parse().with_context(|| format!("{to} answers {text:?}"))
}
