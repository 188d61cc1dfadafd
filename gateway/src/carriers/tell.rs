//! Log lines and admin events of a carrier's policy.

use std::time::{Duration, Instant};

use polyrail_admin::{AdminEvent, CapLevel};
use polyrail_relay::Relay;

use super::carrier::Carrier;
use super::policy::Notice;

impl Carrier {
    pub(super) fn tell(
        &mut self,
        now: Instant,
        relay: &Relay,
        notice: Notice,
        events: &mut Vec<AdminEvent>,
    ) {
        let carrier = self.name().to_owned();
        let path = carrier.clone();
        match notice {
            Notice::Up { attempt, mode } => {
                let view = self.tunnel(attempt).and_then(|key| relay.tunnel(key));
                let (local, cloud) = (view.and_then(|v| v.local), view.and_then(|v| v.address));
                let srtt = view.and_then(|view| view.sample).map(|sample| sample.srtt);
                let at = cloud.map(tracing::field::display);
                tracing::info!(carrier, %mode, cloud = at, ?srtt, "carrier up");
                self.told = None;
                events.push(AdminEvent::PathUp {
                    path,
                    mode,
                    local_address: local,
                    peer_address: cloud,
                });
            }
            Notice::Down { reason } => {
                tracing::info!(carrier, reason, "carrier down");
                self.stalled_at = None;
                events.push(AdminEvent::PathDown { path, reason });
            }
            Notice::Restarted { attempt: _, mode, cause, attempts, took } => {
                let reason = cause.describe().to_owned();
                tracing::info!(carrier, %mode, reason, attempts, ?took, "carrier restarted");
                self.told = None;
                self.recover(now, events);
                let took_s = took.as_secs_f64();
                events.push(AdminEvent::PathRestarted { path, mode, reason, attempts, took_s });
            }
            Notice::Stalled { .. } | Notice::Recovered { .. } | Notice::Restarting { .. } => {
                self.tell_progress(now, notice, events);
            }
            Notice::Failed { reason } => self.tell_failure(now, &reason),
            Notice::LinkLost => {
                tracing::info!(carrier, "interface missing, down, or without an address");
            }
            Notice::LinkBack => tracing::info!(carrier, "interface usable"),
            Notice::ModeChanged { .. }
            | Notice::Demoted { .. }
            | Notice::Retry
            | Notice::Lifted => self.tell_mode(notice, events),
        }
    }

    fn tell_progress(&mut self, now: Instant, notice: Notice, events: &mut Vec<AdminEvent>) {
        let carrier = self.name().to_owned();
        match notice {
            Notice::Stalled { cause } => {
                let reason = cause.describe().to_owned();
                tracing::info!(carrier, reason, "carrier stalled, racing a fresh connection");
                self.stalled_at = Some(now);
                events.push(AdminEvent::PathStalled { path: carrier, reason });
            }
            Notice::Recovered { after } => {
                tracing::info!(carrier, ?after, "carrier recovered");
                self.recover(now, events);
            }
            Notice::Restarting { cause } => {
                let reason = cause.describe();
                tracing::info!(carrier, reason, "carrier restarting, racing a fresh connection");
            }
            _ => {}
        }
    }

    /// A step of the data cap was passed, or a period has begun.
    pub(super) fn tell_cap(&self, before: CapLevel, level: CapLevel, events: &mut Vec<AdminEvent>) {
        let Some(cap) = self.wishes.cap_state(&self.config) else { return };
        let (carrier, used_bytes) = (self.name(), cap.used_bytes.unwrap_or(0));
        let (limit_bytes, at) = (cap.limit_bytes, cap.at);
        let path = carrier.to_owned();
        events.push(AdminEvent::DataCap { path: path.clone(), level, used_bytes, limit_bytes });
        if level < before {
            return tracing::info!(carrier, used_bytes, limit_bytes, "data cap has room again");
        }
        let percent = match level {
            CapLevel::Reached => 100,
            CapLevel::NearlyReached => 95,
            CapLevel::High | CapLevel::Low => 75,
        };
        tracing::warn!(carrier, percent, used_bytes, limit_bytes, %at, "data cap used");
        let then = if level == CapLevel::Reached { "now" } else { "at the cap" };
        let message = format!("carrier {carrier} has used {percent} % of its cap; {then}: {at}");
        events.push(AdminEvent::Alarm { message, path: Some(path) });
    }

    fn recover(&mut self, now: Instant, events: &mut Vec<AdminEvent>) {
        if let Some(begun) = self.stalled_at.take() {
            let stalled_s = now.saturating_duration_since(begun).as_secs_f64();
            events.push(AdminEvent::PathRecovered { path: self.name().to_owned(), stalled_s });
        }
    }

    fn tell_mode(&mut self, notice: Notice, events: &mut Vec<AdminEvent>) {
        let carrier = self.name().to_owned();
        let path = carrier.clone();
        match notice {
            Notice::ModeChanged { from, to, reason } => {
                match from {
                    Some(from) => tracing::info!(carrier, %from, %to, reason, "mode changed"),
                    None => tracing::info!(carrier, mode = %to, reason, "mode chosen"),
                }
                events.push(AdminEvent::ModeChanged { path, from, to, reason });
            }
            Notice::Demoted { reason, retry_in, again } => {
                let what = if again { "QUIC stays demoted to TLS" } else { "QUIC demoted to TLS" };
                tracing::info!(carrier, reason, ?retry_in, "{what}");
                let retry_in_s = retry_in.as_secs_f64();
                events.push(AdminEvent::PathDemoted { path, reason, retry_in_s });
            }
            Notice::Retry => {
                tracing::info!(carrier, "retrying QUIC");
                events.push(AdminEvent::QuicRetried { path });
            }
            Notice::Lifted => {
                tracing::info!(carrier, "QUIC stays in use, no TLS connection came up");
                events.push(AdminEvent::QuicRetried { path });
            }
            _ => {}
        }
    }

    /// Logs a failure; the same one at most once a minute.
    fn tell_failure(&mut self, now: Instant, reason: &str) {
        let same = self.told.as_ref().is_some_and(|(told, at)| {
            told == reason && now.saturating_duration_since(*at) < TELL_AGAIN
        });
        if !same {
            tracing::warn!(carrier = self.name(), reason, "carrier cannot connect");
            self.told = Some((reason.to_owned(), now));
        }
    }
}

/// The minimum interval between log lines about the same failure.
const TELL_AGAIN: Duration = Duration::from_secs(60);
