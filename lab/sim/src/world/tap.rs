//! The frames that one side has sent to its tunnels.

use std::time::Instant;

use polyrail_session::wire::{Decoder, Frame};

/// Counts of frames since the beginning or since the last [`Tap::reset`].
#[derive(Clone, Debug, Default)]
pub struct Tap {
    /// If not, nothing is decoded.
    pub on: bool,
    /// Bytes of all frames.
    pub bytes: u64,
    /// Runs of data.
    pub runs: u64,
    /// Bytes of data, duplicates included.
    pub data: u64,
    /// ACK frames.
    pub acks: u64,
    /// Bytes of batches with control frames.
    pub control: u64,
    /// RESET frames.
    pub resets: u64,
    /// PING frames.
    pub pings: u64,
    /// The times of OPENs.
    pub opens: Vec<Instant>,
    /// The times of JOINs.
    pub joins: Vec<Instant>,
}

impl Tap {
    /// Resets the counts.
    pub fn reset(&mut self) {
        *self = Self { on: self.on, ..Self::default() };
    }

    pub(super) fn see(&mut self, now: Instant, frames: &[u8]) {
        if !self.on {
            return;
        }
        self.bytes += frames.len() as u64;
        let mut decoder = Decoder::default();
        let mut control = false;
        let fed = decoder.feed(frames, |frame| match frame {
            Frame::Data { data, .. } => {
                self.runs += 1;
                self.data += data.len() as u64;
            }
            Frame::Open { data, .. } => {
                self.runs += 1;
                self.data += data.len() as u64;
                self.opens.push(now);
            }
            Frame::Join { .. } => self.joins.push(now),
            Frame::Ack(_) => {
                self.acks += 1;
                control = true;
            }
            Frame::Reset(_) => {
                self.resets += 1;
                control = true;
            }
            Frame::Ping { .. } => {
                self.pings += 1;
                control = true;
            }
            _ => control = true,
        });
        assert_eq!(fed, Ok(()), "the session sent invalid frames");
        if control {
            self.control += frames.len() as u64;
        }
    }
}

/// Frames as text, data by its length.
pub(super) fn in_words(frames: &[u8]) -> String {
    let mut words = Vec::new();
    let fed = Decoder::default().feed(frames, |frame| {
        words.push(match frame {
            Frame::Data { flow, sequence, marks, data, .. } => {
                let end = if marks.fin { " end" } else { "" };
                format!("DATA {flow} {sequence}+{}{end}", data.len())
            }
            Frame::Open { open, data } => {
                let end = if open.marks.fin { " end" } else { "" };
                format!("OPEN {} +{}{end} limit {}", open.flow, data.len(), open.window)
            }
            Frame::Ack(ack) => format!(
                "ACK {}{}{} <{} {:?} limit {} drained {}",
                ack.flow,
                if ack.done { " done" } else { "" },
                if ack.dialed { " dialled" } else { "" },
                ack.cumulative,
                ack.ranges,
                ack.limit,
                ack.drained
            ),
            other => format!("{other:?}"),
        });
    });
    words.extend(fed.err().map(|error| error.to_string()));
    words.join(", ")
}
