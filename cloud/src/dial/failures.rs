//! The log of failed dials.

use std::time::Instant;

use polyrail_model::{Destination, Identity, UserId};
use polyrail_session::FlowKey;

use super::DialError;
use crate::lines::Lines;

/// Logs failed dials: as rate-limited warnings, because passengers can cause them, and at level
/// DEBUG beyond the limit of the gateway.
#[derive(Debug, Default)]
pub(crate) struct Failures(Lines);

impl Failures {
    /// A dial to `destination`, for a flow of `gateway`, has failed.
    pub(crate) fn log(
        &mut self,
        now: Instant,
        gateway: Option<&Identity>,
        (flow, user): (FlowKey, UserId),
        destination: &Destination,
        error: &DialError,
    ) {
        let (flow, told) = (flow.flow, error.reset_reason());
        let permitted = self.0.permit(now, gateway);
        let gateway = gateway.map(Identity::as_str);
        match permitted {
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
