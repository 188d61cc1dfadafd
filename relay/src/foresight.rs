//! The data plane's side of LinkDB: feeds its thread, and applies its forecasts to the session.
//!
//! Nothing here blocks: messages are dropped and counted when the thread cannot keep up, and its
//! answers are read when the waker wakes the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use polyrail_control::linkdb::{Asker, Input, LinkDb, Output, SessionNumber, Tuning};
use polyrail_model::{Heard, Observation, Silence};
use polyrail_session::{Event, SessionKey, TunnelKey};

use crate::Relay;

/// The LinkDB of a daemon.
#[derive(Debug)]
pub struct Foresight {
    linkdb: LinkDb,
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
    /// Around a thread that runs.
    pub fn new(linkdb: LinkDb) -> Self {
        Self { linkdb, dark: BTreeSet::new(), heard: Hearing::default(), measured_at: None }
    }

    /// Passes observations from other threads to LinkDB; it never blocks.
    pub fn observer(&self) -> impl Fn(Observation) + Send + Sync + 'static {
        self.linkdb.observer()
    }

    /// Something that asks for its state.
    pub fn asker(&self) -> Asker {
        self.linkdb.asker()
    }

    /// The configuration has changed.
    pub fn retune(&self, tuning: Tuning) {
        self.linkdb.feed(Input::Retune(tuning));
    }

    /// Passes on what concerns it; true when it is nobody else's business.
    pub fn on_session_event(&mut self, now: Instant, relay: &Relay, event: &Event) -> bool {
        match event {
            Event::SessionUp { session, peer, .. } => {
                let (session, peer) = (number(*session), peer.to_string());
                self.linkdb.feed(Input::Up { session, peer });
                false
            }
            Event::SessionEnded { session, .. } => {
                self.linkdb.feed(Input::Down(number(*session)));
                false
            }
            Event::Telemetry { session, telemetry } => {
                let (session, telemetry) = (number(*session), telemetry.clone());
                self.linkdb.feed(Input::Telemetry { session, at: now, telemetry });
                true
            }
            Event::Ledger { session, message } => {
                let (session, message) = (number(*session), message.clone());
                self.linkdb.feed(Input::Ledger { session, message });
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
        self.linkdb.feed(Input::Observed(Observation::Silence(silence)));
    }

    /// Reads the thread's answers. Returns the carriers whose modems had lost their cell and have
    /// found one: connections over them restart.
    #[must_use]
    pub fn on_wake(&mut self, now: Instant, relay: &mut Relay) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(output) = self.linkdb.try_recv() {
            let endpoint = relay.endpoint();
            match output {
                Output::Forecast { session, carrier, forecast } => {
                    tracing::trace!(carrier, ?forecast, "forecast set");
                    endpoint.set_forecast(now, SessionKey(session.0), &carrier, forecast);
                }
                Output::Outlook { session, carrier, outlook } => {
                    endpoint.set_outlook(now, SessionKey(session.0), &carrier, outlook);
                }
                Output::FoundCell { carrier } => found.push(carrier),
                Output::Telemetry(telemetry) => endpoint.send_telemetry(now, &telemetry),
                Output::Ledger { session, urgency, message } => {
                    endpoint.send_ledger(now, SessionKey(session.0), &message, urgency);
                }
            }
        }
        found
    }

    /// Tells what the carriers carry, once a second, and on board which have fallen silent. To be
    /// called once a turn; most calls do nothing.
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
                self.linkdb.feed(Input::Observed(Observation::Heard(Heard { at: now, carrier })));
            }
        }
    }

    /// What the carriers of all sessions carry.
    fn measure(&self, relay: &Relay) {
        for session in relay.endpoint_ref().status().sessions {
            for path in session.paths.iter().filter(|path| !path.superseded) {
                // The rate of a path with little to send says nothing.
                let busy = path.in_flight.0 * 2 >= path.window.0 && path.in_flight.0 > 0;
                let Some(rate) = path.rate.filter(|_| busy && !path.stalled) else { continue };
                self.linkdb.feed(Input::Measured {
                    session: number(session.session),
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

fn number(session: SessionKey) -> SessionNumber {
    SessionNumber(session.0)
}

/// How often tunnels are checked for acknowledged and received bytes.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the detector learns that a carrier was heard.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// How often the carriers' rates are reported.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
