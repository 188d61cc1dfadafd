//! One endless download of the passenger, intercepted.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::addresses::{Family, SERVER};
use crate::world::World;
use crate::{client, services};

/// A flow that stands; dropped, it ends.
pub(super) struct Flow {
    stream: TcpStream,
    delivered: Arc<AtomicU64>,
}

impl Flow {
    /// Through the tunnel to a server that writes from `begin` to `end`.
    pub(super) fn open(world: &World, begin: Instant, end: Instant) -> Result<Self> {
        let accepted = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&accepted);
        let address = SERVER.at(Family::V4, PORT);
        services::serve(&world.lab.server, address, move |mut stream, _| {
            seen.store(true, Ordering::Relaxed);
            std::thread::sleep(begin.saturating_duration_since(Instant::now()));
            let chunk = vec![0; CHUNK];
            while Instant::now() < end && stream.write_all(&chunk).is_ok() {}
        })?;
        let stream = client::connect(&world.lab.passenger, address)?;
        while !accepted.load(Ordering::Relaxed) {
            ensure!(Instant::now() < begin, "the server was not reached in time");
            std::thread::sleep(Duration::from_millis(2));
        }
        let delivered = Arc::new(AtomicU64::new(0));
        let (count, mut reader) = (Arc::clone(&delivered), stream.try_clone()?);
        std::thread::spawn(move || {
            let mut buffer = vec![0; CHUNK];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                count.fetch_add(read as u64, Ordering::Relaxed);
            }
        });
        Ok(Self { stream, delivered })
    }

    /// What the passenger's program has read.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Fails only when the other end was faster.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

const PORT: u16 = 5_002;
/// What is read or written at once, in bytes.
const CHUNK: usize = 64 * 1_024;
