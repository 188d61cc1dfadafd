//! Incoming units: from streams to the caller, whole, with greetings as barriers.

use std::collections::{BTreeMap, HashMap};

use quiche::{Connection, Error};

use super::PARTIAL_MAX;
use super::outbox::{KIND_CONTROL, KIND_GREETING, UNIT_HEADER};
use crate::FRAMES_MAX;

/// Incomplete units, and units that wait for their greeting.
#[derive(Default)]
pub(super) struct Inbox {
    control_stream: u64,
    control: Vec<u8>,
    /// Greetings delivered so far.
    epoch: u64,
    partial: HashMap<u64, Vec<u8>>,
    waiting: BTreeMap<u64, Vec<Vec<u8>>>,
    /// Bytes of both: at most [`PARTIAL_MAX`].
    held: usize,
    scratch: Vec<u8>,
    /// The data stream begun last.
    newest: u64,
    /// Whether data arrived out of the order of the streams: packets were lost or late.
    skipped: bool,
}

/// The peer violated the rules of units and streams; the text is for the log.
#[derive(Debug)]
pub(super) struct BadUnits(pub(super) &'static str);

impl Inbox {
    pub(super) fn new(is_server: bool) -> Self {
        let control_stream = if is_server { 2 } else { 3 };
        Self { control_stream, newest: control_stream, ..Self::default() }
    }

    /// Delivers whole units, up to about `budget` bytes; returns how many bytes left the streams.
    pub(super) fn take(
        &mut self,
        connection: &mut Connection,
        budget: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, BadUnits> {
        let mut total = 0;
        while total < budget
            && let Some(stream) = connection.stream_readable_next()
        {
            self.scratch.resize(UNIT_MAX + 1, 0);
            total += self.read(connection, stream, sink)?;
        }
        Ok(total)
    }

    /// Whether streams were skipped, or skipped ones continued, since the last call.
    pub(super) fn take_skip(&mut self) -> bool {
        std::mem::take(&mut self.skipped)
    }

    fn read(
        &mut self,
        connection: &mut Connection,
        stream: u64,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, BadUnits> {
        if stream != self.control_stream {
            let is_next = stream == self.newest + 4 && !self.partial.contains_key(&self.newest);
            self.skipped |= stream != self.newest && !is_next;
            self.newest = self.newest.max(stream);
        }
        let mut total = 0;
        loop {
            let (length, end) = match connection.stream_recv(stream, &mut self.scratch) {
                Ok(read) => read,
                Err(Error::Done | Error::InvalidStreamState(_)) => return Ok(total),
                Err(Error::StreamReset(_)) if stream == self.control_stream => {
                    return Err(BadUnits("its control stream was reset"));
                }
                Err(_) => {
                    self.drop_partial(stream);
                    return Ok(total);
                }
            };
            total += length;
            if stream == self.control_stream {
                self.control.extend_from_slice(&self.scratch[..length]);
                self.hand_out_control(sink)?;
            } else {
                self.on_data(stream, length, end, sink)?;
            }
            if end {
                return Ok(total);
            }
        }
    }

    /// Takes the bytes of a data stream from the scratch buffer.
    fn on_data(
        &mut self,
        stream: u64,
        length: usize,
        end: bool,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BadUnits> {
        let whole_at_once = end && !self.partial.contains_key(&stream);
        if whole_at_once {
            let scratch = std::mem::take(&mut self.scratch);
            let result = self.on_unit(&scratch[..length], sink);
            self.scratch = scratch;
            return result;
        }
        let partial = self.partial.entry(stream).or_default();
        partial.extend_from_slice(&self.scratch[..length]);
        self.held += length;
        if partial.len() > UNIT_MAX {
            return Err(BadUnits("a unit is too long"));
        }
        if self.held > PARTIAL_MAX {
            return Err(BadUnits("too many units are incomplete"));
        }
        if end {
            let unit = self.drop_partial(stream);
            return self.on_unit(&unit, sink);
        }
        Ok(())
    }

    fn drop_partial(&mut self, stream: u64) -> Vec<u8> {
        let unit = self.partial.remove(&stream).unwrap_or_default();
        self.held -= unit.len();
        unit
    }

    /// Delivers a whole data unit, queues it until its greeting, or drops it. `quiche` both resets
    /// a withdrawn stream and ends it where it stopped: if only the end arrives, the unit is
    /// shorter than its length, and is dropped.
    fn on_unit(&mut self, unit: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<(), BadUnits> {
        let header = take_varint(unit)
            .and_then(|(epoch, rest)| Some((epoch, rest.split_first_chunk::<2>()?)));
        let Some((epoch, (length, frames))) = header else { return Ok(()) };
        let length = usize::from(u16::from_be_bytes(*length));
        if length == 0 || length > FRAMES_MAX || frames.len() > length {
            return Err(BadUnits("a unit of no or too many bytes"));
        }
        if frames.len() < length {
            return Ok(());
        }
        if epoch == self.epoch {
            sink(frames);
        } else if epoch > self.epoch {
            if epoch - self.epoch > AHEAD_MAX {
                return Err(BadUnits("a unit waits for a greeting that is too far ahead"));
            }
            self.held += frames.len() + WAITING_COST;
            if self.held > PARTIAL_MAX {
                return Err(BadUnits("too many units wait for a greeting"));
            }
            self.waiting.entry(epoch).or_default().push(frames.to_vec());
        }
        Ok(())
    }

    fn hand_out_control(&mut self, sink: &mut dyn FnMut(&[u8])) -> Result<(), BadUnits> {
        let control = std::mem::take(&mut self.control);
        let mut rest = control.as_slice();
        while let [kind, high, low, following @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            if length == 0 || length > FRAMES_MAX || !matches!(*kind, KIND_GREETING | KIND_CONTROL)
            {
                return Err(BadUnits("invalid unit on the control stream"));
            }
            let Some((frames, behind)) = following.split_at_checked(length) else { break };
            if *kind == KIND_GREETING {
                self.epoch += 1;
            }
            sink(frames);
            if *kind == KIND_GREETING {
                self.release(sink);
            }
            rest = behind;
        }
        debug_assert!(rest.len() < UNIT_HEADER + FRAMES_MAX);
        self.control.extend_from_slice(rest);
        Ok(())
    }

    /// Delivers the units that waited for the greeting.
    fn release(&mut self, sink: &mut dyn FnMut(&[u8])) {
        for unit in self.waiting.remove(&self.epoch).unwrap_or_default() {
            self.held -= unit.len() + WAITING_COST;
            sink(&unit);
        }
    }
}

/// Reads a variable-length integer (RFC 9000 16).
fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let low = number[1..].iter().fold(u64::from(first & 0x3f), |n, &byte| n << 8 | u64::from(byte));
    Some((low, rest))
}

/// The longest data stream: header and frames.
const UNIT_MAX: usize = 8 + 2 + FRAMES_MAX;

/// The cost of a waiting unit in addition to its bytes.
const WAITING_COST: usize = 64;
/// The number of greetings that data may be ahead of.
const AHEAD_MAX: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_waiting_for_a_greeting_are_bounded_however_short() {
        let mut inbox = Inbox::new(true);
        let mut sink = |_: &[u8]| assert!(std::hint::black_box(false), "its greeting has not come");
        let fit = PARTIAL_MAX / (1 + WAITING_COST);
        for _ in 0..fit {
            inbox.on_unit(&[1, 0, 1, b'x'], &mut sink).unwrap();
        }
        assert!(inbox.on_unit(&[1, 0, 1, b'x'], &mut sink).is_err());
        let mut came = 0;
        let greeting = [KIND_GREETING, 0, 1, b'g'];
        inbox.control.extend_from_slice(&greeting);
        inbox.hand_out_control(&mut |_| came += 1).unwrap();
        // The rejected unit is counted, too: the connection ends.
        assert_eq!((came, inbox.held), (1 + fit, 1 + WAITING_COST));
    }

    #[test]
    fn truncated_unit_is_dropped_and_overlong_unit_ends_the_connection() {
        let mut inbox = Inbox::new(true);
        let unit = [0, 0, 4, b'f', b'u', b'l', b'l'];
        let mut came = Vec::new();
        for length in 0..=unit.len() {
            let mut sink = |frames: &[u8]| came.push(frames.to_vec());
            inbox.on_unit(&unit[..length], &mut sink).unwrap();
        }
        assert_eq!(came, [b"full"]);
        assert!(inbox.on_unit(&[0, 0, 1, b'x', b'y'], &mut |_| ()).is_err());
        assert!(inbox.on_unit(&[0, 0, 0], &mut |_| ()).is_err());
    }

    #[test]
    fn data_far_ahead_of_its_greeting_is_rejected() {
        let mut inbox = Inbox::new(true);
        inbox.on_unit(&[AHEAD_MAX as u8 - 1, 0, 1, b'x'], &mut |_| ()).unwrap();
        assert!(inbox.on_unit(&[0x40, AHEAD_MAX as u8 + 1, 0, 1, b'x'], &mut |_| ()).is_err());
    }

    #[test]
    fn varints_of_rfc_9000_are_decoded() {
        // RFC 9000, A.1.
        let table: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in table {
            assert_eq!(take_varint(bytes), Some((value, &[][..])));
            assert_eq!(take_varint(&bytes[..bytes.len() - 1]), None);
        }
    }
}
