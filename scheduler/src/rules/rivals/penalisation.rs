//! `penalisation`: halves the window of a slow path that blocks the receive window.
//!
//! Rule: multipath-tcp/mptcp, `net/mptcp/mptcp_sched.c` (`min_rtt`'s companion). When the window
//! blocks, p is the path that `min_rtt` would take for new data, and h another one that has the
//! head of the line, `s_p < s_h`: the window of h becomes `max(W / 2, 1)`, at most once per
//! round-trip time of p, and only while h has lost nothing. Then it grows like a window: in slow
//! start by the acknowledged bytes, else by one segment per acknowledged window.
//!
//! Choices: a tunnel's window cannot be set, so the path is capped instead: its bytes in flight are
//! halved, until the cap reaches the transport's own window. If that is unknown, half of the
//! outstanding bytes counts. Only timeouts show a loss. Place this handler before
//! `opportunistic_retransmission`, because the chain asks no handler after one that sends the run.

use std::time::Instant;

use polyrail_model::{Bytes, PathId};

use crate::rules::heads::Heads;
use crate::rules::per_path::PerPath;
use crate::rules::rivals::opportunistic_retransmission::{holders, min_rtt};
use crate::{Again, Handler, Note, OutView, PathSet, PathView, SEGMENT};

#[derive(Clone, Debug, Default)]
pub struct Penalisation {
    paths: PerPath<PathPenalty>,
    heads: Heads,
}

#[derive(Clone, Copy, Debug, Default)]
struct PathPenalty {
    /// When another path was penalised for this one.
    penalised_at: Option<Instant>,
    cap: Option<Cap>,
}

/// All in bytes.
#[derive(Clone, Copy, Debug)]
struct Cap {
    now: u64,
    /// Where it is lifted: the transport's window.
    until: u64,
    /// Acknowledged bytes towards the next segment.
    arrived: u64,
    slow_start: bool,
}

impl Penalisation {
    fn penalise(&mut self, path: &PathView) {
        let known = path.window.0 > 0;
        let state = self.paths.of(path.id);
        let own = if known { path.window.0 } else { path.outstanding.0 };
        let before = state.cap.map_or(own, |cap| cap.now.min(own));
        state.cap = Some(Cap {
            now: (before / 2).max(SEGMENT),
            until: if known { own } else { state.cap.map_or(own, |cap| cap.until) },
            arrived: 0,
            slow_start: path.slow_start,
        });
        self.look_at(path);
    }

    /// Lifts the cap once the path's own window is as small.
    fn look_at(&mut self, path: &PathView) {
        for (_, state) in self.paths.iter_mut().filter(|(id, _)| *id == path.id) {
            if let Some(cap) = &mut state.cap {
                cap.until = if path.window.0 > 0 { path.window.0 } else { cap.until };
            }
            state.cap = state.cap.filter(|cap| cap.now < cap.until);
        }
    }

    fn grow(&mut self, path: PathId, bytes: u64) {
        for (_, state) in self.paths.iter_mut().filter(|(id, _)| *id == path) {
            if let Some(cap) = &mut state.cap {
                cap.grow(bytes);
            }
            state.cap = state.cap.filter(|cap| cap.now < cap.until);
        }
    }
}

impl Cap {
    fn grow(&mut self, bytes: u64) {
        if self.slow_start {
            self.now = self.now.saturating_add(bytes);
            return;
        }
        self.arrived = self.arrived.saturating_add(bytes);
        while self.arrived >= self.now && self.now < self.until {
            self.arrived -= self.now;
            self.now += SEGMENT;
        }
    }
}

impl Handler for Penalisation {
    fn gives_back(&mut self, path: &PathView, _now: Instant) -> bool {
        self.look_at(path);
        false
    }

    fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        if !out.blocked || !self.heads.is_head(out) {
            return Again::No;
        }
        let Some(path) = min_rtt(PathSet::EMPTY, paths, now) else { return Again::No };
        let fast = &paths[path];
        let since = self.paths.get(fast.id).and_then(|state| state.penalised_at);
        if since.is_some_and(|since| now.saturating_duration_since(since) < fast.srtt) {
            return Again::No;
        }
        let open = |holder: &&PathView| !holder.stalled && holder.timeouts == 0;
        for holder in holders(out, path, paths).filter(open) {
            if fast.srtt < holder.srtt {
                self.penalise(holder);
                self.paths.of(fast.id).penalised_at = Some(now);
            }
        }
        Again::No
    }

    fn cap(&self, path: PathId) -> Option<Bytes> {
        self.paths.get(path)?.cap.map(|cap| Bytes(cap.now))
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        self.heads.note(note);
        match *note {
            Note::Acked { path, bytes, .. } => self.grow(path, bytes),
            Note::Gone { path } => self.paths.forget(path),
            Note::Sent { .. } | Note::Reinjected { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::samples::{acked, base, path, run, stalled};
    use crate::{Chain, ChainSpec};

    /// A path with a window of so many segments.
    fn at(id: u64, srtt_ms: u64, window: u64) -> PathView {
        PathView { window: Bytes(window * SEGMENT), ..path(id, srtt_ms) }
    }

    fn new() -> Chain {
        ChainSpec::of(&["min_rtt", "penalisation"]).unwrap().build()
    }

    /// The second path has the head of the line, and the window blocks.
    fn block(chain: &mut Chain, paths: &[PathView], at_ms: u64) -> Option<u64> {
        let out = OutView { blocked: true, ..run(&[1]) };
        let now = base() + Duration::from_millis(at_ms);
        assert_eq!(chain.again(&out, paths, now), Again::No);
        segments(chain)
    }

    fn segments(chain: &Chain) -> Option<u64> {
        chain.cap(PathId(2)).map(|cap| cap.0 / SEGMENT)
    }

    fn arrive(chain: &mut Chain, count: u64) -> Option<u64> {
        for _ in 0..count {
            chain.note(&acked(PathId(2), SEGMENT, 0), base());
        }
        segments(chain)
    }

    #[test]
    fn the_window_is_halved_once_a_round_trip() {
        let (mut chain, paths) = (new(), [at(1, 20, 10), at(2, 100, 20)]);
        let caps: Vec<_> =
            [0, 19, 20, 40, 60, 80, 100].map(|ms| block(&mut chain, &paths, ms).unwrap()).into();
        assert_eq!(caps, [10, 10, 5, 2, 1, 1, 1], "2.5 segments, 1.25, 1");
        assert_eq!(chain.cap(PathId(1)), None);
        chain.note(&Note::Gone { path: PathId(2) }, base());
        assert_eq!(segments(&chain), None);
    }

    #[test]
    fn only_slower_holders_without_loss_are_penalised() {
        let slow = at(2, 100, 20);
        for (name, paths, cap) in [
            ("slower", [at(1, 99, 10), slow], Some(10)),
            ("as fast", [at(1, 100, 10), slow], None),
            ("timed out", [at(1, 20, 10), PathView { timeouts: 1, ..slow }], None),
            ("stalled", [at(1, 20, 10), stalled(slow)], None),
            ("no path for new data", [stalled(at(1, 20, 10)), slow], None),
        ] {
            assert_eq!(block(&mut new(), &paths, 0), cap, "{name}");
        }
    }

    #[test]
    fn cap_is_lifted_behind_a_handler_that_returns_all_data() {
        let rules = ["min_rtt", "extended_reinjection", "penalisation"];
        let (mut chain, slow) = (ChainSpec::of(&rules).unwrap().build(), at(2, 100, 20));
        assert_eq!(block(&mut chain, &[at(1, 20, 10), slow], 0), Some(10));
        let small = PathView { timeouts: 3, window: Bytes(10 * SEGMENT), ..slow };
        assert!(chain.gives_back(&small, base()));
        assert_eq!(segments(&chain), None, "its own window is as small");
    }

    #[test]
    fn cap_grows_by_a_segment_per_window() {
        let (mut chain, paths) = (new(), [at(1, 20, 10), at(2, 100, 4)]);
        assert_eq!(block(&mut chain, &paths, 0), Some(2));
        assert_eq!(arrive(&mut chain, 1), Some(2));
        assert_eq!(arrive(&mut chain, 1), Some(3), "two of two");
        assert_eq!(arrive(&mut chain, 2), Some(3));
        assert_eq!(arrive(&mut chain, 1), None, "three of three: four, as before");

        assert_eq!(block(&mut chain, &paths, 100), Some(2));
        chain.note(&acked(PathId(2), 3 * SEGMENT, 0), base());
        assert_eq!(segments(&chain), Some(3), "three at once: two, and one of three");
        assert_eq!(arrive(&mut chain, 1), Some(3));
        assert_eq!(arrive(&mut chain, 1), None);
    }

    #[test]
    fn cap_grows_by_acknowledged_bytes_in_slow_start() {
        let young = PathView { slow_start: true, ..at(2, 100, 8) };
        let (mut chain, paths) = (new(), [at(1, 20, 10), young]);
        assert_eq!(block(&mut chain, &paths, 0), Some(4));
        assert_eq!(arrive(&mut chain, 3), Some(7));
        assert_eq!(arrive(&mut chain, 1), None);
    }

    #[test]
    fn small_transport_window_lifts_the_cap() {
        let (mut chain, paths) = (new(), [at(1, 20, 10), at(2, 100, 20)]);
        assert_eq!(block(&mut chain, &paths, 0), Some(10));
        assert!(!chain.gives_back(&at(2, 100, 11), base()));
        assert_eq!(segments(&chain), Some(10));
        chain.gives_back(&at(2, 100, 10), base());
        assert_eq!(segments(&chain), None);
        let unknown = PathView { outstanding: Bytes(6 * SEGMENT), ..at(2, 100, 0) };
        assert_eq!(block(&mut chain, &[at(1, 20, 10), unknown], 100), Some(3));
        assert_eq!(arrive(&mut chain, 3 + 4), Some(5));
        assert_eq!(arrive(&mut chain, 5), None);
    }
}
