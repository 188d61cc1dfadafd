//! Flows that are confined to some carriers, for measurements of these carriers alone.
//!
//! The scheduler sees all other paths as stalled while it serves such a flow, so its data, copies
//! and reinjections keep to the carriers. Control frames do not. Each side confines its own
//! direction.

use std::collections::BTreeMap;

use polyrail_model::Bytes;
use polyrail_scheduler::{PathView, rank};

use crate::carriers::{CarrierNames, CarrierSet};

/// Bytes of confined flows since the session began, sent and received, by the number of the
/// carrier.
#[derive(Debug, Default)]
pub(crate) struct ConfinedTraffic(BTreeMap<u32, [u64; 2]>);

impl ConfinedTraffic {
    pub fn sent(&mut self, carrier: u32, bytes: u64) {
        self.0.entry(carrier).or_default()[0] += bytes;
    }

    pub fn received(&mut self, carrier: u32, bytes: u64) {
        self.0.entry(carrier).or_default()[1] += bytes;
    }

    /// The bytes by the name of the carrier.
    pub fn named(&self, names: &CarrierNames) -> BTreeMap<String, [u64; 2]> {
        let named =
            |(number, bytes): (&u32, &[u64; 2])| Some((names.name(*number)?.into(), *bytes));
        self.0.iter().filter_map(named).collect()
    }
}

/// The paths as a flow sees them that is confined to these carriers.
pub(super) fn confined(views: &[PathView], only: CarrierSet) -> Vec<PathView> {
    let mut views = views.to_vec();
    for view in views.iter_mut().filter(|view| !only.contains(view.carrier)) {
        // A metered path carries no copies, whatever the chain selects.
        (view.stalled, view.room, view.metered) = (true, Bytes::ZERO, true);
    }
    // A secondary is no backup of a primary that the flow may not use.
    rank(&mut views);
    views
}
