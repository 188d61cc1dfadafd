//! On board: observations become positions, handovers and forecasts.
//!
//! The disk may stall for a second, and forecasts must not: feed [`Train::take`] and
//! [`Train::on_timeout`], hand over what [`Train::poll`] has to say, and then call
//! [`Train::write`]. What was seen counts for forecasts at once, and is written there, in the order
//! in which it came.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::{
    Bitrate, Direction, Handover, LinkOutlook, Observation, OutlookStep, Position, RouteId,
    Serving, TripId,
};
use polyrail_predictor::forecast::Situation;
use polyrail_predictor::pilot::{Pilot, PilotOutput};
use polyrail_predictor::position::Placement;
use polyrail_predictor::store::PlaceSample;
use polyrail_predictor::sync::{Share, Sync};
use polyrail_predictor::track::Track;
use polyrail_predictor::wire::SyncMessage;

use super::keeper::Keeper;
use super::learned::Learned;
use super::outlook::{Outlook, Report};
use super::{Input, LinkDbState, Output, SessionNumber, TripState, Tuning, Unrecorded};

/// A gateway's LinkDB.
pub(super) struct Train {
    keeper: Keeper,
    pilot: Pilot,
    /// Pilots are numbered from here on.
    seed: u64,
    /// The pilot knows the tracks of earlier trips.
    knows_tracks: bool,
    learned: Learned,
    tuning: Tuning,
    outlook: Outlook,
    session: Option<(SessionNumber, Sync)>,
    outputs: VecDeque<Output>,
    /// What waits for [`Train::write`], at most [`CHORES_MAX`]; of more it is not waited for.
    chores: VecDeque<Chore>,
    /// The track ahead is to be looked at.
    ahead: bool,
    telemetry_at: Instant,
    /// A modem's cell has changed and the cloud does not know.
    news: bool,
    /// News is told no sooner.
    news_at: Instant,
    recorded: u64,
    received: u64,
    /// What the pilots before this one counted.
    unrecorded: Unrecorded,
}

/// What is done with the database when the data plane has been told.
enum Chore {
    /// It was seen here.
    Record(Handover),
    /// A track as it is encoded.
    Keep(RouteId, Vec<u8>),
    /// A trip goes along a track.
    Touch(RouteId),
    /// The peer's database has said it.
    Hear(SessionNumber, SyncMessage),
}

impl Train {
    pub(super) fn new(now: Instant, mut keeper: Keeper, tuning: Tuning, seed: u64) -> Self {
        let tracks = keeper.tracks(now);
        let knows_tracks = tracks.is_some();
        let pilot = Pilot::new(seed, tracks.unwrap_or_default().into_iter().filter_map(decoded));
        let learned = Learned::new(now, &mut keeper, tuning.guard);
        Self {
            keeper,
            pilot,
            seed,
            knows_tracks,
            learned,
            tuning,
            outlook: Outlook::default(),
            session: None,
            outputs: VecDeque::new(),
            chores: VecDeque::new(),
            ahead: false,
            telemetry_at: now,
            news: false,
            news_at: now,
            recorded: 0,
            received: 0,
            unrecorded: Unrecorded::default(),
        }
    }

    pub(super) fn take(&mut self, now: Instant, wall_ms: u64, input: Input) {
        self.keeper.at(now, wall_ms);
        match input {
            Input::Observed(observation) => self.observe(now, wall_ms, observation),
            Input::Up { session, .. } => {
                // The forecasts that the session before had are told anew.
                self.outlook.forget_told();
                let mut sync = Sync::new(now, Share::All);
                sync.connected(now);
                self.session = Some((session, sync));
            }
            Input::Down(session) => {
                self.session.take_if(|(known, _)| *known == session);
            }
            Input::Sync { session, message } => self.put_off(now, Chore::Hear(session, message)),
            Input::Measured { session, carrier, rate, srtt } => {
                if self.session.as_ref().is_some_and(|(known, _)| *known == session)
                    && let (Some(place), Some(trip)) = (self.pilot.place(now), self.pilot.trip())
                {
                    self.keeper.record_place(sample(&place, trip, carrier, rate, srtt));
                }
            }
            Input::Retune(tuning) => {
                self.tuning = tuning;
                self.keeper.retune(now, tuning);
                self.learned.follow(now, &mut self.keeper, tuning.guard);
                self.look(now);
            }
            Input::Telemetry { .. } => {}
        }
    }

