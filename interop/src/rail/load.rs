//! The load of the rail bench: a server, users who download, upload and send messages, and the
//! check of every byte.
//!
//! A flow begins with a request of [`Request::BYTES`]. Both sides know the content of a transfer
//! from its number. A wrong byte fails the run; a flow that breaks or takes too long is unfinished.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::dice::Dice;
use polyrail_emulator::rail::{Course, Message, Transfer, Workload};
use polyrail_emulator::record::{SAMPLE_S, Transferred};
use socket2::SockRef;

use super::stage::{Door, Stage};

/// Users who send messages; the one after them has the transfers.
pub(super) const USERS: usize = Message::USERS;

/// The bytes of one read or write.
const CHUNK: usize = 64 * 1024;
/// The content repeats after this many bytes, a prime.
const PERIOD: usize = 65_521;
/// How long before their first message users connect.
const EARLY: Duration = Duration::from_millis(500);
/// How long the server waits for bytes, or for room to write some.
const PATIENCE: Duration = Duration::from_secs(60);
/// The server's answer after an upload.
const THANKS: u8 = b'k';

/// A running load.
pub(super) struct Load {
    transfers: Option<JoinHandle<Result<Vec<Transferred>>>>,
    chats: Vec<JoinHandle<Result<Vec<Option<f64>>>>>,
    plan: Vec<Message>,
    faults: Faults,
}

/// The first bytes of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    kind: Kind,
    /// The number of the transfer; decides its content.
    number: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Download,
    Upload,
    Messages,
}

/// The bytes received of one transfer over time.
#[derive(Debug)]
struct Progress {
    begun: Instant,
    state: Mutex<Received>,
}

#[derive(Clone, Debug, Default)]
struct Received {
    bytes: u64,
    /// Bytes at each multiple of [`SAMPLE_S`].
    samples: Vec<u64>,
}

/// The uploads, which the server counts.
type Uploads = Arc<Mutex<Vec<Arc<Progress>>>>;

/// Wrong bytes that the server received.
type Faults = Arc<Mutex<Vec<String>>>;

impl Load {
    /// Starts the server and all users of a workload.
    pub(super) fn start(stage: &Stage, course: &Course, workload: Workload) -> Result<Load> {
        let epoch = stage.epoch()?;
        let content = Arc::new(Content::new());
        let uploads = Uploads::default();
        let faults = serve(stage, &content, &uploads)?;
        let list = course.transfers(workload);
        let door = stage.door.clone();
        let transfers = (!list.is_empty())
            .then(|| {
                door.clone().thread(move || transfer_all(&door, epoch, &list, &content, &uploads))
            })
            .transpose()?;
        let plan = course.messages(workload);
        let end = epoch + course.length();
        let chats = (0..if plan.is_empty() { 0 } else { USERS }).map(|user| {
            let own = plan.iter().filter(|message| message.user == user);
            let times: Vec<Duration> = own.map(|message| message.at).collect();
            let door = stage.door.clone();
            door.clone().thread(move || chat(&door, user, epoch, &times, end))
        });
        Ok(Load { transfers, chats: chats.collect::<Result<_>>()?, plan, faults })
    }

    pub(super) fn is_over(&self) -> bool {
        self.transfers.as_ref().is_none_or(JoinHandle::is_finished)
            && self.chats.iter().all(JoinHandle::is_finished)
    }

    /// The outcomes of all transfers and messages in the order of their plans.
    pub(super) fn finish(self) -> Result<(Vec<Transferred>, Vec<Option<f64>>)> {
        let joined = |_| anyhow!("a user's thread panicked");
        let transfers = match self.transfers {
            Some(thread) => thread.join().map_err(joined)??,
            None => Vec::new(),
        };
        let mut chats = Vec::new();
        for thread in self.chats {
            chats.push(thread.join().map_err(joined)??.into_iter());
        }
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(faults.is_empty(), "the server: {}", faults.join("; "));
        let answer = |message: &Message| chats.get_mut(message.user)?.next()?;
        Ok((transfers, self.plan.iter().map(answer).collect()))
    }
}

impl Request {
    const BYTES: usize = 17;

