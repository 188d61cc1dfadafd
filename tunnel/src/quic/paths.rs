//! The paths of a connection: the addresses that it has used.

use std::net::SocketAddr;

use quiche::{Connection, PathStats};

/// The path that data takes now.
pub(super) fn active(connection: &Connection) -> Option<PathStats> {
    connection.path_stats().find(|path| path.active)
}

/// The paths that are not active, and how often their timers have fired. A path where nothing was
/// acknowledged may be forged: a ping for it would contain its challenge, and the answer of the
/// true address would validate the forged one.
pub(super) fn left(connection: &Connection) -> Vec<(Left, usize)> {
    let left = connection.path_stats().filter(|path| !path.active && path.min_rtt.is_some());
    left.map(|path| ((path.local_addr, path.peer_addr), path.total_pto_count)).collect()
}

/// Our address and the peer's of a path that the peer has left.
pub(super) type Left = (SocketAddr, SocketAddr);
