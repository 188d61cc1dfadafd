//! One passenger starts 1,000 downloads and reads none.

use std::io::Write;
use std::net::TcpStream;

use anyhow::{Context, Result};

use super::{ATTACKER, OTHERS, add_passengers, ensure_held, links};
use crate::addresses::{Family, SERVER, WEB_PORT, user};
use crate::bench::stalled::{connect_from, wait_until_quiet};
use crate::bench::{Effort, in_world};
use crate::report::{Goal, Report, median};
use crate::usage;
use crate::web::WebFile;
use crate::world::World;

/// The rate of another passenger's download and the cloud's processor time, in pairs.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (pairs, readers) = (effort.pick(5, 1), effort.pick(1_000, 200));
    let plan = links(50.0).gateway("session.memory", "16 MiB").cloud("session.memory", "16 MiB");
    let pairs = in_world(&plan, move |world| measure(world, pairs, readers))?;
    let shares: Vec<f64> = pairs.iter().map(|[quiet, next]| next.rate / quiet.rate).collect();
    let costs: Vec<f64> = pairs.iter().map(|[quiet, next]| next.cpu / quiet.cpu).collect();
    report.result("attack_unread_rate", median(&shares), "x", Goal::AtLeast(0.9), &shares);
    report.result("attack_unread_cpu", median(&costs), "x", Goal::AtMost(1.3), &costs);
    Ok(())
}

/// One download.
#[derive(Clone, Copy)]
struct Measured {
    /// Mbit/s.
    rate: f64,
    /// Processor seconds of the cloud.
    cpu: f64,
}

fn measure(world: &mut World, pairs: usize, readers: usize) -> Result<Vec<[Measured; 2]>> {
    add_passengers(world)?;
    let large = world.web.add(20_000_000, 4)?;
    let file = world.web.add(30_000_000, 5)?;
    let mut measured = Vec::new();
    for pair in 0..pairs {
        let quiet = download(world, &file)?;
        let unread = request(world, &large, readers)?;
        wait_until_quiet(world)?;
        let next = download(world, &file)?;
        ensure_held(world, readers)?;
        drop(unread);
        println!(
            "pair {pair}: {:.1} and {:.1} Mbit/s, {:.2} and {:.2} s of processor time",
            quiet.rate, next.rate, quiet.cpu, next.cpu
        );
        measured.push([quiet, next]);
        wait_until_quiet(world)?;
    }
    Ok(measured)
}

fn download(world: &mut World, file: &WebFile) -> Result<Measured> {
    let before = usage::processor_s(world.cloud.id())?;
    let download = world.download_from(&SERVER.host(Family::V4), file);
    let download = download.interface(&user(OTHERS[0]).to_string());
    let rate = download.verify(&world.lab.passenger, file)?.mbit_s();
    Ok(Measured { rate, cpu: usage::processor_s(world.cloud.id())? - before })
}

/// Requests of the attacker that nobody reads.
fn request(world: &World, file: &WebFile, readers: usize) -> Result<Vec<TcpStream>> {
    let request = format!("GET /{} HTTP/1.1\r\nHost: unread\r\n\r\n", file.name);
    let to = SERVER.at(Family::V4, WEB_PORT);
    let one = |_| -> Result<TcpStream> {
        let mut stream = connect_from(user(ATTACKER), to)?;
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    };
    world.lab.passenger.run(|| (0..readers).map(one).collect::<Result<_>>())?.context("unread")
}
