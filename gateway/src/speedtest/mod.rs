//! Speed tests of the carriers, for operators: each carrier alone, then all of them together.
//!
//! A test opens flows to a reserved name that the cloud serves from memory. They belong to one user
//! of their own, so passengers keep their shares. There is one test at a time, and it ends if no
//! client asks about it for [`LEASE`].

mod echo;
mod load;
mod measurement;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_admin::{
    AdminError, ErrorCode, PathPhase, PathState, SkippedCarrier, SpeedtestOrder, SpeedtestPhase,
    SpeedtestRow, SpeedtestState,
};
use polyrail_config::CarrierRole;
use polyrail_session::wire::Offer;
use polyrail_session::{Endpoint, FlowKey, ResetReason, SessionKey};

use measurement::Measurement;

/// The latest test.
#[derive(Debug, Default)]
pub(crate) struct Speedtests(Option<Speedtest>);

#[derive(Debug)]
struct Speedtest {
    /// The answer to clients, without the running measurement.
    state: SpeedtestState,
    session: SessionKey,
    /// The carriers of each measurement that follows.
    left: VecDeque<Vec<String>>,
    running: Option<Measurement>,
    asked_at: Instant,
}

/// The current cloud.
pub(crate) struct CurrentCloud {
    pub(crate) session: SessionKey,
    pub(crate) name: String,
    pub(crate) offer: Offer,
}

impl Speedtests {
    /// Starts a test over the paths to the current cloud.
    ///
    /// # Errors
    /// A test runs, the cloud serves none, or there is no such carrier.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        order: &SpeedtestOrder,
        cloud: Option<CurrentCloud>,
        paths: &[PathState],
        is_metered: impl Fn(&str) -> bool,
    ) -> Result<SpeedtestState, AdminError> {
        if self.runs() {
            return Err(AdminError::refused("a speed test runs: wait until it ends"));
        }
        let Some(cloud) = cloud else {
            return Err(AdminError::refused("there is no session with a cloud"));
        };
        let CurrentCloud { session, name, offer } = cloud;
        if !offer.speedtests {
            let text = format!("the cloud {name:?} serves no speed tests: it needs this version");
            return Err(AdminError::refused(text));
        }
        let own = |path: &&PathState| path.peer.as_deref() == Some(name.as_str());
        let paths: Vec<&PathState> = paths.iter().filter(own).collect();
        let (chosen, skipped) = choose(order, &paths, is_metered)?;
        let mut left: VecDeque<_> = chosen.iter().map(|carrier| vec![carrier.clone()]).collect();
        if chosen.len() > 1 {
            left.push_back(chosen);
        }
        let state = SpeedtestState {
            state: SpeedtestPhase::Running,
            message: None,
            cloud: name,
            seconds: order.seconds,
            measuring: None,
            rows: Vec::new(),
            skipped,
        };
        let running = None;
        self.0 = Some(Speedtest { state: state.clone(), session, left, running, asked_at: now });
        Ok(state)
    }

    /// The latest test, for a client that waits for it.
    ///
    /// # Errors
    /// There was none.
    pub(crate) fn state(&mut self, now: Instant) -> Result<SpeedtestState, AdminError> {
        let none = || AdminError::new(ErrorCode::NotFound, "there was no speed test yet");
        let test = self.0.as_mut().ok_or_else(none)?;
        test.asked_at = now;
        let measuring = test.running.as_ref().map(Measurement::step);
        Ok(SpeedtestState { measuring, ..test.state.clone() })
    }

    fn runs(&self) -> bool {
        self.0.as_ref().is_some_and(Speedtest::runs)
    }

    fn measurement(&mut self) -> Option<&mut Measurement> {
        self.0.as_mut()?.running.as_mut()
    }

    /// Handles an event of a flow; returns false if it is another flow.
    pub(crate) fn on_flow(&mut self, now: Instant, endpoint: &mut Endpoint, flow: FlowKey) -> bool {
        self.measurement().is_some_and(|running| running.on_flow(now, endpoint, flow))
    }

    /// Handles the end of a flow; returns false if it is another flow.
    pub(crate) fn on_gone(&mut self, flow: FlowKey, reason: ResetReason) -> bool {
        self.measurement().is_some_and(|running| running.on_gone(flow, &reason.to_string()))
    }

    /// Advances the test.
    pub(crate) fn on_turn(&mut self, now: Instant, endpoint: &mut Endpoint, paths: &[PathState]) {
        if let Some(test) = self.0.as_mut().filter(|test| test.runs()) {
            test.on_turn(now, endpoint, paths);
        }
    }

    /// When [`Speedtests::on_turn`] is due. Events of its flows count as well.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let test = self.0.as_ref().filter(|test| test.runs())?;
        let lease = test.asked_at + LEASE;
        Some(test.running.as_ref().map_or(test.asked_at, |one| one.next_timeout().min(lease)))
    }
}

