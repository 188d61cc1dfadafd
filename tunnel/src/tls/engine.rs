//! TLS of one tunnel: not begun, in the handshake, with or without early data, or up.
//!
//! A client's TLS begins when its socket is connected: only then is a ticket taken, so that an
//! unanswered connect costs none. Early data is kept until the end of the handshake. If the server
//! rejects it, it is sent again, in order and before newer data. A server's early data is taken out
//! of TLS when the tunnel has judged the resumed session, and is queued here for delivery.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, Error, HandshakeKind, IoState, ServerConnection,
};

use super::tickets::Tickets;
use super::{ALPN, EARLY_DATA_MAX, EXPORTER_LABEL};
use crate::carrier::internal;
use crate::{CONTROL_EXCESS, CloseReason, Early, FRAMES_MAX};

/// The parts of a client's TLS before it begins.
pub(super) struct Plan {
    pub(super) config: ClientConfig,
    pub(super) name: ServerName<'static>,
    pub(super) tickets: Arc<Tickets>,
}

/// See the module.
pub(super) struct Engine {
    plan: Option<Box<Plan>>,
    tls: Option<Connection>,
    tickets: Option<Arc<Tickets>>,
    /// A client's early data, until the end of the handshake.
    outgoing: Option<Outgoing>,
    /// A server's early data, queued for delivery.
    incoming: Vec<u8>,
}

impl Engine {
    pub(super) fn client(plan: Plan) -> Self {
        let tickets = Some(plan.tickets.clone());
        let plan = Some(Box::new(plan));
        Self { plan, tls: None, tickets, outgoing: None, incoming: Vec::new() }
    }

    pub(super) fn server(mut tls: ServerConnection) -> Self {
        // The tunnel's own bound is tighter and never rejects half a record.
        tls.set_buffer_limit(None);
        let tls = Some(tls.into());
        Self { plan: None, tls, tickets: None, outgoing: None, incoming: Vec::new() }
    }

    /// Begins a client's TLS; returns the cloud's identity if early data may be sent.
    pub(super) fn begin(&mut self) -> Result<Option<Early>, CloseReason> {
        let Some(plan) = self.plan.take() else { return Ok(None) };
        let Plan { mut config, name, tickets } = *plan;
        config.send_ticket_request = Some(tickets.request());
        let mut tls = ClientConnection::new(Arc::new(config), name)
            .map_err(|error| internal("begin TLS", &io::Error::other(error)))?;
        tls.set_buffer_limit(None);
        let permitted = tls.early_data().map(|early| early.bytes_left());
        self.outgoing = permitted.map(|permitted| Outgoing::new(permitted.min(EARLY_DATA_MAX)));
        self.tls = Some(tls.into());
        Ok(tickets.early().filter(|_| self.outgoing.is_some()))
    }

