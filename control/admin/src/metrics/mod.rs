//! Metrics for Prometheus: `GET /metrics` over TCP on a loopback address, as OpenMetrics text.
//!
//! Each scrape asks the data plane for one [`MetricsSnapshot`] and LinkDB's thread for its state;
//! neither is asked more than once a second. `families` and `gateways` name every metric, `text`
//! writes them. A gateway also sends a [`GatewayReport`] to its cloud, because Prometheus rarely
//! reaches a gateway behind a carrier. `docs/metrics.md` is the reference.
//!
//! Invariant: labels have few values. None names a user, a flow or an address, and a gateway cannot
//! make a cloud export more than `CARRIERS_MAX` (64) carrier names of its own.

mod families;
mod figures;
mod gateways;
mod listed;
mod outcomes;
mod report;
mod scrape;
mod scraped;
mod serve;
mod snapshot;
mod text;

#[cfg(test)]
mod tests;

pub use report::{CarrierReport, GatewayReport, REPORT, REPORT_MAX};
pub use snapshot::{CloudCounts, Count, MetricsSnapshot, ReceivedReport, TurnHistogram};

pub(super) use scraped::Scraped;
pub(super) use serve::{report_to_cloud, router};
