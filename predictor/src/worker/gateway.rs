//! A gateway's engine: observations become positions, handovers and forecasts.
//!
//! A slow disk must not delay forecasts. So feed [`Engine::take`] and
//! [`Engine::on_timeout`], drain [`Engine::poll`], and then call
//! [`Engine::write`]. `write` stores handovers, which
//! count for forecasts from then on.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Handover, Observation, Position, RouteId, Serving, SessionKey};

use super::buffered::BufferedStore;
use super::forecasts::{CarrierForecasts, CellChange, FORECAST_EVERY, Seen};
use super::lookahead::outlook;
use super::outcomes::ForecastOutcomes;
use super::rates::RateRecorder;
use super::{Engine, Input, LinkDbSettings, Output, TripState, WorkerState};
use crate::entry::{Entry, Link, Rates, WriterNumber};
use crate::forecast::Forecaster;
use crate::pilot::{Pilot, PilotOutput};
use crate::position::TrainPosition;
use crate::sync::{Side, Sync, handovers};
use crate::track::Track;
use crate::wire::SyncMessage;

pub(super) struct GatewayEngine {
    store: BufferedStore,
    pilot: Pilot,
    forecaster: Forecaster,
    rates: RateRecorder,
    settings: LinkDbSettings,
    forecasts: CarrierForecasts,
    outcomes: ForecastOutcomes,
    /// The sessions that are up: one with each cloud that the train uses or used a moment ago.
    syncs: BTreeMap<SessionKey, Sync>,
    /// The one that receives telemetry and forecasts.
    session: Option<SessionKey>,
    outputs: VecDeque<Output>,
    /// Work for [`Engine::write`]; at [`WRITES_MAX`] it is done at once.
    writes: VecDeque<Write>,
    /// The outlooks are due.
    outlooks_due: bool,
    forecast_at: Instant,
    telemetry_at: Instant,
    /// A cell has changed since the last telemetry.
    cell_changed: bool,
    /// When a changed cell may be reported.
    report_at: Instant,
    recorded: u64,
    received: u64,
    dropped: u64,
}

/// Work that waits for the disk.
enum Write {
    /// A handover, or rates.
    Entry(Entry),
    /// A track that has changed.
    Track(RouteId, Track),
    /// A message of the peer's database.
    Message(SessionKey, SyncMessage),
}

impl GatewayEngine {
    pub(super) fn new(
        now: Instant,
        store: BufferedStore,
        settings: LinkDbSettings,
        seed: u64,
    ) -> Self {
        let pilot = Pilot::new(seed, store.name(), store.views().own_tracks());
        let mut engine = Self {
            store,
            pilot,
            forecaster: Forecaster::default(),
            rates: RateRecorder::new(Link::Up),
            settings,
            forecasts: CarrierForecasts::default(),
            outcomes: ForecastOutcomes::default(),
            syncs: BTreeMap::new(),
            session: None,
            outputs: VecDeque::new(),
            writes: VecDeque::new(),
            outlooks_due: false,
            forecast_at: now,
            telemetry_at: now,
            cell_changed: false,
            report_at: now,
            recorded: 0,
            received: 0,
            dropped: 0,
        };
        engine.offer_tracks();
        engine
    }

    /// Shows the pilot the tracks of other writers.
    fn offer_tracks(&mut self) {
        if self.store.take_tracks_changed() {
            let tracks = self.store.views().shared_tracks(self.pilot.room());
            self.pilot.offer(tracks);
        }
    }

    fn observe(&mut self, now: Instant, wall_ms: u64, observation: Observation) {
        if let Observation::Serving(Serving { carrier, cell, rsrp, .. }) = &observation {
            let change = self.forecasts.serving(now, carrier, *cell, *rsrp);
            self.cell_changed |= change != CellChange::None;
            if change == CellChange::Found {
                self.outputs.push_back(Output::FoundCell { carrier: carrier.clone() });
            }
        }
        let changes_forecasts = !matches!(observation, Observation::Heard(_));
        self.pilot.observe(now, wall_ms, &observation);
        self.drain_pilot(now, wall_ms);
        if changes_forecasts {
            self.forecast(now);
        }
    }

