//! The rows of the mode matrix that CI runs; `docs/matrix.md` has the rules.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_interop::matrix::{self, Row, RowResult, Summary};
use polyrail_interop::privilege;
use polyrail_interop::programs::{Previous, Programs};

use crate::alone;

/// CI's machines are slow and shared: a row may take this many times its targets.
pub const TOLERANCE: u32 = 10;
/// Rows that run in parallel: they mostly wait.
const TOGETHER: usize = 8;
/// The same of rows that are refused: they carry nothing.
const REFUSED_TOGETHER: usize = 16;
/// The time limit of all rows of the cover together.
const COVER_BOUND: Duration = Duration::from_secs(4 * 60);
/// The time limit of all rows that are refused.
const REFUSED_BOUND: Duration = Duration::from_secs(60);
/// The time limit of the rows of version skew.
const SKEW_BOUND: Duration = Duration::from_secs(90);

#[test]
fn modes_families_and_faults_of_the_cover() -> Result<()> {
    all_good(matrix::cover(), TOGETHER, COVER_BOUND)
}

#[test]
fn modes_without_a_common_transport_are_refused_with_the_reason() -> Result<()> {
    let rows = matrix::all_rows().into_iter().filter(|row| !row.can_connect()).collect();
    all_good(rows, REFUSED_TOGETHER, REFUSED_BOUND)
}

#[test]
fn daemons_of_an_earlier_commit_carry_flows_and_missing_features_are_logged_once() -> Result<()> {
    let (commit, same_wire) = match Programs::find()?.previous()? {
        Previous::Built { commit, same_wire } => (commit, same_wire),
        Previous::Skipped(reason) => return privilege::skip_or_fail("previous-commit", &reason),
    };
    println!("daemons of {commit}, same wire: {same_wire}");
    let mut rows = matrix::skew_rows(false);
    rows.iter_mut().for_each(|row| row.same_wire = same_wire);
    timed(SKEW_BOUND, || matrix::run_skew_rows(&rows, TOLERANCE, TOGETHER, None))
}

fn all_good(rows: Vec<Row>, together: usize, bound: Duration) -> Result<()> {
    timed(bound, || matrix::run_rows(&rows, TOLERANCE, together, None))
}

fn timed(bound: Duration, run: impl FnOnce() -> Vec<RowResult> + Send) -> Result<()> {
    alone(|| {
        let started = Instant::now();
        judge(run())?;
        let took = started.elapsed();
        println!("took {took:.0?} of {bound:?}");
        ensure!(took <= bound, "took {took:?}, bound {bound:?}");
        Ok(())
    })
}

/// Prints a summary of the rows; fails if one failed.
pub fn judge(outcomes: Vec<RowResult>) -> Result<()> {
    ensure!(!outcomes.is_empty(), "no row was run");
    let mut summary = Summary::default();
    outcomes.into_iter().for_each(|outcome| summary.add(outcome));
    println!("{}", summary.text());
    let failed: Vec<&str> = summary.failed().map(|outcome| outcome.row.as_str()).collect();
    ensure!(failed.is_empty(), "failed: {failed:#?}");
    Ok(())
}
