//! `[page]`: the status page.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::values::{LoopbackAddress, one};

/// `[page]`: where the status page is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageConfig {
    /// A loopback address and a port.
    #[serde(deserialize_with = "one::<_, LoopbackAddress, _>")]
    pub listen: SocketAddr,
}
