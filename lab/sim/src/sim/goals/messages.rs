//! Goals of messaging: round trips of messages, over the bound's and over those of others.

use polyrail_emulator::results::Goal;

use super::{POLYRAIL, Verdicts};
use crate::sim::figures::{Ratio, Rows, delivery, quantile_ratio, ratio, resent_share, unfairness};
use crate::sim::runs::{BASE, BOUND, Row, Workload};

/// Prints all of them for so many users.
pub fn judge(rows: Rows<'_>, users: usize, verdicts: &mut Verdicts) {
    let workload = Workload::Messaging(users);
    let find = |verdicts: &Verdicts, row: &str, figure: &str| {
        verdicts.find(rows, workload, row, &format!("sim_messaging_{figure}_{users}"))
    };
    let Some(polyrail) = find(verdicts, POLYRAIL, "polyrail") else { return };
    let own = Rounds::of(polyrail);
    let mut line = |name: &str, ratio: Ratio, goal: Goal| {
        verdicts.sure(&format!("sim_messaging_{name}_{users}"), ratio, goal, &[]);
    };
    let others =
        rows.of(workload).filter(|row| row.contestant.as_ref().is_some_and(|it| it.is_other()));
    let others: Vec<(&Row, Rounds)> = others.map(|row| (row, Rounds::of(row))).collect();
    for (what, over) in FIGURES {
        let over = others.iter().map(|(row, rounds)| (row.name(), over(&own, rounds)));
        let best = over.max_by(|(_, a), (_, b)| a.value.total_cmp(&b.value));
        if let Some((best, over)) = best {
            println!("the best of others in the {what} with {users} users is {best}");
            line(&format!("{what}_over_best_other"), over, Goal::None);
        }
    }
    for (name, row, goals) in GOALS {
        let Some(row) = find(verdicts, row, &format!("over_{name}")) else { continue };
        let rounds = Rounds::of(row);
        for ((what, over), goal) in FIGURES.into_iter().zip(goals) {
            let name = format!("sim_messaging_{what}_over_{name}_{users}");
            verdicts.sure(&name, over(&own, &rounds), goal, &[]);
        }
    }
    floor(rows, users, verdicts);
    if let Some(flows) = rows.find(FLOWS, workload) {
        let over = ratio(&unfairness(polyrail), &unfairness(flows));
        let name = format!("sim_messaging_variation_over_flow_round_robin_{users}");
        verdicts.sure(&name, over, Goal::AtMost(0.2), &[]);
    }
    let name = format!("sim_polyrail_redundant_share_messaging_{users}");
    verdicts.result(&name, resent_share(polyrail), "x", Goal::None, &[]);
}

/// What no scheduler can do better: the bound over what trains do.
fn floor(rows: Rows<'_>, users: usize, verdicts: &mut Verdicts) {
    let find = |row: &str| rows.find(row, Workload::Messaging(users)).map(Rounds::of);
    let (Some(bound), Some(flows)) = (find(BOUND), find(FLOWS)) else { return };
    for (what, over) in FIGURES {
        let name = format!("sim_messaging_bound_over_flow_round_robin_{what}_{users}");
        verdicts.sure(&name, over(&bound, &flows), Goal::None, &[]);
    }
}

/// Times there and back, by trip.
struct Rounds(Vec<Vec<f64>>);

impl Rounds {
    fn of(row: &Row) -> Self {
        let [_, rounds] = delivery(row);
        Self(rounds)
    }
}

type Over = fn(&Rounds, &Rounds) -> Ratio;

const FIGURES: [(&str, Over); 2] =
    [("mean", |a, b| ratio(&a.0, &b.0)), ("p99", |a, b| quantile_ratio(&a.0, &b.0, 0.99))];

/// As trains do today.
const FLOWS: &str = "flow_round_robin paper";

/// The row to compare with, and the goals of the mean and of the 99th percentile.
const GOALS: [(&str, &str, [Goal; 2]); 4] = [
    ("bound", BOUND, [Goal::AtMost(1.10), Goal::None]),
    ("flow_round_robin", FLOWS, [Goal::AtMost(0.55), Goal::AtMost(0.12)]),
    ("min_rtt", BASE, [Goal::None, Goal::AtMost(0.6)]),
    ("min_rtt_full", "min_rtt full", [Goal::None, Goal::AtMost(0.6)]),
];
