//! Frames to bytes.

use std::net::SocketAddr;

use polyrail_model::Destination;
use polyrail_model::codec::{put_number, put_text};

use super::{
    ACK_RANGES_MAX, Ack, CARRIER_NAME_MAX, DataMarks, Frame, Greeting, HEADER, Notice, Open,
    REASON_MAX, Said, Terms, VERSION,
};

/// Frame types.
pub(super) mod kind {
    pub const HELLO: u8 = 0x01;
    pub const JOIN: u8 = 0x02;
    pub const WELCOME: u8 = 0x03;
    pub const REJECT: u8 = 0x04;
    pub const OPEN: u8 = 0x05;
    pub const DATA: u8 = 0x06;
    pub const ACK: u8 = 0x07;
    pub const WINDOW: u8 = 0x08;
    pub const RESET: u8 = 0x09;
    pub const PING: u8 = 0x0a;
    pub const PONG: u8 = 0x0b;
    pub const PATH_STATUS: u8 = 0x0e;
    pub const GOAWAY: u8 = 0x0f;
    pub const MESSAGE: u8 = 0x11;
}

/// Flag bits, and kinds within a frame.
pub(super) mod flag {
    pub const BACKUP: u8 = 0x01;
    pub const V4: u8 = 0x01;
    pub const V6: u8 = 0x02;
    pub const FIN: u8 = 0x01;
    pub const TAIL: u8 = 0x02;
    pub const DONE: u8 = 0x01;
    pub const DIALED: u8 = 0x02;
    pub const ECHO: u8 = 0x04;
    pub const ANSWER: u8 = 0x01;
    pub const LATEST: u8 = 0x01;
    pub const STALLED: u64 = 1;
    pub const POLICED: u64 = 2;
    pub const USED_AS: u64 = 3;
    pub const DESTINATION_V4: u8 = 4;
    pub const DESTINATION_V6: u8 = 6;
    pub const DESTINATION_NAME: u8 = 1;
}

/// Appends one frame. Its payload must not be longer than [`super::PAYLOAD_MAX`]; the session
/// never makes one that is.
pub fn encode(frame: &Frame<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[VERSION, kind_of(frame), 0, 0]);
    payload(frame, out);
    let length = out.len() - start - HEADER;
    debug_assert!(length <= super::PAYLOAD_MAX, "a payload of {length} bytes");
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    out[start + 2..start + HEADER].copy_from_slice(&length.to_be_bytes());
}

fn kind_of(frame: &Frame<'_>) -> u8 {
    match frame {
        Frame::Hello { .. } => kind::HELLO,
        Frame::Join { .. } => kind::JOIN,
        Frame::Welcome { .. } => kind::WELCOME,
        Frame::Reject { .. } => kind::REJECT,
        Frame::Open { .. } => kind::OPEN,
        Frame::Data { .. } => kind::DATA,
        Frame::Ack(_) => kind::ACK,
        Frame::Window { .. } => kind::WINDOW,
        Frame::Reset(_) => kind::RESET,
        Frame::Ping { .. } => kind::PING,
        Frame::Pong { .. } => kind::PONG,
        Frame::Message { .. } => kind::MESSAGE,
        Frame::PathStatus(_) => kind::PATH_STATUS,
        Frame::GoAway { .. } => kind::GOAWAY,
        Frame::Unknown { kind } => *kind,
    }
}

