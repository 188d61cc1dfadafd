//! When a path stalls: an acknowledgement or a PONG is outstanding, and the path makes no progress
//! for longer than its patience.

use std::time::{Duration, Instant};

use polyrail_model::Bytes;

use super::link::Link;
use crate::limits::{ACK_DELAY_MAX, STALL_MAX, STALL_MIN, STALL_QUEUE_MAX};

#[derive(Debug)]
pub(crate) struct Stall {
    /// Sequence numbers sent over the path that are neither acknowledged nor given up.
    pub outstanding: u64,
    progress_at: Instant,
    pub stalled: bool,
}

impl Stall {
    pub fn new(now: Instant) -> Self {
        Self { outstanding: 0, progress_at: now, stalled: false }
    }

    /// A run of this length was sent; an idle path begins to wait.
    pub fn sent(&mut self, now: Instant, length: u64) {
        if self.outstanding == 0 {
            self.progress_at = now;
        }
        self.outstanding += length;
    }

    /// This many sequence numbers are acknowledged or given up.
    pub fn settle(&mut self, length: u64) {
        self.outstanding = self.outstanding.saturating_sub(length);
    }

    /// The path has delivered something. Returns whether it was stalled.
    pub fn progress(&mut self, now: Instant) -> bool {
        self.progress_at = now;
        std::mem::take(&mut self.stalled)
    }

    /// When the path stalls if it makes no progress; `None` while it is stalled or nothing waits.
    pub fn at(&self, pinged_at: Option<Instant>, patience: Duration) -> Option<Instant> {
        let since = self.waiting_since(pinged_at).filter(|_| !self.stalled);
        since.map(|since| since + patience)
    }

    /// Since when an acknowledgement or the PONG of the PING in flight has been outstanding without
    /// progress; `None` while neither is.
    pub fn waiting_since(&self, pinged_at: Option<Instant>) -> Option<Instant> {
        if self.outstanding > 0 {
            return Some(self.progress_at);
        }
        pinged_at.map(|at| self.progress_at.max(at))
    }

    /// How long data has been in flight without progress; zero if none is.
    pub fn quiet(&self, now: Instant) -> Duration {
        let since = if self.outstanding > 0 { self.progress_at } else { now };
        now.saturating_duration_since(since)
    }

    /// How long a path may make no progress before it stalls: 3 srtt + 4 rttvar, from [`STALL_MIN`]
    /// to [`STALL_MAX`], and twice the time that the bytes in flight need at the path's rate, at
    /// most [`STALL_QUEUE_MAX`]. A superseded path only drains, so it must be acknowledged
    /// continuously.
    pub fn patience(&self, link: &Link, superseded: bool) -> Duration {
        let (srtt, spread) = (link.srtt(), link.rtt_var() * 4);
        if superseded {
            return srtt + spread + ACK_DELAY_MAX;
        }
        let queue = link.rate.max().and_then(|rate| rate.time_for(Bytes(2 * self.outstanding)));
        let queue = queue.unwrap_or_default().min(STALL_QUEUE_MAX);
        (srtt * 3 + spread).clamp(STALL_MIN, STALL_MAX) + queue
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::LinkSample;

    use super::*;
    use crate::rate::tests::{base, sample};

    #[test]
    fn path_stalls_when_an_acknowledgement_or_pong_is_late() {
        let (base, ms) = (base(), Duration::from_millis);
        let (mut stall, mut link, at) = (Stall::new(base), Link::default(), |at| base + ms(at));
        // 3 srtt + 4 rttvar, at most 5 s; of a superseded path srtt + 4 rttvar + 50 ms.
        for (srtt, rtt_var, usual, superseded) in
            [(4_000, 50, 5_000, 4_250), (200, 50, 800, 450), (10, 5, 300, 80)]
        {
            let (srtt, rtt_var) = (ms(srtt), ms(rtt_var));
            link.sample(&LinkSample { srtt, rtt_var, ..sample(base, 8.0, false) }, 0);
            assert_eq!(
                [false, true].map(|s| stall.patience(&link, s)),
                [usual, superseded].map(ms)
            );
        }
        assert_eq!(stall.at(None, ms(300)), None, "an idle path");
        stall.sent(at(1_000), 600);
        stall.sent(at(1_100), 400);
        assert_eq!(stall.at(None, ms(300)), Some(at(1_300)));
        assert_eq!(stall.quiet(at(1_200)), ms(200), "since the path was given data");
        assert!(!stall.progress(at(1_300)));
        assert_eq!(stall.quiet(at(1_350)), ms(50), "since the progress");
        assert_eq!(stall.at(Some(at(1_400)), ms(300)), Some(at(1_600)), "since the progress");
        stall.stalled = true;
        assert!(stall.at(None, ms(300)).is_none() && stall.progress(at(1_700)));
        stall.settle(1_000);
        assert_eq!(stall.quiet(at(1_800)), ms(0));
        assert_eq!(stall.at(None, ms(300)), None, "nothing waits");
        assert_eq!(stall.at(Some(at(2_000)), ms(300)), Some(at(2_300)), "the PONG is late");
    }
}