    fn drain_pilot(&mut self, now: Instant, wall_ms: u64) {
        while let Some(output) = self.pilot.poll() {
            match output {
                PilotOutput::Handover(handover, spot) => {
                    let Handover { carrier, from, at_ms, outcome, dark, .. } = &handover;
                    let age = Duration::from_millis(wall_ms.saturating_sub(*at_ms));
                    let at = now.checked_sub(age).unwrap_or(now);
                    self.outcomes.handover(at, carrier, *from, outcome.is_failure());
                    tracing::debug!(carrier, ?outcome, ?dark, "handover");
                    self.postpone(now, Write::Entry(Entry::Handover(handover, spot)));
                }
                PilotOutput::Track(route, track) => self.postpone(now, Write::Track(route, track)),
                PilotOutput::TripBegan(trip, route) => {
                    tracing::info!(%trip, %route, "trip begins");
                }
            }
        }
    }

    fn postpone(&mut self, now: Instant, write: Write) {
        if self.writes.len() >= WRITES_MAX {
            self.flush(now);
        }
        self.writes.push_back(write);
    }

    fn flush(&mut self, now: Instant) {
        while let Some(write) = self.writes.pop_front() {
            match write {
                Write::Entry(entry) => self.record(now, entry),
                Write::Track(route, track) => {
                    for piece in self.store.views().changed_pieces(route, &track) {
                        self.record(now, Entry::Track(piece));
                    }
                }
                Write::Message(session, message) => self.on_sync(now, session, message),
            }
        }
        self.offer_tracks();
    }

    /// Appends to the own log. A handover is sent at once.
    fn record(&mut self, now: Instant, entry: Entry) {
        let is_handover = matches!(entry, Entry::Handover(..));
        self.recorded += u64::from(is_handover);
        let log = self.store.record(entry);
        let Some(log) = log else { return };
        for sync in self.syncs.values_mut() {
            if is_handover { sync.added(log) } else { sync.relayed(now, log) }
        }
    }

    fn on_sync(&mut self, now: Instant, session: SessionKey, message: SyncMessage) {
        let Some(sync) = self.syncs.get_mut(&session) else { return };
        let heard = self.store.hear(sync, message);
        self.received += handovers(&heard.appended.fresh);
        self.dropped += u64::from(heard.dropped);
        for (_, other) in self.syncs.iter_mut().filter(|(other, _)| **other != session) {
            heard.changed.iter().for_each(|log| other.relayed(now, *log));
        }
    }

    fn record_rates(&mut self, now: Instant, rates: Vec<Rates>) {
        for rates in rates {
            self.postpone(now, Write::Entry(Entry::Rates(rates)));
        }
    }

    /// Users' flows go to this session.
    fn follow(&mut self, session: SessionKey) {
        if self.syncs.contains_key(&session) && self.session != Some(session) {
            self.session = Some(session);
            self.forecasts.repeat();
        }
    }

    fn forecast(&mut self, now: Instant) {
        let Some(session) = self.session else { return };
        let report = |output| self.outputs.push_back(output);
        if !self.settings.forecast {
            return self.forecasts.withdraw(session, report);
        }
        let train = self.pilot.place(now);
        let (forecaster, cells) = (&mut self.forecaster, self.store.views().cells());
        let outcomes = &mut self.outcomes;
        let forecast = |train: &TrainPosition, carrier: &str, seen: Seen| {
            let own = WriterNumber::OWN;
            let forecast = forecaster.forecast(cells, own, now, train, carrier, seen);
            outcomes.forecast(now, carrier, seen.0, forecast.as_ref());
            forecast
        };
        self.forecasts.update(now, session, forecast, train.as_ref(), report);
    }

    fn update_outlooks(&mut self, now: Instant) {
        if let (Some(session), Some(train)) = (self.session, self.pilot.place(now))
            && self.settings.forecast
        {
            let (store, outputs) = (&self.store, &mut self.outputs);
            let outlook_of =
                |carrier: &str| outlook(now, store, WriterNumber::OWN, carrier, &train);
            let report = |output| outputs.push_back(output);
            self.forecasts.update_outlooks(session, outlook_of, report);
        }
    }

    fn send_telemetry(&mut self, now: Instant) {
        (self.cell_changed, self.report_at) = (false, now + REPORT_APART);
        if let Some(train) = self.pilot.place(now) {
            self.store.ride("", train.route);
        }
        if let Some(session) = self.session
            && let Some(telemetry) = self.pilot.telemetry(now)
        {
            self.outputs.push_back(Output::Telemetry { session, telemetry });
        }
    }
}

