//! `linux`: the path that drains its queue soonest, for a burst at a time.
//!
//! Rule: the scheduler of MPTCP in the Linux kernel (torvalds/linux, `net/mptcp/protocol.c`).
//! `linger_i = queued_i / pacing_i`. The path with the least linger gets a burst of about 64 KB, or
//! the receive window if that is less. `pacing_i` is an average weighted with the queue and the
//! burst: `(average x queued + pacing x burst) / (queued + burst)`, updated when a burst begins.
//! Backups are used only if no other path lives.
//!
//! Choices: the pacing rate is the delivery rate, or a window per round-trip time while that is
//! unknown. The queue is the transport's data in flight and unsent. The kernel queues on the best
//! path beyond its window; here data waits in the session, so the least linger among the paths with
//! room wins. A burst and its averages belong to the session. A retransmission does not begin a
//! burst.

use std::time::{Duration, Instant};

use polyrail_model::PathId;

use crate::rules::hsrsch::min_rtt::group;
use crate::rules::path_rate::window;
use crate::rules::per_path::PerPath;
use crate::{Input, Note, PathSet, PathSets, PathView, Schedulerlet};

#[derive(Clone, Debug, Default)]
pub struct Linux {
    /// The average pacing rate in bytes a second; zero before the first.
    pacing: PerPath<f64>,
    /// The path of the burst and its remaining bytes.
    burst: Option<(PathId, u64)>,
}

impl Linux {
    fn least_linger(&mut self, set: PathSet, paths: &[PathView]) -> Option<usize> {
        let mut best = None;
        for path in set.iter() {
            let view = &paths[path];
            let average = self.pacing.of(view.id);
            if *average <= 0.0 {
                *average = pacing(view);
            }
            let linger = queued(view) as f64 / *average;
            if best.is_none_or(|(_, least)| linger < least) {
                best = Some((path, linger));
            }
        }
        best.map(|(path, _)| path)
    }

    fn begin_burst(&mut self, path: &PathView, window: u64) {
        let burst = BURST.min(window);
        if burst == 0 {
            return;
        }
        let (queued, new) = (queued(path) as f64, burst as f64);
        let average = self.pacing.of(path.id);
        *average = (*average * queued + pacing(path) * new) / (queued + new);
        self.burst = Some((path.id, burst));
    }
}

/// The transport's bytes in flight and unsent.
fn queued(path: &PathView) -> u64 {
    path.in_flight.0.saturating_add(path.unsent.0)
}

/// In bytes a second; above zero.
fn pacing(path: &PathView) -> f64 {
    match path.rate.map(|rate| rate.as_bps()).filter(|&bits| bits > 0) {
        Some(bits) => bits as f64 / 8.0,
        None => window(path) as f64 / path.srtt.max(RTT_MIN).as_secs_f64(),
    }
}

