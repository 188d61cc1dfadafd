//! A cache of the last piece of a schedule, because most lookups are for the same one.

use std::cell::Cell;
use std::time::Instant;

/// A value, and the end of its validity; `None`: forever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<T> {
    pub value: T,
    pub until: Option<Instant>,
}

/// The last piece, with the instant from which it is valid.
#[derive(Debug)]
pub(super) struct Recent<T: Copy>(Cell<Option<(Instant, Piece<T>)>>);

impl<T: Copy> Default for Recent<T> {
    fn default() -> Self {
        Self(Cell::new(None))
    }
}

impl<T: Copy> Recent<T> {
    /// The piece at this instant; `look` finds a piece other than the last one.
    pub fn at(&self, at: Instant, look: impl FnOnce() -> Piece<T>) -> Piece<T> {
        match self.0.get() {
            Some((from, known)) if from <= at && known.until.is_none_or(|end| at < end) => known,
            _ => {
                let piece = look();
                self.0.set(Some((at, piece)));
                piece
            }
        }
    }

    /// Clears the cache after a change of the schedule.
    pub fn forget(&mut self) {
        self.0.set(None);
    }
}
