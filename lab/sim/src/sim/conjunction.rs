//! How well carriers work together in bulk, by the figures of POLYCORN's forerunners (Li et al., An
//! In-depth Analysis of Subflow Degradation for Multi-path TCP on High Speed Rails, IV A).
//!
//! With `R_n` the rate of carrier n alone and `R'_n` its rate within the bond, on the same trip:
//! conjunction efficiency `U_c = sum(R'_n) / max(R_n)`, total utilisation
//! `U_t = sum(R'_n) / sum(R_n)`, and utilisation of a subflow `R'_n / R_n`.
//!
//! A rate is what the passenger read over the time. Within the bond each carrier has the part of it
//! that it has of all that crossed: what was sent again, or twice on purpose, counts for nobody.
//! The carriers alone are `min_rtt` with the same engine.

use super::bulk::Bulk;
use super::contestants::{Carriers, Engine};
use super::figures::{Rows, bulks};
use super::metrics::{mean, quantile};
use super::report::Table;
use super::runs::{Row, Workload};
use super::table::Column;

/// What a trip shows of its carriers together.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// `U_c`: over the best single carrier.
    pub efficiency: f64,
    /// `U_t`: over all single carriers together.
    pub utilisation: f64,
    /// Each carrier within the bond over itself alone, in the order of the carriers; not a number
    /// where it carries nothing alone.
    pub subflows: Vec<f64>,
}

/// Of which class an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `U_c >= 1` and `U_t > 0.9`: together they are nearly all that they are alone.
    Positive,
    /// `U_c >= 1`: together they are better than the best.
    SemiPositive,
    /// `U_c < 1`: the best alone is better.
    Negative,
}

/// What the instances of a row come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Conjunction {
    /// So many trips had all figures.
    pub instances: usize,
    /// `U_c` in the median.
    pub efficiency: f64,
    /// The share of instances with `U_c` over 1.
    pub superior: f64,
    /// `U_t` in the median.
    pub utilisation: f64,
    /// The shares of positive, semi-positive and negative instances.
    pub classes: [f64; 3],
    /// The utilisation of each carrier's subflow in the median.
    pub subflows: Vec<f64>,
    /// The share of instances with a degraded subflow.
    pub degraded: f64,
}

impl Instance {
    /// Of a bond and its carriers alone; `None` when they are not of the same carriers, or nothing
    /// crossed.
    pub fn of(bond: &Bulk, alone: &[&Bulk]) -> Option<Self> {
        let singles: Vec<f64> = alone.iter().map(|bulk| bulk.goodput()).collect();
        let best = singles.iter().copied().fold(0.0, f64::max);
        let crossed: u64 = bond.crossed.iter().sum();
        if bond.crossed.len() != singles.len() || best <= 0.0 || crossed == 0 {
            return None;
        }
        let rate = bond.goodput();
        let subflow = |(own, single): (&u64, &f64)| {
            let part = rate * *own as f64 / crossed as f64;
            if *single > 0.0 { part / single } else { f64::NAN }
        };
        Some(Self {
            efficiency: rate / best,
            utilisation: rate / singles.iter().sum::<f64>(),
            subflows: bond.crossed.iter().zip(&singles).map(subflow).collect(),
        })
    }

    /// Its class.
    pub fn class(&self) -> Class {
        match self {
            _ if self.efficiency < 1.0 => Class::Negative,
            _ if self.utilisation > STRICT => Class::Positive,
            _ => Class::SemiPositive,
        }
    }

    /// Whether a carrier gives the bond less than half of what it gives alone. The paper calls a
    /// subflow degraded that falls and stays low, and draws no line; this one is ours.
    pub fn is_degraded(&self) -> bool {
        self.subflows.iter().any(|share| *share < DEGRADED)
    }
}

impl Conjunction {
    /// Of these instances; figures of none are not numbers.
    pub fn of(instances: &[Instance]) -> Self {
        let all = |figure: fn(&Instance) -> f64| instances.iter().map(figure).collect::<Vec<_>>();
        let share = |is: &dyn Fn(&Instance) -> bool| {
            mean(&instances.iter().map(|one| f64::from(u8::from(is(one)))).collect::<Vec<_>>())
        };
        let carriers = instances.iter().map(|one| one.subflows.len()).max().unwrap_or(0);
        let subflow = |carrier: usize| {
            let own = instances.iter().filter_map(|one| one.subflows.get(carrier).copied());
            quantile(&own.filter(|share| share.is_finite()).collect::<Vec<_>>(), 0.5)
        };
        let classes = [Class::Positive, Class::SemiPositive, Class::Negative];
        Self {
            instances: instances.len(),
            efficiency: quantile(&all(|one| one.efficiency), 0.5),
            superior: share(&|one| one.efficiency > 1.0),
            utilisation: quantile(&all(|one| one.utilisation), 0.5),
            classes: classes.map(|class| share(&|one| one.class() == class)),
            subflows: (0..carriers).map(subflow).collect(),
            degraded: share(&Instance::is_degraded),
        }
    }
}

