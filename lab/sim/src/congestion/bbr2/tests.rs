//! What bbr2 does in its startup, at losses, timeouts and pauses, and how fast it sends.

use super::*;
use crate::congestion::{Flight, Phase};

const ONE: u64 = SEGMENT as u64;

/// A path of 40 ms and 20 Mbit/s with a queue without end, and a sender that never lacks data.
struct Path {
    now: Instant,
    bbr: Bbr2,
    delivered: u64,
    sent: u64,
    in_flight: u64,
    /// What pacing lets go.
    credit: f64,
    limited: bool,
    /// And that counts.
    told: bool,
    /// The bytes in flight that data suffices for.
    most: u64,
    /// Bits a second.
    rate: f64,
}

impl Path {
    fn new() -> Self {
        Self {
            now: Instant::now(),
            bbr: Bbr2::new(OF_TUNNELS),
            delivered: 0,
            sent: 0,
            in_flight: 0,
            credit: 0.0,
            limited: false,
            told: false,
            most: u64::MAX,
            rate: 20e6,
        }
    }

    fn send(&mut self) {
        let most = self.most.min(self.bbr.window());
        while self.in_flight + ONE <= most && self.credit >= 0.0 {
            self.bbr.on_sent(self.now, ONE, self.in_flight);
            self.in_flight += ONE;
            self.sent += ONE;
            self.credit -= self.bbr.pacing().map_or(0.0, |_| ONE as f64);
        }
        self.credit = self.credit.min(0.0);
        self.told = self.limited && self.bbr.on_limited(self.in_flight);
    }

    /// Two packets arrive; so many before them were lost.
    fn arrive(&mut self, lost: u64) {
        self.send();
        let (bytes, prior_in_flight) = (2 * ONE, self.in_flight);
        let rtt = RTT.max(Duration::from_secs_f64(prior_in_flight as f64 * 8.0 / self.rate));
        let time = rtt.mul_f64(bytes as f64 / prior_in_flight.max(bytes) as f64);
        self.now += time;
        let pace = self.bbr.pacing().map_or(0.0, |pace| pace.as_bps() as f64 / 8.0);
        self.credit += pace * time.as_secs_f64();
        let first = self.sent - prior_in_flight;
        self.in_flight = prior_in_flight.saturating_sub(bytes + lost * ONE);
        self.delivered += bytes;
        let since = prior_in_flight.min(self.delivered);
        self.bbr.on_ack(&Ack {
            now: self.now,
            bytes,
            delivered: self.delivered,
            prior_delivered: self.delivered - since,
            rtt: Some(rtt),
            rate: None,
            application_limited: self.told,
            in_flight: self.in_flight,
            prior_in_flight,
            lost: lost * ONE,
            sent: self.sent,
            phase: Phase::Open,
            flight: Some(Flight {
                in_flight: prior_in_flight,
                sent: first + (lost + 2) * ONE,
                sent_since: since,
                sending: rtt,
                acked_since: since,
                acking: rtt,
                application_limited: self.told,
            }),
            oldest_flight: None,
        });
    }

    fn run(&mut self, packets: u64) {
        (0..packets / 2).for_each(|_| self.arrive(0));
    }

    /// Until it cruises.
    fn cruise(&mut self) {
        for _ in 0..100_000 {
            self.arrive(0);
            if matches!(&self.bbr.mode, Mode::ProbeBw(cycle) if cycle.is_cruising()) {
                return;
            }
        }
        panic!("it never cruises: {:?}", self.bbr.mode);
    }

    fn in_startup(&self) -> bool {
        matches!(self.bbr.mode, Mode::Startup)
    }
}

const RTT: Duration = Duration::from_millis(40);

#[test]
fn startup_ends_when_the_bandwidth_is_flat() {
    let mut path = Path::new();
    assert!(path.in_startup());
    path.run(2_000);
    assert!(!path.in_startup());
    let bandwidth = path.bbr.model.bandwidth();
    assert!((19_000_000..21_000_000).contains(&bandwidth), "{bandwidth}");
}

#[test]
fn startup_that_filled_the_path_ends_although_data_is_missing() {
    let mut path = Path::new();
    path.limited = true;
    path.run(2_000);
    assert!(!path.in_startup());
}

#[test]
fn startup_that_never_fills_the_path_does_not_end() {
    let mut path = Path::new();
    (path.limited, path.most) = (true, 5 * ONE);
    path.run(2_000);
    assert!(path.in_startup());
}

#[test]
fn pacing_after_the_draining_exceeds_the_rate_by_half_in_each_phase() {
    let mut path = Path::new();
    let (mut drains, mut probes_rtt) = (0, 0);
    for _ in 0..20_000 {
        path.arrive(0);
        let (paced, bandwidth) = (path.bbr.pacing(), path.bbr.model.bandwidth_most());
        let paced = paced.map_or(0, Bitrate::as_bps);
        match path.bbr.mode {
            Mode::Startup => {}
            Mode::Drain => {
                assert!(paced < bandwidth);
                drains += 1;
            }
            Mode::ProbeBw(_) => assert_eq!(paced, times(bandwidth, 1.5)),
            Mode::ProbeRtt(..) => {
                assert_eq!(paced, times(bandwidth, 1.5));
                probes_rtt += 1;
            }
        }
    }
    assert!(drains > 0 && probes_rtt > 0);
}

