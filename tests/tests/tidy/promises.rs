//! The tests and test files that `docs/testing.md` names exist, and its tables lose no row.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;
use crate::tree::{Finding, Tree};

/// Names in the last cells of the tables that no test has, rows without a name, and missing rows.
pub fn missing_tests(tree: &Tree) -> Vec<Finding> {
    let file = tree.file("docs/testing.md").expect("the tables of tests");
    let known: BTreeSet<String> = tree.rust().flat_map(|file| tests(&file.text)).collect();
    let (mut findings, mut rows, mut table) = (Vec::new(), BTreeMap::<&str, usize>::new(), "");
    for (i, line) in file.text.lines().enumerate() {
        table = line.strip_prefix("## ").unwrap_or(table);
        let Some(row) = line.strip_prefix("| ").filter(|row| !row.ends_with("| tests |")) else {
            continue;
        };
        *rows.entry(table).or_default() += 1;
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let quoted = cell.split('`').skip(1).step_by(2);
        let names: Vec<&str> = quoted.filter(|name| !name.contains(' ')).collect();
        if names.is_empty() {
            findings.push(file.finding(i + 1, "the row names no test"));
        }
        let exists = |name: &str| known.contains(name) || name.contains('/') && tree.holds(name);
        let missing = names.iter().filter(|name| !exists(name));
        findings.extend(missing.map(|name| file.finding(i + 1, format!("no test `{name}`"))));
    }
    let too_few = ROWS.iter().filter(|(table, min)| rows.get(table).is_none_or(|n| n < min));
    findings
        .extend(too_few.map(|(table, min)| file.finding(0, format!("{table}: below {min} rows"))));
    findings
}

/// The functions that the test harness runs: those with an attribute `test`.
fn tests(text: &str) -> Vec<String> {
    let source = Source::new(text);
    let lines: Vec<&str> = source.code.lines().map(str::trim).collect();
    let is_test = |first: usize| {
        let above = lines[..first - 1].iter().rev();
        let mut attributes = above.take_while(|line| line.is_empty() || line.starts_with("#["));
        attributes.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    };
    let functions = source.functions().into_iter().filter(|(_, span)| is_test(span.first));
    functions.map(|(name, _)| name).collect()
}

/// The tables, with the least number of their rows: who removes a row lowers it on purpose.
const ROWS: &[(&str, usize)] = &[("Promises", 17), ("Features", 26), ("Slow tests", 20)];

#[test]
fn a_missing_test_is_found() {
    let table = "| promise | tests |\n|---|---|\n\
                 | a `b` | `there`, `gone`, `helper`, `a/src/tests.rs` |\n\
                 | c | none |\n";
    let tests = "#[test]\n// Why.\nfn there() {}\nfn helper() {}\n// fn gone() {}\n";
    let tree = Tree::of(&[("docs/testing.md", table), ("a/src/tests.rs", tests)]);
    let places = [3, 3, 4, 0, 0, 0].map(|line| format!("docs/testing.md:{line}"));
    crate::assert_finds(missing_tests, &tree, &places.each_ref().map(String::as_str));
}
