//! The command `polyrail-lab matrix`, and how its rows run.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use polyrail_emulator::guest;

use super::parallel::run_each;
use super::{Row, RowResult, Summary, all_rows, clock, cover, print_row, row, skew};
use crate::privilege;
use crate::programs::{Previous, Programs};
use crate::report::results_folder;

/// Which rows to run, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The rows that CI runs, instead of all
    #[arg(long)]
    cover: bool,
    /// Only rows whose line contains all of these words, such as `auto x tls` or `nat-rebinding`
    #[arg(long, value_name = "WORDS")]
    only: Vec<String>,
    /// Only list the rows
    #[arg(long)]
    list: bool,
    /// A carrier that takes this many times its target has failed
    #[arg(long, value_name = "TIMES", default_value_t = 10)]
    tolerance: u32,
    /// Keep the logs of each row in a subfolder of this folder
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
}

/// Runs the rows one after another and writes their results to `matrix.json`. Inside a guest, it
/// runs only the rows with clock steps.
///
/// # Errors
/// A row failed, or no row ran.
pub fn measure(options: &Options) -> Result<()> {
    let wanted = |text: &str| options.only.iter().all(|words| text.contains(words.as_str()));
    let mut rows = if options.cover { cover() } else { all_rows() };
    rows.retain(|row| wanted(&row.to_string()));
    let mut clock_rows = clock::rows(!options.cover);
    clock_rows.retain(|row| wanted(&clock::line(row)));
    let mut skew_rows = skew::rows(!options.cover);
    skew_rows.retain(|row| wanted(&row.to_string()));
    let any = !rows.is_empty() || !clock_rows.is_empty() || !skew_rows.is_empty();
    ensure!(any, "no row's line contains all of {:?}; --list shows the rows", options.only);
    if options.list {
        rows.iter().for_each(|row| println!("{row}"));
        skew_rows.iter().for_each(|row| println!("{row}"));
        clock_rows.iter().for_each(|row| println!("{}", clock::line(row)));
        return Ok(());
    }
    if guest::is_inside() {
        return clock::print_rows(&clock_rows, options.tolerance);
    }
    privilege::become_root()?;
    let mut summary = Summary::default();
    let logs = options.logs.as_deref();
    let outcomes = run_rows(&rows, options.tolerance, 1, logs);
    outcomes.into_iter().for_each(|outcome| summary.add(outcome));
    if !skew_rows.is_empty() {
        match Programs::find()?.previous()? {
            Previous::Built { commit, same_wire } => {
                println!("version skew: daemons of {commit}");
                skew_rows.iter_mut().for_each(|row| row.same_wire = same_wire);
                let outcomes = skew::run_all(&skew_rows, options.tolerance, 1, logs);
                outcomes.into_iter().for_each(|outcome| summary.add(outcome));
            }
            Previous::Skipped(reason) => println!("SKIP previous-commit: {reason}"),
        }
    }
    if !clock_rows.is_empty() {
        for outcome in clock::run_in_guest(clock_rows.len())? {
            print_row(&outcome);
            summary.add(outcome);
        }
    }
    println!("\n{}", summary.text());
    summary.write(&results_folder()?.join("matrix.json"))?;
    let failed = summary.failed().count();
    ensure!(failed == 0, "{failed} rows failed");
    ensure!(!summary.is_empty(), "nothing was measured");
    Ok(())
}

/// Runs rows, `together` at a time, and prints each when it ends.
pub fn run_rows(
    rows: &[Row],
    tolerance: u32,
    together: usize,
    logs: Option<&Path>,
) -> Vec<RowResult> {
    let run = |row: &Row, logs: Option<&Path>| row::run(row, tolerance, logs);
    run_each(rows, together, logs.map(|folder| folder.join("row")).as_deref(), run)
}
