//! The kernel's controls at losses and timeouts.

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

use super::*;

const ONE: u64 = SEGMENT as u64;

/// Acknowledgements of a path of 40 ms and 20 Mbit/s.
struct Path {
    begin: Instant,
    at: Duration,
    delivered: u64,
    in_flight: u64,
    phase: Phase,
}

impl Path {
    fn new() -> Self {
        Self {
            begin: Instant::now(),
            at: Duration::ZERO,
            delivered: 0,
            in_flight: 0,
            phase: Phase::Open,
        }
    }

    /// One for `segments`, when the window was full, after this time.
    fn ack(&mut self, control: &mut dyn Control, after_us: u64, segments: u64) {
        self.at += Duration::from_micros(after_us);
        let prior_in_flight = control.window();
        let prior_delivered = self.delivered.saturating_sub(prior_in_flight);
        self.delivered += segments * ONE;
        self.in_flight = prior_in_flight.saturating_sub(segments * ONE);
        control.on_ack(&Ack {
            now: self.begin + self.at,
            bytes: segments * ONE,
            delivered: self.delivered,
            prior_delivered,
            rtt: Some(Duration::from_millis(40)),
            rate: Some(Bitrate::from_bps(20_000_000)),
            application_limited: false,
            in_flight: self.in_flight,
            prior_in_flight,
            lost: 0,
            sent: self.delivered + prior_in_flight,
            phase: self.phase,
            flight: None,
            oldest_flight: None,
        });
    }

    fn loss(&self) -> Loss {
        Loss { delivered: self.delivered, sent: self.delivered + self.in_flight }
    }
}

#[test]
fn cubic_leaves_slow_start_at_a_long_train() {
    for (gap_us, leaves) in [(1_200, true), (2_400, false)] {
        let (mut cubic, mut path) = (Cubic::default(), Path::new());
        for _ in 0..60 {
            path.ack(&mut cubic, gap_us, 2);
        }
        assert_eq!(cubic.window() >= cubic.threshold_bytes(), leaves, "{gap_us} us");
    }
}

#[test]
fn cubic_keeps_the_threshold_of_the_first_timeout_of_a_row() {
    let (mut cubic, mut path) = (Cubic::default(), Path::new());
    for _ in 0..20 {
        path.ack(&mut cubic, 2_400, 2);
    }
    let before = cubic.window();
    for number in 0..5 {
        cubic.on_timeout(path.begin + path.at, number == 0);
        assert_eq!(cubic.window(), ONE);
    }
    for _ in 0..200 {
        path.ack(&mut cubic, 40_000, 1);
    }
    assert!(cubic.window() >= before * 7 / 10, "slow start ended early: {}", cubic.window());
}

#[test]
fn spurious_timeout_is_undone() {
    let (mut cubic, mut path) = (Cubic::default(), Path::new());
    for _ in 0..20 {
        path.ack(&mut cubic, 2_400, 2);
    }
    let before = cubic.window();
    cubic.on_timeout(path.begin, true);
    cubic.on_timeout(path.begin, false);
    cubic.on_undo();
    assert_eq!(cubic.window(), before);
    assert!(cubic.window() < cubic.threshold_bytes(), "slow start goes on");
}

#[test]
fn cubic_reduces_in_proportion() {
    let (mut cubic, mut path) = (Cubic::default(), Path::new());
    for _ in 0..20 {
        path.ack(&mut cubic, 2_400, 2);
    }
    let before = cubic.window();
    cubic.on_loss(&path.loss());
    path.phase = Phase::Recovery;
    path.ack(&mut cubic, 1_000, 1);
    assert!(cubic.window() > before * 8 / 10, "not at once: {}", cubic.window());
    path.phase = Phase::Open;
    path.ack(&mut cubic, 1_000, 1);
    let share = cubic.window() as f64 / before as f64;
    assert!((0.68..0.75).contains(&share), "{share}");
}

#[test]
fn bbr_restores_its_window_after_a_timeout() {
    let (mut bbr, mut path) = (Bbr::default(), Path::new());
    for _ in 0..400 {
        path.ack(&mut bbr, 1_200, 2);
    }
    let before = bbr.window();
    bbr.on_timeout(path.begin + path.at, true);
    assert_eq!(bbr.window(), ONE);
    path.phase = Phase::Loss;
    path.ack(&mut bbr, 40_000, 1);
    assert!(bbr.window() < before / 4, "still in the dark: {}", bbr.window());
    path.phase = Phase::Open;
    path.ack(&mut bbr, 40_000, 1);
    assert!(bbr.window() >= before * 6 / 10, "{} of {before}", bbr.window());
}

#[test]
fn bbr_follows_what_is_acknowledged_in_the_first_round_of_a_recovery() {
    let (mut bbr, mut path) = (Bbr::default(), Path::new());
    for _ in 0..400 {
        path.ack(&mut bbr, 1_200, 2);
    }
    bbr.on_loss(&path.loss());
    path.phase = Phase::Recovery;
    let before = bbr.window();
    path.ack(&mut bbr, 1_200, 2);
    assert!(bbr.window() <= before, "{} of {before}", bbr.window());
}

#[test]
fn even_rate_with_a_third_lost_is_a_policer() {
    let mut policer = policer::Policer::default();
    let mut path = Path::new();
    let mut look = |policer: &mut policer::Policer, round: u64| {
        path.at += Duration::from_millis(40);
        path.delivered += 20 * ONE;
        let ack = Ack {
            now: path.begin + path.at,
            bytes: 20 * ONE,
            delivered: path.delivered,
            prior_delivered: path.delivered,
            rtt: None,
            rate: None,
            application_limited: false,
            in_flight: 0,
            prior_in_flight: 0,
            lost: 10 * ONE,
            sent: 0,
            phase: Phase::Recovery,
            flight: None,
            oldest_flight: None,
        };
        policer.look(&ack, true, round, true)
    };
    for round in 0..12 {
        look(&mut policer, round);
    }
    let rate = policer.bandwidth().unwrap();
    assert!(rate.abs_diff(20 * ONE * 8 * 25) < 1_000, "{rate}");
    let over = (12..80).find(|round| look(&mut policer, *round));
    assert!(over.is_some() && policer.bandwidth().is_none(), "it does not hold for ever");
}
