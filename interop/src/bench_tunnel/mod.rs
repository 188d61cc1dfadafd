//! The figures of the tunnel's modes: QUIC compared with TLS, and the effect of path restart.
//!
//! Compared measurements are of one run, interleaved or at the same time.

mod black_hole;
mod blackout;
mod blocking;
mod competition;
mod congestion;
mod establish;
mod goodput;
mod policed;
mod resent;
mod unlimited;
mod uplink;
pub(crate) mod worlds;

use anyhow::Result;

use crate::bench::Suite;
use crate::world::{Plan, World};

pub use unlimited::unlimited;

/// The figures of the tunnel's modes.
pub const SUITE: Suite = Suite {
    file: "tunnel",
    check: congestion::must_be_there,
    benchmarks: &[
        ("establish", establish::run),
        ("clean", goodput::clean),
        ("lossy", goodput::lossy),
        ("blocking", blocking::run),
        ("beside", blocking::static_links),
        ("policed", policed::run),
        ("resent", resent::run),
        ("blackout", blackout::run),
        ("black_hole", black_hole::run),
        ("uplink", uplink::run),
        ("competition", competition::run),
        ("unlimited", unlimited::run),
    ],
};

/// Both daemons in one mode (`quic`, `tls` or `auto`), without carriers. An idle TCP connection
/// keeps its window, as Polyrail's package sets it.
fn plan(mode: &str) -> Plan {
    let kept = ("net.ipv4.tcp_slow_start_after_idle", "0");
    Plan::new().gateway("mode", mode).cloud("mode", mode).sysctl(kept.0, kept.1)
}

/// Kills the gateway, restarts it and waits for its carriers.
fn restart_gateway(world: &mut World) -> Result<()> {
    world.restart_gateway()?;
    world.wait_for_carriers()?;
    world.wait_until_up()
}
