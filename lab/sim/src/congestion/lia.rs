//! MPTCP's linked increases (LIA, RFC 6356), and without other subflows TCP NewReno (RFC 5681).
//!
//! The subflows of one end share a [`Coupling`]. In congestion avoidance a subflow grows by the
//! lesser of its part of the coupled increase and NewReno's increase. Slow start and the reaction
//! to loss are NewReno's: half of the window, at once. A window that is not filled does not grow.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Instant;

use polyrail_model::Bitrate;

use super::{Ack, Control, Loss, Phase, SEGMENT, WINDOW_FIRST};

/// The subflows that are coupled. One that ends leaves it; live ones are few, one a carrier.
#[derive(Clone, Debug, Default)]
pub struct Coupling(Rc<RefCell<Vec<Weak<Cell<Subflow>>>>>);

/// The state of one subflow that the others need.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Subflow {
    /// In segments.
    window: f64,
    /// Smoothed; zero before the first measurement.
    rtt_s: f64,
}

impl Coupling {
    fn join(&self, subflow: &Rc<Cell<Subflow>>) {
        let mut all = self.0.borrow_mut();
        all.retain(|one| one.strong_count() > 0);
        all.push(Rc::downgrade(subflow));
    }

    /// The growth per acknowledged segment, in segments: alpha over the sum of all windows.
    fn growth(&self) -> f64 {
        let live = self.0.borrow().iter().filter_map(Weak::upgrade).map(|one| one.get()).collect();
        let live: Vec<Subflow> = live;
        alpha(&live) / live.iter().map(|one| one.window).sum::<f64>()
    }
}

/// RFC 6356 4.1. Subflows without a round-trip time do not count.
fn alpha(subflows: &[Subflow]) -> f64 {
    let total: f64 = subflows.iter().map(|one| one.window).sum();
    let timed = || subflows.iter().filter(|one| one.rtt_s > 0.0);
    let best = timed().map(|one| one.window / one.rtt_s.powi(2)).fold(0.0, f64::max);
    let rate: f64 = timed().map(|one| one.window / one.rtt_s).sum();
    total * best / rate.powi(2)
}

/// The control of one subflow.
#[derive(Debug)]
pub struct Lia {
    /// Its window and round-trip time, for the others too.
    subflow: Rc<Cell<Subflow>>,
    coupling: Coupling,
    /// In segments.
    threshold: f64,
    /// Window and threshold before a timeout, to undo it.
    undo: Option<[f64; 2]>,
}

impl Lia {
    pub(super) fn new(coupling: &Coupling) -> Self {
        let window = WINDOW_FIRST as f64 / SEGMENT as f64;
        let subflow = Rc::new(Cell::new(Subflow { window, rtt_s: 0.0 }));
        coupling.join(&subflow);
        Self { subflow, coupling: coupling.clone(), threshold: f64::MAX, undo: None }
    }

    fn set(&self, window: f64) {
        self.subflow.set(Subflow { window, ..self.subflow.get() });
    }

    fn learn_rtt(&self, ack: &Ack) {
        let Some(rtt) = ack.rtt else { return };
        let Subflow { window, rtt_s } = self.subflow.get();
        let rtt = rtt.as_secs_f64();
        let rtt_s = if rtt_s > 0.0 { rtt_s * 0.875 + rtt * 0.125 } else { rtt };
        self.subflow.set(Subflow { window, rtt_s });
    }

    /// RFC 5681 3.1, equation 4, with the window in place of the bytes in flight, as Linux.
    fn halve(&mut self) {
        self.threshold = (self.subflow.get().window / 2.0).max(WINDOW_MIN);
    }
}

impl Control for Lia {
    fn on_ack(&mut self, ack: &Ack) {
        self.learn_rtt(ack);
        let Subflow { window, rtt_s } = self.subflow.get();
        let slow_start = window < self.threshold;
        if ack.phase == Phase::Recovery || !ack.fills(window, slow_start) {
            return;
        }
        let acked = ack.bytes as f64 / SEGMENT as f64;
        self.set(match slow_start {
            true => (window + acked).min(self.threshold.max(WINDOW_MIN)),
            // Alone, alpha is 1 and both terms are equal.
            false if rtt_s > 0.0 => window + acked * self.coupling.growth().min(1.0 / window),
            false => window + acked / window,
        });
    }

    fn on_loss(&mut self, _loss: &Loss) {
        self.halve();
        self.set(self.threshold);
    }

    fn on_timeout(&mut self, _now: Instant, first: bool) {
        if first {
            self.undo = Some([self.subflow.get().window, self.threshold]);
            self.halve();
        }
        self.set(1.0);
    }

    fn on_undo(&mut self) {
        if let Some([window, threshold]) = self.undo.take() {
            self.set(self.subflow.get().window.max(window));
            self.threshold = self.threshold.max(threshold);
        }
    }

    fn window(&self) -> u64 {
        (self.subflow.get().window * SEGMENT as f64) as u64
    }

    fn pacing(&self) -> Option<Bitrate> {
        None
    }
}

/// The least threshold, in segments.
const WINDOW_MIN: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_is_that_of_the_rfc() {
        // Windows and round-trip times, and alpha.
        for (subflows, expected) in [
            (&[(20.0, 0.1)][..], 1.0),
            // Equal subflows take half of an increase each, of half of all segments.
            (&[(20.0, 0.1), (20.0, 0.1)], 0.5),
            (&[(20.0, 0.1), (20.0, 0.1), (20.0, 0.1)], 1.0 / 3.0),
            // The first has the greater window over the square of its round-trip time.
            (&[(10.0, 0.1), (20.0, 0.4)], 30.0 * 1_000.0 / 150.0_f64.powi(2)),
            // A subflow after a timeout hardly counts.
            (&[(40.0, 0.1), (1.0, 0.1)], 41.0 * 4_000.0 / 410.0_f64.powi(2)),
            // One without a round-trip time counts in the sum of windows only.
            (&[(20.0, 0.1), (10.0, 0.0)], 1.5),
        ] {
            let subflow = |(window, rtt_s): &(f64, f64)| Subflow { window: *window, rtt_s: *rtt_s };
            let list: Vec<Subflow> = subflows.iter().map(subflow).collect();
            assert!((alpha(&list) - expected).abs() < 1e-12, "{subflows:?}: {}", alpha(&list));
        }
    }

    #[test]
    fn ended_subflow_leaves_the_coupling() {
        let coupling = Coupling::default();
        let pair = [Lia::new(&coupling), Lia::new(&coupling)];
        let known = Subflow { window: 20.0, rtt_s: 0.1 };
        pair.iter().for_each(|one| one.subflow.set(known));
        assert!((coupling.growth() - 0.5 / 40.0).abs() < 1e-12);
        let [first, second] = pair;
        drop(second);
        assert!((coupling.growth() - 1.0 / 20.0).abs() < 1e-12);
        let _third = Lia::new(&coupling);
        assert_eq!((coupling.0.borrow().len(), first.window()), (2, 20 * SEGMENT as u64));
    }
}
