//! The kernel's receive buffers of legs.
//!
//! The kernel enlarges a socket's buffer while its reader follows, up to `tcp_rmem[2]`, and the
//! buffer stays full when the session is slower than the server. So the buffers have a budget: the
//! memory of the session, because a session cannot use more than its own windows, and a quarter for
//! one user, as for the window of one flow ([`WINDOW_SHARE`]).
//!
//! A buffer counts while its socket has unread bytes, because an empty buffer occupies no memory. A
//! buffer that could exceed the budget when it doubles next is frozen at its size, and released
//! when the budget has room again. An idle buffer that has grown, receives again and finds the
//! budget used up is reduced to its first size, so that many idle buffers cannot fill at once.
//!
//! Sizes are the kernel's, with its overhead, beyond the size that each socket begins with. A
//! reader that never follows keeps that size.
//!
//! Invariant: the sums are those of the legs with unread bytes.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use mio::net::TcpStream;
use polyrail_model::{Bytes, SessionKey, UserId};
use polyrail_session::limits::WINDOW_SHARE;
use socket2::SockRef;

/// The sums of all legs.
#[derive(Debug, Default)]
pub(crate) struct LegBuffers {
    of_session: BTreeMap<SessionKey, u64>,
    of_user: BTreeMap<(SessionKey, UserId), u64>,
}

/// The buffer of one leg.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LegBuffer {
    /// Whose it is.
    who: Option<(SessionKey, UserId)>,
    /// Its size at first; 0 before it was measured.
    first: u64,
    /// Its size beyond `first`, as counted.
    counted: u64,
    /// Bytes read since it was measured.
    read: usize,
    /// The socket had unread bytes after the leg's last turn.
    unread: bool,
    frozen: bool,
}

/// What to do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    MayGrow,
    Freeze,
    Shrink,
}

impl LegBuffer {
    /// The buffer of a user's leg.
    pub fn new(session: SessionKey, user: Option<UserId>) -> Self {
        Self { who: user.map(|user| (session, user)), ..Self::default() }
    }

    /// The leg had its turn: `read` bytes were read, and the socket may have `unread` ones.
    /// Measures the buffer now and then, because the kernel enlarges it only while it is read.
    pub fn on_turn(
        &mut self,
        stream: &TcpStream,
        (read, unread): (usize, bool),
        all: &mut LegBuffers,
        budget: Bytes,
    ) {
        self.read += read;
        let fills = unread && !self.unread;
        self.unread = unread;
        if !unread {
            self.forget(all);
        }
        if !fills && self.read < MEASURE_EVERY && (self.read == 0 || self.first > 0) {
            return;
        }
        self.read = 0;
        let socket = SockRef::from(stream);
        let Ok(size) = socket.recv_buffer_size() else { return };
        match self.measure(size as u64, all, budget.0, fills) {
            Verdict::Shrink => {
                // The kernel doubles the value, and keeps the size from then on.
                let first = usize::try_from(self.first / 2).unwrap_or(usize::MAX);
                self.frozen |= socket.set_recv_buffer_size(first).is_ok();
                self.forget(all);
            }
            verdict => {
                let freeze = verdict == Verdict::Freeze;
                // A kernel before 5.14 cannot; then its own limit holds.
                if freeze != self.frozen
                    && polyrail_tunnel::freeze_receive_buffer(stream.as_fd(), freeze).is_ok()
                {
                    self.frozen = freeze;
                }
            }
        }
    }

    /// Counts the size if there are unread bytes. `fills`: the buffer was empty before.
    fn measure(&mut self, size: u64, all: &mut LegBuffers, budget: u64, fills: bool) -> Verdict {
        let Some(who) = self.who else { return Verdict::MayGrow };
        if self.first == 0 {
            self.first = size;
        }
        let grown = size.saturating_sub(self.first);
        let (session, user) = all.count(who, &mut self.counted, grown);
        if !self.unread {
            self.forget(all);
        }
        let exceeds = |more: u64| session + more > budget || user + more > budget / WINDOW_SHARE;
        if fills && grown > 0 && exceeds(0) {
            return Verdict::Shrink;
        }
        // It at most doubles until it is measured again.
        if exceeds(size) { Verdict::Freeze } else { Verdict::MayGrow }
    }

    /// The buffer is empty, or the leg is gone.
    pub fn forget(&mut self, all: &mut LegBuffers) {
        if let Some(who) = self.who.filter(|_| self.counted > 0) {
            all.count(who, &mut self.counted, 0);
        }
    }
}

impl LegBuffers {
    /// A leg counts `size`; `counted` is its previous count. Returns the session's and the user's
    /// sums.
    fn count(&mut self, who: (SessionKey, UserId), counted: &mut u64, size: u64) -> (u64, u64) {
        let before = std::mem::replace(counted, size);
        let session = self.of_session.entry(who.0).or_default();
        *session = *session + size - before;
        let user = self.of_user.entry(who).or_default();
        *user = *user + size - before;
        let sums = (*session, *user);
        if sums.0 == 0 {
            self.of_session.remove(&who.0);
        }
        if sums.1 == 0 {
            self.of_user.remove(&who);
        }
        sums
    }
}

