//! The RESULT lines: each goal that can be judged in the simulator.

mod downloads;
mod messages;
mod verdicts;

use polyrail_emulator::results::Goal;

use super::figures::{Rows, bulk_share, resent_share, wins};
use super::report::singles;
use super::runs::{BOUND, Row, Workload};
pub use verdicts::Verdicts;

/// Prints all figures of the workloads that there are.
pub fn judge(rows: Rows<'_>, users: &[usize], verdicts: &mut Verdicts) {
    let is_there = |workload: &Workload| rows.of(*workload).next().is_some();
    if is_there(&Workload::Downloads) {
        downloads::judge(rows, verdicts);
    }
    for users in users.iter().filter(|users| is_there(&Workload::Messaging(**users))) {
        messages::judge(rows, *users, verdicts);
    }
    if is_there(&Workload::Bulk) {
        bulk(rows, verdicts);
    }
}

fn bulk(rows: Rows<'_>, verdicts: &mut Verdicts) {
    let find = |verdicts: &Verdicts, row: &str, figure: &str| -> Option<&Row> {
        verdicts.find(rows, Workload::Bulk, row, figure)
    };
    let Some(polyrail) = find(verdicts, POLYRAIL, "sim_bulk") else { return };
    for (name, other, goal) in [
        ("sim_bulk_of_bound_rail", BOUND, Goal::AtLeast(0.8)),
        ("sim_bulk_of_aggregated_rail", "min_rtt@aggregated full", Goal::None),
    ] {
        if let Some(other) = find(verdicts, other, name) {
            verdicts.sure(name, bulk_share(polyrail, other), goal, &[]);
        }
    }
    let name = "sim_bulk_beats_best_carrier";
    match &singles(rows)[..] {
        [] => verdicts.missing(name, "no row of a carrier alone"),
        singles => {
            let share = wins(polyrail, singles);
            verdicts.result(name, share, "x", Goal::AtLeast(0.95), &[]);
        }
    }
    let share = resent_share(polyrail);
    verdicts.result("sim_polyrail_redundant_share_bulk", share, "x", Goal::None, &[]);
}

/// The product: the default chain with all that the engine can.
pub const POLYRAIL: &str = "polyrail full";