fn payload(frame: &Frame<'_>, out: &mut Vec<u8>) {
    match frame {
        Frame::Hello { instance, greeting, terms } => {
            out.extend_from_slice(&instance.0);
            put_greeting(out, greeting);
            put_terms(out, terms);
        }
        Frame::Join { session, proof, greeting } => {
            out.extend_from_slice(&session.0);
            out.extend_from_slice(proof);
            put_greeting(out, greeting);
        }
        Frame::Welcome { session, counter, founder, families, terms } => {
            out.extend_from_slice(&session.0);
            put_number(out, *counter);
            put_number(out, *founder);
            out.push(bit(families.v4, flag::V4) | bit(families.v6, flag::V6));
            put_terms(out, terms);
        }
        Frame::Reject { code, reason } => {
            put_number(out, code.code());
            put_text(out, reason, REASON_MAX);
        }
        Frame::Open { open, data } => put_open(out, open, data),
        Frame::Data { flow, sequence, sent_us, marks, data } => {
            put_number(out, flow.0);
            put_number(out, *sequence);
            put_number(out, *sent_us);
            out.push(marks_bits(*marks));
            out.extend_from_slice(data);
        }
        Frame::Ack(ack) => put_ack(out, ack),
        Frame::Window { flow, limit, drained } => {
            [flow.0, *limit, *drained].into_iter().for_each(|n| put_number(out, n));
        }
        Frame::Reset(reset) => {
            put_number(out, reset.flow.0);
            out.push(bit(reset.answer, flag::ANSWER));
            [reset.reason.code(), reset.last, reset.after]
                .into_iter()
                .for_each(|n| put_number(out, n));
        }
        Frame::Ping { token, sent_us } => {
            [*token, *sent_us].into_iter().for_each(|n| put_number(out, n));
        }
        Frame::Pong { token, sent_us, received_us } => {
            [*token, *sent_us, *received_us].into_iter().for_each(|n| put_number(out, n));
        }
        Frame::Message { channel, latest, serial, waited_us, payload } => {
            out.extend_from_slice(&[channel.0, bit(*latest, flag::LATEST)]);
            [*serial, *waited_us].into_iter().for_each(|n| put_number(out, n));
            out.extend_from_slice(payload);
        }
        Frame::PathStatus(notice) => put_notice(out, notice),
        Frame::GoAway { reason } => put_text(out, reason, REASON_MAX),
        Frame::Unknown { .. } => {}
    }
}

fn put_greeting(out: &mut Vec<u8>, greeting: &Greeting) {
    put_number(out, greeting.counter);
    out.push(bit(greeting.backup, flag::BACKUP));
    put_text(out, &greeting.carrier, CARRIER_NAME_MAX);
}

fn put_terms(out: &mut Vec<u8>, terms: &Terms) {
    put_number(out, terms.window);
    put_number(out, terms.credit);
}

fn put_open(out: &mut Vec<u8>, open: &Open, data: &[u8]) {
    [open.flow.0, open.user.0 & super::NUMBER_MAX, open.window, open.sent_us]
        .into_iter()
        .for_each(|n| put_number(out, n));
    out.push(marks_bits(open.marks));
    match &open.destination {
        Destination::Address(SocketAddr::V4(address)) => {
            out.push(flag::DESTINATION_V4);
            out.extend_from_slice(&address.ip().octets());
        }
        Destination::Address(SocketAddr::V6(address)) => {
            out.push(flag::DESTINATION_V6);
            out.extend_from_slice(&address.ip().octets());
        }
        Destination::Name(name, _) => {
            out.push(flag::DESTINATION_NAME);
            put_text(out, name.as_str(), name.as_str().len());
        }
    }
    out.extend_from_slice(&open.destination.port().to_be_bytes());
    out.extend_from_slice(data);
}

fn put_ack(out: &mut Vec<u8>, ack: &Ack) {
    put_number(out, ack.flow.0);
    let echo = bit(ack.echo.is_some(), flag::ECHO);
    out.push(bit(ack.done, flag::DONE) | bit(ack.dialed, flag::DIALED) | echo);
    [ack.cumulative, ack.limit, ack.drained].into_iter().for_each(|n| put_number(out, n));
    if let Some(echo) = ack.echo {
        [echo.path.0, echo.sent_us, echo.received_us].into_iter().for_each(|n| put_number(out, n));
    }
    let ranges = &ack.ranges[..ack.ranges.len().min(ACK_RANGES_MAX)];
    put_number(out, ranges.len() as u64);
    let mut edge = ack.cumulative;
    for range in ranges {
        put_number(out, range.start - edge);
        put_number(out, range.end - range.start);
        edge = range.end;
    }
}

fn put_notice(out: &mut Vec<u8>, notice: &Notice) {
    [notice.path.0, notice.serial].into_iter().for_each(|n| put_number(out, n));
    match notice.said {
        Said::Stalled => put_number(out, flag::STALLED),
        Said::Policed { rate } => {
            put_number(out, flag::POLICED);
            put_number(out, rate.as_bps());
        }
        Said::Backup { backup } => {
            put_number(out, flag::USED_AS);
            out.push(bit(backup, flag::BACKUP));
        }
    }
}

fn marks_bits(marks: DataMarks) -> u8 {
    bit(marks.fin, flag::FIN) | bit(marks.tail, flag::TAIL)
}

fn bit(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}
