//! A cloud's engine: forecasts for the downlink from the telemetry of gateways, and their entries
//! relayed to each other.
//!
//! A slow disk must not delay forecasts. So feed [`Engine::take`] and
//! [`Engine::on_timeout`], drain [`Engine::poll`], and then call [`Engine::write`].
//! Messages for the database wait for that, and each call writes those of one. Sessions take turns,
//! so that no gateway delays the messages of another.
//!
//! Invariant: each session is in `due` at its next timeout, or in `ready`; a turn of the thread
//! looks at no other session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Position, SessionKey, TripId};

use super::buffered::BufferedStore;
use super::forecasts::{CarrierForecasts, FORECAST_EVERY};
use super::lookahead::outlook;
use super::rates::RateRecorder;
use super::{Engine, Input, LinkDbSettings, MESSAGES_AT_ONCE, Output, TripState, WorkerState};
use crate::entry::{Entry, Link, LogNumber, Rates};
use crate::forecast::Forecaster;
use crate::position::TrainPosition;
use crate::shared::{Answer, News, SharedLogs};
use crate::sync::{Side, Sync, handovers};
use crate::wire::{SyncMessage, Telemetry};

pub(super) struct CloudEngine {
    store: BufferedStore,
    forecaster: Forecaster,
    settings: LinkDbSettings,
    sessions: BTreeMap<SessionKey, Gateway>,
    /// Timeouts of the sessions' synchronisation.
    due: BTreeSet<(Instant, SessionKey)>,
    /// Sessions whose synchronisation may have a message now.
    ready: BTreeSet<SessionKey>,
    outputs: VecDeque<Output>,
    /// Sessions with messages, in the order of their turns.
    turns: VecDeque<SessionKey>,
    dropped: u64,
    /// Rates to be recorded, and the gateways' names; a few a second.
    measured: Vec<(String, Rates)>,
    /// Sessions with new telemetry, whose outlooks are due.
    outlooks_due: BTreeSet<SessionKey>,
    forecast_at: Instant,
    received: u64,
    /// The database that it shares with other clouds; none without one.
    shared: Option<SharedLogs>,
    unshared: bool,
}

/// The state of one gateway.
struct Gateway {
    name: String,
    sync: Sync,
    /// Its entry in [`CloudEngine::due`].
    due: Option<Instant>,
    /// Messages for the database, at most [`MESSAGES_MAX`]; further ones are dropped and counted,
    /// and the gateway sends them again.
    messages: VecDeque<SyncMessage>,
    forecasts: CarrierForecasts,
    rates: RateRecorder,
    trip: Option<(TripId, TrainPosition)>,
}

impl Gateway {
    /// Its trip and reported position, unless that is too old.
    fn trip_at(&self, now: Instant) -> Option<(TripId, TrainPosition)> {
        let (trip, train) = self.trip.as_ref()?;
        let age = now.saturating_duration_since(train.at);
        (age < TELEMETRY_FRESH).then_some((*trip, *train))
    }

    fn named(&self, rates: impl IntoIterator<Item = Rates>) -> Vec<(String, Rates)> {
        rates.into_iter().map(|rates| (self.name.clone(), rates)).collect()
    }
}

impl CloudEngine {
    pub(super) fn new(now: Instant, store: BufferedStore, settings: LinkDbSettings) -> Self {
        Self {
            store,
            forecaster: Forecaster::default(),
            settings,
            sessions: BTreeMap::new(),
            due: BTreeSet::new(),
            ready: BTreeSet::new(),
            outputs: VecDeque::new(),
            turns: VecDeque::new(),
            dropped: 0,
            measured: Vec::new(),
            outlooks_due: BTreeSet::new(),
            forecast_at: now,
            received: 0,
            shared: None,
            unshared: false,
        }
    }

    fn begin(&mut self, now: Instant, session: SessionKey, name: String) {
        self.end(session);
        let sync = Sync::new(now, Side::Cloud { share: self.settings.share }, &name);
        let (forecasts, rates) = (CarrierForecasts::default(), RateRecorder::new(Link::Down));
        let messages = VecDeque::new();
        let gateway = Gateway { name, sync, due: None, messages, forecasts, rates, trip: None };
        self.sessions.insert(session, gateway);
        self.ready.insert(session);
    }

    fn end(&mut self, session: SessionKey) {
        self.ready.remove(&session);
        self.outlooks_due.remove(&session);
        self.turns.retain(|turn| *turn != session);
        let Some(mut gateway) = self.sessions.remove(&session) else { return };
        if let Some(at) = gateway.due {
            self.due.remove(&(at, session));
        }
        let rates = gateway.rates.take_all();
        self.record(gateway.named(rates));
    }

