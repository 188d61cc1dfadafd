//! The data plane's side of LinkDB: feeds the worker and applies its outputs.
//!
//! Nothing here blocks: the worker drops and counts inputs when it cannot keep up, and its outputs
//! are taken when it has woken the loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_model::{Delivery, Heard, Observation, Silence};
use polyrail_predictor::wire;
use polyrail_predictor::worker::{Feeder, Input, Output, Settings, Worker};
use polyrail_session::Event;

use crate::{Relay, SilenceChange, Silences};

/// A daemon's LinkDB.
#[derive(Debug)]
pub struct Foresight {
    worker: Worker,
    silences: Silences,
    measured_at: Option<Instant>,
    looked_at: Option<Instant>,
}

impl Foresight {
    /// With a running worker.
    pub fn new(worker: Worker) -> Self {
        Self { worker, silences: Silences::default(), measured_at: None, looked_at: None }
    }

    /// Passes observations from other threads to the worker; never blocks.
    pub fn observer(&self) -> impl Fn(Observation) + Send + Sync + 'static {
        let feeder = self.worker.feeder();
        move |observation| feeder.feed(Input::Observed(observation))
    }

    /// Another handle that feeds the worker, or asks for its state.
    pub fn feeder(&self) -> Feeder {
        self.worker.feeder()
    }

    /// The configuration has changed.
    pub fn reload(&self, settings: Settings) {
        self.worker.feed(Input::Reload(settings));
    }

    /// Feeds a session's event to the worker; true if the event is for LinkDB alone.
    pub fn on_session_event(&mut self, now: Instant, event: &Event) -> bool {
        match event {
            Event::SessionUp { session, peer, .. } => {
                let (session, peer) = (*session, peer.to_string());
                self.worker.feed(Input::Up { session, peer });
                false
            }
            Event::SessionEnded { session, .. } => {
                self.worker.feed(Input::Down(*session));
                false
            }
            Event::Message { session, channel, waited, payload } => {
                self.worker.receive(now, *session, *channel, *waited, payload);
                true
            }
            _ => false,
        }
    }

    /// Applies the worker's outputs. Returns the carriers whose modems have found a cell after they
    /// lost one: their connections restart.
    #[must_use]
    pub fn on_wake(&mut self, now: Instant, relay: &mut Relay) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(output) = self.worker.try_recv() {
            let endpoint = relay.endpoint();
            match output {
                Output::Forecast { session, carrier, forecast } => {
                    tracing::trace!(carrier, ?forecast, "forecast");
                    endpoint.set_forecast(now, session, &carrier, forecast);
                }
                Output::Outlook { session, carrier, outlook } => {
                    endpoint.set_outlook(now, session, &carrier, outlook);
                }
                Output::FoundCell { carrier } => found.push(carrier),
                Output::Telemetry { session, telemetry } => {
                    let payload = wire::encode_telemetry(&telemetry);
                    endpoint.send_message(now, session, wire::TELEMETRY, Delivery::Latest, payload);
                }
                Output::Sync { session, delivery, message } => {
                    for payload in wire::encode_sync(&message) {
                        endpoint.send_message(now, session, wire::SYNC, delivery, payload);
                    }
                }
            }
        }
        found
    }

    /// Feeds the carriers' rates once a second and, on board, stalls of paths. Call it once a turn;
    /// most calls do nothing.
    pub fn on_turn(&mut self, now: Instant, relay: &Relay, on_board: bool) {
        let old = |at: Option<Instant>, every| {
            at.is_none_or(|at| now.saturating_duration_since(at) >= every)
        };
        if old(self.measured_at, MEASURE_EVERY) {
            self.measured_at = Some(now);
            self.measure(relay);
        }
        if on_board && old(self.looked_at, LOOK_EVERY) {
            self.looked_at = Some(now);
            self.look(now, relay);
        }
    }

    fn look(&mut self, now: Instant, relay: &Relay) {
        let changes = self.silences.look(now, relay);
        for (carrier, at) in self.silences.take_heard() {
            self.worker.feed(Input::Observed(Observation::Heard(Heard { at, carrier })));
        }
        for change in changes {
            // Transports report losses late or not at all.
            let SilenceChange { carrier, since } = change;
            let silence = Silence { at: now, carrier, since, kept: None };
            self.worker.feed(Input::Observed(Observation::Silence(silence)));
        }
    }

    /// Feeds the rates of all sessions' carriers.
    fn measure(&self, relay: &Relay) {
        for session in relay.endpoint_ref().status().sessions {
            for path in session.paths.iter().filter(|path| !path.superseded) {
                // The rate of an idle path says nothing about its capacity.
                let busy = path.in_flight.0 * 2 >= path.window.0 && path.in_flight.0 > 0;
                let Some(rate) = path.rate.filter(|_| busy && !path.stalled) else { continue };
                self.worker.feed(Input::Measured {
                    session: session.session,
                    carrier: path.carrier.clone(),
                    rate,
                    srtt: path.srtt,
                });
            }
        }
    }
}

/// A callback that wakes the data plane's loop.
pub fn notify(waker: Arc<mio::Waker>) -> Box<dyn Fn() + Send> {
    Box::new(move || {
        if let Err(error) = waker.wake() {
            tracing::error!(%error, "cannot wake the data plane");
        }
    })
}

/// Interval at which stalls are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Interval of the carriers' rates.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
