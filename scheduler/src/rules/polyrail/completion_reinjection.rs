//! `completion_reinjection`: duplicates the end of a flow over a path that would deliver it
//! earlier.
//!
//! Rule: our own. Once all of a flow is sent, its user waits for the path that drains last. So the
//! runs of the tail, newest first, are duplicated over the path that would deliver them earliest,
//! if that gains at least `gain`. A path of rate `rate` ([`attainable_rate`]) delivers a run behind
//! `ahead` bytes after `ahead / rate - least round trip / 2`, because the data in flight fills the
//! path including its acknowledgements. A run sent now needs at least half a least round trip. The
//! same rule applies to the oldest runs of a flow whose receive window is full. Each run is
//! duplicated once.
//!
//! A flow that pauses may be at the end of an answer, and its user waits as well. But most pauses
//! are short, so only the time counts by which the present path's silence since the run was sent
//! exceeds a round trip and the longest delay of an acknowledgement.
//!
//! The present path is expected to deliver the run after `hedge` of that time, and `silence` times
//! the time for which it has delivered nothing. A silent path often stays silent: on 24 simulated
//! trips, 98 % of the duplicates sent after 200 to 400 ms of silence arrived first, and 30 % of
//! those sent after 40 to 80 ms. A `hedge` below 1 saves duplicates that would rarely arrive first,
//! because most originals arrive while their duplicate is under way.
//!
//! The budget: duplicates take at most `budget` of the new data plus `burst` bytes. Those of other
//! rules count, too, but leave no debt: they belong to failures, whose tails need this rule.

use std::time::{Duration, Instant};

use polyrail_model::Bytes;

use crate::params::{ParamError, Reader};
use crate::rules::path_rate::attainable_rate;
use crate::{ACK_DELAY_MAX, Again, Handler, Note, OutView, PathView};

#[derive(Clone, Debug)]
pub struct CompletionReinjection {
    hedge: f64,
    silence: f64,
    /// In seconds.
    gain: f64,
    budget: f64,
    burst: f64,
    /// Remaining bytes of duplicates.
    left: f64,
}

impl CompletionReinjection {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let times = Duration::ZERO..=Duration::from_secs(60);
        let hedge = params.number("hedge", 0.5, 0.0..=100.0)?;
        let silence = params.number("silence", 1.5, 0.0..=100.0)?;
        let gain = params.time("gain", Duration::from_millis(5), times)?.as_secs_f64();
        let budget = params.number("budget", 0.13, 0.0..=1.0)?;
        let burst = params.count("burst", 4_194_304, 0..=1 << 30)? as f64;
        Ok(Self { hedge, silence, gain, budget, burst, left: burst })
    }
}

/// The path's time for these bytes, and half its least round trip.
fn pace(path: &PathView, bytes: Bytes) -> (f64, f64) {
    let bytes_s = attainable_rate(path).as_bps() as f64 / 8.0;
    (bytes.0 as f64 / bytes_s.max(1.0), path.rtt_min.as_secs_f64() / 2.0)
}

impl Handler for CompletionReinjection {
    fn looks_back(&self) -> bool {
        true
    }

    fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        if out.carried.len() > 1 || out.length.0 as f64 > self.left {
            return Again::No;
        }
        let Some(holder) = out.expected.iter().find_map(|path| paths.get(path)) else {
            return Again::No;
        };
        let there = if out.tail || out.blocked {
            let (drained, half) = pace(holder, out.ahead);
            self.hedge * (drained - half).max(0.0) + self.silence * holder.quiet.as_secs_f64()
        } else {
            let quiet = holder.quiet.min(now.saturating_duration_since(out.sent_at));
            let usual = holder.srtt + ACK_DELAY_MAX;
            self.silence * (quiet.as_secs_f64() - usual.as_secs_f64())
        };
        let others = paths.iter().enumerate().filter(|(place, path)| {
            !out.carried.contains(*place) && path.available() && !path.backup
        });
        let best = others
            .map(|(place, path)| {
                let (drained, half) =
                    pace(path, Bytes(path.outstanding.0.saturating_add(out.length.0)));
                ((drained - half).max(half), place)
            })
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((here, place)) = best else { return Again::No };
        let early = here + self.gain - there;
        if early < 0.0 {
            return Again::On(place);
        }
        // Ask again once the present path has been silent for so much longer.
        let left = Duration::try_from_secs_f64(early / self.silence).ok();
        let left = left.filter(|left| *left < SILENCE_MAX);
        left.map_or(Again::No, |left| Again::At(now + left + Duration::from_millis(1)))
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        let Note::Sent { bytes, copy, .. } = *note else { return };
        let bytes = bytes as f64;
        self.left = match copy {
            true => (self.left - bytes).max(0.0),
            false => (self.left + bytes * self.budget).min(self.burst),
        };
    }
}

