//! Outgoing units: from the caller into streams.
//!
//! Units are queued here, not in `quiche`, so that they can be withdrawn without a trace. `quiche`
//! receives one unit at a time, control first.

use std::collections::{HashMap, VecDeque};

use polyrail_model::Unit;
use quiche::{Connection, Error, Shutdown};

use super::datagrams::Datagrams;

/// Queued units, and sent units that can still be withdrawn.
#[derive(Default)]
pub(super) struct Outbox {
    control: Vec<u8>,
    /// How much of `control` was given to `quiche`.
    control_given: usize,
    data: VecDeque<Waiting>,
    pub(super) datagrams: Datagrams,
    /// Bytes of all queued units.
    waiting: usize,
    /// Greetings sent so far.
    epoch: u64,
    control_stream: u64,
    next_stream: u64,
    /// Data streams in the order of their begin that are not acknowledged to their end: at most
    /// [`OPEN_MAX`], then the oldest is forgotten.
    open: VecDeque<Sent>,
    by_tag: HashMap<u64, u64>,
    spare: Vec<Vec<u8>>,
}

/// A unit that `quiche` has whole.
struct Sent {
    tag: u64,
    stream: u64,
    length: usize,
}

struct Waiting {
    tag: u64,
    bytes: Vec<u8>,
    given: usize,
    /// Its stream, once begun.
    stream: Option<u64>,
}

impl Outbox {
    pub(super) fn new(is_server: bool) -> Self {
        // RFC 9000 2.1: the two lowest bits of a stream's id say who began it, and that it is
        // unidirectional.
        let control_stream = if is_server { 3 } else { 2 };
        Self { control_stream, next_stream: control_stream + 4, ..Self::default() }
    }

    /// The stream for greetings and control.
    pub(super) fn control_stream(&self) -> u64 {
        self.control_stream
    }

    /// Queued bytes.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Queues a unit.
    pub(super) fn push(&mut self, unit: Unit, frames: &[u8]) {
        let kind = match unit {
            Unit::Greeting => KIND_GREETING,
            Unit::Control => KIND_CONTROL,
            Unit::Data { tag } => return self.push_data(tag, frames),
            Unit::Datagram { expires } => return self.datagrams.push(expires, frames),
        };
        if unit == Unit::Greeting {
            self.epoch += 1;
        }
        let length = frames.len() as u16;
        self.control.push(kind);
        self.control.extend_from_slice(&length.to_be_bytes());
        self.control.extend_from_slice(frames);
        self.waiting += UNIT_HEADER + frames.len();
    }

