//! Sockets that have datagrams, read in turns.

use std::collections::BTreeSet;

/// The sockets that have datagrams, by number. A turn of the event loop reads a bounded number, so
/// that thousands of busy sockets delay neither tunnels nor connections.
#[derive(Debug, Default)]
pub struct ReadTurns {
    places: BTreeSet<usize>,
    /// The next turn begins with the first socket from here.
    next: usize,
}

/// The result of reading a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The datagrams.
    pub count: usize,
    /// There are no more, or the socket has ended.
    pub is_dry: bool,
}

impl Read {
    /// The socket has ended.
    pub const NONE: Self = Self { count: 0, is_dry: true };
}

impl ReadTurns {
    /// The socket has datagrams.
    pub fn insert(&mut self, place: usize) {
        self.places.insert(place);
    }

    /// The socket has ended.
    pub fn remove(&mut self, place: usize) {
        self.places.remove(&place);
    }

    /// Whether no socket has datagrams.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Reads each socket once, and stops behind the one that makes it `most` datagrams; the next
    /// turn goes on from there.
    pub fn serve(&mut self, most: usize, mut read: impl FnMut(usize) -> Read) {
        let mut left = most;
        for _ in 0..self.places.len() {
            let next = self.places.range(self.next..).next().or_else(|| self.places.first());
            let Some(place) = next.copied().filter(|_| left > 0) else { break };
            self.next = place + 1;
            let Read { count, is_dry } = read(place);
            // A read costs as much as a datagram.
            left = left.saturating_sub(count.max(1));
            if is_dry {
                self.places.remove(&place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_sockets_take_turns() {
        let mut turns = ReadTurns::default();
        [5, 1, 9, 3].into_iter().for_each(|place| turns.insert(place));
        let mut turn = |most, dry: &[usize]| {
            let mut seen = Vec::new();
            turns.serve(most, |place| {
                seen.push(place);
                Read { count: 4, is_dry: dry.contains(&place) }
            });
            (seen, turns.is_empty())
        };
        assert_eq!(turn(100, &[]), (vec![1, 3, 5, 9], false), "each once");
        assert_eq!(turn(5, &[3]), (vec![1, 3], false), "the bound is passed within a socket");
        assert_eq!(turn(8, &[]), (vec![5, 9], false));
        assert_eq!(turn(9, &[9, 1, 5]), (vec![1, 5, 9], true));
        assert_eq!(turn(9, &[]), (vec![], true));
    }
}
