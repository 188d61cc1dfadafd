//! `polyrail-matrix`: every mode, family and fault, row by row; see `docs/matrix.md`.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use polyrail_emulator::guest::TILES;
use polyrail_interop::matrix::{self, NoGuest, Row, Summary};
use polyrail_interop::privilege;
use polyrail_interop::report::results_folder;

/// Runs the mode matrix; needs root, or user namespaces.
#[derive(Parser)]
#[command(version)]
struct Arguments {
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

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-matrix: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    if !arguments.inside_guest.is_empty() {
        return matrix::inside_guest(&arguments.inside_guest, arguments.tolerance);
    }
    let rows = if arguments.cover { matrix::cover() } else { matrix::all_rows() };
    let wanted = |text: &str| arguments.only.iter().all(|words| text.contains(words.as_str()));
    let rows: Vec<Row> = rows.into_iter().filter(|row| wanted(&row.to_string())).collect();
    let mut clock_lines = matrix::clock_lines(!arguments.cover);
    clock_lines.retain(|line| wanted(line));
    let any = !rows.is_empty() || !clock_lines.is_empty();
    ensure!(any, "no row's line holds all of {:?}; --list shows the rows", arguments.only);
    if arguments.list {
        rows.iter().for_each(|row| println!("{row}"));
        clock_lines.iter().for_each(|line| println!("{line}"));
        return Ok(());
    }
    privilege::become_root()?;
    let mut summary = Summary::default();
    for (number, row) in rows.iter().enumerate() {
        let logs = arguments.logs.as_ref().map(|folder| folder.join(format!("row{number}")));
        let outcome = matrix::run_with_logs(row, arguments.tolerance, logs.as_deref());
        matrix::print_row(&outcome);
        summary.add(outcome);
    }
    if !clock_lines.is_empty() {
        add_clock_steps(&mut summary, &clock_lines, arguments.tolerance)?;
    }
    println!("\n{}", summary.text());
    summary.write(&results_folder()?.join("matrix.json"))?;
    let failed = summary.failed().count();
    ensure!(failed == 0, "{failed} rows failed");
    ensure!(!summary.is_empty(), "nothing was measured");
    Ok(())
}

fn add_clock_steps(summary: &mut Summary, lines: &[String], tolerance: u32) -> Result<()> {
    match matrix::measure_clock_steps(&std::env::current_exe()?, lines, tolerance)? {
        Ok(outcomes) => outcomes.into_iter().for_each(|outcome| {
            matrix::print_row(&outcome);
            summary.add(outcome);
        }),
        Err(NoGuest::Missing) => {
            println!("SKIP uml-netem: clock steps need Debian's package user-mode-linux");
        }
        Err(NoGuest::Unfit) => println!("SKIP uml-amx: {TILES}"),
    }
    Ok(())
}
