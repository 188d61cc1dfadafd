//! Unreachable and forbidden destinations.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use polyrail_interop::addresses::{FORBIDDEN, Family, NOBODY, SERVER};
use polyrail_interop::client::{self, Target};
use polyrail_interop::world::{Plan, World};

use crate::scenario;

const BOUND: Duration = Duration::from_secs(30);
/// Nobody listens there.
const CLOSED_PORT: u16 = 9;

/// RFC 1928, section 6.
const NOT_ALLOWED: u8 = 2;
const HOST_UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;

fn patient() -> Plan {
    Plan::twins().cloud("dial.timeout", "4s")
}

/// A healthy download that runs while `work` does and must complete.
fn beside_a_download(world: &mut World, work: impl FnOnce(&World) -> Result<()>) -> Result<()> {
    let file = world.web.add(3_000_000, 9)?;
    let healthy = world.download(&file).start(&world.lab.passenger)?;
    work(world)?;
    healthy.verify(&file)?;
    Ok(())
}

#[test]
fn an_intercepted_flow_that_cannot_be_dialed_is_reset() -> Result<()> {
    scenario(&patient(), BOUND, |world| {
        beside_a_download(world, |world| {
            for family in Family::BOTH {
                ends_by_reset(world, SERVER.at(family, CLOSED_PORT))?;
                ends_by_reset(world, NOBODY.at(family, 80))?;
                ends_by_reset(world, FORBIDDEN.at(family, 80))?;
            }
            Ok(())
        })?;
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
            ensure!(told, "the cloud's log does not say that {address} is {words}:\n{log}");
        }
        Ok(())
    })
}

/// The passenger's connection may stand for a moment, but ends by RST without a byte.
fn ends_by_reset(world: &World, to: SocketAddr) -> Result<()> {
    let mut stream = client::connect(&world.lab.passenger, to)?;
    // The reset may already be there.
    let _ = stream.write_all(b"hello");
    match stream.read(&mut [0; 10]) {
        Ok(length) => bail!("{to}: {length} bytes instead of a reset"),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        Err(error) => bail!("{to}: {error} instead of a reset"),
    }
}

#[test]
fn socks5_dialed_tells_the_true_outcome() -> Result<()> {
    let plan = patient().gateway("socks5.reply", "dialed");
    scenario(&plan, BOUND, |world| {
        beside_a_download(world, |world| {
            for family in Family::BOTH {
                for (to, expected) in [
                    (SERVER.at(family, 80), 0),
                    (SERVER.at(family, CLOSED_PORT), REFUSED),
                    (NOBODY.at(family, 80), HOST_UNREACHABLE),
                    (FORBIDDEN.at(family, 80), NOT_ALLOWED),
                ] {
                    replies(world, &Target::Address(to), expected)?;
                }
            }
            replies(world, &Target::Name("nobody.polyrail.test".into(), 80), HOST_UNREACHABLE)
        })
    })
}

fn replies(world: &World, to: &Target, expected: u8) -> Result<()> {
    let (_, code) = client::socks5(&world.lab.passenger, world.proxy(), to)?;
    ensure!(code == expected, "SOCKS5 reply {code} for {to:?}, expected {expected}");
    Ok(())
}
