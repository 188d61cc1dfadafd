//! Which crate may use which: every `Cargo.toml` follows the table of `CONTRIBUTING.md`.

use toml::Table;

use crate::tree::{Finding, Tree};

/// Dependencies that no arrow permits, arrows that no dependency uses, members without a row in the
/// table, and a daemon or library that issues certificates.
pub fn wrong_arrows(tree: &Tree) -> Vec<Finding> {
    let table = tree.file("CONTRIBUTING.md").expect("the table of arrows");
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        let manifest: Table = file.text.parse().unwrap_or_else(|e| panic!("{}: {e}", file.path));
        let start = format!("| `{}` |", file.crate_folder());
        let Some(row) = table.text.lines().find_map(|line| line.strip_prefix(&start)) else {
            findings.push(file.finding(0, "CONTRIBUTING.md has no row for the crate"));
            continue;
        };
        let cell = row.split('|').next().unwrap_or_default();
        let (uses, tests_use) = cell.split_once("tests:").unwrap_or((cell, ""));
        for (section, more) in
            [("dependencies", ""), ("build-dependencies", ""), ("dev-dependencies", tests_use)]
        {
            for name in inner_crates(&manifest, section) {
                let listed = |list: &str| quoted(list).any(|word| word == "*" || word == name);
                if name != "model" && !listed(uses) && !listed(more) {
                    let line = line_of(&file.text, &format!("polyrail-{name}"));
                    let what = format!("{} may not use {name} in [{section}]", file.crate_folder());
                    findings.push(file.finding(line, what));
                }
            }
        }
        for (list, section) in [(uses, "dependencies"), (tests_use, "dev-dependencies")] {
            let used = inner_crates(&manifest, section);
            for name in quoted(list).filter(|name| *name != "*" && !used.contains(name)) {
                findings
                    .push(file.finding(0, format!("unused arrow to {name} in CONTRIBUTING.md")));
            }
        }
        let identity = manifest.get("dependencies").and_then(|all| all.get("polyrail-identity"));
        if identity.is_some_and(|one| one.get("features").is_some()) && file.crate_folder() != "cli"
        {
            findings.push(file.finding(0, "only cli issues certificates"));
        }
    }
    findings
}

/// The words between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The Polyrail crates in a section of a manifest, also below `[target.X]`.
fn inner_crates<'a>(manifest: &'a Table, section: &str) -> Vec<&'a str> {
    let targets = manifest.get("target").and_then(|t| t.as_table()).into_iter();
    let tables = targets.flat_map(|t| t.values().filter_map(|v| v.as_table()));
    std::iter::once(manifest)
        .chain(tables)
        .filter_map(|table| table.get(section)?.as_table())
        .flat_map(|table| table.keys().filter_map(|name| name.strip_prefix("polyrail-")))
        .collect()
}

fn line_of(text: &str, start: &str) -> usize {
    text.lines().position(|line| line.starts_with(start)).map_or(0, |i| i + 1)
}

#[test]
fn a_forbidden_arrow_is_found_in_every_section() {
    let table = "| crate | may use |\n| `session` | `scheduler` | flows |\n\
                 | `relay` | `session`, `identity`; tests: `scheduler` | sockets |\n\
                 | `tests` | `*` | all |\n";
    let bad = "[dependencies]\n\
               polyrail-model.workspace = true\n\
               polyrail-scheduler.workspace = true\n\
               polyrail-tunnel.workspace = true\n\
               [dev-dependencies]\n\
               polyrail-relay.workspace = true\n\
               [target.'cfg(unix)'.dependencies]\n\
               polyrail-admin = { path = \"../control/admin\" }\n";
    let fine = "[dependencies]\npolyrail-session.workspace = true\nmio.workspace = true\n\
                polyrail-identity = { workspace = true }\n\
                [dev-dependencies]\npolyrail-scheduler.workspace = true\n";
    let tests_only = fine.replace("-session", "-scheduler");
    let issues = fine.replace("true }", "true, features = [\"issue\"] }");
    let tree = |relay: &str| {
        Tree::of(&[
            ("CONTRIBUTING.md", table),
            ("session/Cargo.toml", bad),
            ("relay/Cargo.toml", relay),
            ("tests/Cargo.toml", bad),
            ("attic/Cargo.toml", "[package]\n"),
        ])
    };
    let session = ["session/Cargo.toml:4", "session/Cargo.toml:8", "session/Cargo.toml:6"];
    crate::assert_finds(
        wrong_arrows,
        &tree(fine),
        &[&session[..], &["attic/Cargo.toml:0"]].concat(),
    );
    let relay = ["relay/Cargo.toml:2", "relay/Cargo.toml:0", "attic/Cargo.toml:0"];
    crate::assert_finds(wrong_arrows, &tree(&tests_only), &[&session[..], &relay].concat());
    crate::assert_finds(wrong_arrows, &tree(&issues), &[&session[..], &relay[1..]].concat());
}
