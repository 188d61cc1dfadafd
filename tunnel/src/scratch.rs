//! The thread's receive buffer: idle tunnels hold none.

use std::cell::Cell;

/// Bytes that one call reads from a socket.
pub(crate) const SCRATCH: usize = 256 * 1024;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lends the buffer to `work`. It is taken out meanwhile: a nested call allocates its own.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = BUFFER.take();
    buffer.resize(SCRATCH, 0);
    let result = work(&mut buffer);
    BUFFER.set(buffer);
    result
}
