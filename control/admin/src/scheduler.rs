//! `PUT /v1/scheduler`: the scheduler of this node's direction of sending.

use polyrail_config::ChainSpec;
use serde::{Deserialize, Serialize};

/// The body of `PUT /v1/scheduler` and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    /// The name of a chain, or the list of its schedulerlets, as `scheduler.chain` in the
    /// configuration. The answer has the list.
    #[serde(rename = "scheduler", with = "polyrail_config::chain")]
    pub chain: ChainSpec,
}
