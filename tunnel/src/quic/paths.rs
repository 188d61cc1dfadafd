//! The paths of a connection: the addresses that it has used.

use quiche::{Connection, PathStats};

/// The path that data takes now.
pub(super) fn active(connection: &Connection) -> Option<PathStats> {
    connection.path_stats().find(|path| path.active)
}

/// Timeouts of the addresses that the peer has left. `quiche` sends at most the two oldest packets
/// again that were on their way there, and never the others.
pub(super) fn timeouts_of_left(connection: &Connection) -> usize {
    let left = connection.path_stats();
    // Where nothing was ever acknowledged, only challenges were sent.
    let left = left.filter(|path| !path.active && path.min_rtt.is_some());
    left.map(|path| path.total_pto_count).sum()
}
