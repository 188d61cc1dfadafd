//! Compares the tables and examples of `docs/scheduler.md` with the code.

use std::path::Path;

use polyrail_scheduler::{
    ChainSpec, Kind, chain_names, is_reconstructed, rule_info, schedulerlet_names,
};

#[test]
fn every_chain_is_listed() {
    let wanted = chain_names().map(|name| {
        let spec = ChainSpec::named(name).unwrap();
        let rules: Vec<_> = spec.names().iter().map(|rule| code(rule)).collect();
        vec![code(name), rules.join(", ")]
    });
    let rows = table("chain");
    assert_eq!(first(&rows, 2), wanted.collect::<Vec<_>>());
    assert_marks(&rows);
}

#[test]
fn every_rule_is_listed_with_its_kind() {
    let wanted = schedulerlet_names().map(|name| {
        let kind = match rule_info(name).unwrap().0 {
            Some(Kind::CandidateFilter) => "candidate filter",
            Some(Kind::SelectionFilter) => "selection filter",
            Some(Kind::SoftSelector) => "soft selector",
            Some(Kind::HardSelector) => "hard selector",
            None => "handler",
        };
        vec![code(name), kind.to_owned()]
    });
    let rows = table("name");
    let (rules, parameters): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.len() == 4);
    assert_eq!(first(&rules, 2), wanted.collect::<Vec<_>>());
    assert_marks(&rules);
    assert!(rules.iter().all(|row| row.iter().all(|cell| !cell.is_empty())));

    let wanted = schedulerlet_names().flat_map(|name| {
        let parameters = rule_info(name).unwrap().1;
        let row = move |p: polyrail_scheduler::Parameter| {
            vec![code(name), code(p.name), p.values, p.default]
        };
        parameters.into_iter().map(row)
    });
    assert_eq!(first(&parameters, 4), wanted.collect::<Vec<_>>());
    assert!(parameters.iter().all(|row| row.len() == 5 && !row[4].is_empty()));
}

#[test]
fn error_messages_match_the_code() {
    let rows = table("written");
    assert!(rows.len() > 4);
    for row in rows {
        let text = row[0].trim_matches('`').to_owned();
        let chain: Result<ChainSpec, _> = match text.strip_prefix('[') {
            None => ChainSpec::named(text.trim_matches('"')),
            Some(list) => {
                let names = list.trim_end_matches(']').split(", ");
                let names: Vec<_> = names.map(|name| name.trim_matches('"')).collect();
                ChainSpec::of(&names)
            }
        };
        let error = chain.unwrap_err().to_string();
        let wanted = row[1].trim_matches('`');
        let begins = wanted.strip_suffix("...").filter(|_| !wanted.ends_with("=value, ..."));
        let fits = begins.map_or(error == wanted, |begins| error.starts_with(begins));
        assert!(fits, "{text}: {error}");
    }
}

#[test]
fn examples_match_the_code() {
    let source = include_str!("outside.rs");
    let text = document();
    let shown: Vec<_> = text.split("```rust\n").skip(1).collect();
    assert_eq!(shown.len(), 2);
    for block in shown {
        let (block, _) = block.split_once("```").unwrap();
        assert!(source.contains(block), "{block}");
    }
}

/// A row is marked exactly if its chain or rule is reconstructed.
fn assert_marks(rows: &[Vec<String>]) {
    for row in rows {
        let marked = row.iter().any(|cell| cell.starts_with("reconstructed"));
        assert_eq!(marked, is_reconstructed(row[0].trim_matches('`')), "{row:?}");
    }
}

fn first(rows: &[Vec<String>], count: usize) -> Vec<Vec<String>> {
    rows.iter().map(|row| row[..count].to_vec()).collect()
}

/// The rows of all tables whose first column has this head.
fn table(head: &str) -> Vec<Vec<String>> {
    let (mut rows, mut within) = (Vec::new(), false);
    for line in document().lines() {
        let Some(inside) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            within &= line.starts_with("|-");
            continue;
        };
        let cells: Vec<String> = inside.split(" | ").map(str::to_owned).collect();
        if within {
            rows.push(cells);
        } else {
            within = cells[0] == head;
        }
    }
    rows
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scheduler.md");
    std::fs::read_to_string(path).unwrap()
}
