//! The text of a scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use polyrail_identity::NodeRole;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::families::{
    BUILD, CLOUD, CLOUD_OF_GATEWAY, LINKDB, PATH, PLANE, PROCESS, SESSION, SOURCE,
};
use super::figures::Scrape;
use super::gateways::{REPORT, REPORTED_CARRIER};
use super::text::{Family, Items, Labels};
use super::{ReceivedReport, TurnHistogram};

impl Scrape {
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
        // A cloud has none.
        let clouds = status.snapshot.clouds.iter();
        let clouds = clouds.map(|cloud| (vec![("cloud", cloud.name.as_str())], cloud));
        put_all(encoder, CLOUD_OF_GATEWAY, &clouds.collect())?;
        let sessions = &status.snapshot.sessions;
        let sessions = sessions.iter().map(|one| (self.peer(one.peer.as_deref()), one));
        put_all(encoder, SESSION, &sessions.collect())?;
        let paths = plane.paths.iter().map(|path| {
            let mut labels = self.peer(path.peer.as_deref());
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

    /// The label of a session's peer: its gateway, or its cloud if the gateway has several.
    fn peer<'a>(&self, peer: Option<&'a str>) -> Labels<'a> {
        let label = match self.status.role {
            NodeRole::Cloud => "gateway",
            NodeRole::Gateway if self.status.snapshot.clouds.len() > 1 => "cloud",
            NodeRole::Gateway => return Labels::new(),
        };
        vec![(label, peer.unwrap_or_default())]
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
