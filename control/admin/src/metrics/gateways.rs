//! The metrics that a cloud exports from the reports of its gateways.

use super::families::{MODES, STATES};
use super::text::Read::{By, One};
use super::text::{Family, Value, flag, one_of, real, whole, wholes};
use super::{CarrierReport, ForecastCounts, ReceivedReport};
use crate::PathPhase;

impl ForecastCounts {
    /// The handovers by outcome.
    pub(super) fn outcomes(&self) -> Vec<(&'static str, Value)> {
        wholes([
            ("correct", self.correct),
            ("early", self.early),
            ("late", self.late),
            ("missed", self.missed),
            ("false_alarm", self.false_alarms),
        ])
    }
}

/// A gateway.
pub(super) const REPORT: &[Family<ReceivedReport>] = &[
    Family::gauge_in(
        "gateway_report_age",
        "seconds",
        "Age of the gateway's latest report.",
        One(|one| real(one.age.as_secs_f64())),
    ),
    Family::gauge_in(
        "gateway_uptime",
        "seconds",
        "Age of the gateway's process.",
        One(|one| whole(one.report.uptime_s)),
    ),
    Family::counter_in(
        "gateway_cpu",
        "seconds",
        "Processor time of the gateway.",
        One(|one| real(one.report.cpu_ms as f64 / 1e3)),
    ),
    Family::gauge_in(
        "gateway_resident_memory",
        "bytes",
        "Resident memory of the gateway.",
        One(|one| whole(one.report.memory_bytes)),
    ),
    Family::gauge("gateway_flows", "Open flows.", One(|one| whole(one.report.flows))),
    Family::counter(
        "gateway_flows_opened",
        "Flows opened since the session began.",
        One(|one| whole(one.report.flows_opened)),
    ),
    Family::counter(
        "gateway_flows_refused",
        "Flows that the gateway refused or reset because of a limit.",
        By("reason", |one| {
            let refused = &one.report.refused;
            let (user, all) = (("user_flows", refused.flows), ("overload", refused.overload));
            wholes([user, ("quota", refused.quota), all])
        }),
    ),
    Family::counter(
        "gateway_dns_queries_refused",
        "DNS queries that the gateway refused because of a limit.",
        One(|one| whole(one.report.refused.queries)),
    ),
    Family::gauge("gateway_users", "Users with open flows.", One(|one| whole(one.report.users))),
    Family::counter_in(
        "gateway_reinjected",
        "bytes",
        "Users' bytes that the gateway sent more than once.",
        One(|one| whole(one.report.reinjected_bytes)),
    ),
    Family::counter(
        "gateway_datagrams",
        "Passengers' datagrams at the gateway.",
        By("event", |one| {
            let [sent, copied, received, dropped] = one.report.datagrams;
            wholes([
                ("sent", sent),
                ("copied", copied),
                ("received", received),
                ("dropped", dropped),
            ])
        }),
    ),
    Family::counter(
        "gateway_forecast_alarms",
        "Predicted failures of handovers, for the uplink.",
        One(|one| whole(one.report.forecasts.alarms)),
    ),
    Family::counter(
        "gateway_forecast_outcomes",
        "Handovers by how their forecast was.",
        By("outcome", |one| one.report.forecasts.outcomes()),
    ),
    Family::gauge(
        "gateway_linkdb_entries",
        "Entries in the gateway's LinkDB.",
        One(|one| whole(one.report.linkdb_entries)),
    ),
    Family::gauge(
        "gateway_carriers",
        "Carriers of the gateway, also those that did not fit the report.",
        One(|one| whole(one.report.carriers_configured)),
    ),
];

/// A carrier of a gateway.
pub(super) const REPORTED_CARRIER: &[Family<CarrierReport>] = &[
    Family::gauge(
        "gateway_path_up",
        "1 if the path carries data or is ready to, otherwise 0.",
        One(|carrier| flag(carrier.state == PathPhase::Up)),
    ),
    Family::gauge(
        "gateway_path_state",
        "1 for the path's state, 0 for the others.",
        By("state", |carrier| one_of(STATES, Some(carrier.state))),
    ),
    Family::gauge(
        "gateway_path_mode",
        "1 for the mode of the connection in use, 0 for the other.",
        By("mode", |carrier| one_of(MODES, carrier.mode)),
    ),
    Family::gauge_in(
        "gateway_path_rtt",
        "seconds",
        "Smoothed round-trip time.",
        One(|carrier| (carrier.srtt_us > 0).then_some(Value::Real(carrier.srtt_us as f64 / 1e6))),
    ),
    Family::gauge_in(
        "gateway_path_delivery_rate",
        "bits_per_second",
        "Recent delivery rate of the uplink.",
        One(|carrier| whole(carrier.rate_bits_per_s)),
    ),
    Family::gauge_in(
        "gateway_path_window",
        "bytes",
        "Congestion window of the uplink.",
        One(|carrier| whole(carrier.window_bytes)),
    ),
    Family::counter_in(
        "gateway_path",
        "bytes",
        "Users' bytes, copies included, as the gateway counts them.",
        By("direction", |carrier| {
            let [sent, received] = carrier.bytes;
            wholes([("received", received), ("sent", sent)])
        }),
    ),
    Family::counter(
        "gateway_path_packets",
        "Data packets of the uplink.",
        By("event", |carrier| {
            let [sent, lost] = carrier.packets;
            wholes([("lost", lost), ("sent", sent)])
        }),
    ),
    Family::counter(
        "gateway_path_events",
        "Events of the path.",
        By("event", |carrier| {
            let [stalls, restarts, mode_changes, demotions, attempts] = carrier.events;
            wholes([
                ("stall", stalls),
                ("restart", restarts),
                ("mode_change", mode_changes),
                ("demotion", demotions),
                ("attempt", attempts),
            ])
        }),
    ),
];
