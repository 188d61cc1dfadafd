//! The paths of a connection: the addresses that it has used.

use quiche::{Connection, PathStats};

/// The path that data takes now.
pub(super) fn active(connection: &Connection) -> Option<PathStats> {
    connection.path_stats().find(|path| path.active)
}