impl Engine for GatewayEngine {
    fn take(&mut self, now: Instant, wall_ms: u64, input: Input) {
        self.store.set_time(now, wall_ms);
        match input {
            Input::Observed(observation) => self.observe(now, wall_ms, observation),
            Input::Up { session, peer } => {
                self.syncs.insert(session, Sync::new(now, Side::Gateway, &peer));
                if self.session.is_none() {
                    self.follow(session);
                }
            }
            Input::Follow(session) => self.follow(session),
            Input::Down(session) => {
                self.syncs.remove(&session);
                self.session.take_if(|known| *known == session);
            }
            Input::Sync { session, message } => {
                self.postpone(now, Write::Message(session, message));
            }
            Input::Measured { session, carrier, rate, srtt } => {
                if self.session == Some(session)
                    && let (Some(train), Some(trip)) = (self.pilot.place(now), self.pilot.trip())
                {
                    let position = Position::from_metres(train.metres);
                    let spot = self.pilot.spot(train.route, position, train.direction);
                    let rates = &mut self.rates;
                    let complete = rates.record((&train, trip), spot, &carrier, rate, srtt);
                    self.record_rates(now, complete.into_iter().collect());
                }
            }
            Input::Reload(settings) => {
                self.settings = settings;
                self.store.reload(settings);
                self.forecast(now);
            }
            // Only gateways send telemetry.
            Input::Telemetry { .. } => {}
        }
    }

    fn repeat_forecasts(&mut self) {
        self.forecasts.repeat();
    }

    fn on_timeout(&mut self, now: Instant, wall_ms: u64) {
        self.pilot.advance(now, wall_ms);
        self.drain_pilot(now, wall_ms);
        if now >= self.forecast_at {
            self.forecast_at = now + FORECAST_EVERY;
            self.forecast(now);
        }
        if now >= self.telemetry_at {
            self.outlooks_due = true;
            self.telemetry_at = now + TELEMETRY_EVERY;
            self.send_telemetry(now);
        } else if self.cell_changed && now >= self.report_at {
            self.send_telemetry(now);
        }
    }

    fn write(&mut self, now: Instant, wall_ms: u64) -> bool {
        self.store.on_timeout(now, wall_ms);
        if std::mem::take(&mut self.outlooks_due) {
            self.update_outlooks(now);
        }
        let due = self.rates.take_due(now);
        self.record_rates(now, due);
        self.flush(now);
        self.forecaster.train(self.store.views().cells());
        true
    }

    fn poll(&mut self, _now: Instant) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let Self { syncs, store, .. } = self;
        syncs.iter_mut().find_map(|(session, sync)| {
            let (delivery, message) = store.poll(sync)?;
            Some(Output::Sync { session: *session, delivery, message })
        })
    }

    fn next_timeout(&self) -> Option<Instant> {
        let sync = self.syncs.values().filter_map(|sync| self.store.poll_at(sync));
        let report = self.cell_changed.then_some(self.report_at);
        let others = sync.chain(self.store.next_timeout()).chain(report);
        Some(others.fold(self.telemetry_at.min(self.forecast_at), Instant::min))
    }

    fn close(&mut self, now: Instant, wall_ms: u64) {
        self.pilot.advance(now, wall_ms);
        self.pilot.end_trip();
        self.drain_pilot(now, wall_ms);
        let rates = self.rates.take_all();
        self.record_rates(now, rates);
        self.flush(now);
        self.store.close();
    }

    fn state(&self, now: Instant) -> WorkerState {
        let train = self.pilot.place(now);
        let trip = TripState {
            trip: self.pilot.trip().map(|trip| trip.to_string()),
            carriers: self.forecasts.state(now),
            ..train.as_ref().map(TripState::at).unwrap_or_default()
        };
        WorkerState {
            store: self.store.state(),
            forecast: self.settings.forecast,
            trips: vec![trip],
            forecasts: self.outcomes.counts,
            recorded: self.recorded,
            received: self.received,
            inputs_dropped: self.dropped,
            unrecorded: self.pilot.unrecorded(),
            ..WorkerState::default()
        }
    }
}

/// Pending writes; more than arrive at once.
const WRITES_MAX: usize = 1_024;
/// Interval of telemetry.
const TELEMETRY_EVERY: Duration = Duration::from_secs(1);
/// Minimum interval of telemetry for changed cells.
const REPORT_APART: Duration = Duration::from_millis(100);
