//! The kernel's receive buffers of legs.
//!
//! The kernel enlarges a socket's buffer while its reader follows, up to `tcp_rmem[2]`, and the
//! buffer stays full when the session is slower than the server. So the buffers have a budget: the
//! memory of the session, because a session cannot use more than its own windows, and a quarter for
//! one user, as for the window of one flow ([`WINDOW_SHARE`]). A buffer that could exceed the
//! budget when it doubles next is frozen at its size, and released when others have shrunk.
//!
//! Sizes are the kernel's, with its overhead, beyond the size that each socket begins with. A
//! reader that never follows keeps that size.
//!
//! Invariant: the sums are those of the legs.

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
    frozen: bool,
}

impl LegBuffer {
    /// The buffer of a user's leg.
    pub fn new(session: SessionKey, user: Option<UserId>) -> Self {
        Self { who: user.map(|user| (session, user)), ..Self::default() }
    }

    /// Bytes were read from the leg. Measures its buffer now and then, because the kernel enlarges
    /// it only while it is read.
    pub fn on_read(
        &mut self,
        stream: &TcpStream,
        bytes: usize,
        all: &mut LegBuffers,
        budget: Bytes,
    ) {
        self.read += bytes;
        if self.read < MEASURE_EVERY && self.first > 0 {
            return;
        }
        self.read = 0;
        let Ok(size) = SockRef::from(stream).recv_buffer_size() else { return };
        let freeze = self.measure(size as u64, all, budget.0);
        if freeze != self.frozen {
            // A kernel before 5.14 cannot; then its own limit holds.
            self.frozen =
                freeze && polyrail_tunnel::freeze_receive_buffer(stream.as_fd(), freeze).is_ok();
        }
    }

    /// Counts the size; returns whether the buffer must not grow.
    fn measure(&mut self, size: u64, all: &mut LegBuffers, budget: u64) -> bool {
        let Some(who) = self.who else { return false };
        if self.first == 0 {
            self.first = size;
        }
        let grown = size.saturating_sub(self.first);
        let (session, user) = all.count(who, &mut self.counted, grown);
        // It at most doubles until it is measured again.
        session + size > budget || user + size > budget / WINDOW_SHARE
    }

    /// The leg is gone.
    pub fn forget(&mut self, all: &mut LegBuffers) {
        if let Some(who) = self.who {
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
    use super::*;

    const KIB: u64 = 1 << 10;
    const BUDGET: u64 = 16 << 20;

    /// Doubles the buffers of a user's legs, as the kernel does, until each is frozen.
    fn grow(all: &mut LegBuffers, user: u64, legs: usize) -> (Vec<LegBuffer>, u64) {
        let mut legs = vec![(LegBuffer::new(SessionKey(1), Some(UserId(user))), 128 * KIB); legs];
        for _ in 0..20 {
            for (leg, size) in &mut legs {
                if !leg.measure(*size, all, BUDGET) {
                    *size *= 2;
                    leg.measure(*size, all, BUDGET);
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
}
