//! Attacks of one passenger or one gateway, and how the others fare next to them.
//!
//! Each attack is paired with a quiet run of the same world. The carriers have no limits but those
//! of the machine, unless stated: the daemons are under attack, not the links.

mod buffers;
mod dials;
mod flood;
pub(crate) mod gateway;
mod idle;
mod paused;
mod poison;
mod probe;
mod restart;
mod train;
mod unread;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::admin;
use crate::bench::Suite;
use crate::carrier::Link;
use crate::lab::Side;
use crate::world::{Plan, World};

pub use flood::hold_open;

/// The attacks of `make attack`.
pub const SUITE: Suite = Suite {
    file: "attack",
    check: || Ok(()),
    benchmarks: &[
        ("dials", dials::run),
        ("idle", idle::run),
        ("unread", unread::run),
        ("paused", paused::run),
        ("buffers", buffers::run),
        ("gateway", gateway::run),
        ("poison", poison::run),
        ("restart", restart::run),
    ],
};

/// Two carriers without limits; each source address is a user.
fn wires() -> Plan {
    Plan::new().wire("alpha").wire("beta").gateway("users.key", "address")
}

/// The same with carriers of this rate and 40 ms.
fn links(mbit_s: f64) -> Plan {
    let link = Link::new(mbit_s, 40);
    Plan::new().carrier("alpha", link).carrier("beta", link).gateway("users.key", "address")
}

/// The passenger who attacks.
const ATTACKER: u8 = 66;
/// The other passengers.
const OTHERS: [u8; 4] = [100, 101, 102, 103];

/// Adds the passengers' addresses.
fn add_passengers(world: &World) -> Result<()> {
    world.lab.add_users(OTHERS.into_iter().chain([ATTACKER]))
}

/// Waits until both daemons have at least this many users' connections: else the attack that holds
/// them shows nothing. The cloud connects later than the gateway accepts, and again after a second
/// where a busy server drops its SYN.
fn ensure_held(world: &World, least: usize) -> Result<()> {
    for side in [Side::Gateway, Side::Cloud] {
        let deadline = Instant::now() + HELD_LIMIT;
        loop {
            let status = admin::get(&side.admin_socket(&world.lab), "/v1/status")?;
            let legs = status["legs"].as_u64().unwrap_or(0);
            if legs >= least as u64 {
                break;
            }
            let name = side.name();
            ensure!(Instant::now() < deadline, "the {name} has {legs} connections of {least}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

const HELD_LIMIT: Duration = Duration::from_secs(15);
