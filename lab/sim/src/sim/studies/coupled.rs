//! MPTCP with coupled congestion control next to uncoupled ones and to Polyrail, as Li et al.
//! measure it ("An In-depth Analysis of Subflow Degradation for Multi-path TCP on High Speed
//! Rails", section IV.A): downloads of 120 s over two carriers, and over each alone.
//!
//! The conjunction efficiency U_c is the goodput over the best single path's, the total utilisation
//! U_t that over the sum of all single paths' (equations 1 and 2). Single paths have the control of
//! the system that they are compared with.

use anyhow::{Context, Result};
use polyrail_emulator::rail::Trip;
use polyrail_emulator::results::{Goal, Report};

use super::Options;
use super::picture::{Curve, Panel, picture};
use crate::congestion::Algorithm;
use crate::sim::metrics::{interval, mean, quantile};
use crate::sim::runs::{caught, parallel};
use crate::sim::table::Table;
use crate::sim::{Bulk, Carriers, Contestant, Engine, START, Tunnels, bulk};

/// A system of the comparison.
struct System {
    name: &'static str,
    chain: &'static str,
    engine: Engine,
    tunnels: Tunnels,
}

const fn mptcp(name: &'static str, congestion: Algorithm) -> System {
    let tunnels = Tunnels { stream: true, congestion };
    System { name, chain: "mptcp", engine: Engine::Paper, tunnels }
}

/// MPTCP with RFC 6356 comes first, because the others are compared with it; Polyrail comes last.
const SYSTEMS: [System; 5] = [
    mptcp("MPTCP, LIA (coupled)", Algorithm::Lia),
    mptcp("MPTCP, NewReno", Algorithm::NewReno),
    mptcp("MPTCP, cubic", Algorithm::Cubic),
    mptcp("MPTCP, bbr", Algorithm::Bbr),
    System {
        name: "Polyrail, rail",
        chain: "polyrail",
        engine: Engine::Full,
        tunnels: Tunnels { stream: false, congestion: Algorithm::Rail },
    },
];

/// One trip of one system: all carriers, then each alone.
struct Instance {
    both: Bulk,
    singles: Vec<Bulk>,
}

/// Its class by section IV.A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Positive,
    SemiPositive,
    Negative,
}

pub(super) fn study(options: &Options, report: &mut Report) -> Result<()> {
    let seconds = options.seconds.unwrap_or(SECONDS) + START.as_secs();
    let speeds = if options.standing { &SPEEDS[..] } else { &SPEEDS[..1] };
    for &speed_kmh in options.speeds(speeds) {
        let trips = options.trips(speed_kmh, seconds, TRIPS)?;
        let rows = instances(&SYSTEMS, &trips, options.threads)?;
        let title = format!("Subflows at {speed_kmh} km/h, {} trips", trips.len());
        println!("{}", table(title, &rows).markdown());
        if speed_kmh == SPEEDS[0] {
            if options.judges() {
                judge(&rows, report);
            }
            options.draw("coupled.svg", || timeline(&trips, &rows))?;
        }
    }
    Ok(())
}

/// The instances of each system, by trip.
fn instances(systems: &[System], trips: &[Trip], threads: usize) -> Result<Vec<Vec<Instance>>> {
    let plays = [Carriers::All, Carriers::Only(0), Carriers::Only(1)];
    let count = trips.len() * plays.len();
    let bulks = parallel(systems.len() * count, threads, |task| {
        let (system, trip) = (&systems[task / count], &trips[task % count / plays.len()]);
        caught(|| {
            let mut contestant = system.contestant()?;
            contestant.carriers = plays[task % plays.len()];
            anyhow::Ok(bulk(trip, &contestant))
        })
    });
    let mut rows: Vec<Vec<Instance>> = systems.iter().map(|_| Vec::new()).collect();
    let mut bulks = bulks.into_iter().map(|bulk| bulk.map_err(anyhow::Error::msg)?);
    for row in &mut rows {
        for _ in trips {
            let mut next = || bulks.next().context("a run is missing")?;
            row.push(Instance { both: next()?, singles: vec![next()?, next()?] });
        }
    }
    Ok(rows)
}

impl System {
    fn contestant(&self) -> Result<Contestant> {
        // The uncoupled flow of RFC 6356 is NewReno, so LIA alone needs no other control.
        Ok(Contestant { tunnels: self.tunnels, ..Contestant::parse(self.chain, self.engine)? })
    }
}

