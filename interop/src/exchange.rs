//! Flows whose every byte is checked at both ends: random sizes, half-closes and resets.
//!
//! The client sends a header that describes the exchange. Both directions carry bytes generated
//! from a seed, so each side knows the expected bytes: all of them if the direction finishes, and a
//! prefix if it is reset. Anything else is an error.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::namespace::Namespace;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;
use socket2::SockRef;

use crate::services;

const MAGIC: &[u8; 4] = b"PRX1";
const HEADER: usize = 29;
const CHUNK: usize = 16 * 1024;
/// The words of errors about bytes that nobody sent.
const WRONG: &str = "wrong bytes";
const MORE: &str = "more than";
const UP: u64 = 0x7570;
const DOWN: u64 = 0x646f_776e;

/// How an exchange ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both directions run at once and finish.
    Together,
    /// The client finishes its direction before the server begins.
    ClientFirst,
    /// The server finishes its direction before the client begins.
    ServerFirst,
    /// The client resets after half of the download.
    ClientResets,
    /// The server resets after half of the download.
    ServerResets,
}

const ENDINGS: [Ending; 5] = [
    Ending::Together,
    Ending::ClientFirst,
    Ending::ServerFirst,
    Ending::ClientResets,
    Ending::ServerResets,
];

/// The behaviour of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The id of the flow; its bytes are generated from it.
    pub seed: u64,
    /// Bytes from client to server.
    pub up: u64,
    /// Bytes from server to client.
    pub down: u64,
    /// How it ends.
    pub ending: Ending,
}

/// How a reader saw its direction end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Reset,
}

impl Exchange {
    /// A random exchange of at most `size_max` bytes each way.
    pub fn random(generator: &mut impl Rng, size_max: u64) -> Exchange {
        let mut size = || {
            // Most flows are small, some are large, as on the web.
            let bits = generator.random_range(0.0..(size_max as f64).log2());
            bits.exp2() as u64
        };
        // At least two bytes, so that a reset in the middle follows a received byte.
        let (up, down) = (size(), size().max(2));
        let ending = ENDINGS[generator.random_range(0..ENDINGS.len())];
        Exchange { seed: generator.random(), up, down, ending }
    }

    /// Plays the client's part on a new connection and checks all received bytes.
    ///
    /// # Errors
    /// A byte is wrong, missing or unexpected, or the flow ends in another way than agreed.
    pub fn perform(&self, stream: TcpStream) -> Result<()> {
        self.perform_inner(&stream).with_context(|| format!("client of {self:?}"))
    }

    fn perform_inner(&self, stream: &TcpStream) -> Result<()> {
        let mut writer = stream;
        writer.write_all(&self.header()).context("header")?;
        match self.ending {
            Ending::Together => {
                let upload =
                    self.in_background(stream, |exchange, stream| exchange.upload(stream))?;
                self.check(stream, DOWN, self.down, End::Finished)?;
                join(upload)
            }
            Ending::ClientFirst => {
                self.upload(stream)?;
                self.check(stream, DOWN, self.down, End::Finished)
            }
            Ending::ServerFirst => {
                self.check(stream, DOWN, self.down, End::Finished)?;
                self.upload(stream)
            }
            Ending::ClientResets => {
                expect(stream, &mut generator(self.seed, DOWN), self.down / 2)?;
                reset(stream)
            }
            Ending::ServerResets => self.check(stream, DOWN, self.down / 2, End::Reset),
        }
    }

    fn serve(&self, stream: &TcpStream) -> Result<()> {
        match self.ending {
            Ending::Together => {
                let download = self.in_background(stream, |exchange, stream| {
                    exchange.download(stream, exchange.down)
                })?;
                self.check(stream, UP, self.up, End::Finished)?;
                join(download)
            }
            Ending::ClientFirst => {
                self.check(stream, UP, self.up, End::Finished)?;
                self.download(stream, self.down)
            }
            Ending::ServerFirst => {
                self.download(stream, self.down)?;
                self.check(stream, UP, self.up, End::Finished)
            }
            Ending::ClientResets => {
                // The reset may arrive while this side still writes.
                match send(stream, &mut generator(self.seed, DOWN), self.down) {
                    Err(error) if is_reset(&error) => Ok(()),
                    Err(error) => Err(error.into()),
                    Ok(()) => self.check(stream, UP, 0, End::Reset),
                }
            }
            Ending::ServerResets => {
                send(stream, &mut generator(self.seed, DOWN), self.down / 2)?;
                reset(stream)
            }
        }
    }

