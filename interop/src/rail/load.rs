//! The load of the rail bench: a server, and users who download, upload, call and send messages.
//!
//! A flow begins with a request of [`Request::BYTES`]. A flow that breaks or takes too long is
//! unfinished.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::rail::{Course, Message, Transfer, Workload};
use polyrail_emulator::record::{CallRun, Transferred};
use socket2::SockRef;

use super::call::Calling;
use super::flow::{
    CHUNK, Content, Faults, Kind, Progress, Request, left, sleep_until, unless_broken, words,
};
use super::stage::{Door, Port, Stage};
use super::{quic, requests};

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
    call: Option<Calling>,
    faults: Faults,
}

/// What a load has measured: transfers and messages in the order of their plans.
pub(super) struct Outcome {
    pub(super) transfers: Vec<Transferred>,
    pub(super) messages: Vec<Option<f64>>,
    pub(super) call: Option<CallRun>,
}

/// The uploads by number; the server counts their bytes.
type Uploads = Arc<Mutex<BTreeMap<u64, Arc<Progress>>>>;

/// The transfers' part of a course.
struct Transfers {
    workload: Workload,
    epoch: Instant,
    list: Vec<Transfer>,
    content: Arc<Content>,
    uploads: Uploads,
}

impl Load {
    /// Starts the server and all users of a workload.
    pub(super) fn start(stage: &Stage, course: &Course, workload: Workload) -> Result<Load> {
        let epoch = stage.epoch()?;
        let content = Arc::new(Content::new());
        let uploads = Uploads::default();
        let faults = serve(stage, &content, &uploads)?;
        if workload.is_quic() {
            let socket = stage.server_udp(Port::Quic)?;
            quic::serve(socket, stage.lab().folder(), packet_of(workload), &content, &faults)?;
        }
        let plan = course.messages(workload);
        let over_udp = workload == Workload::Requests;
        if over_udp {
            requests::serve(stage, &faults)?;
        }
        let list = course.transfers(workload);
        let door = stage.door.clone();
        let transfers = (!list.is_empty())
            .then(|| {
                let all = Transfers { workload, epoch, list, content, uploads };
                door.clone().thread(move || all.perform(&door))
            })
            .transpose()?;
        let call = course.call(workload).map(|call| Calling::start(stage, 0, call)).transpose()?;
        let end = epoch + course.length();
        let chats = (0..if plan.is_empty() { 0 } else { Message::USERS }).map(|user| {
            let own = plan.iter().filter(|message| message.user == user);
            let times: Vec<Duration> = own.map(|message| message.at).collect();
            let door = stage.door.clone();
            door.clone().thread(move || match over_udp {
                true => requests::ask_all(&door, user, epoch, &times, end),
                false => chat(&door, user, epoch, &times, end),
            })
        });
        Ok(Load { transfers, chats: chats.collect::<Result<_>>()?, plan, call, faults })
    }

    pub(super) fn is_over(&self) -> bool {
        self.transfers.as_ref().is_none_or(JoinHandle::is_finished)
            && self.chats.iter().all(JoinHandle::is_finished)
            && self.call.as_ref().is_none_or(Calling::is_over)
    }

    pub(super) fn finish(self) -> Result<Outcome> {
        let joined = |_| anyhow!("a user's thread panicked");
        let transfers = match self.transfers {
            Some(thread) => thread.join().map_err(joined)??,
            None => Vec::new(),
        };
        let mut chats = Vec::new();
        for thread in self.chats {
            chats.push(thread.join().map_err(joined)??.into_iter());
        }
        let call = self.call.map(Calling::finish).transpose()?;
        self.faults.check()?;
        let answer = |message: &Message| chats.get_mut(message.user)?.next()?;
        Ok(Outcome { transfers, messages: self.plan.iter().map(answer).collect(), call })
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
                    faults.add(&error);
                }
            });
        }
    });
    Ok(all)
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
            let begun = uploads.lock().unwrap_or_else(PoisonError::into_inner);
            let progress = begun.get(&request.number).cloned();
            drop(begun);
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

impl Transfers {
    /// Each at its time, in threads of their own.
    fn perform(&self, door: &Door) -> Result<Vec<Transferred>> {
        std::thread::scope(|scope| {
            let begin = |(number, one)| {
                Builder::new().spawn_scoped(scope, move || self.transfer(door, number, one))
            };
            let threads: Vec<_> = self.list.iter().enumerate().map(begin).collect();
            let join = |thread: std::io::Result<ScopedJoinHandle<'_, _>>| {
                thread?.join().map_err(|_| anyhow!("the thread of a transfer panicked"))?
            };
            // All of them are joined before the first error ends the run.
            let outcomes: Vec<Result<Transferred>> = threads.into_iter().map(join).collect();
            outcomes.into_iter().collect()
        })
    }

    fn transfer(&self, door: &Door, number: usize, transfer: &Transfer) -> Result<Transferred> {
        sleep_until(self.epoch + transfer.at);
        let (progress, deadline) = (Progress::new(), self.epoch + transfer.until);
        if transfer.up {
            let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
            uploads.insert(number as u64, progress.clone());
        }
        let kind = if transfer.up { Kind::Upload } else { Kind::Download };
        let request = Request { kind, number: number as u64, bytes: transfer.bytes };
        let outcome = match self.workload.is_quic() {
            true => door.udp(transfer.user, number, Port::Quic).and_then(|socket| {
                let packet = packet_of(self.workload);
                quic::download(&socket, packet, &request, deadline, &self.content, &progress)
            }),
            false => perform(door, transfer.user, &request, deadline, &self.content, &progress),
        };
        let ended = Instant::now().min(deadline);
        let finished = outcome.is_ok();
        outcome.or_else(unless_broken).with_context(|| format!("transfer {number}"))?;
        // The user of a broken flow waits in vain.
        let ended = if finished { ended } else { deadline };
        sleep_until(ended);
        let received = progress.received();
        Ok(Transferred {
            at_s: (progress.begun - self.epoch).as_secs_f64(),
            bytes: transfer.bytes,
            up: transfer.up,
            received: received.bytes,
            took_s: (ended - progress.begun).as_secs_f64(),
            finished,
            progress: received.samples,
        })
    }
}

/// The length of the users' QUIC packets.
fn packet_of(workload: Workload) -> usize {
    if workload == Workload::QuicBulk { quic::VPN } else { quic::BROWSER }
}

/// The user's part of one TCP transfer. An error of the operating system means that it is
/// unfinished.
fn perform(
    door: &Door,
    user: usize,
    request: &Request,
    deadline: Instant,
    content: &Content,
    progress: &Progress,
) -> Result<()> {
    let stream = door.connect(user, request.number as usize, left(deadline)?)?;
    // A user who gives up resets the flow, so that the carriers are free for the next one.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    let stream = &Limited { stream: &stream, deadline };
    stream.write_all(&request.encode())?;
    if request.kind == Kind::Download {
        return stream.receive(request, content, progress);
    }
    let mut offset = 0;
    while offset < request.bytes {
        let length = (request.bytes - offset).min(CHUNK as u64) as usize;
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
