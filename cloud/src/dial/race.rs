//! Happy eyeballs (RFC 8305) as a state machine: when each address is tried, and which one wins.
//!
//! ```text
//!            failed, addresses left: next address at once
//!            250 ms passed:          next address in parallel
//!               +-----+
//!               v     |
//!  new ----> racing --+-- connected --------------------> won   (others cancelled)
//!               |
//!               +-- all failed, or the deadline passed -> lost  (others cancelled)
//! ```
//!
//! No socket and no clock: `now` is a parameter. Feed one input, then [`Race::poll`] until `None`,
//! then arm [`Race::next_timeout`]. The last step is `Won` or `Lost`; inputs after it, and inputs
//! about ended attempts, are ignored.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::Families;

use super::DialError;
use crate::access::AccessList;

/// One connection attempt of a race, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt(pub usize);

/// A step that the race requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start a connection to this address.
    Connect(Attempt, SocketAddr),
    /// Close this attempt's socket.
    Cancel(Attempt),
    /// The race is over: this attempt's connection is the result.
    Won(Attempt),
    /// The race is over: there is no connection.
    Lost(DialError),
}

/// The race for one destination.
#[derive(Debug)]
pub struct Race {
    waiting: VecDeque<SocketAddr>,
    alive: Vec<(Attempt, SocketAddr)>,
    started: usize,
    /// When the next waiting address is tried in parallel.
    next_at: Instant,
    begun: Instant,
    deadline: Instant,
    error: Option<DialError>,
    over: bool,
    steps: VecDeque<Step>,
}

/// The addresses to try, in order: IPv6 and IPv4 in turn, IPv6 first, each family in the order
/// given (RFC 8305 4, with one address of the first family ahead).
///
/// # Errors
/// None is of a family that the cloud offers, or the access list permits none.
pub fn candidates(
    addresses: &[IpAddr],
    port: u16,
    families: Families,
    access: &AccessList,
) -> Result<Vec<SocketAddr>, DialError> {
    let mut error = DialError::NoFamily;
    let (mut v6, mut v4) = (VecDeque::new(), VecDeque::new());
    for ip in addresses.iter().map(IpAddr::to_canonical).filter(|ip| families.includes(*ip)) {
        let address = SocketAddr::new(ip, port);
        match access.check(address) {
            Err(denial) => error = error.or(denial.into()),
            Ok(_) if ip.is_ipv6() => v6.push_back(address),
            Ok(_) => v4.push_back(address),
        }
    }
    let mut order = Vec::with_capacity(v6.len() + v4.len());
    while !(v6.is_empty() && v4.is_empty()) {
        order.extend(v6.pop_front());
        order.extend(v4.pop_front());
    }
    if order.is_empty() { Err(error) } else { Ok(order) }
}

impl Race {
    /// Begins with the first of the addresses, which are tried in their order.
    ///
    /// The dial began at `begun` (name resolution counts) and ends at `begun + timeout`. Without
    /// addresses the race is lost at once.
    pub fn new(now: Instant, begun: Instant, timeout: Duration, order: Vec<SocketAddr>) -> Self {
        let mut race = Self {
            waiting: order.into(),
            alive: Vec::new(),
            started: 0,
            next_at: now,
            begun,
            deadline: begun + timeout,
            error: None,
            over: false,
            steps: VecDeque::new(),
        };
        race.advance(now);
        race
    }

    /// An attempt's connection is established.
    pub fn connected(&mut self, attempt: Attempt) {
        if self.over || !self.end(attempt) {
            return;
        }
        self.cancel_all();
        self.over = true;
        self.steps.push_back(Step::Won(attempt));
    }

    /// An attempt failed.
    pub fn failed(&mut self, now: Instant, attempt: Attempt, error: DialError) {
        if self.over || !self.end(attempt) {
            return;
        }
        self.note(error);
        self.advance(now);
    }

    /// Handles timeouts that are due.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.over {
            return;
        }
        if now >= self.deadline {
            self.note(DialError::TimedOut(self.deadline - self.begun));
            self.lose();
        } else if now >= self.next_at && !self.waiting.is_empty() {
            self.advance(now);
        }
    }

    /// When [`Race::on_timeout`] is due; `None` when the race is over.
    pub fn next_timeout(&self) -> Option<Instant> {
        match (self.over, self.waiting.is_empty()) {
            (true, _) => None,
            (false, true) => Some(self.deadline),
            (false, false) => Some(self.next_at.min(self.deadline)),
        }
    }

    /// The next step to take.
    pub fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Tries the next address. If there is none and no attempt is pending, the race is lost.
    fn advance(&mut self, now: Instant) {
        if let Some(address) = self.waiting.pop_front() {
            if self.alive.len() >= PARALLEL_MAX {
                let (oldest, _) = self.alive.remove(0);
                self.steps.push_back(Step::Cancel(oldest));
            }
            let attempt = Attempt(self.started);
            self.started += 1;
            self.alive.push((attempt, address));
            self.next_at = now + ATTEMPT_DELAY;
            self.steps.push_back(Step::Connect(attempt, address));
        } else if self.alive.is_empty() {
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.cancel_all();
        self.over = true;
        self.steps.push_back(Step::Lost(self.error.take().unwrap_or(DialError::NoFamily)));
    }

    fn cancel_all(&mut self) {
        self.waiting.clear();
        // A connect step that was not polled yet is withdrawn.
        let unseen = |step: &Step| matches!(step, Step::Connect(..));
        for (attempt, address) in self.alive.drain(..) {
            let connect = Step::Connect(attempt, address);
            match self.steps.iter().position(|step| unseen(step) && *step == connect) {
                Some(i) => drop(self.steps.remove(i)),
                None => self.steps.push_back(Step::Cancel(attempt)),
            }
        }
    }

    /// Removes an attempt; returns false if it had ended before.
    fn end(&mut self, attempt: Attempt) -> bool {
        let before = self.alive.len();
        self.alive.retain(|(other, _)| *other != attempt);
        self.alive.len() < before
    }

    fn note(&mut self, error: DialError) {
        self.error = Some(match self.error.take() {
            Some(earlier) => earlier.or(error),
            None => error,
        });
    }
}

/// Delay before the next attempt starts in parallel (RFC 8305 5, the recommended value).
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Attempts of one dial at a time; a further one replaces the oldest, which has had a second. A
/// name with many silent addresses would take as many sockets.
pub const PARALLEL_MAX: usize = 4;
/// Linux's default timeout of a connection (`tcp_syn_retries` = 6, tcp(7)).
pub(super) const KERNEL_PATIENCE: Duration = Duration::from_secs(127);