impl Instance {
    fn u_c(&self) -> f64 {
        self.both.goodput() / self.singles.iter().map(Bulk::goodput).fold(0.0, f64::max)
    }

    fn u_t(&self) -> f64 {
        self.both.goodput() / self.singles.iter().map(Bulk::goodput).sum::<f64>()
    }

    fn class(&self) -> Class {
        match (self.u_c(), self.u_t()) {
            (u_c, _) if u_c < 1.0 => Class::Negative,
            (_, u_t) if u_t > 0.9 => Class::Positive,
            _ => Class::SemiPositive,
        }
    }

    /// The time points of subflow degradations, in seconds.
    fn degraded(&self) -> Vec<usize> {
        let each = self.singles.iter().enumerate();
        each.filter_map(|(carrier, single)| {
            let own: Vec<u64> = self.both.crossed_by.iter().map(|by| by[carrier]).collect();
            let alone: Vec<u64> = single.crossed_by.iter().map(|by| by[0]).collect();
            degraded_at(&own, &alone)
        })
        .collect()
    }
}

/// The second from which on a subflow carries less than half of what a single path carries, until
/// the end and counted from each later second, for at least 20 s. Both lists are the bytes by each
/// second. The paper speaks of a sudden fall with sustained inefficiency and shows it up to the end
/// of instances; share and duration are *reconstructed*.
fn degraded_at(own: &[u64], alone: &[u64]) -> Option<usize> {
    let end = own.len().min(alone.len()).checked_sub(1)?;
    let last = end.checked_sub(DEGRADED_S)?;
    let low = |from: usize, to: usize| (own[to] - own[from]) * 2 < alone[to] - alone[from];
    let first = (0..=last).rev().take_while(|at| low(*at, end)).last()?;
    // The fall itself may come later than the first second from which the rest is low.
    (first..=last).find(|at| low(*at, at + 1))
}

fn table(title: String, rows: &[Vec<Instance>]) -> Table {
    let mut table = Table::new(title, SYSTEMS.iter().map(|system| system.name.into()).collect());
    let mut column = |heading: &str, figure: &dyn Fn(&[Instance]) -> f64| {
        table.column(heading, rows.iter().map(|row| figure(row)));
    };
    let median = |values: Vec<f64>| quantile(&values, 0.5);
    column("Mbit/s", &|row| mean(&each(row, |it| it.both.goodput())));
    for (number, name) in ["A alone", "B alone"].into_iter().enumerate() {
        column(name, &|row| mean(&each(row, |it| it.singles[number].goodput())));
    }
    column("U_c, median", &|row| median(each(row, Instance::u_c)));
    for (end, heading) in ["from (95 %)", "to"].into_iter().enumerate() {
        column(heading, &|row| {
            let all = each(row, Instance::u_c);
            interval(all.len(), |drawn| median(drawn.iter().map(|trip| all[*trip]).collect()))[end]
        });
    }
    column("U_t, median", &|row| median(each(row, Instance::u_t)));
    for (class, heading) in [
        (Class::Positive, "positive"),
        (Class::SemiPositive, "semi-positive"),
        (Class::Negative, "negative"),
    ] {
        column(heading, &|row| share(row, |it| it.class() == class));
        let is_bad = |it: &Instance| it.class() == class && !it.degraded().is_empty();
        let of_class = move |row: &[Instance]| share(row, |it| it.class() == class);
        column("of these degraded", &|row| share(row, is_bad) / of_class(row));
    }
    column("degraded", &degraded);
    column("time point, median s", &|row| {
        let first = |it: &Instance| it.degraded().into_iter().min();
        median(row.iter().filter_map(first).map(|at| at as f64).collect())
    });
    table
}

fn each(row: &[Instance], figure: impl Fn(&Instance) -> f64) -> Vec<f64> {
    row.iter().map(figure).collect()
}

fn share(row: &[Instance], is: impl Fn(&Instance) -> bool) -> f64 {
    row.iter().filter(|instance| is(instance)).count() as f64 / row.len() as f64
}

/// The share of instances in which a subflow degrades.
fn degraded(row: &[Instance]) -> f64 {
    share(row, |it| !it.degraded().is_empty())
}

