//! A web server whose file ends on command, so that a download spans its faults exactly.
//!
//! It knows the hash of the bytes sent; the client's file must have the same hash.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use polyrail_emulator::namespace::Namespace;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use ring::digest::{Context as Digest, SHA256};

use crate::services;
use crate::web::hexadecimal;

const CHUNK: usize = 16 * 1024;

/// The server of one endless file.
#[derive(Debug)]
pub(super) struct Endless {
    enough: Arc<AtomicBool>,
    sent: Receiver<Sent>,
}

/// All bytes sent to one client.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl Endless {
    /// Serves the file at `address`. A `pause` after each 16 KiB limits the rate on links without
    /// a limit.
    pub(super) fn serve(at: &Namespace, address: SocketAddr, pause: Duration) -> Result<Endless> {
        let enough = Arc::new(AtomicBool::new(false));
        let (report, sent) = channel();
        let (ends, report) = (Arc::clone(&enough), Mutex::new(report));
        services::serve(at, address, move |stream, _| {
            let report = report.lock().unwrap_or_else(PoisonError::into_inner).clone();
            // Fails if the client disconnects, which the row notices.
            let _ = answer(stream, &ends, pause, &report);
        })?;
        Ok(Endless { enough, sent })
    }

    /// Ends the file and tells what its client was sent.
    pub(super) fn finish(&self, limit: Duration) -> Result<Sent> {
        self.enough.store(true, Ordering::Relaxed);
        self.sent.recv_timeout(limit).context("the server's end of the download has not ended")
    }
}

fn answer(
    mut stream: TcpStream,
    enough: &AtomicBool,
    pause: Duration,
    report: &Sender<Sent>,
) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 2 {
        line.clear();
    }
    stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n")?;
    let mut generator = Pcg64::seed_from_u64(7);
    let mut digest = Digest::new(&SHA256);
    let mut chunk = vec![0; CHUNK];
    let mut bytes = 0;
    while !enough.load(Ordering::Relaxed) {
        generator.fill_bytes(&mut chunk);
        stream.write_all(&chunk)?;
        digest.update(&chunk);
        bytes += chunk.len() as u64;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    // The row may have given up.
    let _ = report.send(Sent { bytes, sha256: hexadecimal(digest.finish().as_ref()) });
    Ok(())
}
