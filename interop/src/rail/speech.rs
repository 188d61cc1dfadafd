//! The quality of calls.

use polyrail_emulator::rail::Call;
use polyrail_emulator::record::{CallRun, Event, Run};
use polyrail_emulator::statistics::{mean, quantile};

use super::paired::{Series, averaged, finite};

/// The calls of one contender over its runs that count.
#[derive(Clone, Debug, Default)]
pub struct CallFigures {
    /// By trip, up and down: lost and late packets, the mean of its runs.
    pub bad: Series,
    /// Shares of all packets.
    pub lost: f64,
    /// Arrived after [`LATE_MS`].
    pub late: f64,
    /// One-way delays of the packets that arrived, in milliseconds.
    pub delay_mean: f64,
    /// 95th percentile.
    pub delay_p95: f64,
    /// Windows of 10 s in one direction in which the bound's rating is at least [`GOOD`].
    pub windows: usize,
    /// Those in which the contender's is, too.
    pub good: usize,
    /// The share of copies in all bytes offered to the carriers.
    pub copies: f64,
}

impl CallFigures {
    /// The figures of the runs of each trip; `bounds` has the least delay of each packet, up and
    /// down, in seconds.
    pub fn of(trips: &[Vec<&Run>], bounds: &[[Vec<f64>; 2]]) -> Self {
        let mut figures = Self::default();
        let (mut packets, mut delays, mut late) = (0, Vec::new(), 0);
        for (runs, bound) in trips.iter().zip(bounds) {
            let mut of_runs = Vec::new();
            for call in runs.iter().filter_map(|run| run.call.as_ref()) {
                of_runs.push(both(call).map(|way| Some(bad(way) as f64)).to_vec());
                for (way, bound) in both(call).into_iter().zip(bound) {
                    packets += way.len();
                    let arrived = way.iter().flatten().map(|delay| f64::from(*delay));
                    delays.extend(arrived);
                    figures.add_windows(way, bound);
                }
            }
            figures.bad.push(averaged(&of_runs));
        }
        late += delays.iter().filter(|delay| **delay > LATE_MS).count();
        let share = |count: usize| count as f64 / packets as f64;
        (figures.lost, figures.late) = (share(packets - delays.len()), share(late));
        (figures.delay_mean, figures.delay_p95) = (mean(&delays), quantile(&delays, 0.95));
        let runs = || trips.iter().flatten();
        let copies: u64 = runs().flat_map(|run| run.copies).sum();
        let carriers = runs().flat_map(|run| &run.carriers);
        let offered: u64 = carriers.flat_map(|carrier| carrier.offered).sum();
        figures.copies = copies as f64 * (Call::PACKET + HEADERS) as f64 / offered as f64;
        figures
    }

    fn add_windows(&mut self, way: &[Option<f32>], bound: &[f64]) {
        for (seen, bound) in way.chunks(WINDOW).zip(bound.chunks(WINDOW)) {
            if seen.len() < WINDOW {
                continue;
            }
            let late = bound.iter().filter(|delay| **delay * 1e3 > LATE_MS).count();
            if rating(late as f64 / WINDOW as f64) >= GOOD {
                self.windows += 1;
                self.good += usize::from(rating(bad(seen) as f64 / WINDOW as f64) >= GOOD);
            }
        }
    }

    /// The share of good windows.
    pub fn good_share(&self) -> Option<f64> {
        finite(self.good as f64 / self.windows as f64)
    }
}

/// The packets that are bad within 2 s of the failures that the first run's LinkDB had forecast, in
/// the first run and in the second. `failures` has the time and the carrier of each.
pub fn near_foreseen(runs: [&Run; 2], failures: &[(f64, &str)]) -> [f64; 2] {
    let foreseen = |(at, carrier): &&(f64, &str)| {
        let of_carrier = |event: &&Event| event.carrier.as_deref() == Some(carrier);
        let mut earlier = runs[0].events.iter().filter(|event| event.at_s <= *at);
        let last = earlier.rfind(|it| of_carrier(it) && it.kind.starts_with("forecast_"));
        last.is_some_and(|event| event.kind == "forecast_begin")
    };
    let times: Vec<f64> = failures.iter().filter(foreseen).map(|failure| failure.0).collect();
    runs.map(|run| {
        let (Some(call), Some(plan)) = (&run.call, run.course.call(run.workload)) else {
            return 0.0;
        };
        let is_near = |packet: usize| {
            let sent = plan.sent_at(packet as u32).as_secs_f64();
            times.iter().any(|at| (*at..*at + NEAR_S).contains(&sent))
        };
        let count = |way: &[Option<f32>]| {
            (0..way.len())
                .filter(|packet| is_near(*packet) && bad(&way[*packet..][..1]) > 0)
                .count()
        };
        both(call).map(count).iter().sum::<usize>() as f64
    })
}

fn both(call: &CallRun) -> [&[Option<f32>]; 2] {
    [&call.up, &call.down]
}

