//! The data plane's side of the LinkDB: what it tells its thread, and what it does with the answer.
//!
//! Nothing here waits: telling is dropped and counted when the thread cannot keep up, and its
//! answers are taken when the waker woke the loop.

use std::io;
use std::time::{Duration, Instant};

use polyrail_control::linkdb::{Asker, Input, LinkDb, Output, SessionNumber, Tuning};
use polyrail_control::telemetry::ObservationReceiver;
use polyrail_model::{Delivery, Heard, Observation, Silence};
use polyrail_predictor::wire;
use polyrail_session::{Event, SessionKey};

use crate::{Relay, SilenceChange, Silences};

/// The LinkDB of a daemon.
#[derive(Debug)]
pub struct Foresight {
    linkdb: LinkDb,
    silences: Silences,
    measured_at: Option<Instant>,
    looked_at: Option<Instant>,
}

impl Foresight {
    /// Around a thread that runs.
    pub fn new(linkdb: LinkDb) -> Self {
        Self { linkdb, silences: Silences::default(), measured_at: None, looked_at: None }
    }

    /// Learns from what sources of telemetry observe.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn listen(&self, observations: ObservationReceiver) -> io::Result<()> {
        self.linkdb.listen(observations)
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
    pub fn on_session_event(&mut self, now: Instant, event: &Event) -> bool {
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
            Event::Message { session, channel, waited, payload } => {
                self.linkdb.receive(now, number(*session), *channel, *waited, payload);
                true
            }
            _ => false,
        }
    }

    /// Takes what the thread has to say. Returns the carriers whose modems had lost their cell and
    /// have found one: connections over them begin anew.
    #[must_use]
    pub fn on_wake(&mut self, now: Instant, relay: &mut Relay) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(output) = self.linkdb.try_recv() {
            let endpoint = relay.endpoint();
            match output {
                Output::Forecast { session, carrier, forecast } => {
                    tracing::trace!(carrier, ?forecast, "foreseen");
                    endpoint.set_forecast(now, SessionKey(session.0), &carrier, forecast);
                }
                Output::Outlook { session, carrier, outlook } => {
                    endpoint.set_outlook(now, SessionKey(session.0), &carrier, outlook);
                }
                Output::FoundCell { carrier } => found.push(carrier),
                Output::Telemetry { session, telemetry } => {
                    let (session, payload) =
                        (SessionKey(session.0), wire::encode_telemetry(&telemetry));
                    endpoint.send_message(now, session, wire::TELEMETRY, Delivery::Latest, payload);
                }
                Output::Sync { session, delivery, message } => {
                    for payload in wire::encode_sync(&message) {
                        let session = SessionKey(session.0);
                        endpoint.send_message(now, session, wire::SYNC, delivery, payload);
                    }
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
        if on_board && old(self.looked_at, LOOK_EVERY) {
            self.looked_at = Some(now);
            self.look(now, relay);
        }
    }

    fn look(&mut self, now: Instant, relay: &Relay) {
        let changes = self.silences.look(now, relay);
        for (carrier, at) in self.silences.take_heard() {
            self.linkdb.feed(Input::Observed(Observation::Heard(Heard { at, carrier })));
        }
        for change in changes {
            // Transports tell losses late or not at all: whether what was out arrived is not known.
            let SilenceChange { carrier, since } = change;
            let silence = Silence { at: now, carrier, since, kept: None };
            self.linkdb.feed(Input::Observed(Observation::Silence(silence)));
        }
    }

    /// What the carriers of all sessions carry.
    fn measure(&self, relay: &Relay) {
        for session in relay.endpoint_ref().status().sessions {
            for path in session.paths.iter().filter(|path| !path.superseded) {
                // What a path brings that has little to send says nothing.
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

fn number(session: SessionKey) -> SessionNumber {
    SessionNumber(session.0)
}

/// How often silence is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often what carriers carry is told.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
