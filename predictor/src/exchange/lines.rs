//! Reads a file whose lines are bounded, so that a wrong file does not fill the memory.

use std::io::{self, Read};

/// Fails at a line of more than [`LINE_BYTES_MAX`].
pub(super) struct Bounded<R> {
    from: R,
    line: u64,
    bytes: usize,
}

impl<R> Bounded<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, line: 1, bytes: 0 }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        for byte in &into[..read] {
            self.bytes += 1;
            if *byte == b'\n' {
                self.line += 1;
                self.bytes = 0;
            } else if self.bytes > LINE_BYTES_MAX {
                let reason = format!("line {} has more than {LINE_BYTES_MAX} bytes", self.line);
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
        }
        Ok(read)
    }
}

/// A track of the largest size fits.
pub(super) const LINE_BYTES_MAX: usize = 4 << 20;