impl Speedtest {
    fn runs(&self) -> bool {
        self.state.state == SpeedtestPhase::Running
    }

    fn on_turn(&mut self, now: Instant, endpoint: &mut Endpoint, paths: &[PathState]) {
        let is_over = self.running.as_mut().is_some_and(|one| one.on_turn(now, endpoint));
        let is_left = now.saturating_duration_since(self.asked_at) >= LEASE;
        let is_moved = endpoint.current() != Some(self.session);
        if (is_over || is_left || is_moved)
            && let Some(running) = self.running.take()
        {
            self.state.rows.push(running.finish(now, endpoint, paths));
        }
        if is_left || is_moved {
            let reason = if is_left { "no client asks about it" } else { "its session has ended" };
            self.state.message = Some(reason.to_owned());
            return self.end(SpeedtestPhase::Stopped);
        }
        while self.running.is_none() {
            let Some(carriers) = self.left.pop_front() else {
                return self.end(SpeedtestPhase::Finished);
            };
            let of = (self.state.seconds, &carriers[..]);
            match Measurement::begin(now, endpoint, self.session, of, paths) {
                Ok(running) => self.running = Some(running),
                Err(error) => {
                    let row = SpeedtestRow::new(&carriers);
                    self.state.rows.push(SpeedtestRow { error: Some(error), ..row });
                }
            }
        }
    }

    fn end(&mut self, state: SpeedtestPhase) {
        self.state.state = state;
        let (rows, reason) = (self.state.rows.len(), self.state.message.as_deref());
        tracing::info!(rows, reason, "speed test ended");
    }
}

/// The carriers to test, and those to skip.
fn choose(
    order: &SpeedtestOrder,
    paths: &[&PathState],
    is_metered: impl Fn(&str) -> bool,
) -> Result<(Vec<String>, Vec<SkippedCarrier>), AdminError> {
    let is_named = |carrier: &String| order.carriers.contains(carrier);
    if let Some(unknown) =
        order.carriers.iter().find(|name| !paths.iter().any(|path| path.carrier == **name))
    {
        return Err(AdminError::unknown_path(unknown));
    }
    let (mut chosen, mut skipped) = (Vec::new(), Vec::new());
    for path in paths {
        let carrier = &path.carrier;
        if !order.carriers.is_empty() && !is_named(carrier) {
            continue;
        }
        let reason = match path.state {
            _ if path.role == CarrierRole::Never => "its role is never",
            PathPhase::Disabled => "disabled",
            PathPhase::Capped => "it has reached its cap",
            PathPhase::NoInterface => "its interface is missing",
            PathPhase::Down | PathPhase::Standby => "it is down",
            PathPhase::Up | PathPhase::Stalled if is_named(carrier) => "",
            _ if path.cap.is_some() => "it has a cap; name it to test it",
            _ if is_metered(carrier) => "it is metered; name it to test it",
            PathPhase::Up | PathPhase::Stalled => "",
        };
        match reason {
            "" => chosen.push(carrier.clone()),
            reason => {
                skipped.push(SkippedCarrier { carrier: carrier.clone(), reason: reason.to_owned() })
            }
        }
    }
    if chosen.is_empty() {
        let each = skipped.iter().map(|one| format!("{}: {}", one.carrier, one.reason));
        let reasons = each.collect::<Vec<_>>().join(", ");
        return Err(AdminError::refused(format!("there is no carrier to test ({reasons})")));
    }
    Ok((chosen, skipped))
}

/// How long a test runs without a client that asks about it.
const LEASE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
