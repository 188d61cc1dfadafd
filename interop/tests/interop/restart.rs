//! Either daemon is killed and restarts.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::client;
use polyrail_interop::crash::Crashes;
use polyrail_interop::lab::Side;
use polyrail_interop::services;
use polyrail_interop::world::{Plan, World};

use crate::{in_both_modes, scenario};

const BOUND: Duration = Duration::from_secs(30);
const PORT: u16 = 5000;
/// How long after the restart of a daemon new flows may fail.
const SERVES_LIMIT: Duration = Duration::from_secs(2);

#[test]
fn a_restarted_cloud_resets_old_flows_and_serves_new_ones() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        services::serve_echo(&world.lab.server, SERVER.at(Family::V4, PORT))?;
        let mut old = client::connect(&world.lab.passenger, SERVER.at(Family::V4, PORT))?;
        one_echo(&mut old)?;
        world.restart_cloud()?;
        is_reset(&mut old).context("the flow of the old session")?;
        new_flows_work(world)
    })
}

#[test]
fn a_restarted_gateway_has_the_old_sessions_flows_reset_at_the_servers() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        let (report, ends) = std::sync::mpsc::channel();
        services::serve(&world.lab.server, SERVER.at(Family::V4, PORT), move |mut stream, _| {
            let mut byte = [0];
            let end = loop {
                match stream.read(&mut byte) {
                    Ok(0) => break None,
                    Ok(_) => drop(std::io::Write::write_all(&mut stream, &byte)),
                    Err(error) => break Some(error.kind()),
                }
            };
            // The test may be over.
            let _ = report.send(end);
        })?;
        let mut old = client::connect(&world.lab.passenger, SERVER.at(Family::V4, PORT))?;
        one_echo(&mut old)?;
        world.restart_gateway()?;
        let end = ends.recv_timeout(Duration::from_secs(10)).context("no end at the server")?;
        ensure!(end == Some(ErrorKind::ConnectionReset), "the server saw {end:?}, not a reset");
        drop(old);
        new_flows_work(world)
    })
}

#[test]
fn new_flows_succeed_within_two_seconds_of_a_restart_after_a_kill_or_a_panic() -> Result<()> {
    scenario(&Plan::twins(), Duration::from_secs(60), |world| {
        let crashes = Crashes::new(world)?;
        for side in [Side::Gateway, Side::Cloud] {
            for signal in [Signal::SIGKILL, Signal::SIGUSR1] {
                world.wait_for_carriers()?;
                let took = crashes.crash(world, side, signal)?;
                println!("{} {signal}: {took:?}", side.name());
                ensure!(took.serves <= SERVES_LIMIT, "{} {signal}: {took:?}", side.name());
            }
            let log = if side == Side::Gateway { world.gateway.log() } else { world.cloud.log() };
            ensure!(log.contains("requested by SIGUSR1"), "the panic is not in the log");
        }
        Ok(())
    })
}

fn one_echo(stream: &mut std::net::TcpStream) -> Result<()> {
    std::io::Write::write_all(stream, b"x")?;
    let mut byte = [0];
    stream.read_exact(&mut byte).context("echo")
}

fn is_reset(stream: &mut std::net::TcpStream) -> Result<()> {
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        other => bail!("{other:?} instead of a reset"),
    }
}

fn new_flows_work(world: &mut World) -> Result<()> {
    world.wait_until_up()?;
    let file = world.web.add(500_000, 8)?;
    world.download(&file).verify(&world.lab.passenger, &file)?;
    Ok(())
}
