//! The data plane's side of LinkDB: feeds the worker and applies its outputs.
//!
//! Nothing here blocks: the worker drops and counts inputs when it cannot keep up, and its outputs
//! are taken when it has woken the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_model::{Delivery, Heard, Observation, Silence};
use polyrail_predictor::wire;
use polyrail_predictor::worker::{Feeder, Input, Output, Settings, Worker};
use polyrail_session::{Event, TunnelKey};

use crate::Relay;

/// A daemon's LinkDB.
#[derive(Debug)]
pub struct Foresight {
    worker: Worker,
    /// Carriers whose paths have stalled.
    dark: BTreeSet<String>,
    heard: Hearing,
    measured_at: Option<Instant>,
}

/// When the carriers were last heard: bytes were acknowledged or came in.
#[derive(Debug, Default)]
struct Hearing {
    looked_at: Option<Instant>,
    /// What each tunnel had acknowledged and received.
    tunnels: BTreeMap<TunnelKey, (u64, u64)>,
    /// When the detector was last told of a carrier.
    told: BTreeMap<String, Instant>,
}

impl Foresight {
    /// With a running worker.
    pub fn new(worker: Worker) -> Self {
        Self { worker, dark: BTreeSet::new(), heard: Hearing::default(), measured_at: None }
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
    pub fn on_session_event(&mut self, now: Instant, relay: &Relay, event: &Event) -> bool {
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
            Event::PathStalled { tunnel, since } => {
                self.on_stalled(now, relay, *tunnel, *since);
                false
            }
            Event::PathUp { tunnel, .. } | Event::PathRecovered { tunnel } => {
                self.on_progress(now, relay, *tunnel);
                false
            }
            _ => false,
        }
    }

    /// A carrier is dark when its path stalls and no other path of it carries.
    fn on_stalled(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey, since: Instant) {
        let Some(carrier) = carrier_of(relay, tunnel) else { return };
        let sessions = relay.endpoint_ref().status().sessions;
        let mut paths = sessions.iter().flat_map(|session| &session.paths);
        let carries = paths.any(|path| {
            path.carrier == carrier && !path.stalled && !path.superseded && !path.unproven
        });
        if !carries && self.dark.insert(carrier.clone()) {
            self.tell_dark(now, carrier, Some(since));
        }
    }

    /// A path of a carrier carries: the one that stalled, or a fresh one.
    fn on_progress(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey) {
        let carrier = carrier_of(relay, tunnel);
        if let Some(carrier) = carrier.and_then(|carrier| self.dark.take(&carrier)) {
            self.tell_dark(now, carrier, None);
        }
    }

    fn tell_dark(&self, at: Instant, carrier: String, since: Option<Instant>) {
        // Transports report losses late or never, so the fate of the data in flight is unknown.
        let silence = Silence { at, carrier, since, kept: None };
        self.worker.feed(Input::Observed(Observation::Silence(silence)));
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
        if on_board && old(self.heard.looked_at, LOOK_EVERY) {
            self.heard.looked_at = Some(now);
            for carrier in self.heard.look(now, relay) {
                self.worker.feed(Input::Observed(Observation::Heard(Heard { at: now, carrier })));
            }
        }
    }

    /// Feeds the rates of all sessions' carriers.
    fn measure(&self, relay: &Relay) {
        for session in relay.endpoint_ref().status().sessions {
            for path in session.paths.iter().filter(|path| !path.superseded) {
                // The rate of a path with little to send says nothing about its capacity.
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

impl Hearing {
    /// The carriers that were heard since the last look: each at most every [`TELL_EVERY`].
    fn look(&mut self, now: Instant, relay: &Relay) -> Vec<String> {
        let before = std::mem::take(&mut self.tunnels);
        let mut heard = Vec::new();
        for key in relay.tunnel_keys() {
            let Some(view) = relay.tunnel(key).filter(|view| !view.carrier.is_empty()) else {
                continue;
            };
            let (acked, received) = (view.acked.0, view.received_bytes);
            self.tunnels.insert(key, (acked, received));
            let last = before.get(&key);
            let grown = last.is_some_and(|last| acked > last.0 || received > last.1);
            let told = self.told.get(view.carrier);
            if grown && told.is_none_or(|told| now >= *told + TELL_EVERY) {
                self.told.insert(view.carrier.to_owned(), now);
                heard.push(view.carrier.to_owned());
            }
        }
        heard
    }
}

/// The carrier of a gateway's tunnel; a cloud's tunnels have none.
fn carrier_of(relay: &Relay, tunnel: TunnelKey) -> Option<String> {
    let carrier = relay.tunnel(tunnel)?.carrier;
    (!carrier.is_empty()).then(|| carrier.to_owned())
}

/// A callback that wakes the data plane's loop.
pub fn notify(waker: Arc<mio::Waker>) -> Box<dyn Fn() + Send> {
    Box::new(move || {
        if let Err(error) = waker.wake() {
            tracing::error!(%error, "cannot wake the data plane");
        }
    })
}

/// How often tunnels are checked for acknowledged and received bytes.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the detector learns that a carrier was heard.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// How often the carriers' rates are reported.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