    fn encode(self) -> [u8; Self::BYTES] {
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

    fn read(mut stream: &TcpStream) -> Result<Self> {
        let mut bytes = [0; Self::BYTES];
        stream.read_exact(&mut bytes)?;
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
struct Content {
    table: Vec<u8>,
}

impl Content {
    fn new() -> Self {
        let mut dice = Dice::new(1);
        let mut table: Vec<u8> = (0..PERIOD).map(|_| (dice.unit() * 256.0) as u8).collect();
        table.extend_from_within(..);
        table.extend_from_within(..PERIOD);
        Self { table }
    }

    /// At most [`CHUNK`] bytes of transfer `number` from `offset` on.
    fn piece(&self, number: u64, offset: u64, length: usize) -> &[u8] {
        let from = (offset.wrapping_add(number.wrapping_mul(7_919)) % PERIOD as u64) as usize;
        &self.table[from..from + length]
    }
}

impl Progress {
    fn new() -> Arc<Self> {
        Arc::new(Self { begun: Instant::now(), state: Mutex::default() })
    }

    fn add(&self, bytes: u64) {
        let due = (self.begun.elapsed().as_secs_f64() / SAMPLE_S) as usize + 1;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.bytes;
        let missing = due.saturating_sub(state.samples.len());
        state.samples.extend(std::iter::repeat_n(before, missing));
        state.bytes += bytes;
    }

    fn received(&self) -> Received {
        self.add(0);
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stage: &Stage, content: &Arc<Content>, uploads: &Uploads) -> Result<Faults> {
    let (listener, door) = (stage.listener()?, stage.door.clone());
    let (content, uploads) = (content.clone(), uploads.clone());
    let all = Faults::default();
    let faults = all.clone();
    std::thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let (door, content, uploads) = (door.clone(), content.clone(), uploads.clone());
            let faults = faults.clone();
            std::thread::spawn(move || {
                let outcome =
                    door.control(&socket).and_then(|()| answer(&socket.into(), &content, &uploads));
                // A flow breaks when the user gives up; the user's side reports missing bytes.
                if let Err(error) = outcome.or_else(unless_broken) {
                    let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
                    faults.push(format!("{error:#}"));
                }
            });
        }
    });
    Ok(all)
}

/// Fails unless the operating system reported the error: the flow broke or took too long.
fn unless_broken(error: anyhow::Error) -> Result<()> {
    if error.is::<std::io::Error>() { Ok(()) } else { Err(error) }
}

/// The server's part of one flow.
fn answer(mut stream: &TcpStream, content: &Content, uploads: &Uploads) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = Request::read(stream)?;
    match request.kind {
        Kind::Download => {
            let mut offset = 0;
            while offset < request.bytes {
                let length = (request.bytes - offset).min(CHUNK as u64) as usize;
                stream.write_all(content.piece(request.number, offset, length))?;
                offset += length as u64;
            }
        }
        Kind::Upload => {
            let begun = |list: &Vec<Arc<Progress>>| list.get(request.number as usize).cloned();
            let progress = begun(&uploads.lock().unwrap_or_else(PoisonError::into_inner));
            let progress = progress.context("an upload that nobody began")?;
            receive(stream, &request, content, &progress)?;
            stream.write_all(&[THANKS])?;
        }
        Kind::Messages => {
            let mut message = [0; Message::UP];
            let mut number = 0_u32;
            loop {
                stream.read_exact(&mut message)?;
                ensure!(
                    message == words(request.number, number),
                    "message {number} has other bytes"
                );
                stream.write_all(&number.to_be_bytes())?;
                number += 1;
            }
        }
    }
    Ok(())
}

/// Reads and checks a transfer's bytes until all have arrived.
fn receive(
    mut stream: &TcpStream,
    request: &Request,
    content: &Content,
    progress: &Progress,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    while offset < request.bytes {
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        let wanted = content.piece(request.number, offset, length);
        ensure!(chunk[..length] == *wanted, "wrong bytes after {offset} of {request:?}");
        offset += length as u64;
        progress.add(length as u64);
    }
    Ok(())
}

/// The transfers of one user, one after the other.
fn transfer_all(
    door: &Door,
    epoch: Instant,
    list: &[Transfer],
    content: &Content,
    uploads: &Uploads,
) -> Result<Vec<Transferred>> {
    let one = |(number, transfer): (usize, &Transfer)| {
        sleep_until(epoch + transfer.at);
        let (progress, deadline) = (Progress::new(), epoch + transfer.until);
        if transfer.up {
            uploads.lock().unwrap_or_else(PoisonError::into_inner).push(progress.clone());
        }
        let outcome = perform(door, number, transfer, deadline, content, &progress);
        let ended = Instant::now().min(deadline);
        let finished = outcome.is_ok();
        outcome.or_else(unless_broken).with_context(|| format!("transfer {number}"))?;
        // The user of a broken flow waits in vain.
        let ended = if finished { ended } else { deadline };
        sleep_until(ended);
        let received = progress.received();
        Ok(Transferred {
            at_s: (progress.begun - epoch).as_secs_f64(),
            bytes: transfer.bytes,
            up: transfer.up,
            received: received.bytes,
            took_s: (ended - progress.begun).as_secs_f64(),
            finished,
            progress: received.samples,
        })
    };
    list.iter().enumerate().map(one).collect()
}

