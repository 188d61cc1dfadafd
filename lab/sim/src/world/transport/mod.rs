//! One end of a simulated reliable transport: TCP under TLS, or QUIC, for a tunnel.
//!
//! Messages are cut into segments. Lost segments are retransmitted after three later ones were
//! acknowledged, or after a timeout with exponential backoff. The transport knows no link: it takes
//! and makes [`Packet`]s.
//!
//! A stream (TLS) delivers segments in order, cut anywhere. The other kind (QUIC) delivers whole
//! units: control and greetings in order, data as soon as it is complete, but not before the
//! greeting that precedes it. Data sent before a greeting that arrives after it is dropped.
//! Withdrawn data is not retransmitted: a mark replaces it.

#[cfg(test)]
mod bbr2_tests;
#[cfg(test)]
mod rail_tests;
mod receiver;
mod round_trip;
mod sender;
mod sequence;
#[cfg(test)]
mod tests;
mod trial;

use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use polyrail_model::Unit;

use crate::congestion::Control;
pub use crate::congestion::SEGMENT;
use receiver::Receiver;
use sender::Sender;
pub use trial::{Endless, State, endless, play};

/// A packet on a link.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The connection it belongs to.
    pub connection: usize,
    /// Its kind.
    pub kind: PacketKind,
}

/// The kinds of packets.
#[derive(Clone, Debug)]
pub enum PacketKind {
    /// A segment.
    Data {
        /// Its place in the order of first sending.
        serial: u64,
        /// Its place in the order of sending, retransmissions included, like TCP's timestamps.
        order: u64,
        /// The segment.
        segment: Rc<Segment>,
    },
    /// One segment arrived, with some before it, and all below a number.
    Ack {
        /// The segment that arrived.
        serial: u64,
        /// All from here to it have arrived (the first block of RFC 2018).
        from: u64,
        /// Its order.
        order: u64,
        /// All below have arrived.
        cumulative: u64,
        /// Its size on the link, in bytes.
        size: usize,
    },
    /// The connection is not known here.
    Rst,
}

/// A part of a message.
#[derive(Debug)]
pub struct Segment {
    message: Rc<Message>,
    range: Range<usize>,
}

/// The bytes of one call of the session, or a mark of the tunnel itself.
#[derive(Debug)]
pub struct Message {
    number: u64,
    /// Control and greetings are not delivered before this message.
    after: u64,
    /// The number of greetings sent before.
    epoch: u64,
    content: Content,
}

/// The content of a message.
#[derive(Debug)]
pub enum Content {
    /// The tunnel's own handshake.
    Hello,
    /// The end of the handshake: earlier data was early data.
    Finished,
    /// Frames of the session.
    Frames(Unit, Vec<u8>),
    /// Replaces withdrawn data.
    Withdrawn,
    /// An orderly end.
    Close,
}

/// A delivery of the transport.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The peer's handshake.
    Hello,
    /// Its end.
    Finished,
    /// Bytes of frames.
    Frames(Rc<Segment>),
    /// The peer has closed.
    Close,
}

impl Packet {
    /// Its size on the link, in bytes.
    pub fn size(&self) -> usize {
        match &self.kind {
            PacketKind::Data { segment, .. } => segment.range.len() + HEADER,
            PacketKind::Ack { size, .. } => *size,
            PacketKind::Rst => HEADER,
        }
    }
}

impl Segment {
    /// The bytes of frames in it.
    pub fn bytes(&self) -> &[u8] {
        match &self.message.content {
            Content::Frames(_, bytes) => &bytes[self.range.clone()],
            _ => &[],
        }
    }

    /// It is a whole message.
    pub fn is_whole(&self) -> bool {
        self.range.len() == self.message.length()
    }

    /// It is a greeting or the answer to one.
    pub fn is_greeting(&self) -> bool {
        self.message.is_barrier()
    }
}

impl Message {
    /// It is delivered in order: everything but data.
    fn is_control(&self) -> bool {
        !matches!(&self.content, Content::Frames(Unit::Data { .. }, _) | Content::Withdrawn)
    }

    fn is_barrier(&self) -> bool {
        matches!(&self.content, Content::Frames(Unit::Greeting, _))
    }

    fn length(&self) -> usize {
        match &self.content {
            Content::Hello => HELLO_BYTES,
            Content::Finished => FINISHED_BYTES,
            Content::Frames(_, bytes) => bytes.len(),
            Content::Withdrawn => 0,
            Content::Close => 1,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Transport {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

impl Transport {
    /// An end that queues at most about `room_bound` bytes.
    pub fn new(
        now: Instant,
        connection: usize,
        stream: bool,
        room_bound: usize,
        control: Box<dyn Control>,
    ) -> Self {
        Self {
            sender: Sender::new(now, connection, stream, room_bound, control),
            receiver: Receiver::new(stream),
        }
    }

    /// The next timeout of its halves.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match (self.sender.next_timeout(), self.receiver.next_timeout()) {
            (Some(sender), Some(receiver)) => Some(sender.min(receiver)),
            (sender, receiver) => sender.or(receiver),
        }
    }
}

/// The size of headers in bytes: IPv4 and TCP with timestamps.
pub const HEADER: usize = 52;
/// An acknowledgement in a datagram of its own as quiche makes it, with IPv4 and UDP, in bytes:
/// measured as the mean size upwards of a gateway that downloads.
const DATAGRAM_OF_ACK: usize = 74;
const HELLO_BYTES: usize = 700;
const FINISHED_BYTES: usize = 60;
