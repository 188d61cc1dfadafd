//! A download without end, whose bytes are counted as they arrive.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::addresses::{Family, SERVER};
use crate::world::World;
use crate::{client, services};

const PORT: u16 = 6200;
const CHUNK: usize = 64 * 1024;

/// The server's side: everyone who connects is sent bytes for as long as they may flow.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    flows: Arc<AtomicBool>,
}

/// The passenger's side of one endless download. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Bulk {
    stream: TcpStream,
    bytes: Arc<AtomicU64>,
}

impl Source {
    /// Listens in the server's namespace.
    pub(crate) fn start(world: &World) -> Result<Source> {
        let flows = Arc::new(AtomicBool::new(true));
        let gate = flows.clone();
        services::serve(&world.lab.server, SERVER.at(Family::V4, PORT), move |stream, _| {
            // It ends with its client.
            let _ = pour(stream, &gate);
        })?;
        Ok(Source { flows })
    }

    /// Lets bytes flow, or stops them; what was already written still arrives.
    pub(crate) fn set_flowing(&self, flows: bool) {
        self.flows.store(flows, Ordering::Relaxed);
    }
}

fn pour(mut stream: TcpStream, flows: &AtomicBool) -> std::io::Result<()> {
    let chunk = vec![0x5a; CHUNK];
    loop {
        if flows.load(Ordering::Relaxed) {
            stream.write_all(&chunk)?;
        } else {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Bulk {
    /// Connects as the passenger, by interception.
    pub(crate) fn start(world: &World) -> Result<Bulk> {
        let stream = client::connect(&world.lab.passenger, SERVER.at(Family::V4, PORT))?;
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

    /// What has come so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until so much more has come.
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
        // Fails only when the other end was faster.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
