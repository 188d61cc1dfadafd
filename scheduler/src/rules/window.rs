//! The congestion window of a path, also where the transport has not told it.

use crate::{PathView, SEGMENT};

/// The window in bytes, at least one segment; while it is unknown, the initial one.
pub(crate) fn window(path: &PathView) -> u64 {
    if path.window.0 == 0 { WINDOW_INITIAL } else { path.window.0.max(SEGMENT) }
}

/// RFC 6928, section 2: ten segments.
const WINDOW_INITIAL: u64 = 10 * SEGMENT;