/// The user's part of one transfer. An error of the operating system means that it is unfinished.
fn perform(
    door: &Door,
    number: usize,
    transfer: &Transfer,
    deadline: Instant,
    content: &Content,
    progress: &Progress,
) -> Result<()> {
    let stream = door.connect(USERS, number, left(deadline)?)?;
    // A user who gives up resets the flow, so that the carriers are free for the next one.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    let kind = if transfer.up { Kind::Upload } else { Kind::Download };
    let request = Request { kind, number: number as u64, bytes: transfer.bytes };
    let stream = &Limited { stream: &stream, deadline };
    stream.write_all(&request.encode())?;
    if !transfer.up {
        return stream.receive(&request, content, progress);
    }
    let mut offset = 0;
    while offset < transfer.bytes {
        let length = (transfer.bytes - offset).min(CHUNK as u64) as usize;
        stream.write_all(content.piece(request.number, offset, length))?;
        offset += length as u64;
    }
    stream.thanks()
}

/// A stream that fails at a deadline.
struct Limited<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Limited<'_> {
    fn write_all(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(left(self.deadline)?))?;
            let mut stream = self.stream;
            bytes = &bytes[stream.write(bytes)?..];
        }
        Ok(())
    }

    fn receive(&self, request: &Request, content: &Content, progress: &Progress) -> Result<()> {
        let mut chunk = vec![0; CHUNK];
        let mut offset = 0;
        while offset < request.bytes {
            let length = self.read(&mut chunk)?;
            let wanted = content.piece(request.number, offset, length);
            ensure!(chunk[..length] == *wanted, "wrong bytes after {offset} of {request:?}");
            offset += length as u64;
            progress.add(length as u64);
        }
        Ok(())
    }

    fn thanks(&self) -> Result<()> {
        let mut answer = [0];
        self.read(&mut answer)?;
        ensure!(answer == [THANKS], "the server answers {answer:?}");
        Ok(())
    }

    fn read(&self, into: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        let mut stream = self.stream;
        match stream.read(into)? {
            0 => Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            length => Ok(length),
        }
    }
}

/// The messages of one user over one flow; `None` for those without an answer.
fn chat(
    door: &Door,
    user: usize,
    epoch: Instant,
    times: &[Duration],
    end: Instant,
) -> Result<Vec<Option<f64>>> {
    let mut rounds = vec![None; times.len()];
    let Some(first) = times.first() else { return Ok(rounds) };
    sleep_until(epoch + *first - EARLY);
    // A broken flow leaves the rest of the messages without answers.
    exchange(door, user, epoch, times, end, &mut rounds)
        .or_else(unless_broken)
        .with_context(|| format!("messages of user {user}"))?;
    Ok(rounds)
}

fn exchange(
    door: &Door,
    user: usize,
    epoch: Instant,
    times: &[Duration],
    end: Instant,
    rounds: &mut [Option<f64>],
) -> Result<()> {
    let stream = door.connect(user, user, left(end)?)?;
    let mut writer = stream.try_clone()?;
    writer.write_all(&Request { kind: Kind::Messages, number: user as u64, bytes: 0 }.encode())?;
    let at: Vec<Instant> = times.iter().map(|time| epoch + *time).collect();
    let due = at.clone();
    let sender = std::thread::spawn(move || {
        for (number, at) in (0_u32..).zip(due) {
            sleep_until(at);
            if writer.write_all(&words(user as u64, number)).is_err() {
                return;
            }
        }
    });
    let mut answers = &stream;
    for (number, (round, at)) in (0_u32..).zip(rounds.iter_mut().zip(&at)) {
        stream.set_read_timeout(Some(left(end)?))?;
        let mut answer = [0; Message::DOWN];
        answers.read_exact(&mut answer)?;
        ensure!(answer == number.to_be_bytes(), "an answer to another message");
        *round = Some(at.elapsed().as_secs_f64());
    }
    sender.join().map_err(|_| anyhow!("a sender panicked"))
}

/// The bytes of a message.
fn words(user: u64, number: u32) -> [u8; Message::UP] {
    let mut message = [0; Message::UP];
    message[..4].copy_from_slice(&number.to_be_bytes());
    message[4..12].copy_from_slice(&user.to_be_bytes());
    for (place, byte) in message.iter_mut().enumerate().skip(12) {
        *byte = place as u8 ^ number as u8;
    }
    message
}

/// The time until a deadline.
fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

pub(super) fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}

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
