//! New connections of passengers at a constant rate: how many succeed, and after what time.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::namespace::Namespace;
use polyrail_emulator::statistics::quantile;

use crate::client;

/// How a passenger reaches the server.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// Intercepted, from this source address.
    From(IpAddr),
    /// Through this SOCKS5 server.
    Proxy(SocketAddr),
}

/// The result of some connections.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// Seconds until the first byte of the server arrived.
    pub times: Vec<f64>,
    /// Connections that were reset or did not answer within [`PATIENCE`].
    pub failed: usize,
    /// The reason of the first failure.
    pub reason: Option<String>,
}

impl Probed {
    /// The share of successful connections.
    pub fn success(&self) -> f64 {
        self.times.len() as f64 / (self.times.len() + self.failed).max(1) as f64
    }

    /// The 95th percentile of the time of all connections, in milliseconds; failed ones count as
    /// [`PATIENCE`].
    pub fn p95_ms(&self) -> f64 {
        let mut times = self.times.clone();
        times.resize(times.len() + self.failed, PATIENCE.as_secs_f64());
        quantile(&times, 0.95) * 1e3
    }
}

/// Connects `rate` times a second for a while, in turns over the ways. `server` echoes.
pub fn probe(
    passenger: &Namespace,
    ways: &[Way],
    server: SocketAddr,
    rate: u32,
    length: Duration,
) -> Result<Probed> {
    ensure!(!ways.is_empty() && rate > 0, "nothing to probe");
    let (started, step) = (Instant::now(), Duration::from_secs(1) / rate);
    let mut running = Vec::new();
    for number in 0_u32.. {
        let at = started + step * number;
        if at.duration_since(started) >= length {
            break;
        }
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let way = ways[number as usize % ways.len()];
        running.push(client::thread(passenger, move || once(way, server))?);
    }
    let mut probed = Probed::default();
    for thread in running {
        match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(seconds) => probed.times.push(seconds),
            Err(error) => {
                probed.failed += 1;
                probed.reason.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
    Ok(probed)
}

/// One connection: the seconds until the echo of a byte.
pub fn once(way: Way, server: SocketAddr) -> Result<f64> {
    let started = Instant::now();
    let mut stream = connect(way, server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"?").context("write")?;
    let mut answer = [0];
    stream.read_exact(&mut answer).context("echo")?;
    Ok(started.elapsed().as_secs_f64())
}

/// A connection from the calling thread's namespace.
pub fn connect(way: Way, server: SocketAddr) -> Result<TcpStream> {
    match way {
        Way::From(source) => client::connect_from(source, server, PATIENCE),
        Way::Proxy(proxy) => {
            let mut stream = TcpStream::connect_timeout(&proxy, PATIENCE).context("connect")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let code = client::negotiate(&mut stream, server)?;
            ensure!(code == 0, "SOCKS5 reply {code}");
            Ok(stream)
        }
    }
}

/// When a connection counts as failed.
pub const PATIENCE: Duration = Duration::from_secs(5);
