//! The data plane's side of LinkDB: feeds the worker and applies its outputs.
//!
//! Nothing here blocks: the worker drops and counts inputs when it cannot keep up, and its outputs
//! are taken when it has woken the loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_model::{Delivery, Heard, LinkSample, Observation, SessionKey, Silence};
use polyrail_predictor::wire;
use polyrail_predictor::worker::{Feeder, Input, LinkDbSettings, Output, Worker};
use polyrail_session::{Event, TunnelKey};

use crate::Relay;
use crate::aftermath::{Aftermath, Flight};

/// A daemon's LinkDB.
#[derive(Debug)]
pub struct Foresight {
    worker: Worker,
    /// Carriers whose paths have stalled, with the path that stalled last.
    dark: BTreeMap<String, Option<Flight>>,
    /// Outages that are over, at most one of a carrier, until the fate of their data is known.
    over: Vec<Aftermath>,
    heard: Hearing,
    measured_at: Option<Instant>,
}

/// When the carriers were last heard: bytes were acknowledged or received.
///
/// An outage that ends before the session judges the path as stalled is no stall, but LinkDB
/// records it: it is measured afterwards, as a gap between two receptions while data was in flight.
#[derive(Debug, Default)]
struct Hearing {
    looked_at: Option<Instant>,
    tunnels: BTreeMap<TunnelKey, Progress>,
    carriers: BTreeMap<String, Reception>,
}

/// The last progress of a tunnel.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The bytes that it had acknowledged and received.
    count: (u64, u64),
    /// Its measurement then.
    sample: Option<LinkSample>,
}

/// A carrier at a look.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    heard: bool,
    /// Data is in flight.
    waits: bool,
    /// The least round-trip time.
    srtt: Option<Duration>,
    /// The tunnel that had most in flight at its last progress before this look.
    flight: Option<Flight>,
}

/// The last reception of a carrier.
#[derive(Clone, Copy, Debug)]
struct Reception {
    at: Instant,
    /// Data was in flight at every look since then.
    waited: bool,
    /// When it was last reported.
    told: Option<Instant>,
}

/// News of a carrier: it was heard, and since when it had not been if that was a gap.
#[derive(Debug, PartialEq, Eq)]
struct News {
    carrier: String,
    report: bool,
    gap_since: Option<Instant>,
    flight: Option<Flight>,
}

