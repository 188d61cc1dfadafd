//! Flows, bindings and users as operators see them.

use std::time::Instant;

use polyrail_model::{Bytes, Destination, FlowKind, FlowName, SessionKey, UserId};

use crate::carriers::{CarrierNames, CarrierSet};
use crate::datagram::Binding;
use crate::flow::{Flow, Life};

/// A flow or binding as it is now.
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Its name.
    pub name: FlowName,
    /// Its user.
    pub user: UserId,
    /// To which the user connects, or has sent its latest datagram; `None` while the peer has not
    /// reported it.
    pub destination: Option<&'a Destination>,
    /// Its state.
    pub phase: FlowPhase,
    /// When it began.
    pub begun_at: Instant,
    /// When a byte last moved on this side.
    pub moved_at: Instant,
    /// Bytes of this side's endpoint that the session has accepted for the peer; of a binding those
    /// that it has sent.
    pub sent: Bytes,
    /// Bytes of the peer that this side's endpoint has received.
    pub received: Bytes,
    carriers: CarrierSet,
    names: &'a CarrierNames,
}

/// The state of a flow. Bindings are always open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPhase {
    /// Its server is not yet connected.
    Opening,
    /// Both directions are open.
    Open,
    /// One direction has ended.
    HalfClosed,
    /// Both directions have ended, or the peer has reset it; the last bytes are being delivered.
    Closing,
    /// Reset by this side; the peer has not answered.
    Resetting,
}

/// The bytes of a user in one session, of flows and datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserTraffic {
    /// Accepted for the peer.
    pub sent: Bytes,
    /// Received from the peer and delivered.
    pub received: Bytes,
    /// When a byte last moved.
    pub at: Instant,
}

/// A user of one session.
#[derive(Clone, Copy, Debug)]
pub struct UserView {
    /// The session.
    pub session: SessionKey,
    /// The user.
    pub user: UserId,
    /// Its open flows.
    pub flows: usize,
    /// Its bytes, if they are remembered.
    pub traffic: Option<UserTraffic>,
}

impl<'a> FlowView<'a> {
    pub(crate) fn of_flow(session: SessionKey, flow: &'a Flow, names: &'a CarrierNames) -> Self {
        Self {
            name: FlowName { session, kind: FlowKind::Tcp, number: flow.id.0 },
            user: flow.user,
            destination: flow.destination(),
            phase: phase(flow),
            begun_at: flow.begun_at,
            moved_at: flow.moved_at,
            sent: Bytes(flow.send.accepted()),
            received: Bytes(flow.recv.delivered()),
            carriers: flow.carriers,
            names,
        }
    }

    pub(crate) fn of_binding(
        name: FlowName,
        binding: &'a Binding,
        names: &'a CarrierNames,
    ) -> Self {
        Self {
            name,
            user: binding.user,
            destination: binding.remote.as_ref(),
            phase: FlowPhase::Open,
            begun_at: binding.begun_at,
            moved_at: binding.used_at,
            sent: binding.sent_bytes,
            received: binding.received_bytes,
            carriers: binding.carriers,
            names,
        }
    }

    /// The carriers that have carried it, in either direction. A session remembers 64 carriers.
    pub fn carriers(&self) -> impl Iterator<Item = &'a str> {
        self.names.of(self.carriers)
    }
}

fn phase(flow: &Flow) -> FlowPhase {
    match (flow.life, flow.send.fin, flow.recv.fin_reached()) {
        (Life::Resetting { .. }, ..) => FlowPhase::Resetting,
        (Life::Ending { .. }, ..) | (Life::Live, true, true) => FlowPhase::Closing,
        (Life::Live, ..) if !flow.dialed => FlowPhase::Opening,
        (Life::Live, false, false) => FlowPhase::Open,
        (Life::Live, ..) => FlowPhase::HalfClosed,
    }
}
