//! A value per piece of the last second: the part that sliding extremes have in common.
//!
//! Invariant: memory is bounded by [`PIECES_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The pieces of the second before the newest sample.
#[derive(Clone, Debug)]
pub(crate) struct Window<T> {
    /// When each piece began, and its value; oldest first.
    pieces: VecDeque<(Instant, T)>,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self { pieces: VecDeque::new() }
    }
}

impl<T> Window<T> {
    /// Takes a sample: `merge` adds it to a piece that is still open, else it begins a piece.
    pub fn add(&mut self, at: Instant, sample: T, merge: impl FnOnce(&mut T, T)) {
        let age = |since: &Instant| at.saturating_duration_since(*since);
        while self.pieces.front().is_some_and(|(since, _)| age(since) > WINDOW) {
            self.pieces.pop_front();
        }
        match self.pieces.back_mut() {
            Some((since, piece)) if age(since) < PIECE => merge(piece, sample),
            _ => {
                self.pieces.push_back((at, sample));
                if self.pieces.len() > PIECES_MAX {
                    self.pieces.pop_front();
                }
            }
        }
    }

    /// The values, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().map(|(_, piece)| piece)
    }
}

const WINDOW: Duration = Duration::from_secs(1);
const PIECE: Duration = Duration::from_millis(125);
/// The pieces of a window; beyond, the oldest is dropped.
pub(crate) const PIECES_MAX: usize = 9;
