//! Downloads that servers deliver faster than the carriers: the kernel's receive buffers of the
//! cloud's connections to the servers.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

use super::{OTHERS, add_passengers, links};
use crate::addresses::{Family, SERVER, user};
use crate::bench::{Effort, in_world};
use crate::bulk::{self, Bulk, Source};
use crate::report::{Goal, Report};
use crate::world::World;

/// The largest sum of the buffers during some downloads, of several users and of one.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let length = Duration::from_secs(effort.pick(20, 3));
    let plan = links(5.0)
        .gateway("session.memory", "16 MiB")
        .cloud("session.memory", "16 MiB")
        .sysctl("net.ipv4.tcp_rmem", "4096 131072 16777216");
    for (name, users) in [("attack_kernel_buffers", 4), ("attack_kernel_buffers_user", 1)] {
        let users = &OTHERS[..users];
        let most = in_world(&plan, move |world| measure(world, users, length))?;
        // The session's memory, or a user's quarter of it, and what each socket begins with.
        let share = if users.len() > 1 { 16.0 } else { 4.0 };
        let bound = share + FLOWS as f64 / 8.0;
        report.result(name, most / MIB, "MiB", Goal::AtMost(bound), &[]);
    }
    Ok(())
}

fn measure(world: &mut World, users: &[u8], length: Duration) -> Result<f64> {
    add_passengers(world)?;
    let _source = Source::start(world)?;
    let one = |number: usize| -> Result<Bulk> {
        let server = SERVER.at(Family::V4, bulk::PORT);
        let from = user(users[number % users.len()]);
        let stream = world.lab.passenger.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&std::net::SocketAddr::new(from, 0).into())?;
            socket.connect(&server.into())?;
            Ok::<_, std::io::Error>(socket.into())
        })?;
        Bulk::read(stream?)
    };
    let downloads: Vec<Bulk> = (0..FLOWS).map(one).collect::<Result<_>>()?;
    let (started, mut most) = (Instant::now(), Sums::default());
    while started.elapsed() < length {
        sleep(Duration::from_millis(500));
        let now = buffers(world)?;
        most = Sums { limit: most.limit.max(now.limit), used: most.used.max(now.used), ..now };
    }
    ensure!(most.sockets == FLOWS, "{} connections to the server", most.sockets);
    let bytes: u64 = downloads.iter().map(Bulk::bytes).sum();
    ensure!(bytes > 0, "nothing was downloaded");
    println!(
        "{} users: limits of {:.1} MiB, {:.1} MiB used, {:.1} MB delivered",
        users.len(),
        most.limit / MIB,
        most.used / MIB,
        bytes as f64 / 1e6
    );
    Ok(most.limit.max(most.used))
}

/// Sums over the cloud's connections to the server.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    sockets: usize,
    /// Bytes that the receive buffers may hold.
    limit: f64,
    /// Bytes that they hold, with the kernel's overhead.
    used: f64,
}

fn buffers(world: &World) -> Result<Sums> {
    let filter = format!("-tmnH state established dport = :{}", bulk::PORT);
    let text = world.lab.cloud.tool("ss", &filter)?;
    let mut sums = Sums::default();
    for part in text.split("skmem:(").skip(1) {
        let field = |name: &str| -> Result<f64> {
            let mut fields = part.split([',', ')']);
            let value = fields.find_map(|field| field.strip_prefix(name)?.parse().ok());
            value.with_context(|| format!("ss prints no {name}: {part}"))
        };
        sums.sockets += 1;
        sums.used += field("r")?;
        sums.limit += field("rb")?;
    }
    Ok(sums)
}

/// Downloads at a time.
const FLOWS: usize = 8;
const MIB: f64 = (1 << 20) as f64;
