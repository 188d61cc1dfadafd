//! The connection ids of our side during a connection.

use std::sync::Arc;

use quiche::{Connection, ConnectionId};

use super::cid::{Cid, Form, Mint, outline, random};
use super::context::CLIENT_CID_LENGTH;

/// Creates our ids, and collects the changes of the server's for the listener's routes. A client's
/// socket has only one connection, so it needs no routes.
#[derive(Default)]
pub(super) struct Ids {
    /// The server's maker of ids.
    pub(super) mint: Option<Arc<Mint>>,
    /// Whether it gives no spare ids before the caller knows the peer: the tunnel may move to
    /// another event loop then, which has ids of its own.
    pub(super) waits: bool,
    /// Active ids of the event loop that accepted the connection; the peer must retire them.
    pub(super) foreign: usize,
    /// Ids that the listener must add.
    pub(super) new: Vec<Cid>,
    /// Ids that the listener must remove.
    pub(super) old: Vec<Cid>,
}

impl Ids {
    /// Whether a datagram has an active id. Those with the ids of the event loop that accepted the
    /// connection are handed over, and may arrive after the peer has retired these ids, which
    /// `quiche` takes for a violation.
    pub(super) fn are_valid_for(&self, datagram: &[u8], connection: &Connection) -> bool {
        match outline(datagram) {
            Some(outline) if outline.form == Form::Short => {
                connection.source_ids().any(|id| id.as_ref() == outline.destination)
            }
            _ => true,
        }
    }

    /// Gives the peer spare ids. `is_announced`: the caller knows the peer.
    pub(super) fn exchange(&mut self, connection: &mut Connection, is_announced: bool) {
        while let Some(id) = connection.retired_scid_next() {
            if self.mint.is_some() {
                self.old.extend(Cid::new(&id));
            }
        }
        if self.waits && !is_announced {
            return;
        }
        while connection.is_established() && (connection.scids_left() > 0 || self.foreign > 0) {
            let retires = connection.scids_left() == 0;
            let (id, token) = match &self.mint {
                Some(mint) => {
                    let id = mint.cid();
                    (id.to_vec(), mint.reset_token(&id))
                }
                None => {
                    let id = random::<CLIENT_CID_LENGTH>();
                    (id.to_vec(), u128::from_be_bytes(random()))
                }
            };
            let added = Cid::new(&id).filter(|_| self.mint.is_some());
            // Retires the oldest one, which is foreign (RFC 9000 5.1.2).
            if connection.new_scid(&ConnectionId::from_vec(id), token, retires).is_err() {
                return;
            }
            self.foreign -= usize::from(retires);
            self.new.extend(added);
        }
    }
}