    fn observe(&mut self, now: Instant, wall_ms: u64, observation: Observation) {
        if let Observation::Serving(Serving { carrier, cell, .. }) = &observation {
            let report = self.outlook.serves(now, carrier, *cell);
            self.news |= report != Report::Same;
            if report == Report::Found {
                self.outputs.push_back(Output::FoundCell { carrier: carrier.clone() });
            }
        }
        // That something was heard moves nothing.
        let moves = !matches!(observation, Observation::Heard(_));
        self.pilot.observe(now, wall_ms, &observation);
        self.drain(now);
        if moves {
            self.look(now);
        }
    }

    fn drain(&mut self, now: Instant) {
        while let Some(output) = self.pilot.poll() {
            match output {
                PilotOutput::Handover(handover) => {
                    let Handover { carrier, outcome, dark, .. } = &handover;
                    tracing::debug!(carrier, ?outcome, ?dark, "a handover");
                    self.learned.add(&handover);
                    self.put_off(now, Chore::Record(handover));
                }
                PilotOutput::Track(route, track) => {
                    self.put_off(now, Chore::Keep(route, track.encode()));
                }
                PilotOutput::TripBegan(trip, route) => {
                    tracing::info!(%trip, %route, "a trip begins");
                    self.put_off(now, Chore::Touch(route));
                }
            }
        }
    }

    fn put_off(&mut self, now: Instant, chore: Chore) {
        if self.chores.len() >= CHORES_MAX {
            self.do_chores(now);
        }
        self.chores.push_back(chore);
    }

    fn do_chores(&mut self, now: Instant) {
        while let Some(chore) = self.chores.pop_front() {
            match chore {
                Chore::Record(handover) => {
                    self.recorded += 1;
                    self.keeper.record(now, &handover);
                    if let Some((_, sync)) = &mut self.session {
                        sync.added(now, &handover);
                    }
                }
                Chore::Keep(route, track) => self.keeper.put_track(now, route, track),
                Chore::Touch(route) => self.keeper.touch_track(now, route),
                Chore::Hear(session, message) => self.hear(now, session, message),
            }
        }
    }

    fn hear(&mut self, now: Instant, session: SessionNumber, message: SyncMessage) {
        let Some((_, sync)) = self.session.as_mut().filter(|(known, _)| *known == session) else {
            return;
        };
        // A database that fails is told again.
        let fresh = sync.on_message(now, &mut self.keeper, message).unwrap_or_default();
        self.received += fresh.len() as u64;
    }

    fn look(&mut self, now: Instant) {
        let Some((session, _)) = self.session else { return };
        let outputs = &mut self.outputs;
        if !self.tuning.forecast {
            return self.outlook.clear(session, |output| outputs.push_back(output));
        }
        let place = self.pilot.place(now);
        let situation = place.as_ref().map(situation);
        let forecaster = &mut self.learned.forecaster;
        self.outlook.look(now, session, forecaster, situation.as_ref(), |output| {
            outputs.push_back(output);
        });
    }

    /// The track ahead, as earlier trips found it.
    fn look_ahead(&mut self, now: Instant) {
        let (Some((session, _)), Some(place)) = (&self.session, self.pilot.place(now)) else {
            return;
        };
        if self.tuning.forecast {
            let (keeper, outputs) = (&mut self.keeper, &mut self.outputs);
            let ahead = |carrier: &str| steps(now, keeper, carrier, &place);
            self.outlook.look_ahead(*session, ahead, |output| outputs.push_back(output));
        }
    }