/// Packets that did not arrive, or too late to be played.
pub(crate) fn bad(way: &[Option<f32>]) -> usize {
    way.iter().filter(|delay| delay.is_none_or(|delay| f64::from(delay) > LATE_MS)).count()
}

/// The transmission rating R of ITU-T G.107 for a share of packets that are lost or late, with the
/// default values of all that the network does not change.
///
/// Echo is cancelled (Idte and Idle are 0). G.711 with concealment of losses: Ie = 0 and Bpl = 25.1
/// (ITU-T G.113, appendix I), random losses (BurstR = 1). The receiver plays each packet
/// [`LATE_MS`] after it was sent.
pub fn rating(bad: f64) -> f64 {
    let percent = bad * 100.0;
    let equipment = 95.0 * percent / (percent + 25.1);
    let delay_ms = LATE_MS + Call::PACKET_EVERY.as_secs_f64() * 1e3;
    // Idd of G.107, for delays above 100 ms.
    let x = (delay_ms / 100.0).log2();
    let sixth = |value: f64| (1.0 + value.powi(6)).powf(1.0 / 6.0);
    let delay = 25.0 * (sixth(x) - 3.0 * sixth(x / 3.0) + 2.0);
    DEFAULT - delay - equipment
}

/// Packets that take longer are late: where ITU-T G.114 sees the first users complain, and with it
/// the length of a generous jitter buffer.
pub const LATE_MS: f64 = 150.0;
/// The rating above which users are satisfied (ITU-T G.107, annex B).
pub const GOOD: f64 = 80.0;
/// R of G.107 with its default values, without delay.
const DEFAULT: f64 = 93.2;
/// Packets sent so long after a failure are near it.
const NEAR_S: f64 = 2.0;
/// The packets of a window: 10 s.
pub(crate) const WINDOW: usize = 500;
/// The headers of a copy on a carrier, about: IP, UDP, tunnel and frame.
pub(crate) const HEADERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::summary::tests::{COURSE, run};

    #[test]
    fn rating_falls_with_loss() {
        // By hand: Idd(170 ms) = 0.77; Ie,eff = 95 * P / (P + 25.1).
        for (percent, wanted) in [(0.0, 92.4), (1.0, 88.8), (3.0, 82.3), (3.8, 79.9), (10.0, 65.4)]
        {
            let rating = rating(percent / 100.0);
            assert!((rating - wanted).abs() < 0.15, "{percent} %: {rating}, not {wanted}");
        }
    }

    #[test]
    fn lost_and_late_packets_count_once_and_windows_only_where_the_bound_allows() {
        let mut played = run(COURSE, "quic", 8.0);
        played.copies = [10, 20];
        // Down: the first window has 100 bad packets, the second none. Up: all is well, but the
        // bound's second window is dark.
        let mut down = vec![Some(40.0); 1_000];
        down[..60].fill(None);
        down[100..140].fill(Some(150.1));
        played.call = Some(CallRun { up: vec![Some(40.0); 1_000], down });
        let mut dark = vec![0.03; 1_000];
        dark[600..].fill(2.0);
        let figures = CallFigures::of(&[vec![&played]], &[[dark, vec![0.03; 1_000]]]);
        assert_eq!(figures.bad, vec![vec![Some(0.0), Some(100.0)]]);
        assert_eq!((figures.windows, figures.good), (3, 2));
        assert_eq!((figures.lost, figures.late), (0.03, 0.02));
        let offered: u64 = played.carriers[0].offered.iter().sum();
        assert_eq!(figures.copies, 30.0 * 236.0 / offered as f64);
    }

    #[test]
    fn packets_near_a_failure_count_if_it_was_forecast() {
        let [mut with, mut without] = ["quic+linkdb", "quic"].map(|name| run(COURSE, name, 8.0));
        let event = |at_s: f64, kind: &str| {
            let (kind, carrier) = (kind.to_owned(), Some("a".to_owned()));
            Event { at_s, kind, carrier }
        };
        with.events = vec![event(19.0, "forecast_begin"), event(21.0, "forecast_end")];
        for run in [&mut with, &mut without] {
            run.workload = polyrail_emulator::rail::Workload::CallBulk;
            let good = vec![Some(40.0); 2_000];
            run.call = Some(CallRun { up: good.clone(), down: good });
        }
        // The call begins at 10 s: packet 500 is sent at 20 s, when a forecast carrier fails.
        let [few, many] = [&mut with, &mut without].map(|run| run.call.as_mut().unwrap());
        few.down[550] = None;
        many.up[500..620].fill(None);
        let failures = [(20.0, "a"), (20.0, "b"), (30.0, "a")];
        assert_eq!(near_foreseen([&with, &without], &failures), [1.0, 100.0]);
        assert_eq!(near_foreseen([&without, &with], &failures), [0.0, 0.0], "no forecast");
    }
}
