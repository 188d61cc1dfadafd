//! `completion_reinjection`: duplicates the end of a flow over a path that would deliver it
//! earlier.
//!
//! Rule: our own. Once all of a flow is sent, its user waits for the path that drains last. So the
//! runs of the tail, newest first, are duplicated over the path that would deliver them earliest,
//! if that gains at least `gain`. A path of rate `rate` ([`attainable_rate`]) delivers a run behind
//! `ahead` bytes after `ahead / rate - least round trip / 2`, because the data in flight fills the
//! path including its acknowledgements. A run sent now needs at least half a least round trip. A
//! run is overdue after `1.1 srtt + 4 rtt_var`; it is assumed to need its delay so far and another
//! round trip. The estimate of the present path is multiplied by `hedge`, because cellular rates
//! halve and double within a second. The last `small` bytes of a path are always duplicated. Each
//! run is duplicated once. The same rule applies to the oldest runs of a flow whose receive window
//! is full.
//!
//! The budget: all duplicates, of any rule, are at most `budget` of the new data plus `burst`
//! bytes. Of one flow they are at most `flow_least` bytes plus `flow_share` of its data, except for
//! runs that would take several times as long on their path. Overdue runs ignore the budget, but
//! count.

use std::time::{Duration, Instant};

use polyrail_model::Bytes;

use crate::params::{ParamError, Reader};
use crate::rules::path_rate::attainable_rate;
use crate::rules::per_flow::PerFlow;
use crate::{Again, Handler, Note, OutView, PathView};

#[derive(Clone, Debug)]
pub struct CompletionReinjection {
    hedge: f64,
    gain: Duration,
    small: Bytes,
    budget: f64,
    burst: f64,
    flow_share: f64,
    flow_least: f64,
    /// Remaining bytes of duplicates.
    left: f64,
    flows: PerFlow<Spent>,
}

/// The bytes sent of one flow.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    sent: f64,
    again: f64,
}

impl CompletionReinjection {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let times = Duration::ZERO..=Duration::from_secs(60);
        let hedge = params.number("hedge", 4.0, 0.0..=100.0)?;
        let gain = params.time("gain", Duration::from_millis(5), times)?;
        let small = Bytes(params.count("small", 32_768, 0..=1 << 30)?);
        let budget = params.number("budget", 0.13, 0.0..=1.0)?;
        let burst = params.count("burst", 1_048_576, 0..=1 << 30)? as f64;
        let flow_share = params.number("flow_share", 0.1, 0.0..=1.0)?;
        let flow_least = params.count("flow_least", 200_000, 0..=1 << 30)? as f64;
        let (left, flows) = (burst, PerFlow::default());
        Ok(Self { hedge, gain, small, budget, burst, flow_share, flow_least, left, flows })
    }

    /// Whether the budget permits the duplicate.
    fn may_pay(&self, out: &OutView) -> bool {
        let price = out.length.0 as f64;
        let of_flow = self.flows.get(out.flow).copied().unwrap_or_default();
        let most = self.flow_least + self.flow_share * of_flow.sent;
        price <= self.left && of_flow.again + price <= most
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
        if !(out.tail || out.blocked) || out.carried.len() > 1 {
            return Again::No;
        }
        let Some(holder) = out.expected.iter().find_map(|path| paths.get(path)) else {
            return Again::No;
        };
        let age = now.saturating_duration_since(out.sent_at);
        let due = holder.srtt.mul_f64(1.1) + holder.rtt_var * 4;
        let (drained, half) = pace(holder, out.ahead);
        let plain = (drained - half).max(0.0);
        let mut there = plain * self.hedge;
        let overdue = age > due || holder.stalled;
        if overdue {
            there = there.max((age.saturating_sub(due) + holder.srtt).as_secs_f64());
        }
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
        let late = there > here + self.gain.as_secs_f64();
        let little = out.tail && out.ahead <= self.small;
        let hopeless = plain > HOPELESS_FACTOR * here + HOPELESS_MARGIN;
        let pays = hopeless && out.length.0 as f64 <= self.left || self.may_pay(out);
        if (late && overdue) || ((late || little) && pays) {
            return Again::On(place);
        }
        if age <= due { Again::At(out.sent_at + due + Duration::from_millis(1)) } else { Again::No }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        let Note::Sent { flow, bytes, copy, .. } = *note else { return };
        let bytes = bytes as f64;
        let spent = self.flows.of(flow);
        if copy {
            spent.again += bytes;
            self.left = (self.left - bytes).max(-self.burst);
        } else {
            spent.sent += bytes;
            self.left = (self.left + bytes * self.budget).min(self.burst);
        }
    }
}