    /// Whether the handshake has not begun or is not finished.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_handshaking())
    }

    pub(super) fn is_resumed(&self) -> bool {
        let kind = self.tls.as_ref().and_then(|tls| tls.handshake_kind());
        kind == Some(HandshakeKind::Resumed)
    }

    /// Whether both sides agreed on our application protocol.
    pub(super) fn has_our_protocol(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.alpn_protocol() == Some(ALPN))
    }

    /// The peer's certificates, from this handshake or from the resumed session.
    pub(super) fn peer_chain(&self) -> &[CertificateDer<'static>] {
        self.tls.as_ref().and_then(|tls| tls.peer_certificates()).unwrap_or_default()
    }

    pub(super) fn exporter(&self) -> Result<[u8; 32], CloseReason> {
        let tls = self.tls.as_ref().ok_or(Error::HandshakeNotComplete);
        tls.and_then(|tls| tls.export_keying_material([0; 32], EXPORTER_LABEL, None))
            .map_err(|error| internal("export a secret from TLS", &io::Error::other(error)))
    }

    pub(super) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends pending ciphertext.
    pub(super) fn write_tls(&mut self, socket: &mut TcpStream) -> io::Result<usize> {
        self.tls.as_mut().map_or(Ok(0), |tls| tls.write_tls(socket))
    }

    /// Reads ciphertext; 0 at the end of the stream or after the peer's close notice.
    pub(super) fn read_tls(&mut self, from: &mut dyn Read) -> io::Result<usize> {
        self.tls.as_mut().map_or(Ok(0), |tls| tls.read_tls(from))
    }

    pub(super) fn process(&mut self) -> Result<IoState, Error> {
        self.tls.as_mut().ok_or(Error::HandshakeNotComplete)?.process_new_packets()
    }

    pub(super) fn send_close_notify(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
    }

    /// Encrypts one unit; returns the number of bytes of ciphertext.
    ///
    /// While a client is in the handshake, the unit is early data as far as there is room; the rest
    /// waits for the end of the handshake.
    pub(super) fn write(&mut self, frames: &[u8]) -> io::Result<usize> {
        match (&mut self.tls, &mut self.outgoing) {
            (Some(Connection::Client(tls)), Some(outgoing)) => outgoing.send(tls, frames),
            (Some(tls), _) => write_records(&mut tls.writer(), frames),
            (None, _) => Ok(0),
        }
    }

    /// Whether a client is in the handshake and attempts early data.
    pub(super) fn tries_early(&self) -> bool {
        self.outgoing.is_some()
    }

    /// How much early data a client may still send; `None` if it attempts none.
    pub(super) fn early_room(&self) -> Option<usize> {
        self.outgoing.as_ref().map(Outgoing::room)
    }

    /// Ends a client's early data: sends the bytes that the server rejected. Returns the number of
    /// bytes of ciphertext.
    pub(super) fn finish(&mut self) -> io::Result<usize> {
        if let Some(tickets) = &self.tickets {
            tickets.learn(self.peer_chain());
        }
        let Some(outgoing) = self.outgoing.take() else { return Ok(0) };
        let Some(Connection::Client(tls)) = &mut self.tls else { return Ok(0) };
        let from = if tls.is_early_data_accepted() { outgoing.sent } else { 0 };
        write_records(&mut tls.writer(), &outgoing.bytes[from..])
    }

    /// Whether the server accepts the client's early data.
    pub(super) fn takes_early(&mut self) -> bool {
        match &mut self.tls {
            Some(Connection::Server(tls)) => tls.early_data().is_some(),
            _ => false,
        }
    }

    /// Takes early data out of TLS; returns whether any is queued for delivery.
    pub(super) fn take_early(&mut self) -> io::Result<bool> {
        if let Some(Connection::Server(tls)) = &mut self.tls
            && let Some(mut early) = tls.early_data()
        {
            early.read_to_end(&mut self.incoming)?;
        }
        Ok(!self.incoming.is_empty())
    }

    /// Delivers queued early data; returns the number of bytes.
    pub(super) fn deliver_early(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let bytes = std::mem::take(&mut self.incoming);
        if !bytes.is_empty() {
            sink(&bytes);
        }
        bytes.len()
    }

    /// Delivers decrypted bytes; returns their number.
    pub(super) fn deliver(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let Some(tls) = &mut self.tls else { return 0 };
        let mut total = 0;
        let mut reader = tls.reader();
        while let Ok(chunk) = reader.fill_buf() {
            if chunk.is_empty() {
                break;
            }
            let length = chunk.len();
            sink(chunk);
            reader.consume(length);
            total += length;
        }
        total
    }

    /// Drops a client's tickets, so that its next handshake is a full one.
    pub(super) fn forget_tickets(&self) {
        if let Some(tickets) = &self.tickets {
            tickets.forget();
        }
    }

    /// Frees the memory of the handshake.
    pub(super) fn discard(&mut self) {
        self.plan = None;
        self.outgoing = None;
        self.incoming = Vec::new();
    }
}

/// A client's early data.
struct Outgoing {
    /// All bytes sent before the end of the handshake.
    bytes: Vec<u8>,
    /// The bytes of them sent as early data.
    sent: usize,
    /// Ciphertext that may still be sent: the server must skip it if it rejects early data.
    left: usize,
}

impl Outgoing {
    fn new(left: usize) -> Self {
        Self { bytes: Vec::new(), sent: 0, left }
    }

    fn room(&self) -> usize {
        self.left.saturating_sub(RECORD_OVERHEAD)
    }

    fn send(&mut self, tls: &mut ClientConnection, frames: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + frames.len() > OUTGOING_MAX {
            return Err(io::Error::other("more was sent than early data has room for"));
        }
        self.bytes.extend_from_slice(frames);
        let fits = frames.len().min(self.room());
        let written = match tls.early_data().filter(|_| fits > 0) {
            Some(mut early) => early.write(&frames[..fits])?,
            None => 0,
        };
        self.sent += written;
        if written < frames.len() {
            // Later data must not overtake the rest.
            self.left = 0;
            return Ok(if written > 0 { written + RECORD_OVERHEAD } else { 0 });
        }
        self.left -= written + RECORD_OVERHEAD;
        Ok(written + RECORD_OVERHEAD)
    }
}

/// Encrypts bytes in as few records as possible; returns the number of bytes of ciphertext.
fn write_records(to: &mut dyn Write, bytes: &[u8]) -> io::Result<usize> {
    to.write_all(bytes)?;
    Ok(bytes.len() + bytes.len().div_ceil(FRAMES_MAX) * RECORD_OVERHEAD)
}

/// Header, content type and tag of a TLS 1.3 record (RFC 8446 5.2).
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// The maximum that a caller that respects the room sends before the end of the handshake.
const OUTGOING_MAX: usize = EARLY_DATA_MAX + FRAMES_MAX + CONTROL_EXCESS;