    /// A database that could be opened late knows tracks that the pilot does not know: another
    /// pilot takes over with them, and with it another trip begins.
    fn learn_tracks(&mut self, now: Instant) {
        if self.knows_tracks || self.keeper.tracks(now).is_none() {
            return;
        }
        // What it has learned itself is among them then.
        self.pilot.end_trip();
        self.drain(now);
        self.do_chores(now);
        let Some(tracks) = self.keeper.tracks(now) else { return };
        self.knows_tracks = true;
        if !tracks.is_empty() {
            self.seed = self.seed.wrapping_add(1);
            self.unrecorded = self.unrecorded.and(self.pilot.counts());
            self.pilot = Pilot::new(self.seed, tracks.into_iter().filter_map(decoded));
        }
    }

    pub(super) fn on_timeout(&mut self, now: Instant, wall_ms: u64) {
        self.pilot.advance(now, wall_ms);
        self.drain(now);
        if now >= self.telemetry_at {
            self.look(now);
            self.ahead = true;
            self.telemetry_at = now + TELEMETRY_EVERY;
            self.tell_cloud(now);
        } else if self.news && now >= self.news_at {
            self.tell_cloud(now);
        }
    }

    /// Tells the cloud where the train is, and its cells.
    fn tell_cloud(&mut self, now: Instant) {
        (self.news, self.news_at) = (false, now + NEWS_APART);
        if let Some((session, _)) = self.session
            && let Some(telemetry) = self.pilot.telemetry(now)
        {
            self.outputs.push_back(Output::Telemetry { session, telemetry });
        }
    }

    /// Looks at the track ahead, writes what waits, and takes over what has changed in the
    /// database. There may be more to say afterwards.
    pub(super) fn write(&mut self, now: Instant, wall_ms: u64) {
        self.keeper.on_timeout(now, wall_ms);
        if std::mem::take(&mut self.ahead) {
            self.look_ahead(now);
        }
        self.do_chores(now);
        self.learn_tracks(now);
        self.learned.follow(now, &mut self.keeper, self.tuning.guard);
    }

    pub(super) fn poll(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let (session, sync) = self.session.as_mut()?;
        let (delivery, message) = sync.poll(now, &self.keeper).ok()??;
        Some(Output::Sync { session: *session, delivery, message })
    }

    pub(super) fn next_timeout(&self) -> Instant {
        let sync = self.session.as_ref().and_then(|(_, sync)| sync.next_timeout());
        let news = self.news.then_some(self.news_at);
        let others = sync.into_iter().chain(self.keeper.next_timeout()).chain(news);
        others.fold(self.telemetry_at, Instant::min)
    }

    pub(super) fn close(&mut self, now: Instant, wall_ms: u64) {
        self.pilot.advance(now, wall_ms);
        self.pilot.end_trip();
        self.drain(now);
        self.save(now);
    }

    /// Writes what was seen here.
    pub(super) fn save(&mut self, now: Instant) {
        // What the peer has said it says again; what was seen here is said by nobody else.
        self.chores.retain(|chore| !matches!(chore, Chore::Hear(..)));
        self.do_chores(now);
        self.keeper.close(now);
    }

    pub(super) fn state(&self, now: Instant) -> LinkDbState {
        let place = self.pilot.place(now);
        let trip = TripState {
            gateway: None,
            trip: self.pilot.trip().map(|trip| trip.to_string()),
            carriers: self.outlook.state(now),
            ..place.as_ref().map(shown).unwrap_or_default()
        };
        LinkDbState {
            store: self.keeper.state(),
            forecast: self.tuning.forecast,
            guard: self.tuning.guard,
            trips: vec![trip],
            recorded: self.recorded,
            received: self.received,
            unrecorded: self.unrecorded.and(self.pilot.counts()),
            ..LinkDbState::default()
        }
    }
}

