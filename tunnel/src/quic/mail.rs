//! Messages between the listener and its tunnels, which run on one thread.
//!
//! The listener owns the receiving side of the socket and the routes; each tunnel owns its
//! connection. Datagrams travel to the tunnel, and the tunnel reports what the listener must know.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender};

use mio::Token;

use super::cid::Cid;
use super::socket::Arrival;

/// From the listener to a tunnel. At most one batch waits: the caller drains the tunnels that were
/// woken before the listener reads again.
pub(super) enum Mail {
    /// Datagrams that arrived together.
    Datagrams(Arrival, Vec<u8>),
    /// Another handshake needs this one's place.
    GiveWay,
}

/// From the tunnel of connection `number` to the listener.
pub(super) struct Note {
    pub(super) number: u64,
    pub(super) news: News,
}

/// What a tunnel reports.
pub(super) enum News {
    /// The caller registered it, or deregistered it (`None`).
    Registered(Option<Token>),
    /// Connection ids that are valid from now on.
    NewIds(Vec<Cid>),
    /// Connection ids that the peer does not use any more.
    OldIds(Vec<Cid>),
    /// It waits for the socket to take more.
    Blocked,
    /// Its handshake succeeded or failed.
    HandshakeOver,
    /// It moved to this worker.
    Moved(u8),
    /// It was dropped.
    Gone,
}

/// A tunnel's side of both directions.
pub(super) struct Mailbox {
    pub(super) number: u64,
    /// Where the listener listens.
    pub(super) listener: SocketAddr,
    /// The id that the client chose first.
    pub(super) original: Cid,
    pub(super) mail: Receiver<Mail>,
    pub(super) notes: Sender<Note>,
}

impl Mailbox {
    /// Reports to the listener; without effect if that is gone.
    pub(super) fn report(&self, news: News) {
        let _ = self.notes.send(Note { number: self.number, news });
    }
}
