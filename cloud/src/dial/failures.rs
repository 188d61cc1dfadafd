//! The log of failed dials.

use std::time::Instant;

use polyrail_model::{Destination, UserId};
use polyrail_relay::LogLimiter;
use polyrail_session::FlowKey;

use super::DialError;

/// Logs failed dials: as rate-limited warnings, because passengers can cause them, and at level
/// DEBUG beyond the limit.
#[derive(Debug, Default)]
pub(crate) struct Failures(LogLimiter);

impl Failures {
    /// A dial to `destination`, for a flow of `gateway`, has failed.
    pub(crate) fn log(
        &mut self,
        now: Instant,
        gateway: &str,
        (flow, user): (FlowKey, UserId),
        destination: &Destination,
        error: &DialError,
    ) {
        let (flow, told) = (flow.flow, error.reset_reason());
        match self.0.permit(now) {
            Some(left_out) => {
                tracing::warn!(
                    gateway, %user, %flow, ?told, left_out, "cannot reach {destination}: {error}"
                );
            }
            None => {
                tracing::debug!(gateway, %user, %flow, ?told, "cannot reach {destination}: {error}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
