//! The parts of DNS messages that a forwarder reads (RFC 1035 4.1, RFC 6891).

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::RecordType;

/// A client's query, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Query {
    /// The unchanged message.
    pub(super) bytes: Vec<u8>,
    /// Where its question ends.
    question_end: usize,
    /// The largest answer over UDP that the client accepts.
    udp_max: usize,
    /// Its EDNS "DNSSEC OK" bit; `None` without EDNS.
    edns_do: Option<bool>,
}

/// The treatment of a datagram that is not a query to forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Drop it: it is not a DNS query, and an answer could hit a third party.
    Drop,
    /// Answer with this message.
    Answer(Vec<u8>),
}

/// The longest query that is forwarded, in bytes; a longer one is answered FORMERR.
pub const QUERY_MAX: usize = 1400;

/// The longest answer over UDP: it fits the minimum MTU of IPv6 (DNS flag day 2020: 1280 - 40 - 8).
/// A longer one is truncated, so that the client retries over TCP.
pub const UDP_ANSWER_MAX: usize = 1232;

impl Query {
    /// Checks a datagram.
    pub(super) fn parse(datagram: &[u8]) -> Result<Self, Refusal> {
        // A header, and not a response.
        if datagram.len() < HEADER || datagram[2] & QR != 0 {
            return Err(Refusal::Drop);
        }
        let refuse = |code| Err(Refusal::Answer(error(datagram, HEADER, code)));
        if (datagram[2] >> 3) & 0xf != u8::from(OpCode::Query) {
            return refuse(ResponseCode::NotImp);
        }
        if datagram.len() > QUERY_MAX {
            return refuse(ResponseCode::FormErr);
        }
        let Ok(message) = Message::from_vec(datagram) else {
            return refuse(ResponseCode::FormErr);
        };
        let asks = message.metadata.message_type == MessageType::Query;
        let (true, [question], [], Some(question_end)) =
            (asks, &message.queries[..], &message.answers[..], question_end(datagram))
        else {
            return refuse(ResponseCode::FormErr);
        };
        if matches!(question.query_type(), RecordType::AXFR | RecordType::IXFR) {
            // An answer in several messages does not fit in a datagram.
            return Err(Refusal::Answer(error(datagram, question_end, ResponseCode::Refused)));
        }
        Ok(Self {
            bytes: datagram.to_vec(),
            question_end,
            udp_max: usize::from(message.max_payload()).min(UDP_ANSWER_MAX),
            edns_do: message.edns.as_ref().map(|edns| edns.flags().dnssec_ok),
        })
    }

    /// The query for a TCP stream with our id (RFC 7766 8: two bytes of length).
    pub(super) fn framed(&self, id: u16) -> impl Iterator<Item = u8> {
        let length = u16::try_from(self.bytes.len()).unwrap_or(u16::MAX);
        let head = length.to_be_bytes().into_iter().chain(id.to_be_bytes());
        head.chain(self.bytes[2..].iter().copied())
    }

    /// Whether `message` is a response to this query: the question is the same, letter case
    /// aside, or left out of an error.
    pub(super) fn is_answered_by(&self, message: &[u8]) -> bool {
        if message.len() < HEADER || message[2] & QR == 0 {
            return false;
        }
        match u16::from_be_bytes([message[4], message[5]]) {
            0 => message[3] & RCODE != 0,
            1 => message
                .get(HEADER..self.question_end)
                .is_some_and(|q| q.eq_ignore_ascii_case(&self.bytes[HEADER..self.question_end])),
            _ => false,
        }
    }

    /// The response for the client: with the client's id, and truncated if it is too long.
    pub(super) fn answer(&self, message: &[u8]) -> Vec<u8> {
        let mut answer =
            if message.len() <= self.udp_max { message.to_vec() } else { self.truncated(message) };
        answer[..2].copy_from_slice(&self.bytes[..2]);
        answer
    }

    /// The response if no answer arrived.
    pub(super) fn failure(&self) -> Vec<u8> {
        error(&self.bytes, self.question_end, ResponseCode::ServFail)
    }

    /// Header and question alone, with TC (RFC 2181 9), and OPT if the query had it (RFC 6891 7).
    fn truncated(&self, message: &[u8]) -> Vec<u8> {
        let mut answer = message[..4].to_vec();
        answer[2] |= TC;
        answer.extend([0, 1, 0, 0, 0, 0, 0, u8::from(self.edns_do.is_some())]);
        answer.extend(&self.bytes[HEADER..self.question_end]);
        if let Some(dnssec_ok) = self.edns_do {
            // Root name, type 41, our size, extended code 0, version 0, the DO bit, no options.
            let size = u16::try_from(UDP_ANSWER_MAX).unwrap_or(u16::MAX).to_be_bytes();
            answer.extend([0, 0, 41, size[0], size[1], 0, 0, u8::from(dnssec_ok) << 7, 0, 0, 0]);
        }
        answer
    }
}

/// A response with a code and the query's bytes before `question_end`.
fn error(query: &[u8], question_end: usize, code: ResponseCode) -> Vec<u8> {
    let questions = u8::from(question_end > HEADER);
    let mut answer = query[..4].to_vec();
    // The operation and RD stay (RFC 1035 4.1.1); RA, because a forwarder does recurse.
    answer[2] = QR | (answer[2] & 0b0111_1001);
    answer[3] = RA | code.low();
    answer.extend([0, questions, 0, 0, 0, 0, 0, 0]);
    answer.extend(&query[HEADER..question_end]);
    answer
}

/// Where the first question ends; `None` when its name is compressed or cut short.
fn question_end(message: &[u8]) -> Option<usize> {
    let mut at = HEADER;
    loop {
        match usize::from(*message.get(at)?) {
            0 => break,
            length @ 1..=63 => at += 1 + length,
            _ => return None,
        }
    }
    // The root label, type and class.
    let end = at + 1 + 4;
    (end <= message.len()).then_some(end)
}

const HEADER: usize = 12;
const QR: u8 = 0x80;
const TC: u8 = 0x02;
const RA: u8 = 0x80;
const RCODE: u8 = 0x0f;