impl Schedulerlet for Linux {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        let available = group.filter(|i| input.paths[i].available());
        if !input.segment.carried.is_empty() {
            if let Some(path) = self.least_linger(available, input.paths) {
                sets.select(path);
            }
            return;
        }
        let going = self.burst.filter(|&(_, left)| left > 0).and_then(|(id, left)| {
            Some((available.iter().find(|&i| input.paths[i].id == id)?, left))
        });
        if let Some((path, left)) = going {
            sets.select(path);
            sets.limit_run(left);
        } else if let Some(path) = self.least_linger(available, input.paths) {
            self.begin_burst(&input.paths[path], input.segment.window.0);
            sets.select(path);
        }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        match *note {
            Note::Sent { path, bytes, copy: false, .. } => {
                if let Some((_, left)) = self.burst.as_mut().filter(|(id, _)| *id == path) {
                    *left = left.saturating_sub(bytes);
                }
            }
            Note::Gone { path } => {
                self.pacing.forget(path);
                self.burst = self.burst.filter(|(id, _)| *id != path);
            }
            Note::Sent { .. } | Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

/// The most of a burst, in bytes: 64 KB without the greatest headers (`MPTCP_SEND_BURST_SIZE`).
const BURST: u64 = 65_536 - 20 - 40 - 40 - 8;

/// A shorter round-trip time, or none, counts as this.
const RTT_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use polyrail_model::{Bitrate, Bytes, FlowId};

    use super::*;
    use crate::samples::{backup, base, full, path, stalled};
    use crate::{Chain, Decision, SEGMENT, SegmentView};

    /// A path with this rate in Mbit/s and so many KB queued.
    fn at(id: u64, mbps: f64, queued_kb: u64) -> PathView {
        let rate = Some(Bitrate::from_mbps(mbps));
        PathView { rate, in_flight: Bytes(queued_kb * 1_000), ..path(id, 40) }
    }

    fn new() -> Chain {
        Chain::new(vec![Box::new(Linux::default())])
    }

    /// The path of the next run, which is sent if `bytes` are given.
    fn next(
        chain: &mut Chain,
        paths: &[PathView],
        segment: SegmentView,
        bytes: u64,
    ) -> Option<u64> {
        let input = Input { paths, segment, now: base() };
        let Decision::Send { primary, run_max, .. } = chain.decide(&input) else { return None };
        let (path, flow) = (paths[primary].id, FlowId(1));
        assert!(bytes == 0 || run_max >= bytes.min(SEGMENT));
        let note = Note::Sent { path, flow, offset: 0, bytes, copy: false };
        chain.note(&note, base());
        Some(path.0)
    }

    fn with_window(window: u64) -> SegmentView {
        SegmentView { window: Bytes(window), ..SegmentView::default() }
    }

    #[test]
    fn the_least_linger_wins() {
        let wide = with_window(1 << 20);
        let choice = |paths: &[PathView]| next(&mut new(), paths, wide, 0);
        // 100 KB at 1 MB/s linger 100 ms, 30 KB at 250 KB/s 120 ms.
        let (a, b) = (at(1, 8.0, 100), at(2, 2.0, 30));
        assert_eq!(choice(&[a, b]), Some(1));
        assert_eq!(choice(&[at(1, 8.0, 121), b]), Some(2), "121 ms");
        assert_eq!(choice(&[full(a), b]), Some(2));
        assert_eq!(choice(&[stalled(a), b]), Some(2));
        assert_eq!(choice(&[backup(a), b]), Some(2), "backups last");
        assert_eq!(choice(&[backup(a), full(b)]), None, "the other lives");
        assert_eq!(choice(&[backup(a), stalled(b)]), Some(1));
        // 16,384 bytes in 40 ms are 409.6 KB/s: 30 KB linger 73 ms.
        assert_eq!(choice(&[a, PathView { rate: None, ..b }]), Some(2));
    }

    #[test]
    fn a_burst_stays_on_its_path() {
        let (mut chain, wide) = (new(), with_window(1 << 20));
        let (a, b) = (at(1, 8.0, 0), at(2, 8.0, 10));
        assert_eq!(next(&mut chain, &[a, b], wide, 60_000), Some(1));
        let busy = at(1, 8.0, 60);
        assert_eq!(next(&mut chain, &[busy, b], wide, 5_427), Some(1), "one byte is left");
        assert_eq!(next(&mut chain, &[busy, b], wide, 1_400), Some(1));
        assert_eq!(next(&mut chain, &[busy, b], wide, 1_400), Some(2), "the next burst");
        assert_eq!(next(&mut chain, &[a, full(b)], wide, 1_400), Some(1), "full: a new one");
        let mut chain = new();
        assert_eq!(next(&mut chain, &[a, b], with_window(2_000), 2_000), Some(1));
        assert_eq!(next(&mut chain, &[busy, b], wide, 1_400), Some(2), "2,000 were granted");
    }

    #[test]
    fn rate_is_averaged_over_the_queue() {
        let (mut chain, wide) = (new(), with_window(1 << 20));
        // The first burst: 1 MB/s.
        assert_eq!(next(&mut chain, &[at(1, 8.0, 0)], wide, 1 << 20), Some(1));
        // The second, with 65,428 bytes queued, at 3 MB/s: half of each, 2 MB/s.
        let second = PathView { in_flight: Bytes(BURST), ..at(1, 24.0, 0) };
        assert_eq!(next(&mut chain, &[second], wide, 1 << 20), Some(1));
        // 100 KB linger 50 ms; 49 KB at 1 MB/s 49 ms, 51 KB 51 ms.
        assert_eq!(next(&mut chain, &[at(1, 24.0, 100), at(2, 8.0, 49)], wide, 1 << 20), Some(2));
        assert_eq!(next(&mut chain, &[at(1, 24.0, 100), at(3, 8.0, 51)], wide, 1 << 20), Some(1));
    }

    #[test]
    fn retransmission_avoids_its_path_and_begins_no_burst() {
        let (mut chain, a, b) = (new(), at(1, 8.0, 0), at(2, 8.0, 10));
        let again = SegmentView { carried: PathSet::only(0), ..with_window(1 << 20) };
        assert_eq!(next(&mut chain, &[a, b], again, 1_400), Some(2));
        assert_eq!(next(&mut chain, &[a, full(b)], again, 1_400), None);
        assert_eq!(next(&mut chain, &[a, b], with_window(1 << 20), 1_400), Some(1));
    }
}