    fn in_background<F>(
        &self,
        stream: &TcpStream,
        work: F,
    ) -> Result<std::thread::JoinHandle<Result<()>>>
    where
        F: FnOnce(Exchange, &TcpStream) -> Result<()> + Send + 'static,
    {
        let (exchange, stream) = (*self, stream.try_clone()?);
        Ok(std::thread::spawn(move || work(exchange, &stream)))
    }

    fn upload(&self, stream: &TcpStream) -> Result<()> {
        send(stream, &mut generator(self.seed, UP), self.up).context("upload")?;
        stream.shutdown(Shutdown::Write).context("half-close of the client")
    }

    fn download(&self, stream: &TcpStream, size: u64) -> Result<()> {
        send(stream, &mut generator(self.seed, DOWN), size).context("download")?;
        stream.shutdown(Shutdown::Write).context("half-close of the server")
    }

    /// Reads one direction to its end. A reset may cut it anywhere, but never change a byte.
    fn check(&self, stream: &TcpStream, direction: u64, size: u64, end: End) -> Result<()> {
        let (received, seen) = drain(stream, &mut generator(self.seed, direction), size)?;
        ensure!(seen == end, "{seen:?} after {received} of {size} bytes, expected {end:?}");
        ensure!(end == End::Reset || received == size, "{received} of {size} bytes, then the end");
        Ok(())
    }

    fn header(&self) -> [u8; HEADER] {
        let ending = ENDINGS.iter().position(|ending| *ending == self.ending).unwrap_or(0);
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(MAGIC);
        header[4] = ending as u8;
        header[5..13].copy_from_slice(&self.seed.to_be_bytes());
        header[13..21].copy_from_slice(&self.up.to_be_bytes());
        header[21..29].copy_from_slice(&self.down.to_be_bytes());
        header
    }

    fn from_header(header: &[u8; HEADER]) -> Result<Exchange> {
        ensure!(header[..4] == *MAGIC, "not an exchange");
        let number =
            |at: usize| header[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let ending = *ENDINGS.get(usize::from(header[4])).context("unknown ending")?;
        Ok(Exchange { seed: number(5), up: number(13), down: number(21), ending })
    }
}

/// The results of the servers of exchanges, by seed.
#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    outcomes: Mutex<BTreeMap<u64, Result<(), String>>>,
    changed: Condvar,
}

impl Verdicts {
    /// Starts a server of exchanges.
    pub fn serve(&self, namespace: &Namespace, address: SocketAddr) -> Result<()> {
        let verdicts = self.clone();
        services::serve(namespace, address, move |stream, _| verdicts.handle(&stream))
    }

    fn handle(&self, mut stream: &TcpStream) {
        let mut header = [0; HEADER];
        // Without a complete header the flow is unknown here; the client reports the error.
        if stream.read_exact(&mut header).is_err() {
            return;
        }
        let Ok(exchange) = Exchange::from_header(&header) else { return };
        let outcome = exchange.serve(stream).map_err(|error| format!("{error:#}"));
        let mut outcomes = self.shared.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.insert(exchange.seed, outcome);
        self.shared.changed.notify_all();
    }

    /// Waits for the server's end of one exchange and returns its verdict.
    ///
    /// # Errors
    /// The server saw anything else than agreed, or has not ended within `limit`.
    pub fn verdict(&self, exchange: &Exchange, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let shared = &*self.shared;
        let mut map = shared.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match map.get(&exchange.seed) {
                Some(Ok(())) => return Ok(()),
                Some(Err(words)) => bail!("server of {exchange:?}: {words}"),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "the server of {exchange:?} has not ended");
            map = shared.changed.wait_timeout(map, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Whether these words of an error say that a byte was wrong, not only missing.
pub fn is_wrong(words: &str) -> bool {
    [WRONG, MORE].iter().any(|wrong| words.contains(wrong))
}

/// Makes the connection end with RST when its last descriptor is closed.
pub fn reset(stream: &TcpStream) -> Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).context("linger of zero")
}

fn generator(seed: u64, direction: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed ^ direction)
}

