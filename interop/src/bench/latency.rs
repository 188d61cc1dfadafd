//! The latency that gateway and cloud add to the round trip of one byte, on links without delay.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use anyhow::Result;

use super::Effort;
use crate::addresses::{Family, SERVER, SERVER_DIRECT};
use crate::client;
use crate::report::{Goal, Report, median};
use crate::services;
use crate::world::{Plan, World};

const PORT: u16 = 6100;
const AIM_US: f64 = 300.0;

/// Interleaved echoes to the same server, intercepted and bypassed.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let rounds = effort.pick(5000, 200);
    let plan = Plan::new().wire("alpha").wire("beta");
    let (direct, carried) = super::in_tls(&plan, move |world| measure(world, rounds))?;
    let (direct, carried) = (median(&direct), median(&carried));
    println!("one byte and back: {direct:.0} us direct, {carried:.0} us carried");
    report.result("echo_added", carried - direct, "us", Goal::AtMost(AIM_US), &[direct, carried]);
    Ok(())
}

fn measure(world: &mut World, rounds: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let (to_direct, to_carried) = (SERVER_DIRECT.at(Family::V4, PORT), SERVER.at(Family::V4, PORT));
    for address in [to_direct, to_carried] {
        services::serve_echo(&world.lab.server, address)?;
    }
    let connect = |to: SocketAddr| client::connect(&world.lab.passenger, to);
    let (mut direct, mut carried) = (connect(to_direct)?, connect(to_carried)?);
    let (mut direct_us, mut carried_us) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        direct_us.push(echo_us(&mut direct)?);
        carried_us.push(echo_us(&mut carried)?);
    }
    Ok((direct_us, carried_us))
}

fn echo_us(stream: &mut TcpStream) -> Result<f64> {
    let started = Instant::now();
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}
