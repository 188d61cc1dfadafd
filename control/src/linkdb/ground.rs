//! On the ground: forecasts for what the cloud sends, from what its gateways tell; what one gateway
//! tells the others hear.
//!
//! The disk may stall for a second, and forecasts must not: feed [`Ground::take`] and
//! [`Ground::on_timeout`], hand over what [`Ground::poll`] has to say, and then call
//! [`Ground::write`]. What gateways say to the database waits for that, in the order in which it
//! came, and each time records of one message alone are written. What lies ahead is read there too.
//!
//! Invariant: each session stands in `due` at its next time, or is among those that are `ready`; a
//! turn of the loop looks at no other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::TripId;
use polyrail_predictor::position::Placement;
use polyrail_predictor::sync::{Share, Sync};
use polyrail_predictor::wire::{SyncMessage, Telemetry};

use super::keeper::Keeper;
use super::learned::Learned;
use super::outlook::Outlook;
use super::train::{moved, sample, shown, situation, steps};
use super::{Input, LinkDbState, Output, SessionNumber, TripState, Tuning};

/// A cloud's LinkDB.
pub(super) struct Ground {
    keeper: Keeper,
    learned: Learned,
    tuning: Tuning,
    sessions: BTreeMap<SessionNumber, Gateway>,
    /// When which session's database has something to say, if nothing comes before.
    due: BTreeSet<(Instant, SessionNumber)>,
    /// Those that may have something to say now.
    ready: BTreeSet<SessionNumber>,
    outputs: VecDeque<Output>,
    /// What gateways said to the database and was not looked at, at most [`HEARD_MAX`]; of more
    /// what comes is dropped, and said again.
    heard: VecDeque<(SessionNumber, SyncMessage)>,
    /// How much of that was dropped.
    dropped: u64,
    /// Those that have said where they are, and whose track ahead was not looked at since.
    ahead: BTreeSet<SessionNumber>,
    look_at: Instant,
    received: u64,
}

/// One gateway.
struct Gateway {
    name: String,
    sync: Sync,
    /// Where it stands in the order of what is due.
    due: Option<Instant>,
    outlook: Outlook,
    trip: Option<(TripId, Placement)>,
}

impl Gateway {
    /// Its trip and where it was when it last said so, unless that is long ago.
    fn trip_at(&self, now: Instant) -> Option<(TripId, Placement)> {
        let (trip, place) = self.trip.as_ref()?;
        let age = now.saturating_duration_since(place.at);
        (age < TELEMETRY_FRESH).then_some((*trip, *place))
    }
}

impl Ground {
    pub(super) fn new(now: Instant, mut keeper: Keeper, tuning: Tuning) -> Self {
        let learned = Learned::new(now, &mut keeper, tuning.guard);
        Self {
            keeper,
            learned,
            tuning,
            sessions: BTreeMap::new(),
            due: BTreeSet::new(),
            ready: BTreeSet::new(),
            outputs: VecDeque::new(),
            heard: VecDeque::new(),
            dropped: 0,
            ahead: BTreeSet::new(),
            look_at: now,
            received: 0,
        }
    }

    pub(super) fn take(&mut self, now: Instant, wall_ms: u64, input: Input) {
        self.keeper.at(now, wall_ms);
        match input {
            Input::Up { session, peer } => self.begin(now, session, peer),
            Input::Down(session) => self.end(session),
            Input::Telemetry { session, at, telemetry } => {
                self.on_telemetry(now, session, at, &telemetry);
            }
            Input::Sync { session, message } => {
                if self.heard.len() < HEARD_MAX {
                    self.heard.push_back((session, message));
                } else {
                    self.dropped += 1;
                }
            }
            Input::Measured { session, carrier, rate, srtt } => {
                let gateway = self.sessions.get(&session);
                if let Some((trip, place)) = gateway.and_then(|gateway| gateway.trip_at(now)) {
                    let place = moved(&place, now);
                    self.keeper.record_place(sample(&place, trip, carrier, rate, srtt));
                }
            }
            Input::Retune(tuning) => {
                self.tuning = tuning;
                self.keeper.retune(now, tuning);
                self.learned.follow(now, &mut self.keeper, tuning.guard);
                self.look_at = now;
            }
            // A cloud observes nothing itself.
            Input::Observed(_) => {}
        }
    }

    fn begin(&mut self, now: Instant, session: SessionNumber, name: String) {
        self.end(session);
        if self.sessions.len() >= SESSIONS_MAX {
            return;
        }
        let share = if self.tuning.share { Share::All } else { Share::Own };
        let mut sync = Sync::new(now, share);
        sync.connected(now);
        let outlook = Outlook::default();
        self.sessions.insert(session, Gateway { name, sync, due: None, outlook, trip: None });
        self.ready.insert(session);
    }

    fn end(&mut self, session: SessionNumber) {
        self.ready.remove(&session);
        self.ahead.remove(&session);
        if let Some(Gateway { due: Some(at), .. }) = self.sessions.remove(&session) {
            self.due.remove(&(at, session));
        }
    }