fn judge(rows: &[Vec<Instance>], report: &mut Report) {
    let (Some(lia), Some(rail)) = (rows.first(), rows.last()) else { return };
    let points = |row: &[Instance]| -> Vec<f64> {
        row.iter().flat_map(Instance::degraded).map(|at| at as f64).collect()
    };
    let goal = Goal::AtLeast(PUBLISHED_DEGRADED);
    report.result("coupled_lia_degraded", degraded(lia), "share", goal, &points(lia));
    let goal = Goal::AtMost(OWN_DEGRADED);
    report.result("coupled_rail_degraded", degraded(rail), "share", goal, &points(rail));
    let all = each(rail, Instance::u_c);
    let goal = Goal::AtLeast(1.0);
    report.result("coupled_rail_uc", quantile(&all, 0.5), "ratio", goal, &all);
    let pairs = lia.iter().zip(rail);
    let over: Vec<f64> =
        pairs.map(|(lia, rail)| rail.both.goodput() / lia.both.goodput()).collect();
    report.result("coupled_rail_over_lia", quantile(&over, 0.5), "x", goal, &over);
}

/// The subflows of the trip on which LIA's degrade first.
fn timeline(trips: &[Trip], rows: &[Vec<Instance>]) -> Result<String> {
    let first = |trip: &usize| rows[0][*trip].degraded().into_iter().min().unwrap_or(usize::MAX);
    let trip = (0..trips.len()).min_by_key(first).context("no trip")?;
    let [lia, .., rail] = rows else { return Ok(String::new()) };
    let (lia, rail) = (&lia[trip], &rail[trip]);
    let curve = |class, name: &str, bulk: &Bulk, carrier: usize| Curve {
        class,
        name: name.to_owned(),
        points: rates(&bulk.crossed_by, carrier),
    };
    let panel = |carrier: usize, label| Panel {
        label,
        top: 20.0,
        curves: vec![
            curve("c", "single path, NewReno", &lia.singles[carrier], 0),
            curve("b", "subflow, LIA", &lia.both, carrier),
            curve("a", "tunnel, rail", &rail.both, carrier),
        ],
    };
    let title = format!("Two subflows at 300 km/h, seed {}", trips[trip].seed);
    let seconds = lia.both.crossed_by.len() as f64 - 1.0;
    picture(&title, seconds, &[panel(0, "carrier A, Mbit/s"), panel(1, "carrier B, Mbit/s")])
}

/// The rates of a carrier in Mbit/s, over three seconds each.
fn rates(crossed_by: &[Vec<u64>], carrier: usize) -> Vec<(f64, f64)> {
    let steps: Vec<u64> = crossed_by.iter().step_by(3).map(|by| by[carrier]).collect();
    let rate = |(step, pair): (usize, &[u64])| {
        (step as f64 * 3.0 + 1.5, (pair[1] - pair[0]) as f64 * 8e-6 / 3.0)
    };
    steps.windows(2).enumerate().map(rate).collect()
}

/// The speed next to the paper's 310 km/h, and standing.
const SPEEDS: [u32; 2] = [300, 0];
/// The length of an instance (section IV).
const SECONDS: u64 = 120;
const TRIPS: u64 = 12;
const DEGRADED_S: usize = 20;
/// The shares of positive, semi-positive and negative instances times those of them that degrade:
/// 0.21 x 0.397 + 0.29 x 0.625 + 0.5 x 1 (section IV.A, carriers M and U).
const PUBLISHED_DEGRADED: f64 = 0.765;
/// Our goal.
const OWN_DEGRADED: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::bound::tests::steady;

    #[test]
    fn degradation_lasts_until_the_end() {
        // Bytes in each of 60 s: before and after a second.
        for (before, after, at, expected) in [
            (10, 10, 0, None),
            (10, 4, 30, Some(30)),
            (10, 0, 45, None),
            (3, 3, 0, Some(0)),
            (0, 10, 10, None),
        ] {
            let by = |each: &dyn Fn(u64) -> u64| -> Vec<u64> {
                (0..=60).map(|second| (0..second).map(each).sum()).collect()
            };
            let own = by(&|second| if second < at { before } else { after });
            assert_eq!(degraded_at(&own, &by(&|_| 10)), expected, "{before} {after} {at}");
        }
    }

    #[test]
    fn coupled_subflows_share_equal_links_fairly() {
        let trip = steady(44, &[(8.0, 30), (8.0, 30)]);
        let instance = instances(&SYSTEMS[..1], &[trip], 1).unwrap().remove(0).remove(0);
        let [a, b] = instance.both.crossed[..] else { panic!("{:?}", instance.both) };
        assert!((0.9..1.1).contains(&(a as f64 / b as f64)), "{a} {b}");
        assert!(instance.u_c() > 1.6 && instance.degraded().is_empty(), "{}", instance.u_c());
        assert_eq!(instance.class(), Class::Positive);
    }
}