/// The instances of a bulk row, one a trip that has all figures; `alone` are the rows of its
/// carriers, as [`alone`] finds them.
pub fn instances(row: &Row, alone: &[&Row]) -> Vec<Instance> {
    let singles: Vec<Vec<Bulk>> = alone.iter().map(|row| bulks(row)).collect();
    let of_trip = |(trip, bond): (usize, &Bulk)| {
        let own: Option<Vec<&Bulk>> = singles.iter().map(|row| row.get(trip)).collect();
        Instance::of(bond, &own?)
    };
    bulks(row).iter().enumerate().filter_map(of_trip).collect()
}

/// The bulk rows of each carrier alone with this engine, in the order of the carriers: `min_rtt@a`,
/// `min_rtt@b` and so on.
pub fn alone<'a>(rows: Rows<'a>, engine: Engine) -> Vec<&'a Row> {
    let single = |carrier: usize| {
        rows.of(Workload::Bulk).find(|row| {
            row.contestant.as_ref().is_some_and(|it| {
                let rule = it.name.starts_with(ALONE) && it.engine == engine;
                rule && it.carriers == Carriers::Only(carrier)
            })
        })
    };
    (0..CARRIERS_MAX).map_while(single).collect()
}

/// The figures of all bulk rows that have all carriers, beside the carriers alone with the same
/// engine. Without rows of each carrier alone it has no rows.
pub fn conjunction(rows: Rows<'_>) -> Vec<(&str, Conjunction)> {
    let of = |row: &'_ &Row| {
        let contestant = row.contestant.as_ref()?;
        let instances = instances(row, &alone(rows, contestant.engine));
        let bonded = contestant.carriers == Carriers::All && !instances.is_empty();
        bonded.then(|| Conjunction::of(&instances))
    };
    rows.of(Workload::Bulk).filter_map(|row| Some((row.name(), of(&row)?))).collect()
}

/// The same as a table; the published figures (two carriers, LIA against Reno, 280 to 310 km/h) are
/// 21 % positive, 29 % semi-positive and 50 % negative, with `U_c` near 1 in the median.
pub fn table(rows: Rows<'_>) -> Table {
    let (names, all): (Vec<&str>, Vec<Conjunction>) = conjunction(rows).into_iter().unzip();
    let column = |heading: &str, figure: &dyn Fn(&Conjunction) -> f64| Column {
        heading: heading.to_owned(),
        values: all.iter().map(figure).collect(),
    };
    let mut columns = vec![
        column("U_c median", &|one| one.efficiency),
        column("U_c over 1", &|one| one.superior),
        column("U_t median", &|one| one.utilisation),
        column("positive", &|one| one.classes[0]),
        column("semi-positive", &|one| one.classes[1]),
        column("negative", &|one| one.classes[2]),
    ];
    let carriers = all.iter().map(|one| one.subflows.len()).max().unwrap_or(0);
    for (carrier, letter) in ('a'..='h').enumerate().take(carriers) {
        let own = |one: &Conjunction| one.subflows.get(carrier).copied().unwrap_or(f64::NAN);
        columns.push(column(&format!("{letter} over {letter} alone"), &own));
    }
    columns.push(column("with a degraded subflow", &|one| one.degraded));
    columns.push(column("trips", &|one| one.instances as f64));
    Table {
        name: "conjunction".into(),
        title: "Bulk: carriers together over carriers alone (min_rtt, same engine)".into(),
        rows: names.into_iter().map(str::to_owned).collect(),
        columns,
    }
}

