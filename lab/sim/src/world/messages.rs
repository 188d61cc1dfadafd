//! LinkDB's messages between the two sides: telemetry and synchronisation.

use std::time::{Duration, Instant};

use polyrail_model::{Channel, Delivery};
use polyrail_predictor::wire::{self, SyncMessage, Telemetry};

use super::{Side, World};

impl World {
    /// The gateway sends the train's position.
    pub fn send_telemetry(&mut self, telemetry: &Telemetry) {
        let now = self.now;
        let node = &mut self.nodes[Side::Gateway as usize];
        if let Some(session) = node.endpoint.status().sessions.first() {
            let payload = wire::encode_telemetry(telemetry);
            let latest = Delivery::Latest;
            node.endpoint.send_message(now, session.session, wire::TELEMETRY, latest, payload);
        }
        node.dirty = true;
        self.drain();
    }

    /// The telemetry that the cloud has received, with its times.
    pub fn telemetry(&self) -> &[(Instant, Telemetry)] {
        &self.nodes[Side::Cloud as usize].telemetry
    }

    /// The database of one side sends a message to the other's, if there is a session.
    pub fn send_ledger(&mut self, side: Side, message: &SyncMessage, delivery: Delivery) {
        let now = self.now;
        let node = &mut self.nodes[side as usize];
        if let Some(session) = node.endpoint.status().sessions.first() {
            let payload = wire::encode_sync(message);
            node.endpoint.send_message(now, session.session, wire::SYNC, delivery, payload);
            node.dirty = true;
        }
        self.drain();
    }

    /// Takes the messages received by one side's database, with their times.
    pub fn take_ledger(&mut self, side: Side) -> Vec<(Instant, SyncMessage)> {
        std::mem::take(&mut self.nodes[side as usize].ledger)
    }

    pub(super) fn on_message(
        &mut self,
        side: Side,
        channel: Channel,
        waited: Duration,
        payload: &[u8],
    ) {
        match wire::decode(channel, payload).expect("a valid message") {
            Some(wire::Message::Telemetry(mut telemetry)) => {
                telemetry.age += waited;
                self.on_telemetry(side, telemetry);
            }
            Some(wire::Message::Sync(message)) => self.on_ledger(side, message),
            None => {}
        }
    }

    fn on_telemetry(&mut self, side: Side, telemetry: Telemetry) {
        assert_eq!(side, Side::Cloud, "the cloud sent telemetry");
        self.trace.note(&[10, side as u64, telemetry.position.decimetres as u64]);
        self.nodes[side as usize].telemetry.push((self.now, telemetry));
    }

    fn on_ledger(&mut self, side: Side, message: SyncMessage) {
        self.trace.note(&[11, side as u64]);
        self.nodes[side as usize].ledger.push((self.now, message));
    }
}
