//! Everything that one scrape shows, and its text.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use polyrail_identity::NodeRole;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde::Deserialize;

use super::families::{BUILD, CLOUD, LINKDB, PATH, PLANE, PROCESS, SESSION, SOURCE};
use super::gateways::{REPORT, REPORTED_CARRIER};
use super::listed::ListedNames;
use super::text::{Family, Items, Labels};
use super::{
    CarrierReport, ForecastCounts, GatewayReport, MetricsSnapshot, ReceivedReport, TurnHistogram,
};
use crate::{PathState, SessionState, SourceState, Status};

/// The data of one scrape.
#[derive(Debug)]
pub(super) struct Scrape {
    pub status: Status,
    pub plane: MetricsSnapshot,
    /// LinkDB, if it is enabled.
    pub linkdb: Option<LinkDbFigures>,
    /// Carriers that are not listed, because their gateway has too many names.
    pub unlisted: u64,
}

/// The figures of `GET /v1/linkdb` that are metrics. The default is that of a LinkDB that does not
/// answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LinkDbFigures {
    pub store: StoreFigures,
    pub forecasts: ForecastCounts,
    pub recorded: u64,
    pub received: u64,
    pub inputs_dropped: u64,
    pub outputs_dropped: u64,
    pub unrecorded: UnrecordedFigures,
    pub failures: u64,
    pub sources: Vec<SourceState>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StoreFigures {
    pub open: bool,
    pub waiting: u64,
    pub lost: u64,
    pub stats: Option<StoreStats>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StoreStats {
    pub entries: u64,
    pub file_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UnrecordedFigures {
    pub unplaced: u64,
    pub gaps: u64,
    pub untold: u64,
    pub strangers: u64,
    pub dropped: u64,
}

impl Scrape {
    /// Removes the carriers whose names are not exported.
    pub fn limit(&mut self, names: &mut ListedNames) {
        if self.status.role == NodeRole::Gateway {
            return;
        }
        let mut unlisted = 0;
        let mut permit = |gateway: &str, carrier: &str| {
            let permitted = names.permit(gateway, carrier);
            unlisted += u64::from(!permitted);
            permitted
        };
        let peer = |path: &PathState| path.peer.clone().unwrap_or_default();
        self.plane.paths.retain(|path| permit(&peer(path), &path.carrier));
        for received in self.plane.cloud.iter_mut().flat_map(|cloud| &mut cloud.reports) {
            let gateway = &received.gateway;
            received.report.carriers.retain(|carrier| permit(gateway, &carrier.name));
        }
        self.unlisted = unlisted;
    }

    /// The report of this gateway.
    pub fn report(&self) -> GatewayReport {
        let Status { uptime_s, process, snapshot, .. } = &self.status;
        let sum = |of: fn(&SessionState) -> u64| snapshot.sessions.iter().map(of).sum();
        let linkdb = self.linkdb.clone().unwrap_or_default();
        GatewayReport {
            uptime_s: *uptime_s as u64,
            cpu_ms: (process.cpu_s * 1e3) as u64,
            memory_bytes: process.memory_resident_bytes.unwrap_or_default(),
            flows: sum(|session| session.flows),
            users: sum(|session| session.users),
            flows_opened: sum(|session| session.flows_opened),
            refused: self.plane.refused,
            reinjected_bytes: sum(|session| session.reinjected_bytes),
            datagrams: [
                sum(|session| session.datagrams_sent),
                sum(|session| session.datagram_copies_sent),
                sum(|session| session.datagrams_received),
                sum(|session| session.datagrams_dropped),
            ],
            forecasts: linkdb.forecasts,
            linkdb_entries: linkdb.store.stats.map_or(0, |stats| stats.entries),
            carriers_configured: self.plane.paths.len() as u64,
            carriers: self.plane.paths.iter().map(CarrierReport::of).collect(),
        }
    }

    /// The text of all metrics.
    pub fn into_text(self) -> String {
        let mut registry = Registry::with_prefix("polyrail");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &registry) {
            tracing::error!(%error, "cannot write the metrics");
        }
        text
    }

    fn put_own(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Self { status, plane, linkdb, .. } = self;
        let build = vec![("version", status.version.as_str()), ("role", status.role.as_str())];
        put_all(encoder, BUILD, &vec![(build, status)])?;
        put_all(encoder, PROCESS, &alone(status))?;
        put_turns(encoder, &plane.turns)?;
        put_all(encoder, PLANE, &alone(self))?;
        let sessions = &status.snapshot.sessions;
        let sessions = sessions.iter().map(|one| (self.gateway(one.peer.as_deref()), one));
        put_all(encoder, SESSION, &sessions.collect())?;
        let paths = plane.paths.iter().map(|path| {
            let mut labels = self.gateway(path.peer.as_deref());
            labels.push(("carrier", &path.carrier));
            (labels, path)
        });
        put_all(encoder, PATH, &paths.collect())?;
        let Some(linkdb) = linkdb else { return Ok(()) };
        put_all(encoder, LINKDB, &alone(linkdb))?;
        let sources = linkdb.sources.iter().map(|one| (vec![("source", one.source.as_str())], one));
        put_all(encoder, SOURCE, &sources.collect())
    }

    /// What a cloud alone has, and the reports of its gateways.
    fn put_cloud(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(cloud) = &self.plane.cloud else { return Ok(()) };
        put_all(encoder, CLOUD, &alone(self))?;
        // A gateway is listed once, whatever the sessions.
        let all = cloud.reports.iter().map(|one| (one.gateway.as_str(), one));
        let all: BTreeMap<&str, &ReceivedReport> = all.collect();
        let reports = all.iter().map(|(&gateway, &one)| (vec![("gateway", gateway)], one));
        put_all(encoder, REPORT, &reports.collect())?;
        let carriers = all.iter().flat_map(|(&gateway, one)| {
            let carriers = one.report.carriers.iter();
            carriers.map(move |carrier| {
                (vec![("gateway", gateway), ("carrier", carrier.name.as_str())], carrier)
            })
        });
        put_all(encoder, REPORTED_CARRIER, &carriers.collect())
    }

    /// The label of a session's gateway; on a gateway none.
    fn gateway<'a>(&self, peer: Option<&'a str>) -> Labels<'a> {
        match self.status.role {
            NodeRole::Gateway => Labels::new(),
            NodeRole::Cloud => vec![("gateway", peer.unwrap_or_default())],
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.put_own(&mut encoder)?;
        self.put_cloud(&mut encoder)
    }
}

/// One item without labels.
fn alone<T>(item: &T) -> Items<'_, T> {
    vec![(Labels::new(), item)]
}

fn put_all<T>(
    encoder: &mut DescriptorEncoder<'_>,
    families: &[Family<T>],
    items: &Items<'_, T>,
) -> fmt::Result {
    families.iter().try_for_each(|family| family.put(encoder, items))
}

fn put_turns(encoder: &mut DescriptorEncoder<'_>, turns: &TurnHistogram) -> fmt::Result {
    let TurnHistogram { buckets, longer, sum } = turns;
    let unit = Unit::Seconds;
    let help = "Duration of the event loop's turns.";
    let kind = MetricType::Histogram;
    let mut metric = encoder.encode_descriptor("loop_turn", help, Some(&unit), kind)?;
    let bounded = buckets.iter().map(|&(bound, count)| (bound, count));
    let bounded = bounded.map(|(bound, count): (Duration, u64)| (bound.as_secs_f64(), count));
    // The library writes this bound as +Inf.
    let all: Vec<(f64, u64)> = bounded.chain([(f64::MAX, *longer)]).collect();
    let count = all.iter().map(|(_, count)| count).sum();
    metric.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), count, &all, None)
}