#[test]
fn pacing_knows_no_lossy_rounds() {
    let mut path = Path::new();
    path.cruise();
    let bandwidth = path.bbr.model.bandwidth_most();
    path.rate = 10e6;
    (0..200).for_each(|number| path.arrive(u64::from(number % 10 == 0)));
    assert!(path.bbr.model.bandwidth() < bandwidth);
    assert_eq!(path.bbr.pacing().unwrap().as_bps(), times(bandwidth, 1.5));
}

#[test]
fn queue_of_a_steady_path_is_bounded() {
    let mut path = Path::new();
    path.run(20_000);
    // 1.25 products and 5 ms at 20 Mbit/s, and the last packet.
    let most = 125_000 + 12_500 + ONE;
    let bounded = (0..20_000).filter(|_| {
        path.arrive(0);
        path.in_flight <= most
    });
    let count = bounded.count();
    assert!(count > 18_000, "{count}");
}

#[test]
fn startup_ends_with_much_loss() {
    let mut path = Path::new();
    // It would grow for long.
    path.rate = 500e6;
    path.run(60);
    assert!(path.in_startup());
    path.rate = 20e6;
    for _ in 0..1_000 {
        path.arrive(1);
        if !path.in_startup() {
            break;
        }
    }
    assert!(!path.in_startup());
}

#[test]
fn a_lossy_round_lowers_bandwidth_and_window_until_the_next_probe() {
    let mut path = Path::new();
    path.cruise();
    let (window, bandwidth) = (path.bbr.window(), path.bbr.model.bandwidth());
    path.arrive(2);
    for _ in 0..200 {
        path.arrive(0);
        if path.bbr.model.bandwidth_low.is_some() {
            break;
        }
    }
    assert!(path.bbr.model.inflight_low < window);
    assert!(path.bbr.window() < window && path.bbr.window() >= window * 6 / 10);
    assert!(path.bbr.model.bandwidth() * 100 >= bandwidth * 69);
    path.run(4_000);
    path.cruise();
    assert_eq!((path.bbr.model.bandwidth_low, path.bbr.model.inflight_low), (None, u64::MAX));
}

#[test]
fn the_window_begins_with_32_short_packets_and_is_never_less_than_ten() {
    assert_eq!(Path::new().bbr.window(), 32 * 1_200);
    let mut path = Path::new();
    path.rate = 1e6;
    let mut least = u64::MAX;
    for number in 0..5_000 {
        path.arrive(u64::from(number % 7 == 0));
        least = least.min(path.bbr.window());
    }
    assert_eq!(least, 10 * ONE);
}

#[test]
fn a_timeout_allows_probes_and_keeps_the_window() {
    let mut path = Path::new();
    path.cruise();
    let before = path.bbr.window();
    path.bbr.on_sent(path.now, ONE, before - ONE);
    for (row, packets) in [(0, 1), (1, 2), (2, 2)] {
        path.bbr.on_timeout(path.now, row == 0);
        path.in_flight = 0;
        assert_eq!(path.bbr.window(), packets * ONE);
        path.credit = 0.0;
        path.send();
    }
    path.now += Duration::from_secs(1);
    path.arrive(0);
    assert!(path.bbr.window() * 10 >= before * 7, "{} of {before}", path.bbr.window());
    assert!(path.bbr.model.bandwidth() > 13_000_000);
}

#[test]
fn window_after_a_timeout_still_admits_segments() {
    let mut path = Path::new();
    path.cruise();
    let window = path.bbr.window();
    path.bbr.on_sent(path.now, ONE, 4 * ONE);
    path.bbr.on_timeout(path.now, true);
    assert_eq!(path.bbr.window(), window - 5 * ONE);
    path.bbr.on_undo();
    assert_eq!(path.bbr.window(), window);
}

#[test]
fn application_limited_rates_teach_only_more() {
    let mut path = Path::new();
    path.cruise();
    path.limited = true;
    path.rate = 2e6;
    path.run(10);
    assert!(path.bbr.model.bandwidth_most() > 19_000_000);
    path.rate = 30e6;
    path.run(200);
    assert!(path.bbr.model.bandwidth_most() > 29_000_000);
}

#[test]
fn a_pause_postpones_the_measurement_of_the_round_trip() {
    let mut path = Path::new();
    path.cruise();
    let idle = Duration::from_secs(60);
    path.now += idle;
    path.in_flight = 0;
    path.bbr.on_restart(path.now, idle);
    for _ in 0..2_000 {
        path.arrive(0);
        assert!(!matches!(path.bbr.mode, Mode::ProbeRtt(..)));
    }
}

#[test]
fn the_first_packets_leave_at_once() {
    let mut bbr = Bbr2::new(OF_TUNNELS);
    for number in 0..10 {
        bbr.on_sent(Instant::now(), ONE, number * ONE);
        assert_eq!(bbr.pacing(), None, "behind packet {number}");
    }
    bbr.on_sent(Instant::now(), ONE, 10 * ONE);
    assert!(bbr.pacing().is_some());
}