/// "We set the barrier 90 % for a strict mode."
const STRICT: f64 = 0.9;
const DEGRADED: f64 = 0.5;
const ALONE: &str = "min_rtt@";
const CARRIERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Contestant;
    use crate::sim::runs::Outcome;

    /// What was read, and what crossed each carrier, in MB in 8 s: these are Mbit/s.
    fn bulk(read: u64, crossed: &[u64]) -> Bulk {
        let crossed = crossed.iter().map(|mb| mb * 1_000_000).collect();
        Bulk { bytes: read * 1_000_000, seconds: 8.0, crossed, ..Bulk::default() }
    }

    fn close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
    }

    #[test]
    fn an_instance_is_judged_by_both_ratios() {
        let (a, b) = (bulk(10, &[11]), bulk(6, &[7]));
        for (read, crossed, efficiency, utilisation, class) in [
            (15, [10, 5], 1.5, 15.0 / 16.0, Class::Positive),
            (12, [9, 3], 1.2, 0.75, Class::SemiPositive),
            (10, [9, 1], 1.0, 0.625, Class::SemiPositive),
            (8, [4, 4], 0.8, 0.5, Class::Negative),
        ] {
            let one = Instance::of(&bulk(read, &crossed), &[&a, &b]).unwrap();
            close(one.efficiency, efficiency);
            close(one.utilisation, utilisation);
            assert_eq!(one.class(), class, "{one:?}");
        }
        // 14.4 of 16 is nine tenths and not more.
        let strict = Instance { efficiency: 1.44, utilisation: 0.9, subflows: Vec::new() };
        assert_eq!(strict.class(), Class::SemiPositive);
    }

    #[test]
    fn a_subflow_is_judged_by_its_carrier_alone() {
        let (a, b) = (bulk(10, &[11]), bulk(6, &[7]));
        // All was sent twice: each carried half of what was read.
        let twice = Instance::of(&bulk(10, &[12, 12]), &[&a, &b]).unwrap();
        close(twice.subflows[0], 0.5);
        close(twice.subflows[1], 5.0 / 6.0);
        assert!(!twice.is_degraded());
        let uneven = Instance::of(&bulk(12, &[11, 1]), &[&a, &b]).unwrap();
        close(uneven.subflows[1], 1.0 / 6.0);
        assert!(uneven.is_degraded());
        // A carrier that carries nothing alone cannot degrade.
        let dark = Instance::of(&bulk(10, &[10, 0]), &[&a, &bulk(0, &[0])]).unwrap();
        assert!(dark.subflows[1].is_nan() && !dark.is_degraded());
        close(dark.utilisation, 1.0);
        assert_eq!(Instance::of(&bulk(10, &[10]), &[&a, &b]), None);
        assert_eq!(Instance::of(&Bulk::default(), &[&a, &b]), None);
    }

    fn row(name: &str, engine: Engine, outcomes: Vec<Bulk>) -> Row {
        Row {
            contestant: Some(Contestant::parse(name, engine).unwrap()),
            workload: Workload::Bulk,
            outcomes: outcomes.into_iter().map(Outcome::Bulk).collect(),
        }
    }

    #[test]
    fn rows_are_set_beside_the_carriers_alone_of_their_engine() {
        let (full, paper) = (Engine::Full, Engine::Paper);
        let bound = Row {
            contestant: None,
            workload: Workload::Bulk,
            outcomes: vec![Outcome::Bulk(bulk(18, &[]))],
        };
        let rows = [
            bound,
            row("min_rtt@b", full, vec![bulk(6, &[6]), bulk(4, &[4]), bulk(8, &[8])]),
            row("polyrail", full, vec![bulk(15, &[10, 5]), bulk(11, &[8, 3]), bulk(7, &[6, 1])]),
            row("min_rtt@a", full, vec![bulk(10, &[10]), bulk(10, &[10]), bulk(8, &[8])]),
            row("polyrail@a", full, vec![bulk(1, &[1]); 3]),
            row("min_rtt@aggregated", full, vec![bulk(16, &[16]); 3]),
            row("min_rtt", paper, vec![bulk(15, &[10, 5]); 3]),
            row("min_rtt@a", paper, vec![bulk(10, &[10]); 3]),
        ];
        let rows = Rows(&rows);
        assert_eq!(
            alone(rows, full).iter().map(|row| row.name()).collect::<Vec<_>>(),
            ["min_rtt@a full", "min_rtt@b full"]
        );
        // `min_rtt paper` lacks its carrier b alone.
        let all = conjunction(rows);
        let [("polyrail full", own)] = &all[..] else { panic!("{all:?}") };
        assert_eq!(own.instances, 3);
        close(own.efficiency, 1.1);
        close(own.superior, 2.0 / 3.0);
        close(own.utilisation, 11.0 / 14.0);
        own.classes.iter().for_each(|share| close(*share, 1.0 / 3.0));
        // 10 of 10, 8 of 10, 6 of 8; 5 of 6, 3 of 4, 1 of 8.
        close(own.subflows[0], 0.8);
        close(own.subflows[1], 0.75);
        close(own.degraded, 1.0 / 3.0);
        let table = table(rows);
        let text = table.markdown();
        assert!(text.contains("| polyrail full | 1.100 | 0.667 | 0.786 | 0.333 |"), "{text}");
        assert!(text.contains("| b over b alone |") && !text.contains("c over c"), "{text}");
        assert!(super::table(Rows(&[])).rows.is_empty());
    }

    #[test]
    fn none_has_no_figures() {
        let none = Conjunction::of(&[]);
        assert!(none.instances == 0 && none.efficiency.is_nan() && none.degraded.is_nan());
    }
}