    fn push_data(&mut self, tag: u64, frames: &[u8]) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        put_varint(self.epoch, &mut bytes);
        bytes.extend_from_slice(&(frames.len() as u16).to_be_bytes());
        bytes.extend_from_slice(frames);
        self.waiting += bytes.len();
        self.data.push_back(Waiting { tag, bytes, given: 0, stream: None });
    }

    /// Gives `quiche` as much of the next data unit as it accepts; 0 if it accepts nothing now.
    pub(super) fn give_data(&mut self, connection: &mut Connection) -> Result<usize, Error> {
        let Some(unit) = self.data.front_mut() else { return Ok(0) };
        let stream = match unit.stream {
            Some(stream) => stream,
            None => {
                let stream = self.next_stream;
                match connection.stream_priority(stream, URGENCY_DATA, false) {
                    Ok(()) => {}
                    Err(Error::StreamLimit) => return Ok(0),
                    Err(error) => return Err(error),
                }
                self.next_stream += 4;
                *unit.stream.insert(stream)
            }
        };
        let given = match connection.stream_send(stream, &unit.bytes[unit.given..], true) {
            Ok(given) => given,
            Err(Error::Done) => return Ok(0),
            // STOP_SENDING, which our side never sends.
            Err(Error::StreamStopped(_)) => unit.bytes.len() - unit.given,
            Err(error) => return Err(error),
        };
        unit.given += given;
        self.waiting -= given;
        if unit.given == unit.bytes.len() {
            self.finish_front(connection, stream);
        }
        Ok(given)
    }

    /// Gives `quiche` as much control as it accepts.
    pub(super) fn give_control(&mut self, connection: &mut Connection) -> Result<usize, Error> {
        if self.control.is_empty() {
            return Ok(0);
        }
        match connection.stream_priority(self.control_stream, URGENCY_CONTROL, false) {
            Ok(()) => {}
            Err(Error::StreamLimit) => return Ok(0),
            Err(error) => return Err(error),
        }
        let rest = &self.control[self.control_given..];
        let given = match connection.stream_send(self.control_stream, rest, false) {
            Ok(given) => given,
            Err(Error::Done) => return Ok(0),
            Err(error) => return Err(error),
        };
        self.control_given += given;
        self.waiting -= given;
        if self.control_given == self.control.len() {
            self.control.clear();
            self.control_given = 0;
        }
        Ok(given)
    }

    fn finish_front(&mut self, connection: &mut Connection, stream: u64) {
        let Some(unit) = self.data.pop_front() else { return };
        let sent = Sent { tag: unit.tag, stream, length: unit.bytes.len() };
        if self.spare.len() < SPARE_MAX {
            self.spare.push(unit.bytes);
        }
        self.forget_finished(connection);
        if self.open.len() >= OPEN_MAX
            && let Some(oldest) = self.open.pop_front()
        {
            self.by_tag.remove(&oldest.tag);
        }
        self.by_tag.insert(sent.tag, stream);
        self.open.push_back(sent);
    }

    /// Forgets the oldest streams that were acknowledged to their end.
    fn forget_finished(&mut self, connection: &mut Connection) {
        while let Some(&Sent { tag, stream, .. }) = self.open.front()
            && is_finished(connection, stream)
        {
            self.open.pop_front();
            self.by_tag.remove(&tag);
        }
    }

    /// Withdraws a data unit, queued or sent; returns how much less `quiche`, which held `held`
    /// bytes, has to send.
    pub(super) fn withdraw(&mut self, connection: &mut Connection, tag: u64, held: usize) -> usize {
        let (stream, unsent) = match self.by_tag.remove(&tag) {
            Some(stream) => (stream, self.take_unsent(stream, held)),
            None => {
                let Some(at) = self.data.iter().position(|unit| unit.tag == tag) else {
                    return 0;
                };
                let Some(unit) = self.data.remove(at) else { return 0 };
                self.waiting -= unit.bytes.len() - unit.given;
                let Some(stream) = unit.stream else { return 0 };
                // No later unit was given.
                (stream, unit.given.min(held))
            }
        };
        let _ = connection.stream_shutdown(stream, Shutdown::Write, WITHDRAWN);
        unsent
    }

    /// How many of the last `held` bytes given belong to a stream, and removes them from it;
    /// streams are served in their order.
    fn take_unsent(&mut self, stream: u64, held: usize) -> usize {
        let begun = self.data.front().map_or(0, |unit| unit.given);
        let mut left = held.saturating_sub(begun);
        for sent in self.open.iter_mut().rev() {
            if left == 0 || sent.stream < stream {
                break;
            }
            if sent.stream == stream {
                return std::mem::take(&mut sent.length).min(left);
            }
            left = left.saturating_sub(sent.length);
        }
        0
    }

    /// Ends the control stream; no unit can be queued afterwards.
    pub(super) fn end(&mut self, connection: &mut Connection) {
        let _ = connection.stream_send(self.control_stream, &[], true);
    }

    /// Whether the peer has acknowledged everything.
    pub(super) fn is_delivered(&mut self, connection: &mut Connection) -> bool {
        self.forget_finished(connection);
        self.waiting == 0
            && is_finished(connection, self.control_stream)
            && self.open.iter().all(|sent| is_finished(connection, sent.stream))
    }

    /// Drops all queued units.
    pub(super) fn clear(&mut self) {
        self.control = Vec::new();
        self.control_given = 0;
        self.data = VecDeque::new();
        self.waiting = 0;
    }
}

/// Whether a stream is acknowledged to its end: then `quiche` has forgotten it. (`stream_closed`
/// means that the end was written.)
fn is_finished(connection: &mut Connection, stream: u64) -> bool {
    matches!(connection.stream_capacity(stream), Err(Error::InvalidStreamState(_)))
}

/// Appends a variable-length integer (RFC 9000 16).
fn put_varint(value: u64, bytes: &mut Vec<u8>) {
    match value {
        0..=0x3f => bytes.push(value as u8),
        0x40..=0x3fff => bytes.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..=0x3fff_ffff => {
            bytes.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes());
        }
        _ => bytes.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// The kinds of units on a control stream.
pub(super) const KIND_GREETING: u8 = 1;
pub(super) const KIND_CONTROL: u8 = 2;
/// Kind and length.
pub(super) const UNIT_HEADER: usize = 3;

/// The reset code of a stream whose data another path has delivered.
const WITHDRAWN: u64 = 0x10;
const URGENCY_CONTROL: u8 = 0;
const URGENCY_DATA: u8 = 127;
/// Streams that can be withdrawn: as many as a peer may have open.
const OPEN_MAX: usize = super::STREAMS_MAX as usize;
/// Buffers kept for the next units, of at most a unit each.
const SPARE_MAX: usize = 16;
