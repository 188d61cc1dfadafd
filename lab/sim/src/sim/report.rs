//! The tables of a comparison.

use super::bulk::mean_of;
use super::figures::{
    Rows, bulk_share, bulks, delivery, goodputs, page_times, ratio_over, resent_share, spread,
    times, trip_ratio, unfairness, unfinished, wins,
};
use super::metrics::{mean, quantile};
use super::runs::{BASE, BOUND, HEADLINE_SIZES, Row, SIZES, Workload};
use super::table::Table;

fn table(title: String, rows: &[&Row]) -> Table {
    Table::new(title, rows.iter().map(|row| row.name().to_owned()).collect())
}

/// All tables for which there are rows.
pub fn tables(rows: Rows<'_>, users: &[usize]) -> Vec<Table> {
    let mut tables = vec![goodput(rows), completion(rows)];
    tables.extend(users.iter().map(|users| messages(rows, *users)));
    tables.extend([bulk(rows), pages(rows)]);
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// The size of a download in names: `64kb`, `1mb`.
pub fn size_name(bytes: u64) -> String {
    match bytes {
        1_000_000.. => format!("{}mb", bytes / 1_000_000),
        _ => format!("{}kb", bytes / 1_000),
    }
}

fn goodput(rows: Rows<'_>) -> Table {
    let own: Vec<&Row> = rows.of(Workload::Downloads).collect();
    let title = "Downloads: goodput in Mbit/s, mean over downloads";
    let mut table = table(title.into(), &own);
    for size in SIZES {
        let values = own.iter().map(|row| mean(&goodputs(row, size).concat()));
        table.column(&size_name(size), values);
    }
    if let Some(base) = rows.find(BASE, Workload::Downloads) {
        let over: Vec<_> = own.iter().map(|row| ratio_over(row, base, &HEADLINE_SIZES)).collect();
        table.column(&format!("x {BASE}"), over.iter().map(|ratio| ratio.value));
        table.column("from (95 %)", over.iter().map(|ratio| ratio.between[0]));
        table.column("to", over.iter().map(|ratio| ratio.between[1]));
        let each = own.iter().map(|row| {
            let ratios =
                HEADLINE_SIZES.map(|size| trip_ratio(&goodputs(row, size), &goodputs(base, size)));
            mean(&ratios)
        });
        table.column("x, mean of trips", each);
    }
    if let Some(bound) = rows.find(BOUND, Workload::Downloads) {
        for size in SIZES {
            let most = mean(&goodputs(bound, size).concat());
            let share = |row: &&Row| mean(&goodputs(row, size).concat()) / most;
            table.column(&format!("of bound {}", size_name(size)), own.iter().map(share));
        }
    }
    table.column("resent", own.iter().map(|row| resent_share(row)));
    table
}

fn completion(rows: Rows<'_>) -> Table {
    let own: Vec<&Row> = rows.of(Workload::Downloads).collect();
    let title = "Downloads: completion times in seconds";
    let mut table = table(title.into(), &own);
    for size in SIZES {
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            let values = own.iter().map(|row| quantile(&times(row, size).concat(), share));
            table.column(&format!("{} {name}", size_name(size)), values);
        }
    }
    let count = |row: &&Row| SIZES.iter().map(|size| times(row, *size).concat().len() as f64).sum();
    table.column("downloads", own.iter().map(count));
    table.column("unfinished", own.iter().map(|row| unfinished(row) as f64));
    table
}

fn messages(rows: Rows<'_>, users: usize) -> Table {
    let own: Vec<&Row> = rows.of(Workload::Messaging(users)).collect();
    let title = format!("Messaging, {users} users: delivery in seconds");
    let mut table = table(title, &own);
    let all: Vec<[[f64; 4]; 2]> =
        own.iter().map(|row| delivery(row).map(|times| spread(&times.concat()))).collect();
    for (way, name) in ["up", "round"].iter().enumerate() {
        for (place, what) in ["mean", "p90", "p95", "p99"].iter().enumerate() {
            table.column(&format!("{name} {what}"), all.iter().map(|it| it[way][place]));
        }
    }
    table.column("variation between users", own.iter().map(|row| mean(&unfairness(row).concat())));
    table.column("messages", own.iter().map(|row| delivery(row)[0].concat().len() as f64));
    table.column("unfinished", own.iter().map(|row| unfinished(row) as f64));
    table.column("resent", own.iter().map(|row| resent_share(row)));
    table
}

fn bulk(rows: Rows<'_>) -> Table {
    let own: Vec<&Row> = rows.of(Workload::Bulk).collect();
    let title = "Bulk: one endless download".to_owned();
    let mut table = table(title, &own);
    let mut figure = |name: &str, of: fn(&super::Bulk) -> f64| {
        table.column(name, own.iter().map(|row| mean_of(&bulks(row), of)));
    };
    figure("Mbit/s", super::Bulk::goodput);
    figure("late share", |bulk| bulk.late_share);
    figure("late mean s", |bulk| bulk.late_mean);
    figure("wait p95 s", |bulk| bulk.wait_p95);
    figure("use of the worse carrier", |bulk| bulk.worse_use);
    let after = |row: &&Row| {
        let all: Vec<f64> = bulks(row).into_iter().flat_map(|bulk| bulk.after_failures).collect();
        mean(&all)
    };
    table.column("Mbit/s in 2 s from a failure", own.iter().map(after));
    table.column("resent", own.iter().map(|row| resent_share(row)));
    for (name, of) in [("of bound", BOUND), ("of aggregated", "min_rtt@aggregated full")] {
        if let Some(other) = rows.find(of, Workload::Bulk) {
            table.column(name, own.iter().map(|row| bulk_share(row, other).value));
        }
    }
    let singles = singles(rows);
    if !singles.is_empty() {
        table.column("beats the best carrier", own.iter().map(|row| wins(row, &singles)));
    }
    table
}

/// The rows of each carrier alone in bulk.
pub fn singles<'a>(rows: Rows<'a>) -> Vec<&'a Row> {
    let alone = |row: &&Row| {
        let carriers = row.contestant.as_ref().map(|contestant| contestant.carriers);
        matches!(carriers, Some(super::Carriers::Only(_)))
    };
    rows.of(Workload::Bulk).filter(alone).collect()
}

fn pages(rows: Rows<'_>) -> Table {
    let own: Vec<&Row> = rows.of(Workload::Pages).collect();
    let title = "Web pages: load times in seconds".to_owned();
    let mut table = table(title, &own);
    let all: Vec<[f64; 4]> = own.iter().map(|row| spread(&page_times(row))).collect();
    for (place, what) in ["mean", "p90", "p95", "p99"].iter().enumerate() {
        table.column(what, all.iter().map(|it| it[place]));
    }
    table.column("pages", own.iter().map(|row| page_times(row).len() as f64));
    table.column("unfinished", own.iter().map(|row| unfinished(row) as f64));
    table
}
