//! What the caller has to say of the train, and to the peer's database of handovers.

use std::time::Instant;

use polyrail_model::{LedgerMessage, LinkForecast, LinkOutlook, Telemetry, Urgency};

use super::Endpoint;
use crate::event::SessionKey;

impl Endpoint {
    /// Tells the cloud where the train is (gateway): on the fastest path, and on every other live
    /// one that has room, but not on backups while another lives. A newer one replaces one that has
    /// not left; its age grows until it leaves.
    pub fn send_telemetry(&mut self, now: Instant, telemetry: &Telemetry) {
        if let Some(session) = self.current {
            self.with(session, |s| s.send_telemetry(now, telemetry));
        }
    }

    /// Says something to the peer's database of handovers: at once ahead of everything and on all
    /// paths, or later on one path, a frame a round trip. It may be lost; nobody tells. It may
    /// be as long as it likes, and arrives in parts then.
    pub fn send_ledger(
        &mut self,
        _now: Instant,
        session: SessionKey,
        message: &LedgerMessage,
        urgency: Urgency,
    ) {
        self.with(session, |s| s.send_ledger(message, urgency));
    }

    /// What earlier trips say of the track ahead, for a carrier of a session. It holds for paths
    /// that come later, too, until its last step is over; an empty one takes it back.
    pub fn set_outlook(
        &mut self,
        now: Instant,
        session: SessionKey,
        carrier: &str,
        outlook: LinkOutlook,
    ) {
        self.with(session, |s| s.set_outlook(now, carrier, outlook));
    }

    /// What is foreseen of a carrier of a session from now on; `None`: nothing. It holds for paths
    /// that come later, too, until it expires. Carriers go by the names that the gateway gave them,
    /// on both sides.
    pub fn set_forecast(
        &mut self,
        now: Instant,
        session: SessionKey,
        carrier: &str,
        forecast: Option<LinkForecast>,
    ) {
        self.with(session, |s| s.set_forecast(now, carrier, forecast));
    }
}
