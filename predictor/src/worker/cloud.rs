//! A cloud's engine: forecasts for the downlink from the telemetry of gateways, and their entries
//! relayed to each other.
//!
//! A slow disk must not delay forecasts. So feed [`Engine::take`] and
//! [`Engine::on_timeout`], drain [`Engine::poll`], and then call [`Engine::write`].
//! Messages for the database wait for that in their order; each call writes the records of one.
//!
//! Invariant: each session is in `due` at its next timeout, or in `ready`; a turn of the thread
//! looks at no other session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Position, SessionKey, TripId};

use super::buffered::BufferedStore;
use super::forecasts::CarrierForecasts;
use super::lookahead::outlook;
use super::rates::RateRecorder;
use super::{Engine, Input, LinkDbSettings, Output, TripState, WorkerState, forecaster};
use crate::entry::{Entry, Link, Rates};
use crate::forecast::Forecaster;
use crate::position::TrainPosition;
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
    /// Messages for the database, at most [`MESSAGES_MAX`]; further ones are dropped and counted,
    /// and gateways send them again.
    messages: VecDeque<(SessionKey, SyncMessage)>,
    dropped: u64,
    /// Rates to be recorded; a few a second.
    measured: Vec<Rates>,
    /// Sessions with new telemetry, whose outlooks are due.
    outlooks_due: BTreeSet<SessionKey>,
    forecast_at: Instant,
    received: u64,
}

/// The state of one gateway.
struct Gateway {
    name: String,
    sync: Sync,
    /// Its entry in [`CloudEngine::due`].
    due: Option<Instant>,
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
}

impl CloudEngine {
    pub(super) fn new(now: Instant, store: BufferedStore, settings: LinkDbSettings) -> Self {
        Self {
            store,
            forecaster: forecaster(settings.guard),
            settings,
            sessions: BTreeMap::new(),
            due: BTreeSet::new(),
            ready: BTreeSet::new(),
            outputs: VecDeque::new(),
            messages: VecDeque::new(),
            dropped: 0,
            measured: Vec::new(),
            outlooks_due: BTreeSet::new(),
            forecast_at: now,
            received: 0,
        }
    }

    fn begin(&mut self, now: Instant, session: SessionKey, name: String) {
        self.end(session);
        let sync = Sync::new(now, Side::Cloud { share: self.settings.share }, &name);
        let (forecasts, rates) = (CarrierForecasts::default(), RateRecorder::new(Link::Down));
        let gateway = Gateway { name, sync, due: None, forecasts, rates, trip: None };
        self.sessions.insert(session, gateway);
        self.ready.insert(session);
    }

    fn end(&mut self, session: SessionKey) {
        self.ready.remove(&session);
        self.outlooks_due.remove(&session);
        let Some(mut gateway) = self.sessions.remove(&session) else { return };
        if let Some(at) = gateway.due {
            self.due.remove(&(at, session));
        }
        self.record(gateway.rates.take_all());
    }

    fn record(&mut self, rates: Vec<Rates>) {
        for rates in rates {
            self.store.record(Entry::Rates(rates));
        }
    }

    fn on_sync(&mut self, now: Instant, session: SessionKey, message: SyncMessage) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        let heard = self.store.hear(&mut gateway.sync, message);
        self.ready.insert(session);
        self.received += handovers(&heard.appended.fresh);
        let Some(log) = heard.log else { return };
        for (&other, gateway) in self.sessions.iter_mut().filter(|(other, _)| **other != session) {
            gateway.sync.relayed(now, log);
            schedule(&mut self.due, other, gateway);
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
        let forecast = |train: &TrainPosition, carrier: &str, cell| {
            forecaster.forecast(cells, own, now, train, carrier, cell)
        };
        gateway.forecasts.update(now, session, forecast, train.as_ref(), report);
    }

    fn update_outlooks(&mut self, now: Instant, session: SessionKey) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        if let Some((_, train)) = gateway.trip_at(now).filter(|_| self.settings.forecast) {
            let train = train.advanced(now);
            let (store, outputs) = (&self.store, &mut self.outputs);
            let outlook_of = |carrier: &str| outlook(now, store, carrier, &train);
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
                if self.messages.len() < MESSAGES_MAX {
                    self.messages.push_back((session, message));
                } else {
                    self.dropped += 1;
                }
            }
            Input::Measured { session, carrier, rate, srtt } => {
                let Some(gateway) = self.sessions.get_mut(&session) else { return };
                if let Some((trip, train)) = gateway.trip_at(now) {
                    let train = train.advanced(now);
                    let position = Position::from_metres(train.metres);
                    let spot = self.store.views().spot(train.route, position, train.direction);
                    let rates = &mut gateway.rates;
                    let complete = rates.record((&train, trip), spot, &carrier, rate, srtt);
                    self.measured.extend(complete);
                }
            }
            Input::Reload(settings) => {
                if self.settings.guard != settings.guard {
                    self.forecaster = forecaster(settings.guard);
                }
                self.settings = settings;
                self.store.reload(settings);
                self.forecast_at = now;
            }
            // Only gateways observe.
            Input::Observed(_) => {}
        }
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
            measured.extend(gateway.rates.take_due(now));
        }
        self.record(measured);
        let sessions = std::mem::take(&mut self.outlooks_due);
        let mut any = !sessions.is_empty();
        sessions.into_iter().for_each(|session| self.update_outlooks(now, session));
        while let Some((session, message)) = self.messages.pop_front() {
            any = true;
            let has_records = matches!(message, SyncMessage::Entries { .. });
            self.on_sync(now, session, message);
            if has_records {
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
                schedule(&mut self.due, session, gateway);
            }
            self.ready.remove(&session);
        }
        None
    }

    fn next_timeout(&self) -> Option<Instant> {
        let sync = self.due.first().map(|(at, _)| *at);
        let next = sync.into_iter().chain(self.store.next_timeout());
        self.messages.is_empty().then(|| next.fold(self.forecast_at, Instant::min))
    }

    fn close(&mut self, _now: Instant, _wall_ms: u64) {
        // Gateways send pending messages again.
        let mut measured = std::mem::take(&mut self.measured);
        for gateway in self.sessions.values_mut() {
            measured.extend(gateway.rates.take_all());
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
            guard: self.settings.guard,
            trips: self.sessions.values().map(trip).collect(),
            received: self.received,
            inputs_dropped: self.dropped,
            ..WorkerState::default()
        }
    }
}

/// Moves a session's entry in `due` to its next timeout.
fn schedule(due: &mut BTreeSet<(Instant, SessionKey)>, session: SessionKey, gateway: &mut Gateway) {
    if let Some(at) = gateway.due.take() {
        due.remove(&(at, session));
    }
    gateway.due = gateway.sync.next_timeout();
    due.extend(gateway.due.map(|at| (at, session)));
}

/// Pending messages for the database.
const MESSAGES_MAX: usize = 4_096;
/// Interval of forecasts without telemetry.
const FORECAST_EVERY: Duration = Duration::from_secs(1);
/// Older positions make no forecast.
const TELEMETRY_FRESH: Duration = Duration::from_secs(10);
