//! The command `polyrail-lab matrix`, and how its rows run.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use polyrail_emulator::guest::TILES;

use super::{NoGuest, Row, RowResult, Summary, all_rows, clock, cover, print_row, row};
use crate::privilege;
use crate::report::results_folder;

/// Which rows to run, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The rows that CI runs, instead of all
    #[arg(long)]
    cover: bool,
    /// Only rows whose line holds all of these words, such as `auto x tls` or `nat-rebinding`
    #[arg(long, value_name = "WORDS")]
    only: Vec<String>,
    /// Only print which rows there are
    #[arg(long)]
    list: bool,
    /// A carrier that takes so many times its target has failed
    #[arg(long, value_name = "TIMES", default_value_t = 10)]
    tolerance: u32,
    /// Keep each row's logs in a folder of its own in this one
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    /// Measure the row of this line here, as the first program of a guest
    #[arg(long, hide = true, value_name = "LINE")]
    inside_guest: Vec<String>,
}

/// Runs the rows one after another and writes their outcomes to `matrix.json`.
///
/// # Errors
/// When a row fails, or nothing could be measured.
pub fn measure(options: &Options) -> Result<()> {
    if !options.inside_guest.is_empty() {
        return clock::inside_guest(&options.inside_guest, options.tolerance);
    }
    let wanted = |text: &str| options.only.iter().all(|words| text.contains(words.as_str()));
    let mut rows = if options.cover { cover() } else { all_rows() };
    rows.retain(|row| wanted(&row.to_string()));
    let mut clock_lines = clock::lines(!options.cover);
    clock_lines.retain(|line| wanted(line));
    let any = !rows.is_empty() || !clock_lines.is_empty();
    ensure!(any, "no row's line holds all of {:?}; --list shows the rows", options.only);
    if options.list {
        rows.iter().for_each(|row| println!("{row}"));
        clock_lines.iter().for_each(|line| println!("{line}"));
        return Ok(());
    }
    privilege::become_root()?;
    let mut summary = Summary::default();
    let outcomes = run_rows(&rows, options.tolerance, 1, options.logs.as_deref());
    outcomes.into_iter().for_each(|outcome| summary.add(outcome));
    if !clock_lines.is_empty() {
        let program = std::env::current_exe()?;
        match clock::measure(&program, &clock_lines, options.tolerance)? {
            Ok(outcomes) => outcomes.into_iter().for_each(|outcome| {
                print_row(&outcome);
                summary.add(outcome);
            }),
            Err(NoGuest::Missing) => {
                println!("SKIP uml-netem: clock steps need Debian's package user-mode-linux");
            }
            Err(NoGuest::Unfit) => println!("SKIP uml-amx: {TILES}"),
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
    let queue = Mutex::new(rows.iter().enumerate());
    let outcomes = Mutex::new(Vec::new());
    let worker = || loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((number, row)) = next else { return };
        let logs = logs.map(|folder| folder.join(format!("row{number}")));
        let outcome = row::run(row, tolerance, logs.as_deref());
        print_row(&outcome);
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    };
    std::thread::scope(|scope| (0..together).for_each(|_| drop(scope.spawn(worker))));
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}