    /// Records rates that were measured with a gateway's position: they count as that gateway's.
    fn record(&mut self, rates: Vec<(String, Rates)>) {
        for (gateway, rates) in rates {
            let is_recorded = self.store.record_of(&gateway, &Entry::Rates(rates));
            self.dropped += u64::from(!is_recorded);
            self.unshared |= is_recorded;
        }
    }

    /// Hears the next message of the session whose turn it is. True if there was none, or if it may
    /// have been written.
    fn take_turn(&mut self, now: Instant) -> bool {
        let Some(session) = self.turns.pop_front() else { return true };
        let Some(gateway) = self.sessions.get_mut(&session) else { return false };
        let Some(message) = gateway.messages.pop_front() else { return false };
        if !gateway.messages.is_empty() {
            self.turns.push_back(session);
        }
        let has_records = matches!(message, SyncMessage::Entries { .. });
        let heard = self.store.hear(&mut gateway.sync, message);
        self.ready.insert(session);
        self.received += handovers(&heard.appended.fresh);
        self.dropped += u64::from(heard.dropped);
        if heard.changed.is_empty() {
            return has_records;
        }
        self.unshared = true;
        self.relay(now, &heard.changed, Some(session));
        true
    }

    /// Logs have changed; all sessions but that of their origin want them.
    fn relay(&mut self, now: Instant, changed: &BTreeSet<LogNumber>, origin: Option<SessionKey>) {
        if changed.is_empty() {
            return;
        }
        for (&other, gateway) in self.sessions.iter_mut() {
            if Some(other) != origin {
                changed.iter().for_each(|log| gateway.sync.relayed(now, *log));
                let at = self.store.poll_at(&gateway.sync);
                schedule(&mut self.due, at, other, gateway);
            }
        }
    }

    fn on_telemetry(
        &mut self,
        now: Instant,
        session: SessionKey,
        at: Instant,
        telemetry: &Telemetry,
    ) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        gateway.forecasts.report(at, &telemetry.carriers);
        let train = TrainPosition::from_telemetry(at, telemetry);
        gateway.trip = train.map(|train| (telemetry.trip, train));
        self.store.ride(&gateway.name, telemetry.route);
        self.forecast(now, session);
        self.outlooks_due.insert(session);
    }

    fn forecast(&mut self, now: Instant, session: SessionKey) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        let report = |output| self.outputs.push_back(output);
        if !self.settings.forecast {
            return gateway.forecasts.withdraw(session, report);
        }
        let train = gateway.trip_at(now).map(|(_, train)| train);
        let (forecaster, cells) = (&mut self.forecaster, self.store.views().cells());
        let own = self.store.writer(&gateway.name);
        let forecast = |train: &TrainPosition, carrier: &str, seen| {
            forecaster.forecast(cells, own, now, train, carrier, seen)
        };
        gateway.forecasts.update(now, session, forecast, train.as_ref(), report);
    }

    fn update_outlooks(&mut self, now: Instant, session: SessionKey) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        if let Some((_, train)) = gateway.trip_at(now).filter(|_| self.settings.forecast) {
            let train = train.advanced(now);
            let own = self.store.writer(&gateway.name);
            let (store, outputs) = (&self.store, &mut self.outputs);
            let outlook_of = |carrier: &str| outlook(now, store, own, carrier, &train);
            let report = |output| outputs.push_back(output);
            gateway.forecasts.update_outlooks(session, outlook_of, report);
        }
    }
}

impl Engine for CloudEngine {
    fn take(&mut self, now: Instant, wall_ms: u64, input: Input) {
        self.store.set_time(now, wall_ms);
        match input {
            Input::Up { session, peer } => self.begin(now, session, peer),
            Input::Down(session) => self.end(session),
            Input::Telemetry { session, at, telemetry } => {
                self.on_telemetry(now, session, at, &telemetry);
            }
            Input::Sync { session, message } => {
                let Some(gateway) = self.sessions.get_mut(&session) else { return };
                if gateway.messages.len() >= MESSAGES_MAX {
                    self.dropped += 1;
                    return;
                }
                if gateway.messages.is_empty() {
                    self.turns.push_back(session);
                }
                gateway.messages.push_back(message);
            }
            Input::Measured { session, carrier, rate, srtt } => {
                let Some(gateway) = self.sessions.get_mut(&session) else { return };
                if let Some((trip, train)) = gateway.trip_at(now) {
                    let train = train.advanced(now);
                    let position = Position::from_metres(train.metres);
                    let track = self.store.views().track(train.route);
                    let spot = track.and_then(|track| track.spot(position, train.direction));
                    let rates = &mut gateway.rates;
                    let complete = rates.record((&train, trip), spot, &carrier, rate, srtt);
                    self.measured.extend(gateway.named(complete));
                }
            }
            Input::Reload(settings) => {
                self.settings = settings;
                self.store.reload(settings);
                self.forecast_at = now;
            }
            // Only gateways observe, and choose among sessions.
            Input::Observed(_) | Input::Follow(_) => {}
        }
    }

