//! Which plots a comparison has.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::figures::{Rows, delivery, goodputs, ratio, resent_share, times};
use super::goals::{BASE, HEADLINE_SIZES, POLYRAIL};
use super::plot::{Series, Words, bars, distribution, lines, pngs};
use super::report::size_name;
use super::runs::{BOUND, Row, SIZES, Workload};

/// Draws all plots that these rows are enough for.
///
/// # Errors
/// They cannot be written.
pub fn draw(rows: Rows<'_>, users: &[usize], folder: &Path) -> Result<()> {
    let mut files = Vec::new();
    let mut file = |name: &str| -> PathBuf {
        let path = folder.join(name).with_extension("svg");
        files.push(path.clone());
        path
    };
    goodput_ratios(rows, &file("goodput_ratio"))?;
    for size in HEADLINE_SIZES {
        completion(rows, size, &file(&format!("completion_{}", size_name(size))))?;
    }
    redundancy(rows, &file("redundancy"))?;
    for users in users {
        delays(rows, *users, &file(&format!("messaging_{users}")))?;
    }
    pngs(&files)
}

fn names(rows: &[&Row]) -> Vec<String> {
    rows.iter().map(|row| row.name().to_owned()).collect()
}

fn goodput_ratios(rows: Rows<'_>, path: &Path) -> Result<()> {
    let Some(base) = rows.find(BASE, Workload::Downloads) else { return Ok(()) };
    let own: Vec<&Row> = rows.of(Workload::Downloads).collect();
    let series: Vec<Series<f64>> = SIZES
        .iter()
        .map(|size| {
            let over = |row: &&Row| ratio(&goodputs(row, *size), &goodputs(base, *size)).value;
            (size_name(*size), own.iter().map(over).collect())
        })
        .collect();
    let words = Words { title: "Goodput of downloads over min_rtt paper", x: "ratio", y: "" };
    bars(path, words, &names(&own), &series)
}

/// The rows whose lines are not too many for one plot.
fn few<'a>(rows: Rows<'a>, workload: Workload) -> Vec<&'a Row> {
    FEW.iter().filter_map(|name| rows.find(name, workload)).collect()
}

fn completion(rows: Rows<'_>, size: u64, path: &Path) -> Result<()> {
    let line = |row: &&Row| (row.name().to_owned(), distribution(&times(row, size).concat()));
    let series: Vec<_> = few(rows, Workload::Downloads).iter().map(line).collect();
    let title = format!("Completion of downloads of {}", size_name(size));
    lines(path, Words { title: &title, x: "seconds", y: "share of downloads" }, &series)
}

fn redundancy(rows: Rows<'_>, path: &Path) -> Result<()> {
    let mut own: Vec<&Row> = rows.of(Workload::Downloads).collect();
    own.retain(|row| row.contestant.is_some());
    if own.is_empty() {
        return Ok(());
    }
    let series = [("resent".to_owned(), own.iter().map(|row| resent_share(row)).collect())];
    let words = Words { title: "Bytes sent more than once", x: "of the bytes wanted", y: "" };
    bars(path, words, &names(&own), &series)
}

fn delays(rows: Rows<'_>, users: usize, path: &Path) -> Result<()> {
    let line = |row: &&Row| {
        let [_, rounds] = delivery(row);
        (row.name().to_owned(), distribution(&rounds.concat()))
    };
    let series: Vec<_> = few(rows, Workload::Messaging(users)).iter().map(line).collect();
    let title = format!("Messaging, {users} users: there and back");
    lines(path, Words { title: &title, x: "seconds", y: "share of messages" }, &series)
}

const FEW: [&str; 8] = [
    POLYRAIL,
    "hsrsch paper",
    BASE,
    "min_rtt full",
    "flow_round_robin paper",
    "blest paper",
    "min_rtt@aggregated full",
    BOUND,
];
