//! Set-ups of gateways that operators have: equal modems, no IPv6, traffic past the session.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::namespace::{Namespace, die_with_parent};
use polyrail_interop::addresses::{Family, MODEM_HOST, SERVER, carrier_gateway};
use polyrail_interop::carrier::Medium;
use polyrail_interop::lab::Side;
use polyrail_interop::world::{Plan, World};
use polyrail_interop::{admin, client, services};

use crate::{in_both_modes, scenario};

const BOUND: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(20);
const PORT: u16 = 7007;

#[test]
fn two_modems_with_the_same_address_and_router_carry_side_by_side() -> Result<()> {
    let plan = Plan::new().medium("alpha", Medium::Modem).medium("beta", Medium::Modem);
    in_both_modes(&plan, BOUND, |world| {
        for path in world.paths(Side::Gateway)? {
            let local = path["local_address"].as_str().context("local_address")?;
            ensure!(local.parse::<SocketAddr>()?.ip() == MODEM_HOST, "{path}");
        }
        let to = SERVER.at(Family::V4, PORT);
        services::serve_echo(&world.lab.server, to)?;
        let mut flow = client::connect(&world.lab.passenger, to)?;
        for carrier in &world.carriers {
            // The modem stays, and its radio link fails.
            let modem = carrier.modem().context("a modem")?;
            modem.sysctl("net.ipv4.ip_forward", "0")?;
            for _ in 0..3 {
                echoes(&mut flow).with_context(|| format!("without {}", carrier.name()))?;
            }
            modem.sysctl("net.ipv4.ip_forward", "1")?;
            world.wait_for_path(carrier.name(), LIMIT, |path| path["state"] == "up")?;
        }
        Ok(())
    })
}

#[test]
fn gateway_without_ipv6_intercepts_ipv4() -> Result<()> {
    scenario(&Plan::new().wire("alpha"), BOUND, |world| {
        let to = SERVER.at(Family::V4, PORT);
        services::serve_echo(&world.lab.server, to)?;
        world.lab.gateway.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
        world.restart_gateway()?;
        world.wait_until_up()?;
        ensure!(world.gateway.log().contains("this machine has no IPv6"), "no warning");
        let mut flow = client::connect(&world.lab.passenger, to)?;
        let server_sees = flow.peer_addr()?;
        ensure!(server_sees == to, "{server_sees}");
        echoes(&mut flow)?;
        // A reload compares with the file, not with the families in use.
        world.ask(Side::Gateway, "reload")?;
        Ok(())
    })
}

#[test]
fn direct_traffic_follows_its_carriers() -> Result<()> {
    let plan = Plan::new().wire("alpha").wire("beta").wire("never");
    let plan = plan.carrier_key(2, "role", "never").gateway("intercept.udp", "direct:alpha");
    scenario_of_some(&plan, |world| {
        let lab = &world.lab;
        let to = SERVER.at(Family::V4, PORT);
        reflect(&lab.server, to)?;
        // The kernel has one limit of ICMP errors for all namespaces: others may use it up.
        lab.gateway.sysctl("net.ipv4.icmp_ratemask", "0")?;
        let wait = |wanted: Option<Ipv4Addr>| wait_for_source(&lab.passenger, to, wanted);
        let [alpha, beta] = [0, 1].map(|index| Some(carrier_gateway(index).v4));
        wait(alpha).context("the named carrier")?;
        lab.gateway.ip("link set wan0 down")?;
        wait(beta).context("the named carrier is down")?;
        lab.restore_carrier(0)?;
        wait(alpha).context("the named carrier is back")?;
        let socket = Side::Gateway.admin_socket(lab);
        admin::enable(&socket, "alpha", false)?;
        wait(beta).context("the operator has disabled the named carrier")?;
        admin::enable(&socket, "beta", false)?;
        wait(None).context("the third carrier has the role never")?;
        admin::enable(&socket, "alpha", true)?;
        wait(alpha)
    })
}

#[test]
fn namespace_of_the_gateway_is_made_and_removed() -> Result<()> {
    crate::beside_others(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut script = Command::new("unshare");
        die_with_parent(&mut script);
        let script = script
            .args(["--net", "--mount", "sh"])
            .arg(here.join("tests/interop/namespace.sh"))
            .arg(here.join("../packaging").canonicalize()?);
        let output = script.stdin(Stdio::null()).output()?;
        let [text, errors] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "{}:\n{text}\n{errors}", output.status);
        Ok(())
    })
}

/// A scenario whose first two carriers come up.
fn scenario_of_some(plan: &Plan, work: impl FnOnce(&mut World) -> Result<()> + Send) -> Result<()> {
    crate::beside_others(|| {
        let mut world = World::start_cold(plan)?;
        world.wait_for_paths(&["alpha", "beta"])?;
        work(&mut world).inspect_err(|_| println!("{}", world.tails()))
    })
}

fn echoes(flow: &mut TcpStream) -> Result<()> {
    flow.write_all(b"x")?;
    flow.read_exact(&mut [0]).context("no echo")
}

/// Answers each datagram with its sender's address.
fn reflect(server: &Namespace, address: SocketAddr) -> Result<()> {
    let socket = server.run(|| UdpSocket::bind(address))??;
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, sender)) = socket.recv_from(&mut buffer) {
            // Best effort.
            let _ = socket.send_to(sender.ip().to_string().as_bytes(), sender);
        }
    });
    Ok(())
}

/// Waits until datagrams of the passenger arrive from `wanted`, or, if it is `None`, are rejected.
fn wait_for_source(passenger: &Namespace, to: SocketAddr, wanted: Option<Ipv4Addr>) -> Result<()> {
    let begin = Instant::now();
    loop {
        let found = source(passenger, to)?;
        if found == wanted.map(|address| address.to_string()) {
            return Ok(());
        }
        ensure!(begin.elapsed() < LIMIT, "datagrams arrive from {found:?}, not {wanted:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The source of a datagram of the passenger as the server sees it; `None` if it is rejected.
fn source(passenger: &Namespace, to: SocketAddr) -> Result<Option<String>> {
    let socket = passenger.run(|| UdpSocket::bind("0.0.0.0:0"))??;
    socket.connect(to)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    socket.send(b"q")?;
    let mut buffer = [0; 64];
    match socket.recv(&mut buffer) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(&buffer[..length]).into_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::HostUnreachable => Ok(None),
        Err(error) => Ok(Some(error.to_string())),
    }
}
