//! The rows of the mode matrix that gate a change; `docs/matrix.md` has the rules.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_emulator::guest::TILES;
use polyrail_interop::matrix::{self, NoGuest, Row, RowResult, Summary};
use polyrail_interop::privilege;

use crate::alone;

/// CI's machines are slow and shared: so many times the targets.
const TOLERANCE: u32 = 10;
/// Rows mostly wait: so many run side by side.
const TOGETHER: usize = 4;
/// For all rows of the cover together.
const COVER_BOUND: Duration = Duration::from_secs(4 * 60);
/// For all rows that are refused.
const REFUSED_BOUND: Duration = Duration::from_secs(60);
/// For all rows of the guest, booting included.
const GUEST_BOUND: Duration = Duration::from_secs(4 * 60);

#[test]
fn the_cover_of_modes_families_and_faults() -> Result<()> {
    all_good(matrix::cover(), COVER_BOUND)
}

#[test]
fn modes_that_exclude_each_other_are_refused_and_say_so() -> Result<()> {
    let rows = matrix::all_rows().into_iter().filter(|row| !row.can_connect()).collect();
    all_good(rows, REFUSED_BOUND)
}

#[test]
fn steps_of_the_clock_in_a_guest() -> Result<()> {
    within(GUEST_BOUND, || {
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_polyrail-lab"));
        let lines = matrix::clock_lines(false);
        let outcomes = match matrix::measure_clock_steps(program, &lines, TOLERANCE)? {
            Ok(outcomes) => outcomes,
            Err(NoGuest::Missing) => {
                privilege::skip_or_fail("uml-netem", "install Debian's package user-mode-linux")?;
                return Ok(());
            }
            Err(NoGuest::Unfit) => {
                println!("SKIP uml-amx: {TILES}");
                return Ok(());
            }
        };
        ensure!(outcomes.len() == 4, "{} rows came from the guest", outcomes.len());
        judge(outcomes)
    })
}

fn all_good(rows: Vec<Row>, bound: Duration) -> Result<()> {
    within(bound, || judge(matrix::run_rows(&rows, TOLERANCE, TOGETHER, None)))
}

fn within(bound: Duration, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    alone(|| {
        let started = Instant::now();
        work()?;
        let took = started.elapsed();
        println!("took {took:.0?} of {bound:?}");
        ensure!(took <= bound, "took {took:?}, bound {bound:?}");
        Ok(())
    })
}

fn judge(outcomes: Vec<RowResult>) -> Result<()> {
    let mut summary = Summary::default();
    outcomes.into_iter().for_each(|outcome| summary.add(outcome));
    println!("{}", summary.text());
    let failed: Vec<&str> = summary.failed().map(|outcome| outcome.row.as_str()).collect();
    ensure!(failed.is_empty(), "failed: {failed:#?}");
    Ok(())
}
