//! The share of its rate that a reader keeps next to 200 stalled readers and 5 % loss.
//!
//! The stalled readers use eight addresses, each of which is a user, so that together they reach
//! the session's memory cap. The reader is measured as a ninth user and as one of the eight.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

use super::Effort;
use crate::addresses::{self, Family, SERVER, WEB_PORT};
use crate::carrier::Link;
use crate::report::{Goal, Report, median};
use crate::web::WebFile;
use crate::world::{Plan, World};

const READERS: usize = 200;
const USERS: u8 = 8;
const SIZE: u64 = 20_000_000;
/// The carriers are quiet if they carried less than this within [`LOOK_EVERY`].
const QUIET_BYTES: u64 = 50_000;
const LOOK_EVERY: Duration = Duration::from_millis(500);
const QUIET_LIMIT: Duration = Duration::from_secs(60);

/// Interleaved pairs, with the stalled readers and without.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let pairs = effort.pick(5, 1);
    for (name, user) in [("stalled_200_other_user", 100), ("stalled_200_same_user", 10)] {
        let shares = super::in_tls(&plan(), move |world| shares(world, pairs, user))?;
        report.result(name, median(&shares), "x", Goal::AtLeast(0.9), &shares);
    }
    Ok(())
}

fn plan() -> Plan {
    let link = Link::new(20.0, 40).loss_percent(5.0);
    Plan::new()
        .carrier("alpha", link)
        .carrier("beta", link)
        .gateway("users.key", "address")
        .gateway("session.memory", "16 MiB")
        .cloud("session.memory", "16 MiB")
}

fn shares(world: &mut World, pairs: usize, user: u8) -> Result<Vec<f64>> {
    world.lab.add_users((10..10 + USERS).chain([100]))?;
    let large = world.web.add(50_000_000, 4)?;
    let file = world.web.add(SIZE, 5)?;
    let mut shares = Vec::new();
    for pair in 0..pairs {
        let alone = rate(world, &file, user)?;
        let stalled = stall(world, &large)?;
        wait_until_quiet(world)?;
        let beside = rate(world, &file, user)?;
        drop(stalled);
        println!("pair {pair}: {alone:.2} Mbit/s alone, {beside:.2} next to {READERS} stalled");
        shares.push(beside / alone);
        wait_until_quiet(world)?;
    }
    Ok(shares)
}

/// Waits until the carriers carry no more, because stalled readers receive no more.
pub(crate) fn wait_until_quiet(world: &World) -> Result<()> {
    let started = Instant::now();
    let mut last: u64 = world.carried()?.iter().sum();
    loop {
        std::thread::sleep(LOOK_EVERY);
        let now = world.carried()?.iter().sum();
        if now - last < QUIET_BYTES {
            return Ok(());
        }
        last = now;
        ensure!(started.elapsed() < QUIET_LIMIT, "the carriers do not become quiet");
    }
}

fn rate(world: &mut World, file: &WebFile, user: u8) -> Result<f64> {
    let download = world.download_from(&SERVER.host(Family::V4), file);
    let download = download.interface(&addresses::user(user).to_string());
    Ok(download.verify(&world.lab.passenger, file)?.mbit_s())
}

/// Connections that ask for a large file and never read.
fn stall(world: &World, file: &WebFile) -> Result<Vec<TcpStream>> {
    let request = format!("GET /{} HTTP/1.1\r\nHost: stalled\r\n\r\n", file.name);
    let to = SERVER.at(Family::V4, WEB_PORT);
    let connect = || -> Result<Vec<TcpStream>> {
        (0..READERS)
            .map(|index| {
                let from = addresses::user(10 + (index % usize::from(USERS)) as u8);
                let mut stream = connect_from(from, to)?;
                stream.write_all(request.as_bytes())?;
                Ok(stream)
            })
            .collect()
    };
    world.lab.passenger.run(connect)?.context("stalled readers")
}

/// A connection with a small receive buffer.
pub(crate) fn connect_from(from: IpAddr, to: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    // A small buffer, so that the kernel hides little of the stall.
    socket.set_recv_buffer_size(8192)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}