fn join(handle: std::thread::JoinHandle<Result<()>>) -> Result<()> {
    handle.join().unwrap_or_else(|_| bail!("a thread of the exchange panicked"))
}

fn send(mut stream: &TcpStream, bytes: &mut Pcg64, size: u64) -> std::io::Result<()> {
    let mut chunk = [0; CHUNK];
    let mut left = size;
    while left > 0 {
        let length = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        // The generator always fills a whole chunk, so that both sides consume it alike.
        bytes.fill_bytes(&mut chunk);
        stream.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Reads exactly `size` bytes and compares them with the generator.
fn expect(mut stream: &TcpStream, bytes: &mut Pcg64, size: u64) -> Result<()> {
    let (mut expected, mut got) = ([0; CHUNK], [0; CHUNK]);
    let mut left = size;
    while left > 0 {
        let length = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        bytes.fill_bytes(&mut expected);
        stream.read_exact(&mut got[..length]).context("reading what was sent")?;
        ensure!(got[..length] == expected[..length], "{WRONG} near {}", size - left);
        left -= length as u64;
    }
    Ok(())
}

/// Reads to the end. The bytes must be a prefix of the generator's first `size` bytes.
fn drain(mut stream: &TcpStream, bytes: &mut Pcg64, size: u64) -> Result<(u64, End)> {
    let (mut expected, mut got) = ([0; CHUNK], [0; CHUNK]);
    let (mut received, mut at) = (0u64, CHUNK);
    loop {
        let length = match stream.read(&mut got) {
            Ok(0) => return Ok((received, End::Finished)),
            Ok(length) => length,
            Err(error) if is_reset(&error) => return Ok((received, End::Reset)),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).with_context(|| format!("after {received} bytes")),
        };
        for byte in &got[..length] {
            if at == CHUNK {
                bytes.fill_bytes(&mut expected);
                at = 0;
            }
            ensure!(*byte == expected[at], "{WRONG} at offset {received}");
            at += 1;
            received += 1;
            ensure!(received <= size, "{MORE} {size} bytes");
        }
    }
}

fn is_reset(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn exchange(ending: Ending) -> Exchange {
        Exchange { seed: 5, up: 70_001, down: 90_001, ending }
    }

    #[test]
    fn every_ending_is_right_at_both_ends_of_plain_tcp() {
        for ending in ENDINGS {
            let (client, server) = pair();
            let verdicts = Verdicts::default();
            let there = verdicts.clone();
            let thread = std::thread::spawn(move || there.handle(&server));
            exchange(ending).perform(client).unwrap();
            verdicts.verdict(&exchange(ending), Duration::from_secs(10)).unwrap();
            thread.join().unwrap();
        }
    }

    #[test]
    fn wrong_missing_and_superfluous_bytes_are_seen() {
        let right: Vec<u8> = {
            let mut bytes = vec![0; CHUNK * 2];
            generator(5, DOWN).fill_bytes(&mut bytes);
            bytes
        };
        let mut wrong = right.clone();
        wrong[20_000] ^= 1;
        for (bytes, size, words) in [
            (&right[..30_000], 30_000, None),
            (&right[..29_999], 30_000, Some("29999 of 30000")),
            (&right[..30_001], 30_000, Some("more than 30000")),
            (&wrong[..30_000], 30_000, Some("offset 20000")),
        ] {
            let (client, mut server) = pair();
            server.write_all(bytes).unwrap();
            drop(server);
            let seen = exchange(Ending::Together).check(&client, DOWN, size, End::Finished);
            match words {
                None => seen.unwrap(),
                Some(words) => {
                    let error = format!("{:#}", seen.unwrap_err());
                    assert!(error.contains(words), "{error}");
                }
            }
        }
    }
}
