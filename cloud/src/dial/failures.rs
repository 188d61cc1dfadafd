//! The log of failed dials, and their numbers.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_admin::metrics::Count;
use polyrail_model::{Destination, Identity, UserId};
use polyrail_session::{FlowKey, ResetReason};

use super::DialError;
use crate::lines::Lines;

/// Logs failed dials: as rate-limited warnings, because passengers can cause them, and at level
/// DEBUG beyond the limit of the gateway.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    lines: Lines,
    /// The number of failed dials since the start, by reason.
    counts: BTreeMap<&'static str, u64>,
}

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
        *self.counts.entry(name(told)).or_default() += 1;
        let permitted = self.lines.permit(now, gateway);
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

    /// The number of failed dials since the start, by reason.
    pub(crate) fn counts(&self) -> Vec<Count> {
        REASONS.iter().map(|name| (*name, self.counts.get(name).copied().unwrap_or(0))).collect()
    }

    /// The log lines suppressed since the start.
    pub(crate) fn suppressed(&self) -> u64 {
        self.lines.suppressed()
    }
}

fn name(reason: ResetReason) -> &'static str {
    match reason {
        ResetReason::Refused => REASONS[0],
        ResetReason::TimedOut => REASONS[1],
        ResetReason::Unreachable => REASONS[2],
        ResetReason::Forbidden => REASONS[3],
        ResetReason::NameNotFound => REASONS[4],
        _ => REASONS[5],
    }
}

const REASONS: [&str; 6] =
    ["refused", "timed_out", "unreachable", "forbidden", "name_not_found", "other"];

#[cfg(test)]
mod tests;
