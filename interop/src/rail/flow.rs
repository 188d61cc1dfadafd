//! What the flows of the rail bench's load carry: requests, content, and the count of bytes that
//! arrived.
//!
//! Both sides know the content of a transfer from its number. A wrong byte fails the run.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use polyrail_emulator::dice::Dice;
use polyrail_emulator::rail::Message;
use polyrail_emulator::record::SAMPLE_S;

/// The first bytes of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// The number of the transfer; decides its content.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Download,
    Upload,
    Messages,
}

/// The bytes received of one transfer over time.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) begun: Instant,
    state: Mutex<Received>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) bytes: u64,
    /// Bytes at each multiple of [`SAMPLE_S`].
    pub(crate) samples: Vec<u64>,
}

/// Wrong bytes that the server received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<Vec<String>>>);

impl Faults {
    pub(crate) fn add(&self, error: &anyhow::Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
    }

    pub(crate) fn check(&self) -> Result<()> {
        let faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(faults.is_empty(), "the server: {}", faults.join("; "));
        Ok(())
    }
}

impl Request {
    pub(crate) const BYTES: usize = 17;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = match self.kind {
            Kind::Download => b'd',
            Kind::Upload => b'u',
            Kind::Messages => b'm',
        };
        bytes[1..9].copy_from_slice(&self.number.to_be_bytes());
        bytes[9..].copy_from_slice(&self.bytes.to_be_bytes());
        bytes
    }

    pub(crate) fn read(mut stream: &TcpStream) -> Result<Self> {
        let mut bytes = [0; Self::BYTES];
        stream.read_exact(&mut bytes)?;
        Self::decode(&bytes)
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let kind = match bytes[0] {
            b'd' => Kind::Download,
            b'u' => Kind::Upload,
            b'm' => Kind::Messages,
            other => return Err(anyhow!("no such request: {other}")),
        };
        let number = |from: usize| {
            bytes[from..from + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        Ok(Self { kind, number: number(1), bytes: number(9) })
    }
}

/// The bytes of all transfers: one random table, which each transfer begins elsewhere.
pub(crate) struct Content {
    table: Vec<u8>,
}

impl Content {
    pub(crate) fn new() -> Self {
        let mut dice = Dice::new(1);
        let mut table: Vec<u8> = (0..PERIOD).map(|_| (dice.unit() * 256.0) as u8).collect();
        table.extend_from_within(..);
        table.extend_from_within(..PERIOD);
        Self { table }
    }

    /// At most [`CHUNK`] bytes of transfer `number` from `offset` on.
    pub(crate) fn piece(&self, number: u64, offset: u64, length: usize) -> &[u8] {
        let from = (offset.wrapping_add(number.wrapping_mul(7_919)) % PERIOD as u64) as usize;
        &self.table[from..from + length]
    }
}

impl Progress {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { begun: Instant::now(), state: Mutex::default() })
    }

    pub(crate) fn add(&self, bytes: u64) {
        let due = (self.begun.elapsed().as_secs_f64() / SAMPLE_S) as usize + 1;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.bytes;
        let missing = due.saturating_sub(state.samples.len());
        state.samples.extend(std::iter::repeat_n(before, missing));
        state.bytes += bytes;
    }

    pub(crate) fn received(&self) -> Received {
        self.add(0);
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Fails unless the operating system reported the error: the flow broke or took too long.
pub(crate) fn unless_broken(error: anyhow::Error) -> Result<()> {
    if error.is::<std::io::Error>() { Ok(()) } else { Err(error) }
}

/// The bytes of a message.
pub(crate) fn words(user: u64, number: u32) -> [u8; Message::UP] {
    let mut message = [0; Message::UP];
    message[..4].copy_from_slice(&number.to_be_bytes());
    message[4..12].copy_from_slice(&user.to_be_bytes());
    for (place, byte) in message.iter_mut().enumerate().skip(12) {
        *byte = place as u8 ^ number as u8;
    }
    message
}

/// The time until a deadline.
pub(crate) fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

pub(crate) fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}

/// The bytes of one read or write.
pub(crate) const CHUNK: usize = 64 * 1024;
/// The content repeats after this many bytes, a prime.
const PERIOD: usize = 65_521;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_the_same_in_any_pieces() {
        let content = Content::new();
        let whole: Vec<u8> =
            (0..3).flat_map(|n| content.piece(5, n * 50_000, 50_000)).copied().collect();
        let pieces: Vec<u8> =
            (0..15).flat_map(|n| content.piece(5, n * 10_000, 10_000)).copied().collect();
        assert_eq!(whole, pieces);
        assert_ne!(content.piece(5, 0, 100), content.piece(6, 0, 100));
    }

    #[test]
    fn progress_has_a_sample_for_each_interval() {
        let progress = Progress::new();
        progress.add(10);
        std::thread::sleep(Duration::from_secs_f64(2.2 * SAMPLE_S));
        progress.add(5);
        let received = progress.received();
        assert_eq!((received.bytes, received.samples[0], received.samples[1]), (15, 0, 10));
    }
}
