//! Checks that TCP uses the congestion control that a figure names.
//!
//! If the kernel lacks it, the cloud uses the kernel's default and only logs that. QUIC has its own
//! congestion control.

use anyhow::{Context, Result, ensure};
use polyrail_emulator::namespace::Namespace;
use socket2::{Domain, Socket, Type};

use crate::addresses::CLOUD_PORT;
use crate::world::World;

/// The compared congestion controls, by the kernel's names.
const COMPARED: [&str; 2] = ["bbr", "cubic"];

/// Fails if the kernel lacks a compared congestion control; the error names the remedy.
pub(super) fn must_be_there() -> Result<()> {
    let namespace = Namespace::new().context("a namespace")?;
    COMPARED.into_iter().try_for_each(|name| namespace.run(|| can_be_used(name))?)
}

fn can_be_used(name: &str) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket
        .set_tcp_congestion(name.as_bytes())
        .with_context(|| format!("TCP cannot use {name} here: run `modprobe tcp_{name}`"))
}

/// Checks that the cloud has tunnels over TCP and that all use this congestion control.
pub(super) fn must_run(world: &World, name: &str) -> Result<()> {
    let tunnels = format!("-HOtin state established sport = :{CLOUD_PORT}");
    judge(&world.lab.cloud.tool("ss", &tunnels)?, name)
}

/// Each line is a socket; the congestion control is one of its words.
fn judge(sockets: &str, name: &str) -> Result<()> {
    ensure!(!sockets.trim().is_empty(), "the cloud has no tunnel over TCP");
    let has_it = |line: &str| line.split_whitespace().any(|word| word == name);
    ensure!(sockets.lines().all(has_it), "a tunnel over TCP runs without {name}:\n{sockets}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_congestion_control_is_reported_with_the_remedy() {
        let error = format!("{:#}", can_be_used("warp").unwrap_err());
        assert!(error.contains("modprobe tcp_warp"), "{error}");
        // reno is built into every kernel and allowed to everybody.
        can_be_used("reno").unwrap();
    }

    #[test]
    fn every_tunnel_must_run_with_it() {
        let line = |name: &str| format!("0 0 [::1]:4433 [::1]:9 sack {name} wscale:7,7 rto:240\n");
        let both = line("bbr") + &line("cubic");
        assert!(judge(&line("bbr"), "bbr").is_ok());
        for (sockets, name) in [(both.as_str(), "bbr"), (&line("cubic"), "bbr"), ("\n", "bbr")] {
            assert!(judge(sockets, name).is_err(), "{sockets}");
        }
    }
}
