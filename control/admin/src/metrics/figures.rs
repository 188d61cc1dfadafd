//! Everything that one scrape shows.

use polyrail_identity::NodeRole;
use polyrail_model::ForecastCounts;
use serde::Deserialize;

use super::listed::ListedNames;
use super::{CarrierReport, GatewayReport, MetricsSnapshot};
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
    pub shared: Option<SharedFigures>,
    pub failures: u64,
    pub sources: Vec<SourceState>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SharedFigures {
    pub connected: bool,
    pub waiting: u64,
    pub behind: u64,
    pub sent: u64,
    pub received: u64,
    pub refused: u64,
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
            carriers_configured: self.reported().count() as u64,
            carriers: self.reported().map(CarrierReport::of).collect(),
        }
    }

    /// The paths to the current cloud, which receives the report.
    fn reported(&self) -> impl Iterator<Item = &PathState> {
        let current = self.status.snapshot.clouds.iter().find(|cloud| cloud.current);
        let is_to = move |path: &&PathState| {
            current.is_none_or(|cloud| path.peer.as_deref() == Some(cloud.name.as_str()))
        };
        self.plane.paths.iter().filter(is_to)
    }
}