/// Bytes read from a leg between two measurements of its buffer: less than the smallest buffer, so
/// that it is measured before it has doubled twice.
const MEASURE_EVERY: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const KIB: u64 = 1 << 10;
    const BUDGET: u64 = 16 << 20;

    /// Doubles the buffers of a user's legs, as the kernel does, until each is frozen.
    fn grow(all: &mut LegBuffers, user: u64, legs: usize) -> (Vec<LegBuffer>, u64) {
        let mut legs = vec![(LegBuffer::new(SessionKey(1), Some(UserId(user))), 128 * KIB); legs];
        for _ in 0..20 {
            for (leg, size) in &mut legs {
                leg.unread = true;
                if leg.measure(*size, all, BUDGET, false) == Verdict::MayGrow {
                    *size *= 2;
                    leg.measure(*size, all, BUDGET, false);
                }
            }
        }
        let total = legs.iter().map(|(_, size)| size - 128 * KIB).sum();
        (legs.into_iter().map(|(leg, _)| leg).collect(), total)
    }

    #[test]
    fn buffers_of_a_user_and_of_a_session_are_bounded() {
        let mut all = LegBuffers::default();
        let (one, total) = grow(&mut all, 66, 1_000);
        assert!((2 << 20..=4 << 20).contains(&total), "{total}");
        let (mut legs, mut sum) = (one, total);
        for user in 0..20 {
            let (more, total) = grow(&mut all, user, 3);
            assert!(total <= 4 << 20);
            legs.extend(more);
            sum += total;
        }
        assert!(sum <= BUDGET, "{sum}");
        assert_eq!(all.of_session[&SessionKey(1)], sum);
        legs.iter_mut().for_each(|leg| leg.forget(&mut all));
        assert!(all.of_session.is_empty() && all.of_user.is_empty());
        let (_, alone) = grow(&mut all, 7, 1);
        assert!(alone >= 1 << 20, "a single flow has a window for a distant server: {alone}");
    }

    /// A leg that reads from a fast sender, as the relay does.
    struct Download {
        near: TcpStream,
        far: std::net::TcpStream,
        leg: LegBuffer,
        all: LegBuffers,
    }

    impl Download {
        fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let leg = LegBuffer::new(SessionKey(1), Some(UserId(1)));
            let far = listener.accept().unwrap().0;
            Self { near: TcpStream::from_std(near), far, leg, all: LegBuffers::default() }
        }

        /// Transfers `bytes` with a budget; returns the size of the buffer afterwards.
        fn transfer(&mut self, bytes: usize, budget: u64) -> u64 {
            let mut far = self.far.try_clone().unwrap();
            let sender = std::thread::spawn(move || far.write_all(&vec![7; bytes]).unwrap());
            let (mut left, mut scratch) = (bytes, vec![0; 128 << 10]);
            while left > 0 {
                // The socket blocks.
                let read = self.near.read(&mut scratch).unwrap();
                left -= read;
                self.turn((read, left > 0), budget);
            }
            sender.join().unwrap();
            self.size()
        }

        fn turn(&mut self, turn: (usize, bool), budget: u64) {
            self.leg.on_turn(&self.near, turn, &mut self.all, Bytes(budget));
        }

        fn size(&self) -> u64 {
            SockRef::from(&self.near).recv_buffer_size().unwrap() as u64
        }
    }

    const MUCH: u64 = 1 << 40;
    const LONG: usize = 128 << 20;

    #[test]
    fn frozen_buffer_is_released_when_the_budget_has_room() {
        let mut download = Download::new();
        // Few bytes: the kernel enlarges a buffer only for a reader that becomes faster.
        let small = download.transfer(1_000, 0);
        assert!(download.leg.frozen);
        let grown = download.transfer(LONG, MUCH);
        assert!(!download.leg.frozen);
        assert!(grown > small, "{grown}");
    }

    #[test]
    fn frozen_buffer_does_not_grow() {
        let mut download = Download::new();
        let first = download.size();
        assert_eq!(download.transfer(LONG, 0), first);
        assert!(download.leg.frozen);
    }

    #[test]
    fn idle_buffers_do_not_count_and_shrink_if_they_fill_without_budget() {
        let mut download = Download::new();
        let first = download.size();
        let grown = download.transfer(LONG, MUCH);
        assert!(grown > first, "{grown}");
        assert!(download.all.of_session.is_empty(), "an idle socket has no bytes");
        let (legs, others) = grow(&mut download.all, 66, 1);
        assert!(!legs[0].frozen && others >= 1 << 20, "another user is not restricted");
        download.turn((0, true), 4 * MUCH);
        assert_eq!((download.size(), download.leg.counted), (grown, grown - first));
        download.turn((0, false), 4 * MUCH);
        download.turn((0, true), others);
        assert_eq!((download.size(), download.leg.counted), (first, 0));
        assert!(download.transfer(LONG, MUCH) >= first);
        assert!(!download.leg.frozen);
    }
}
