//! The interception rules over the daemon's life: set up at the start, changed with what the cloud
//! reaches, set up anew when the carrier of `direct:` came back.
//!
//! ```text
//!   Waiting ──the direct carrier's route is there──> Holding ──end of the daemon──> gone
//! ```
//!
//! Only a missing route is waited for, as a carrier may be missing at boot; whatever else is wrong
//! with the rules keeps the daemon from starting.

use std::time::{Duration, Instant};

use polyrail_control::GatewayConfig;
use polyrail_model::Families;

use crate::intercept::{InterceptError, Interception, Other, Plan};

pub(crate) struct Diversion {
    plan: Plan,
    held: Option<Interception>,
    /// What the cloud reaches, once it has said so.
    reachable: Option<Families>,
    retry_at: Option<Instant>,
}

impl Diversion {
    /// Sets the rules up.
    ///
    /// # Errors
    /// Whatever the operator must mend; a missing route of the direct carrier is none of it.
    pub(crate) fn start(now: Instant, config: &GatewayConfig) -> Result<Self, InterceptError> {
        let plan = Plan::from_config(config)?;
        let mut diversion = Self { plan, held: None, reachable: None, retry_at: None };
        match Interception::start(diversion.plan.clone(), diversion.plan.on_exit()) {
            Ok(interception) => diversion.held = Some(interception),
            Err(error @ InterceptError::DirectRoute(_)) => {
                tracing::warn!(%error, "interception waits");
                diversion.retry_at = Some(now + RETRY_EVERY);
            }
            Err(error) => return Err(error),
        }
        Ok(diversion)
    }

    /// The cloud says which address families it reaches; the others are rejected.
    pub(crate) fn set_families(&mut self, reachable: Families) {
        self.reachable = Some(reachable);
        if let Some(interception) = &mut self.held
            && let Err(error) = interception.set_families(reachable)
        {
            tracing::warn!(%error, "the interception rules could not be changed");
        }
    }

    /// A carrier came up after it was down: its interface may have lost its routes meanwhile, and
    /// with them ours.
    pub(crate) fn carrier_up(&mut self, now: Instant) {
        match &mut self.held {
            Some(interception) if matches!(self.plan.other(), Other::Direct { .. }) => {
                if let Err(error) = interception.refresh() {
                    tracing::warn!(%error, "the route of direct traffic could not be renewed");
                }
            }
            Some(_) => {}
            None => self.retry_at = Some(now),
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries again to set the rules up, if that is due.
    pub(crate) fn on_turn(&mut self, now: Instant) {
        if self.retry_at.is_none_or(|at| now < at) {
            return;
        }
        self.retry_at = None;
        match Interception::start(self.plan.clone(), self.plan.on_exit()) {
            Ok(interception) => {
                tracing::info!("interception begins");
                self.held = Some(interception);
                if let Some(reachable) = self.reachable {
                    self.set_families(reachable);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "interception waits");
                self.retry_at = Some(now + RETRY_EVERY);
            }
        }
    }
}

/// How often the direct carrier's route is looked for.
const RETRY_EVERY: Duration = Duration::from_secs(5);
