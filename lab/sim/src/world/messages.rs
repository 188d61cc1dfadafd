//! What the two sides say of the train and of its handovers.

use std::time::Instant;

use polyrail_model::{LedgerMessage, Telemetry, Urgency};

use super::{Side, World};

impl World {
    /// The gateway tells where the train is.
    pub fn send_telemetry(&mut self, telemetry: &Telemetry) {
        let now = self.now;
        let node = &mut self.nodes[Side::Gateway as usize];
        node.endpoint.send_telemetry(now, telemetry);
        node.dirty = true;
        self.drain();
    }

    /// What the cloud has heard of the train, and when.
    pub fn telemetry(&self) -> &[(Instant, Telemetry)] {
        &self.nodes[Side::Cloud as usize].telemetry
    }

    /// The database of one side says something to the other's, if there is a session.
    pub fn send_ledger(&mut self, side: Side, message: &LedgerMessage, urgency: Urgency) {
        let now = self.now;
        let node = &mut self.nodes[side as usize];
        if let Some(session) = node.endpoint.status().sessions.first() {
            node.endpoint.send_ledger(now, session.session, message, urgency);
            node.dirty = true;
        }
        self.drain();
    }

    /// The messages received by one side's database, with their times; each once.
    pub fn take_ledger(&mut self, side: Side) -> Vec<(Instant, LedgerMessage)> {
        std::mem::take(&mut self.nodes[side as usize].ledger)
    }

    pub(super) fn on_telemetry(&mut self, side: Side, telemetry: Telemetry) {
        assert_eq!(side, Side::Cloud, "the cloud told telemetry");
        self.trace.note(&[10, side as u64, telemetry.position.decimetres as u64]);
        self.nodes[side as usize].telemetry.push((self.now, telemetry));
    }

    pub(super) fn on_ledger(&mut self, side: Side, message: LedgerMessage) {
        self.trace.note(&[11, side as u64]);
        self.nodes[side as usize].ledger.push((self.now, message));
    }
}