/// The path stalls long before.
const SILENCE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use polyrail_model::{Bitrate, FlowId, PathId};

    use super::*;
    use crate::samples::{backup, base, full, ms, path, run, stalled};
    use crate::{Chain, ChainSpec, PathSet};

    /// A path with this round-trip time, rate and bytes out.
    fn at(id: u64, rtt_ms: u64, mbps: f64, out_kb: u64) -> PathView {
        PathView {
            rate: Some(Bitrate::from_mbps(mbps)),
            outstanding: Bytes(out_kb * 1_000),
            window: Bytes::ZERO,
            ..path(id, rtt_ms)
        }
    }

    /// A run of the tail on the first path, with so much before it there.
    fn tail(offset: u64, ahead_kb: u64) -> OutView {
        let (length, ahead) = (Bytes(1_000), Bytes(ahead_kb * 1_000));
        OutView { offset, length, ahead, tail: true, ..run(&[0]) }
    }

    fn chain(rule: &str) -> Chain {
        ChainSpec::of(&["min_rtt", rule]).unwrap().build()
    }

    fn again(rule: &str, out: &OutView, paths: &[PathView]) -> Again {
        chain(rule).again(out, paths, base())
    }

    const PLAIN: &str = "completion_reinjection(hedge=1, silence=0)";

    #[test]
    fn table() {
        // 100 KB at 8 Mbit/s: 100 ms, less 20: there after 80 ms.
        let slow = at(1, 40, 8.0, 100);
        // Over the other one: 1 KB more, but not before half a round trip: 60 ms.
        let other = at(2, 120, 8.0, 0);
        assert_eq!(again(PLAIN, &tail(0, 100), &[slow, other]), Again::On(1));
        // 60 KB: after 40 ms.
        assert_eq!(again(PLAIN, &tail(0, 60), &[slow, other]), Again::No);
        // 84 KB: 64 ms, a gain of 4.
        assert_eq!(again(PLAIN, &tail(0, 84), &[slow, other]), Again::No);
        assert_eq!(again(PLAIN, &tail(0, 86), &[slow, other]), Again::On(1), "a gain of 6");
        let twice = "completion_reinjection(hedge=2, silence=0)";
        assert_eq!(again(twice, &tail(0, 60), &[slow, other]), Again::On(1), "80 ms with doubt");
        // 201 KB on the other one would take 141 ms.
        let busy = at(2, 120, 8.0, 200);
        assert_eq!(again(PLAIN, &tail(0, 100), &[slow, busy]), Again::No);
        for dead in [full(other), stalled(other), backup(other)] {
            assert_eq!(again(PLAIN, &tail(0, 100), &[slow, dead]), Again::No);
        }
        let collapsed = PathView { window: Bytes(4_000), ..slow };
        // 4 KB in 40 ms: 100 KB/s, so 30 KB take 300 ms.
        assert_eq!(again(PLAIN, &tail(0, 30), &[collapsed, other]), Again::On(1));
        assert_eq!(again(PLAIN, &tail(0, 30), &[slow, other]), Again::No);
    }

    #[test]
    fn silence_of_the_path_adds_to_its_delay() {
        let rule = "completion_reinjection(hedge=1, silence=2)";
        let (slow, other) = (at(1, 40, 8.0, 100), at(2, 120, 8.0, 0));
        let quiet = |quiet_ms| [PathView { quiet: ms(quiet_ms), ..slow }, other];
        // 60 KB: after 40 ms, and twice 12 of silence, against 60 and a gain of 5.
        let wait = |left_ms: f64| Again::At(base() + Duration::from_secs_f64(left_ms / 1e3));
        assert_eq!(again(rule, &tail(0, 60), &quiet(0)), wait(13.5), "12.5 and 1 ms");
        assert_eq!(again(rule, &tail(0, 60), &quiet(12)), wait(1.5));
        assert_eq!(again(rule, &tail(0, 60), &quiet(13)), Again::On(1));
        // 20 KB should have arrived.
        assert_eq!(again(rule, &tail(0, 20), &quiet(32)), wait(1.5));
        assert_eq!(again(rule, &tail(0, 20), &quiet(33)), Again::On(1));
    }

    #[test]
    fn run_of_a_flow_that_pauses_is_duplicated_if_its_path_is_silent_for_more_than_a_round_trip() {
        let rule = "completion_reinjection(silence=2)";
        let (slow, other) = (at(1, 40, 8.0, 100), at(2, 120, 8.0, 0));
        let later = |out: &OutView, quiet_ms| {
            let paths = [PathView { quiet: ms(quiet_ms), ..slow }, other];
            chain(rule).again(out, &paths, base() + ms(200))
        };
        let pauses = OutView { tail: false, sent_at: base(), ..tail(0, 100) };
        // 60 ms over the other one, and a gain of 5: half of it after the 40 of a round trip and
        // the 50 of an acknowledgement.
        let wait = |ms: f64| Again::At(base() + Duration::from_secs_f64((200.0 + ms) / 1e3));
        assert_eq!(later(&pauses, 100), wait(23.5), "22.5 and 1 ms");
        assert_eq!(later(&pauses, 122), wait(1.5));
        assert_eq!(later(&pauses, 123), Again::On(1));
        let newer = OutView { sent_at: base() + ms(100), ..pauses };
        assert_eq!(later(&newer, 123), wait(23.5), "it was sent 100 ms ago");
    }

    #[test]
    fn runs_before_the_tail_and_duplicated_runs_stay() {
        let paths = [at(1, 40, 8.0, 100), at(2, 40, 8.0, 0)];
        let out = tail(0, 100);
        let middle = OutView { tail: false, ..out };
        assert_eq!(again(PLAIN, &middle, &paths), Again::No);
        let head = OutView { blocked: true, ..middle };
        assert_eq!(again(PLAIN, &head, &paths), Again::On(1), "all else waits for it");
        let twice = OutView { carried: PathSet::first(2), ..out };
        assert_eq!(again(PLAIN, &twice, &paths), Again::No);
        let lost = OutView { expected: PathSet::EMPTY, ..out };
        assert_eq!(again(PLAIN, &lost, &paths), Again::No, "it goes back to its flow anyway");
    }

    /// Whether the run at this place, 100 KB deep, is duplicated; notes that it was sent.
    fn goes(chain: &mut Chain, place: u64) -> bool {
        let paths = [at(1, 40, 8.0, 100), at(2, 40, 8.0, 0)];
        let goes = chain.again(&tail(place * 1_000, 100), &paths, base()) == Again::On(1);
        if goes {
            note(chain, 1_000, true);
        }
        goes
    }

    fn note(chain: &mut Chain, bytes: u64, copy: bool) {
        let (path, flow, offset) = (PathId(1), FlowId(1), 0);
        chain.note(&Note::Sent { path, flow, offset, bytes, copy }, base());
    }

    #[test]
    fn the_budget_is_a_share_and_a_burst() {
        let mut chain = chain("completion_reinjection(hedge=1, budget=0.1, burst=2000)");
        assert!(goes(&mut chain, 0) && goes(&mut chain, 1) && !goes(&mut chain, 2));
        note(&mut chain, 10_000, false);
        assert!(goes(&mut chain, 2) && !goes(&mut chain, 3));
        note(&mut chain, 1_000_000, false);
        note(&mut chain, 1_500, true);
        assert!(!goes(&mut chain, 3), "what others copy counts");
    }
}
