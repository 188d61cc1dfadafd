//! `tail_reinjection`: duplicates the end of a flow when it is late.
//!
//! Rule: our own. No later data would show the loss or hide the delay of the last runs of a flow,
//! and the user waits for them. A run of the tail is duplicated over the best other path after `1.1
//! srtt + 4 rtt_var` of the path that carries it: a retransmission timer (RFC 6298, section 2)
//! without the minimum of a second. If several paths carry it, the first deadline counts. Each run
//! is duplicated once.
//!
//! The budget within a second is a tenth of the data sent in that second, or 16 KB if that is more.
//! The second is counted in tenths.

use std::time::{Duration, Instant};

use polyrail_model::FlowId;

use crate::params::{ParamError, Reader};
use crate::rules::rivals::deadline_reinjection::other;
use crate::{Again, Handler, Note, OutView, PathView};

#[derive(Clone, Debug)]
pub struct TailReinjection {
    budget: f64,
    factor: f64,
    sent: LastSecond,
    spent: LastSecond,
    /// The last run that went again: it is paid for once, however often it is asked for.
    paid: Option<(FlowId, u64)>,
}

/// Bytes of the last second, by tenths.
#[derive(Clone, Copy, Debug, Default)]
struct LastSecond {
    tenths: [u64; TENTHS],
    /// The beginning of the present tenth, and its place.
    present: Option<(Instant, usize)>,
}

impl TailReinjection {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        Ok(Self {
            budget: params.number("budget", 0.1, 0.0..=1.0)?,
            factor: params.number("factor", 1.1, 0.0..=100.0)?,
            sent: LastSecond::default(),
            spent: LastSecond::default(),
            paid: None,
        })
    }

    fn pays(&mut self, out: &OutView, now: Instant) -> bool {
        if self.paid == Some((out.flow, out.offset)) {
            return true;
        }
        let allowed = ((self.sent.total(now) as f64 * self.budget) as u64).max(LEAST_BUDGET);
        let paid = self.spent.total(now).saturating_add(out.length.0) <= allowed;
        if paid {
            self.spent.add(out.length.0, now);
            self.paid = Some((out.flow, out.offset));
        }
        paid
    }
}

impl LastSecond {
    fn add(&mut self, bytes: u64, now: Instant) {
        let place = self.advance(now);
        self.tenths[place] = self.tenths[place].saturating_add(bytes);
    }

    fn total(&mut self, now: Instant) -> u64 {
        self.advance(now);
        self.tenths.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn advance(&mut self, now: Instant) -> usize {
        let Some((since, place)) = self.present else {
            self.present = Some((now, 0));
            return 0;
        };
        let past = now.saturating_duration_since(since).as_millis() / TENTH.as_millis();
        let past = u32::try_from(past).unwrap_or(u32::MAX);
        let mut place = place;
        for _ in 0..past.min(TENTHS as u32) {
            place = (place + 1) % TENTHS;
            self.tenths[place] = 0;
        }
        self.present = Some((since + TENTH.saturating_mul(past), place));
        place
    }
}

impl Handler for TailReinjection {
    fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        if !out.tail || out.carried.len() > 1 {
            return Again::No;
        }
        let holders = out.expected.iter().filter_map(|path| paths.get(path));
        let wait = holders.map(|path| path.srtt.mul_f64(self.factor) + path.rtt_var * 4).min();
        let Some(wait) = wait else { return Again::No };
        let due = out.sent_at + wait;
        if now < due {
            return Again::At(due);
        }
        let Some(path) = other(out, paths, |_| true) else { return Again::No };
        if self.pays(out, now) { Again::On(path) } else { Again::At(now + TENTH) }
    }

    fn note(&mut self, note: &Note, now: Instant) {
        if let Note::Sent { bytes, .. } = *note {
            self.sent.add(bytes, now);
        }
    }
}

/// What may always go again within a second.
const LEAST_BUDGET: u64 = 16 * 1_024;

