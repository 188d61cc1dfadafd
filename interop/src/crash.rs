//! A daemon that ends by a signal, and the time until its successor serves users.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::addresses::{Family, SERVER};
use crate::client;
use crate::lab::Side;
use crate::services;
use crate::world::{World, start_daemon};

/// `RestartSec` of the packaged units.
pub const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Within this time after the restart every flow of the surviving daemon must have ended.
pub const RESETS_LIMIT: Duration = Duration::from_secs(10);
/// Flows that are open when a daemon ends.
const FLOWS: usize = 3;
const PORT: u16 = 5100;

/// The times of one restart.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    /// From the start of the new process until a new flow succeeds.
    pub serves: Duration,
    /// From the end of the old process until both ends of every open flow are reset.
    pub resets: Duration,
}

/// An echo server of the lab that reports how its connections end.
#[derive(Debug)]
pub struct Crashes {
    ends: Receiver<Option<ErrorKind>>,
}

impl Crashes {
    /// Starts the server.
    pub fn new(world: &World) -> Result<Crashes> {
        let (report, ends) = channel();
        services::serve(&world.lab.server, SERVER.at(Family::V4, PORT), move |stream, _| {
            // The harness may be over.
            let _ = report.send(end_of(stream));
        })?;
        Ok(Crashes { ends })
    }

    /// Ends a daemon by a signal, restarts it as its unit does, and waits until new flows succeed
    /// and all old ones are reset at both ends.
    pub fn crash(&self, world: &mut World, side: Side, signal: Signal) -> Result<Recovery> {
        let mut flows = Vec::new();
        for _ in 0..FLOWS {
            let to = SERVER.at(Family::V4, PORT);
            let mut flow = client::connect(&world.lab.passenger, to)?;
            flow.write_all(b"x")?;
            flow.read_exact(&mut [0]).context("echo")?;
            flow.set_read_timeout(Some(RESETS_LIMIT))?;
            flows.push(flow);
        }
        let daemon = if side == Side::Gateway { &mut world.gateway } else { &mut world.cloud };
        daemon.signal(signal)?;
        daemon.wait(RESETS_LIMIT)?;
        let ended = Instant::now();
        sleep(RESTART_DELAY);
        let started = Instant::now();
        *daemon = start_daemon(&world.lab, &world.programs, side, side.name())?;
        world.wait_until_up()?;
        let serves = started.elapsed();
        for mut flow in flows {
            let end = flow.read(&mut [0]).map_err(|error| error.kind());
            ensure!(end == Err(ErrorKind::ConnectionReset), "a user's flow ended with {end:?}");
        }
        for _ in 0..FLOWS {
            let end = self.ends.recv_timeout(RESETS_LIMIT).context("a server's flow hangs")?;
            ensure!(end == Some(ErrorKind::ConnectionReset), "a server's flow ended with {end:?}");
        }
        Ok(Recovery { serves, resets: ended.elapsed() })
    }
}

/// Echoes until the connection ends; `None` if that was in order.
fn end_of(mut stream: TcpStream) -> Option<ErrorKind> {
    services::echo(&mut stream).err()?.downcast_ref::<std::io::Error>().map(|error| error.kind())
}