    fn share(&mut self, now: Instant, wall_ms: u64, news: News) -> Option<Answer> {
        self.store.set_time(now, wall_ms);
        let shared = self.shared.get_or_insert_with(|| SharedLogs::new(now));
        let (changed, answer) = self.store.share(shared, news)?;
        self.relay(now, &changed, None);
        Some(answer)
    }

    fn take_unshared(&mut self) -> bool {
        std::mem::take(&mut self.unshared)
    }

    fn repeat_forecasts(&mut self) {
        self.sessions.values_mut().for_each(|gateway| gateway.forecasts.repeat());
    }

    fn on_timeout(&mut self, now: Instant, wall_ms: u64) {
        self.store.set_time(now, wall_ms);
        if now >= self.forecast_at {
            self.forecast_at = now + FORECAST_EVERY;
            let sessions: Vec<SessionKey> = self.sessions.keys().copied().collect();
            sessions.into_iter().for_each(|session| self.forecast(now, session));
        }
    }

    fn write(&mut self, now: Instant, wall_ms: u64) -> bool {
        self.store.on_timeout(now, wall_ms);
        let mut measured = std::mem::take(&mut self.measured);
        for gateway in self.sessions.values_mut() {
            let due = gateway.rates.take_due(now);
            measured.extend(gateway.named(due));
        }
        self.record(measured);
        self.forecaster.train(self.store.views().cells());
        let sessions = std::mem::take(&mut self.outlooks_due);
        let any = !sessions.is_empty() || !self.turns.is_empty();
        sessions.into_iter().for_each(|session| self.update_outlooks(now, session));
        for _ in 0..TURNS {
            if self.take_turn(now) {
                break;
            }
        }
        any
    }

    fn poll(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        while let Some(&(at, session)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            self.ready.insert(session);
        }
        while let Some(&session) = self.ready.first() {
            if let Some(gateway) = self.sessions.get_mut(&session) {
                if let Some((delivery, message)) = self.store.poll(&mut gateway.sync) {
                    return Some(Output::Sync { session, delivery, message });
                }
                let at = self.store.poll_at(&gateway.sync);
                schedule(&mut self.due, at, session, gateway);
            }
            self.ready.remove(&session);
        }
        None
    }

    fn next_timeout(&self) -> Option<Instant> {
        let sync = self.due.first().map(|(at, _)| *at);
        let next = sync.into_iter().chain(self.store.next_timeout());
        self.turns.is_empty().then(|| next.fold(self.forecast_at, Instant::min))
    }

    fn close(&mut self, _now: Instant, _wall_ms: u64) {
        // Gateways send pending messages again.
        let mut measured = std::mem::take(&mut self.measured);
        for gateway in self.sessions.values_mut() {
            let all = gateway.rates.take_all();
            measured.extend(gateway.named(all));
        }
        self.record(measured);
        self.store.close();
    }

    fn state(&self, now: Instant) -> WorkerState {
        let trip = |gateway: &Gateway| {
            let train = gateway.trip.as_ref().map(|(_, train)| TripState::at(train));
            TripState {
                gateway: Some(gateway.name.clone()),
                trip: gateway.trip.as_ref().map(|(trip, _)| trip.to_string()),
                carriers: gateway.forecasts.state(now),
                ..train.unwrap_or_default()
            }
        };
        WorkerState {
            store: self.store.state(),
            forecast: self.settings.forecast,
            trips: self.sessions.values().map(trip).collect(),
            received: self.received,
            inputs_dropped: self.dropped,
            shared: self.shared.as_ref().map(|shared| self.store.shared_state(shared)),
            ..WorkerState::default()
        }
    }
}

/// Moves a session's entry in `due` to its next timeout.
fn schedule(
    due: &mut BTreeSet<(Instant, SessionKey)>,
    next: Option<Instant>,
    session: SessionKey,
    gateway: &mut Gateway,
) {
    if let Some(at) = gateway.due.take() {
        due.remove(&(at, session));
    }
    gateway.due = next;
    due.extend(gateway.due.map(|at| (at, session)));
}

/// Pending messages of a session for the database: as many as its peer may send at once.
const MESSAGES_MAX: usize = MESSAGES_AT_ONCE;
/// Messages without records that are heard in one turn of the thread.
const TURNS: usize = 64;
/// Older positions make no forecast.
const TELEMETRY_FRESH: Duration = Duration::from_secs(10);
