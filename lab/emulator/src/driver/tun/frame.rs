//! Reused packet buffers.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::rc::Rc;

/// How many idle buffers a pool keeps; more are freed.
const IDLE_MAX: usize = 4096;

/// Idle buffers of one size.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    idle: Rc<RefCell<Vec<Box<[u8]>>>>,
    size: usize,
}

/// One IP packet; its buffer goes back to the pool.
#[derive(Debug)]
pub(super) struct Frame {
    buffer: Box<[u8]>,
    length: usize,
    pool: Pool,
}

impl Pool {
    /// A pool of buffers for packets of at most `size` bytes.
    pub(super) fn new(size: usize) -> Self {
        Self { idle: Rc::default(), size }
    }

    /// Reads one packet.
    pub(super) fn read(&self, mut from: &File) -> std::io::Result<Frame> {
        let mut frame = self.frame();
        frame.length = from.read(&mut frame.buffer)?;
        Ok(frame)
    }

    fn frame(&self) -> Frame {
        let buffer = self.idle.borrow_mut().pop();
        let buffer = buffer.unwrap_or_else(|| vec![0; self.size].into_boxed_slice());
        Frame { buffer, length: 0, pool: self.clone() }
    }
}

impl Frame {
    /// The packet.
    pub(super) fn packet(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// The packet, mutable.
    pub(super) fn packet_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }

    /// Writes the packet.
    pub(super) fn write(&self, mut to: &File) -> std::io::Result<()> {
        to.write(self.packet()).map(|_| ())
    }
}

impl Clone for Frame {
    fn clone(&self) -> Self {
        let mut copy = self.pool.frame();
        copy.buffer[..self.length].copy_from_slice(&self.buffer[..self.length]);
        copy.length = self.length;
        copy
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let mut idle = self.pool.idle.borrow_mut();
        if idle.len() < IDLE_MAX {
            idle.push(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_copies_are_independent() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let pool = Pool::new(16);
        let frame = pool.read(&file).unwrap();
        let copy = frame.clone();
        drop(frame);
        assert_eq!(pool.idle.borrow().len(), 1);
        assert_eq!(pool.read(&file).unwrap().packet(), b"", "the end of the file");
        assert_eq!(copy.packet(), b"abc");
    }
}
