//! The attacker's part.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polyrail_emulator::namespace::Namespace;
use socket2::{Domain, Socket, Type};

use crate::client;

/// Connection attempts at a constant rate, until it is dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64>>>,
}

impl Flood {
    /// Starts it. The newest [`HELD`] sockets stay open.
    pub fn start(
        passenger: &Namespace,
        source: IpAddr,
        target: SocketAddr,
        rate: u32,
    ) -> Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let work = move || connect_until(&stopped, source, target, rate);
        Ok(Self { stop, thread: Some(client::thread(passenger, work)?) })
    }

    /// Ends it and returns the number of attempts a second.
    pub fn end(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("the flood has ended")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn connect_until(stop: &AtomicBool, source: IpAddr, target: SocketAddr, rate: u32) -> Result<u64> {
    let (started, step) = (Instant::now(), Duration::from_secs(1) / rate);
    let mut held = VecDeque::new();
    let mut attempts = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = started + step * attempts;
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
        // In progress, or refused: both are what an attacker expects.
        let _ = socket.connect(&target.into());
        // Closing resets, so that the attacker's ports are free again.
        socket.set_linger(Some(Duration::ZERO))?;
        held.push_back(socket);
        if held.len() > HELD {
            held.pop_front();
        }
        attempts += 1;
    }
    Ok((f64::from(attempts) / started.elapsed().as_secs_f64()) as u64)
}

/// Connects and holds idle connections, as `SOURCE>ADDRESS=COUNT`, in a process of its own because
/// a process may have at most 20,000 descriptors. Refused ones are tried again.
///
/// # Errors
/// The argument is invalid.
pub fn hold_open(what: &str) -> Result<()> {
    let (source, rest) = what.split_once('>').context("SOURCE>ADDRESS=COUNT")?;
    let (target, count) = rest.split_once('=').context("SOURCE>ADDRESS=COUNT")?;
    let (source, target): (IpAddr, SocketAddr) = (source.parse()?, target.parse()?);
    let count: usize = count.parse()?;
    let mut held: Vec<TcpStream> = Vec::new();
    let mut told = false;
    for attempt in 1_usize.. {
        if held.len() < count
            && let Ok(stream) = connect_once(source, target)
        {
            held.push(stream);
        }
        if attempt == count {
            println!("{count} attempted, {} open", held.len());
            told = true;
        }
        if told {
            std::thread::sleep(AGAIN);
        }
    }
    Ok(())
}

fn connect_once(source: IpAddr, target: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.connect_timeout(&target.into(), Duration::from_secs(2))?;
    Ok(socket.into())
}

/// Sockets that a flood holds: half of a process's descriptors here.
const HELD: usize = 8_000;
/// The interval of further attempts once all were made.
const AGAIN: Duration = Duration::from_millis(5);
