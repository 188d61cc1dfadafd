//! Which plots a comparison has.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::bulk::mean_of;
use super::figures::{
    Rows, bulk_share, bulks, delivery, goodputs, ratio, resent_share, times, unfairness,
};
use super::goals::{BASE, HEADLINE_SIZES, POLYRAIL};
use super::metrics::mean;
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
    fairness(rows, users, &file("fairness"))?;
    order(rows, &file("out_of_order"))?;
    shares(rows, &file("aggregated_share"))?;
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

fn fairness(rows: Rows<'_>, users: &[usize], path: &Path) -> Result<()> {
    let Some(first) = users.first() else { return Ok(()) };
    let own: Vec<&Row> = rows.of(Workload::Messaging(*first)).collect();
    if own.is_empty() {
        return Ok(());
    }
    let of = |users: usize| {
        own.iter()
            .map(|row| rows.find(row.name(), Workload::Messaging(users)))
            .map(|row| row.map_or(f64::NAN, |row| mean(&unfairness(row).concat())))
            .collect::<Vec<_>>()
    };
    let series: Vec<_> = users.iter().map(|it| (format!("{it} users"), of(*it))).collect();
    let words = Words {
        title: "Messaging: how differently users are served",
        x: "coefficient of variation between users",
        y: "",
    };
    bars(path, words, &names(&own), &series)
}

fn order(rows: Rows<'_>, path: &Path) -> Result<()> {
    let mut own: Vec<&Row> = rows.of(Workload::Bulk).collect();
    own.retain(|row| row.contestant.is_some());
    if own.is_empty() {
        return Ok(());
    }
    let of = |figure: fn(&super::Bulk) -> f64| -> Vec<f64> {
        own.iter().map(|row| mean_of(&bulks(row), figure)).collect()
    };
    let series = [
        ("mean of those that wait".to_owned(), of(|bulk| bulk.late_mean)),
        ("95th percentile of all".to_owned(), of(|bulk| bulk.wait_p95)),
    ];
    let words = Words { title: "Bulk: wait for earlier bytes", x: "seconds", y: "" };
    bars(path, words, &names(&own), &series)
}

fn shares(rows: Rows<'_>, path: &Path) -> Result<()> {
    let Some(bound) = rows.find(BOUND, Workload::Bulk) else { return Ok(()) };
    let own: Vec<&Row> = rows.of(Workload::Bulk).collect();
    let values = own.iter().map(|row| bulk_share(row, bound).value).collect();
    let words = Words { title: "Bulk: share of the aggregated single link", x: "share", y: "" };
    bars(path, words, &names(&own), &[("share".to_owned(), values)])
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