/// A track as it is kept; none when it is unreadable.
fn decoded((route, encoded): (RouteId, Vec<u8>)) -> Option<(RouteId, Track)> {
    match Track::decode(&encoded) {
        Ok(track) => Some((route, track)),
        Err(error) => {
            tracing::warn!(%route, %error, "a track in the LinkDB is unreadable");
            None
        }
    }
}

/// Where the train is by now if it has gone on as it did.
pub(super) fn moved(place: &Placement, now: Instant) -> Placement {
    let time = now.saturating_duration_since(place.at).as_secs_f64();
    let metres = place.metres + place.direction.sign() * place.speed * time;
    Placement { at: now, metres, ..*place }
}

/// What a carrier carried where the train was.
pub(super) fn sample(
    place: &Placement,
    trip: TripId,
    carrier: String,
    rate: Bitrate,
    srtt: Duration,
) -> PlaceSample {
    let position = Position::from_metres(place.metres);
    let (route, direction) = (place.route, place.direction);
    let delay = Some(srtt / 2);
    PlaceSample { carrier, route, direction, position, trip, rate: Some(rate), delay }
}

/// What earlier trips say of the next seconds of travel.
pub(super) fn steps(
    now: Instant,
    keeper: &mut Keeper,
    carrier: &str,
    place: &Placement,
) -> LinkOutlook {
    let ahead = |step: u32| {
        let from = now + STEP * step;
        let metres = place.metres + place.direction.sign() * place.speed * f64::from(step);
        let (rate, delay) = usual(now, keeper, carrier, place, metres)?;
        Some(OutlookStep { from, rate, delay })
    };
    LinkOutlook { steps: (0..STEPS).map_while(ahead).collect() }
}

/// The median rate, and the delay that nine of ten exceed, because it is without the queues of our
/// own: each at the nearest place, within 200 m, of which it is known.
fn usual(
    now: Instant,
    keeper: &mut Keeper,
    carrier: &str,
    place: &Placement,
    metres: f64,
) -> Option<(Bitrate, Duration)> {
    let (mut rate, mut delay) = (None, None);
    // The nearer end of its place first.
    let side = if metres.rem_euclid(PLACE) < PLACE / 2.0 { -PLACE } else { PLACE };
    for off in [0.0, side, -side, 2.0 * side, -2.0 * side] {
        if let Some(known) = keeper.place(now, carrier, place, metres + off) {
            rate = rate.or(known.rate.map(|rate| rate.p50));
            delay = delay.or(known.delay.map(|delay| delay.p10));
        }
        if rate.is_some() && delay.is_some() {
            break;
        }
    }
    rate.zip(delay)
}

/// A place as forecasts want it.
pub(super) fn situation(place: &Placement) -> Situation {
    let Placement { at, route, direction, metres, speed, error } = *place;
    Situation { at, route, direction, metres, speed, error }
}

/// A place as operators want it.
pub(super) fn shown(place: &Placement) -> TripState {
    let direction = match place.direction {
        Direction::Up => "up",
        Direction::Down => "down",
    };
    TripState {
        route: Some(place.route.to_string()),
        direction: Some(direction.to_owned()),
        metres: Some(place.metres),
        metres_per_second: Some(place.speed),
        error_metres: Some(place.error),
        ..TripState::default()
    }
}

/// How far ahead the track is looked at: steps of so long, and how many.
const STEP: Duration = Duration::from_secs(1);
const STEPS: u32 = 4;
/// The length of a place of the trace database, in metres.
const PLACE: f64 = 100.0;
/// What waits to be written: more than what comes at once.
const CHORES_MAX: usize = 1_024;
/// How often the cloud is told where the train is.
const TELEMETRY_EVERY: Duration = Duration::from_secs(1);
/// When a modem's cell changes it is told at once, but so long after the last time at the soonest.
const NEWS_APART: Duration = Duration::from_millis(100);