    fn hear(&mut self, now: Instant, session: SessionNumber, message: SyncMessage) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        // A database that fails is told again.
        let fresh = gateway.sync.on_message(now, &mut self.keeper, message).unwrap_or_default();
        self.ready.insert(session);
        if fresh.is_empty() {
            return;
        }
        self.received += fresh.len() as u64;
        for (&other, gateway) in self.sessions.iter_mut().filter(|(other, _)| **other != session) {
            let relayed = |any, handover| gateway.sync.relayed(now, handover) | any;
            if fresh.iter().fold(false, relayed) {
                schedule(&mut self.due, other, gateway);
            }
        }
    }

    fn on_telemetry(
        &mut self,
        now: Instant,
        session: SessionNumber,
        at: Instant,
        telemetry: &Telemetry,
    ) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        gateway.outlook.hears(at, &telemetry.carriers);
        let place = Placement::from_telemetry(at, telemetry);
        gateway.trip = place.map(|place| (telemetry.trip, place));
        self.look(now, session);
        self.ahead.insert(session);
    }

    fn look(&mut self, now: Instant, session: SessionNumber) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        let outputs = &mut self.outputs;
        if !self.tuning.forecast {
            return gateway.outlook.clear(session, |output| outputs.push_back(output));
        }
        let place = gateway.trip_at(now).map(|(_, place)| place);
        let situation = place.as_ref().map(situation);
        let forecaster = &mut self.learned.forecaster;
        gateway.outlook.look(now, session, forecaster, situation.as_ref(), |output| {
            outputs.push_back(output);
        });
    }

    /// The track ahead of a gateway that has just said where it is, as earlier trips found it.
    fn look_ahead(&mut self, now: Instant, session: SessionNumber) {
        let Some(gateway) = self.sessions.get_mut(&session) else { return };
        let Some((_, place)) = gateway.trip_at(now).filter(|_| self.tuning.forecast) else {
            return;
        };
        let place = moved(&place, now);
        let (keeper, outputs) = (&mut self.keeper, &mut self.outputs);
        let ahead = |carrier: &str| steps(now, keeper, carrier, &place);
        gateway.outlook.look_ahead(session, ahead, |output| outputs.push_back(output));
    }

    pub(super) fn on_timeout(&mut self, now: Instant, wall_ms: u64) {
        self.keeper.at(now, wall_ms);
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            let sessions: Vec<SessionNumber> = self.sessions.keys().copied().collect();
            for session in sessions {
                self.look(now, session);
            }
        }
    }

    /// Looks at tracks ahead, listens to what gateways say until records were written, refused ones
    /// as well, and takes over what has changed in the database. True when there may be more to say
    /// then.
    pub(super) fn write(&mut self, now: Instant, wall_ms: u64) -> bool {
        self.keeper.on_timeout(now, wall_ms);
        let ahead = std::mem::take(&mut self.ahead);
        let mut any = !ahead.is_empty();
        ahead.into_iter().for_each(|session| self.look_ahead(now, session));
        while let Some((session, message)) = self.heard.pop_front() {
            any = true;
            let written = matches!(message, SyncMessage::Records(_));
            self.hear(now, session, message);
            if written {
                break;
            }
        }
        self.learned.follow(now, &mut self.keeper, self.tuning.guard);
        any
    }

    pub(super) fn poll(&mut self, now: Instant) -> Option<Output> {
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
                if let Ok(Some((delivery, message))) = gateway.sync.poll(now, &self.keeper) {
                    return Some(Output::Sync { session, delivery, message });
                }
                schedule(&mut self.due, session, gateway);
            }
            self.ready.remove(&session);
        }
        None
    }

    /// All that is ready has been polled. None: there is something to write at once.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let sync = self.due.first().map(|(at, _)| *at);
        let next = sync.into_iter().chain(self.keeper.next_timeout());
        self.heard.is_empty().then(|| next.fold(self.look_at, Instant::min))
    }

    /// What was not listened to is said again.
    pub(super) fn close(&mut self, now: Instant) {
        self.keeper.close(now);
    }

    pub(super) fn state(&self, now: Instant) -> LinkDbState {
        let trip = |gateway: &Gateway| {
            let place = gateway.trip.as_ref().map(|(_, place)| shown(place));
            TripState {
                gateway: Some(gateway.name.clone()),
                trip: gateway.trip.as_ref().map(|(trip, _)| trip.to_string()),
                carriers: gateway.outlook.state(now),
                ..place.unwrap_or_default()
            }
        };
        LinkDbState {
            store: self.keeper.state(),
            forecast: self.tuning.forecast,
            guard: self.tuning.guard,
            trips: self.sessions.values().map(trip).collect(),
            received: self.received,
            inputs_dropped: self.dropped,
            ..LinkDbState::default()
        }
    }
}

/// Puts a session where its next time is.
fn schedule(
    due: &mut BTreeSet<(Instant, SessionNumber)>,
    session: SessionNumber,
    gateway: &mut Gateway,
) {
    if let Some(at) = gateway.due.take() {
        due.remove(&(at, session));
    }
    gateway.due = gateway.sync.next_timeout();
    due.extend(gateway.due.map(|at| (at, session)));
}

/// Sessions that are looked at; an endpoint has fewer.
const SESSIONS_MAX: usize = 65_536;
/// What gateways have said that waits for the disk: as much as waits for the thread.
const HEARD_MAX: usize = 4_096;
/// How often forecasts are looked at when nothing comes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Telemetry that is older says nothing.
const TELEMETRY_FRESH: Duration = Duration::from_secs(10);