impl Foresight {
    /// With a running worker.
    pub fn new(worker: Worker) -> Self {
        let (dark, over) = (BTreeMap::new(), Vec::new());
        Self { worker, dark, over, heard: Hearing::default(), measured_at: None }
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
    pub fn reload(&self, settings: LinkDbSettings) {
        self.worker.feed(Input::Reload(settings));
    }

    /// Feeds a session's event to the worker; true if the event is for LinkDB alone.
    pub fn on_session_event(&mut self, now: Instant, relay: &Relay, event: &Event) -> bool {
        match event {
            Event::SessionUp { session, peer, .. } => {
                self.worker.begin(*session, peer.to_string());
                if relay.endpoint_ref().current() == Some(*session) {
                    self.follow(*session);
                }
                false
            }
            Event::SessionEnded { session, .. } => {
                self.worker.end(now, *session);
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

    /// Users' flows go to this session, which is up (gateway): forecasts and telemetry follow. The
    /// databases replicate over all sessions.
    pub fn follow(&self, session: SessionKey) {
        self.worker.feed(Input::Follow(session));
    }

    /// A carrier is dark when its path stalls and no other path of it carries.
    fn on_stalled(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey, since: Instant) {
        let Some(carrier) = carrier_of(relay, tunnel) else { return };
        let sessions = relay.endpoint_ref().status().sessions;
        let mut paths = sessions.iter().flat_map(|session| &session.paths);
        let carries = paths.any(|path| {
            path.carrier == carrier && !path.stalled && !path.superseded && !path.unproven
        });
        if !carries && !self.dark.contains_key(&carrier) {
            self.dark.insert(carrier.clone(), self.heard.flight(tunnel));
            self.begin(now, carrier, since);
        }
    }

    /// A path of a carrier carries: the one that stalled, or a fresh one.
    fn on_progress(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey) {
        let carrier = carrier_of(relay, tunnel);
        let dark = carrier.and_then(|carrier| self.dark.remove_entry(&carrier));
        if let Some((carrier, flight)) = dark {
            let own = flight.is_some_and(|flight| flight.tunnel == tunnel);
            self.end(now, relay, carrier, flight, !own);
        }
    }

    /// Whether a gap is no part of a stall.
    fn is_new(&self, carrier: &str, since: Instant) -> bool {
        let over = self.over.iter().any(|one| one.carrier == carrier && since < one.at);
        !over && !self.dark.contains_key(carrier)
    }

    /// An outage begins; the one before it is over for good.
    fn begin(&mut self, at: Instant, carrier: String, since: Instant) {
        let before = |one: &mut Aftermath| one.carrier == carrier;
        let over: Vec<Aftermath> = self.over.extract_if(.., before).collect();
        over.into_iter().for_each(|one| self.conclude(one));
        self.tell(Silence { at, carrier, since: Some(since), kept: None });
    }

    /// An outage ends, perhaps because a fresh connection has `replaced` the stalled one. The
    /// detector learns it as soon as the fate of the data in flight is known.
    fn end(
        &mut self,
        at: Instant,
        relay: &Relay,
        carrier: String,
        flight: Option<Flight>,
        replaced: bool,
    ) {
        let ended = flight.and_then(|flight| relay.tunnel(flight.tunnel)?.sample.copied());
        self.over.push(Aftermath::new(at, carrier, replaced, flight.zip(ended)));
    }

    /// Follows the tunnels of outages that are over.
    fn follow_up(&mut self, now: Instant, relay: &Relay) {
        for one in &mut self.over {
            let sample = one.tunnel().and_then(|tunnel| relay.tunnel(tunnel)?.sample);
            sample.into_iter().for_each(|sample| one.on_sample(sample));
        }
        let known: Vec<Aftermath> = self.over.extract_if(.., |one| one.is_known(now)).collect();
        known.into_iter().for_each(|one| self.conclude(one));
    }

    fn conclude(&self, over: Aftermath) {
        let kept = over.kept();
        tracing::debug!(carrier = over.carrier, ?kept, "outage over");
        self.tell(Silence { at: over.at, carrier: over.carrier, since: None, kept });
    }

    fn tell(&self, silence: Silence) {
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
                    let payload = wire::encode_sync(&message);
                    endpoint.send_message(now, session, wire::SYNC, delivery, payload);
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
            for News { carrier, report, gap_since, flight } in self.heard.look(now, relay) {
                let since = gap_since.filter(|since| self.is_new(&carrier, *since));
                if let Some(since) = since {
                    self.begin(now, carrier.clone(), since);
                    self.end(now, relay, carrier.clone(), flight, false);
                }
                if report {
                    let heard = Heard { at: now, carrier };
                    self.worker.feed(Input::Observed(Observation::Heard(heard)));
                }
            }
            self.follow_up(now, relay);
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
    /// The carriers with news since the last look: each is reported at most every [`TELL_EVERY`].
    fn look(&mut self, now: Instant, relay: &Relay) -> Vec<News> {
        let before = std::mem::take(&mut self.tunnels);
        let mut seen: BTreeMap<String, Look> = BTreeMap::new();
        for key in relay.tunnel_keys() {
            let Some(view) = relay.tunnel(key).filter(|view| !view.carrier.is_empty()) else {
                continue;
            };
            let count = (view.acked.0, view.received_bytes);
            let last = before.get(&key);
            let grown = last.is_some_and(|last| count.0 > last.count.0 || count.1 > last.count.1);
            let kept = last.filter(|_| !grown).and_then(|last| last.sample);
            let sample = kept.or(view.sample.copied());
            self.tunnels.insert(key, Progress { count, sample });
            let one = seen.entry(view.carrier.to_owned()).or_default();
            one.heard |= grown;
            one.waits |= view.sample.is_some_and(|sample| sample.in_flight.0 > 0);
            let srtt = view.sample.map(|sample| sample.srtt);
            one.srtt = one.srtt.into_iter().chain(srtt).min();
            let flight = last.and_then(|last| Some(Flight { tunnel: key, before: last.sample? }));
            let most = |flight: &Flight| flight.before.in_flight;
            one.flight = one.flight.into_iter().chain(flight).max_by_key(most);
        }
        self.carriers.retain(|carrier, _| seen.contains_key(carrier));
        seen.into_iter().filter_map(|(carrier, look)| self.note(now, carrier, look)).collect()
    }

    /// What a tunnel had in flight at its last progress.
    fn flight(&self, tunnel: TunnelKey) -> Option<Flight> {
        Some(Flight { tunnel, before: self.tunnels.get(&tunnel)?.sample? })
    }

    fn note(&mut self, now: Instant, carrier: String, look: Look) -> Option<News> {
        let Look { heard, waits, srtt, flight } = look;
        if !heard {
            if let Some(last) = self.carriers.get_mut(&carrier) {
                last.waited &= waits;
            }
            return None;
        }
        let last = self.carriers.get(&carrier).copied();
        let gap = GAP_MIN.saturating_add(srtt.unwrap_or(Duration::MAX).saturating_mul(3) / 2);
        let is_gap = |last: &Reception| last.waited && now.duration_since(last.at) >= gap;
        let gap_since = last.filter(is_gap).map(|last| last.at);
        let told = last.and_then(|last| last.told);
        let report = told.is_none_or(|told| now >= told + TELL_EVERY);
        let told = if report { Some(now) } else { told };
        self.carriers.insert(carrier.clone(), Reception { at: now, waited: waits, told });
        (report || gap_since.is_some()).then_some(News { carrier, report, gap_since, flight })
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
/// A gap of this and 1.5 round trips is an outage: a handover that succeeds interrupts a carrier
/// for less than 100 ms (POLYCORN 2).
const GAP_MIN: Duration = Duration::from_millis(100);
/// How often the carriers' rates are reported.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_is_reported_when_data_waited_throughout() {
        let base = Instant::now();
        let at = |ms: u64| base + Duration::from_millis(ms);
        let mut hearing = Hearing::default();
        let mut note = |ms: u64, heard: bool, waits: bool| {
            let srtt = Some(Duration::from_millis(60));
            hearing.note(at(ms), "a".to_owned(), Look { heard, waits, srtt, flight: None })
        };
        let news = |report, gap: Option<u64>| {
            let gap_since = gap.map(at);
            Some(News { carrier: "a".to_owned(), report, gap_since, flight: None })
        };
        assert_eq!(note(0, true, true), news(true, None));
        assert_eq!(note(20, true, true), None, "reported a moment ago");
        assert_eq!(note(100, false, true), None);
        assert_eq!(note(209, true, true), None, "1.5 round trips and 100 ms are 190 ms");
        assert_eq!(note(300, false, true), None);
        assert_eq!(note(399, true, true), news(true, Some(209)), "a gap");
        assert_eq!(note(500, false, false), None, "nothing is in flight");
        assert_eq!(note(900, true, true), news(true, None), "an idle carrier has no gap");
    }
}
