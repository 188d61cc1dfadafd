//! Unreachable and forbidden destinations.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use polyrail_interop::addresses::{FORBIDDEN, Family, NOBODY, SERVER};
use polyrail_interop::client;
use polyrail_interop::world::{Plan, World};

use crate::scenario;

const BOUND: Duration = Duration::from_secs(30);
/// A port without a listener.
const CLOSED_PORT: u16 = 9;

#[test]
fn an_intercepted_flow_that_cannot_be_dialed_is_reset() -> Result<()> {
    scenario(&Plan::twins().cloud("dial.timeout", "4s"), BOUND, |world| {
        let file = world.web.add(3_000_000, 9)?;
        let healthy = world.download(&file).start(&world.lab.passenger)?;
        for family in Family::BOTH {
            ends_by_reset(world, SERVER.at(family, CLOSED_PORT))?;
            ends_by_reset(world, NOBODY.at(family, 80))?;
            ends_by_reset(world, FORBIDDEN.at(family, 80))?;
        }
        healthy.verify(&file)?;
        // The cloud's log names the destination and the reason.
        let log = world.cloud.log();
        for (address, words) in [
            (SERVER.at(Family::V4, CLOSED_PORT), "refuses connections"),
            (NOBODY.at(Family::V4, 80), "unreachable"),
            (FORBIDDEN.at(Family::V4, 80), "not permitted"),
            (FORBIDDEN.at(Family::V4, 80), "access.allow"),
            (FORBIDDEN.at(Family::V4, 80), "train-1"),
        ] {
            let address = address.to_string();
            let told = log.lines().any(|line| {
                line.contains("WARN") && line.contains(&address) && line.contains(words)
            });
            ensure!(told, "the cloud does not log {words} for {address}:\n{log}");
        }
        Ok(())
    })
}

/// The passenger's connection may open, but ends with RST without a byte.
fn ends_by_reset(world: &World, to: SocketAddr) -> Result<()> {
    let mut stream = client::connect(&world.lab.passenger, to)?;
    // The reset may have arrived already.
    let _ = stream.write_all(b"hello");
    match stream.read(&mut [0; 10]) {
        Ok(length) => bail!("{to}: {length} bytes instead of a reset"),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        Err(error) => bail!("{to}: {error} instead of a reset"),
    }
}
