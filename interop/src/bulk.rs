//! An endless download whose bytes are counted as they arrive.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::addresses::{Family, SERVER};
use crate::world::World;
use crate::{client, services};

/// The server's port.
pub(crate) const PORT: u16 = 6200;
const CHUNK: usize = 64 * 1024;
/// How often a paused server checks whether it may write.
const POLL: Duration = Duration::from_millis(1);

/// The server. It writes to every client unless it is paused.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    flows: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
}

/// The client of one endless download. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Bulk {
    stream: TcpStream,
    bytes: Arc<AtomicU64>,
}

impl Source {
    /// Listens in the server's namespace.
    pub(crate) fn start(world: &World) -> Result<Source> {
        let source = Source { flows: Arc::new(true.into()), accepted: Arc::default() };
        let own = source.clone();
        services::serve(&world.lab.server, SERVER.at(Family::V4, PORT), move |stream, _| {
            own.accepted.fetch_add(1, Ordering::Relaxed);
            // Fails when the client closes.
            let _ = pour(stream, &own.flows);
        })?;
        Ok(source)
    }

    /// Resumes or pauses writing. Bytes in flight still arrive.
    pub(crate) fn set_flowing(&self, flows: bool) {
        self.flows.store(flows, Ordering::Relaxed);
    }

    /// Waits until a client is connected.
    pub(crate) fn wait_for_client(&self, deadline: Instant) -> Result<()> {
        while self.accepted.load(Ordering::Relaxed) == 0 {
            ensure!(Instant::now() < deadline, "no client reached the server in time");
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

fn pour(mut stream: TcpStream, flows: &AtomicBool) -> std::io::Result<()> {
    let chunk = vec![0x5a; CHUNK];
    loop {
        if flows.load(Ordering::Relaxed) {
            stream.write_all(&chunk)?;
        } else {
            std::thread::sleep(POLL);
        }
    }
}

impl Bulk {
    /// Connects as the passenger; the gateway intercepts the connection.
    pub(crate) fn start(world: &World) -> Result<Bulk> {
        Bulk::read(client::connect(&world.lab.passenger, SERVER.at(Family::V4, PORT))?)
    }

    /// Counts the bytes that arrive on a connection.
    pub(crate) fn read(stream: TcpStream) -> Result<Bulk> {
        let mut reader = stream.try_clone()?;
        let bytes = Arc::new(AtomicU64::new(0));
        let counter = bytes.clone();
        std::thread::spawn(move || {
            let mut chunk = vec![0; CHUNK];
            while let Ok(length @ 1..) = reader.read(&mut chunk) {
                counter.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        Ok(Bulk { stream, bytes })
    }

    /// Bytes received so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits for `more` bytes.
    pub(crate) fn wait_for(&self, more: u64, limit: Duration) -> Result<()> {
        let (started, before) = (Instant::now(), self.bytes());
        while self.bytes() < before + more {
            let came = self.bytes() - before;
            ensure!(started.elapsed() < limit, "only {came} of {more} bytes in {limit:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        // Fails only if the peer has closed the connection.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
