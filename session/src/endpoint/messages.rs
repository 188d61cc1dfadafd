//! Messages that belong to no flow, and forecasts for a carrier's paths.

use std::time::Instant;

use polyrail_model::{Channel, Delivery, LinkForecast, LinkOutlook, SessionKey};

use super::Endpoint;

impl Endpoint {
    /// Queues a message that belongs to no flow for the peer of a session. It may be lost, without
    /// notice. A payload longer than [`crate::wire::MESSAGE_MAX`] is dropped and counted.
    pub fn send_message(
        &mut self,
        now: Instant,
        session: SessionKey,
        channel: Channel,
        delivery: Delivery,
        payload: Vec<u8>,
    ) {
        self.with(session, |s| s.send_message(now, channel, delivery, payload));
    }

    /// Sets the expected rates of a carrier of a session over the next seconds. They hold for paths
    /// that come up later, too, until the last step is over; an empty list withdraws them.
    pub fn set_outlook(
        &mut self,
        now: Instant,
        session: SessionKey,
        carrier: &str,
        outlook: LinkOutlook,
    ) {
        self.with(session, |s| s.set_outlook(now, carrier, outlook));
    }

    /// Sets or withdraws the forecast of a carrier of a session. It holds for paths that come up
    /// later, too, until it expires. Both sides use the carrier names of the gateway.
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