const HOPELESS_FACTOR: f64 = 3.0;
/// In seconds.
const HOPELESS_MARGIN: f64 = 0.1;

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

    fn again(rule: &str, out: &OutView, paths: &[PathView], after_ms: u64) -> Again {
        chain(rule).again(out, paths, base() + ms(after_ms))
    }

    const PLAIN: &str = "completion_reinjection(hedge=1, small=0)";

    #[test]
    fn table() {
        // 100 KB at 8 Mbit/s: 100 ms, less 20: there after 80 ms.
        let slow = at(1, 40, 8.0, 100);
        // Over the other one: 1 KB more, but not before half a round trip: 60 ms.
        let other = at(2, 120, 8.0, 0);
        assert_eq!(again(PLAIN, &tail(0, 100), &[slow, other], 0), Again::On(1));
        // 60 KB: after 40 ms. It is overdue after 1.1 round trips.
        let due = Again::At(base() + ms(45));
        assert_eq!(again(PLAIN, &tail(0, 60), &[slow, other], 0), due);
        // 84 KB: 64 ms, a gain of 4.
        assert_eq!(again(PLAIN, &tail(0, 84), &[slow, other], 0), due);
        assert_eq!(again(PLAIN, &tail(0, 86), &[slow, other], 0), Again::On(1), "a gain of 6");
        // Overdue by 30 ms: 70 ms more.
        assert_eq!(again(PLAIN, &tail(0, 1), &[slow, other], 74), Again::On(1));
        let twice = "completion_reinjection(hedge=2, small=0)";
        assert_eq!(again(twice, &tail(0, 60), &[slow, other], 0), Again::On(1), "80 ms with doubt");
        let small = "completion_reinjection(hedge=1, small=20000)";
        assert_eq!(again(small, &tail(0, 20), &[slow, other], 0), Again::On(1));
        assert_eq!(again(small, &tail(0, 21), &[slow, other], 0), due);
        // 201 KB on the other one would take 141 ms.
        let busy = at(2, 120, 8.0, 200);
        assert_eq!(again(PLAIN, &tail(0, 100), &[slow, busy], 0), due);
        for dead in [full(other), stalled(other), backup(other)] {
            assert_eq!(again(PLAIN, &tail(0, 100), &[slow, dead], 0), Again::No);
        }
        let collapsed = PathView { window: Bytes(4_000), ..slow };
        // 4 KB in 40 ms: 100 KB/s, so 30 KB take 300 ms.
        assert_eq!(again(PLAIN, &tail(0, 30), &[collapsed, other], 0), Again::On(1));
        assert_eq!(again(PLAIN, &tail(0, 30), &[slow, other], 0), due);
    }

    #[test]
    fn runs_before_the_tail_and_duplicated_runs_stay() {
        let paths = [at(1, 40, 8.0, 100), at(2, 40, 8.0, 0)];
        let out = tail(0, 100);
        let middle = OutView { tail: false, ..out };
        assert_eq!(again(PLAIN, &middle, &paths, 0), Again::No);
        let head = OutView { blocked: true, ..middle };
        assert_eq!(again(PLAIN, &head, &paths, 0), Again::On(1), "all else waits for it");
        let twice = OutView { carried: PathSet::first(2), ..out };
        assert_eq!(again(PLAIN, &twice, &paths, 0), Again::No);
        let lost = OutView { expected: PathSet::EMPTY, ..out };
        assert_eq!(again(PLAIN, &lost, &paths, 0), Again::No, "it goes back to its flow anyway");
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

    #[test]
    fn a_flow_has_its_own_share() {
        let rule = "completion_reinjection(hedge=1, budget=1, flow_share=0.1, flow_least=1000)";
        let mut chain = chain(rule);
        assert!(goes(&mut chain, 0) && !goes(&mut chain, 1));
        note(&mut chain, 20_000, false);
        assert!(goes(&mut chain, 1) && goes(&mut chain, 2) && !goes(&mut chain, 3));
    }

    #[test]
    fn overdue_run_ignores_the_budget() {
        let paths = [at(1, 40, 8.0, 1), at(2, 40, 8.0, 0)];
        let mut chain = chain("completion_reinjection(hedge=1, budget=0, burst=0)");
        assert_eq!(chain.again(&tail(0, 1), &paths, base() + ms(44)), Again::At(base() + ms(45)));
        assert_eq!(chain.again(&tail(0, 1), &paths, base() + ms(74)), Again::On(1));
    }
}