const TENTHS: usize = 10;
const TENTH: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use polyrail_model::{Bytes, PathId};

    use super::*;
    use crate::samples::{backup, base, full, ms, path, run, stalled};
    use crate::{Chain, ChainSpec, PathSet};

    fn tail(offset: u64, bytes: u64, path: usize) -> OutView {
        OutView { offset, length: Bytes(bytes), tail: true, ..run(&[path]) }
    }

    fn chain(rule: &str) -> Chain {
        ChainSpec::of(&["min_rtt", rule]).unwrap().build()
    }

    #[test]
    fn table() {
        let again = |out: &OutView, paths: &[PathView], after_ms| {
            chain("tail_reinjection").again(out, paths, base() + ms(after_ms))
        };
        let a = PathView { rtt_var: ms(10), ..path(1, 100) };
        let (b, c) = (path(2, 200), path(3, 150));
        let out = tail(0, 1_400, 0);
        // 110 + 40 ms.
        assert_eq!(again(&out, &[a, b, c], 149), Again::At(base() + ms(150)));
        assert_eq!(again(&out, &[a, b, c], 150), Again::On(2), "the best other path");
        assert_eq!(again(&tail(0, 1_400, 1), &[a, b, c], 219), Again::At(base() + ms(220)));
        assert_eq!(again(&tail(0, 1_400, 1), &[a, b, c], 220), Again::On(0));
        assert_eq!(again(&OutView { tail: false, ..out }, &[a, b], 500), Again::No);
        let twice = OutView { carried: PathSet::first(2), ..out };
        assert_eq!(again(&twice, &[a, b, c], 500), Again::No, "once");
        let lost = OutView { expected: PathSet::EMPTY, ..out };
        assert_eq!(again(&lost, &[a, b], 500), Again::No, "it goes back to its flow anyway");
        for other in [full(b), stalled(b), backup(b)] {
            assert_eq!(again(&out, &[a, other], 500), Again::No);
        }
    }

    #[test]
    fn the_budget_is_16_kb_or_a_tenth() {
        let paths = [path(1, 100), path(2, 200)];
        let runs = |rule: &str, sent: u64| {
            let mut chain = chain(rule);
            let at = base() + ms(500);
            let note = |bytes| Note::Sent {
                path: PathId(1),
                flow: FlowId(1),
                offset: 0,
                bytes,
                copy: false,
            };
            chain.note(&note(sent), at);
            let again = |chain: &mut Chain, place, at| {
                chain.again(&tail(place * 1_024, 1_024, 0), &paths, at) == Again::On(1)
            };
            let now = (0..99).take_while(|&place| again(&mut chain, place, at)).count() as u64;
            // The last one that was paid for is not paid for twice.
            assert!(now == 0 || again(&mut chain, now - 1, at));
            let soon = chain.again(&tail(999_999, 1_024, 0), &paths, at);
            assert!(now == 99 || soon == Again::At(at + TENTH));
            let later = at + Duration::from_secs(1);
            assert!(again(&mut chain, 100, later), "a second later");
            now
        };
        assert_eq!(runs("tail_reinjection", 0), 16);
        assert_eq!(runs("tail_reinjection", 100 * 1_024), 16);
        assert_eq!(runs("tail_reinjection", 300 * 1_024), 30);
        assert_eq!(runs("tail_reinjection(budget=0.2)", 300 * 1_024), 60);
    }

    #[test]
    fn a_second_is_ten_tenths() {
        let mut second = LastSecond::default();
        let at = |millis| base() + ms(millis);
        second.add(1, at(0));
        second.add(10, at(950));
        assert_eq!(second.total(at(999)), 11);
        assert_eq!(second.total(at(1_000)), 10, "the first tenth is over");
        second.add(100, at(1_100));
        assert_eq!(second.total(at(1_899)), 110);
        assert_eq!(second.total(at(1_900)), 100);
        assert_eq!(second.total(at(99_999)), 0);
    }
}
