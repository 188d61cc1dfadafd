//! Which crate may use which: the table of `CONTRIBUTING.md`, held against every `Cargo.toml`.

use toml::Table;

use crate::tree::{Finding, Tree};

/// Dependencies that no arrow permits, and members that the table does not know.
pub fn wrong_arrows(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        let manifest: Table = file.text.parse().unwrap_or_else(|e| panic!("{}: {e}", file.path));
        let Some((_, uses, tests_use)) =
            ARROWS.iter().find(|(name, ..)| *name == file.crate_folder())
        else {
            findings.push(file.finding(0, "a crate that the table of arrows does not know"));
            continue;
        };
        for (section, more) in [
            ("dependencies", &[][..]),
            ("build-dependencies", &[][..]),
            ("dev-dependencies", tests_use),
        ] {
            for name in inner_crates(&manifest, section) {
                let listed = |list: &[&str]| list == ANY || list.contains(&name);
                let may = name == "model" || listed(uses) || listed(more);
                if !may {
                    let line = line_of(&file.text, &format!("polyrail-{name}"));
                    let what = format!("{} may not use {name} in [{section}]", file.crate_folder());
                    findings.push(file.finding(line, what));
                }
            }
        }
    }
    findings
}

/// Differences between the table here and the one that people read.
pub fn stale_table(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file("CONTRIBUTING.md") else {
        return vec![Finding { path: "CONTRIBUTING.md".into(), line: 0, what: "missing".into() }];
    };
    let row = |name: &str| {
        let start = format!("| `{name}` |");
        file.text.lines().enumerate().find(|(_, line)| line.starts_with(&start))
    };
    let mut findings = Vec::new();
    for (name, uses, _) in ARROWS {
        match row(name) {
            None => findings.push(file.finding(0, format!("no row for `{name}`"))),
            Some((i, line)) if quoted(line.split('|').nth(2).unwrap_or_default()) != *uses => {
                findings.push(file.finding(i + 1, format!("the arrows are {uses:?}")));
            }
            Some(_) => {}
        }
    }
    findings
}

/// The words between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
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

type Arrow = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Each crate, what it may use beside `model`, and what its tests may use beside that.
const ARROWS: &[Arrow] = &[
    ("model", &[], &[]),
    ("scheduler", &[], &[]),
    ("session", &["scheduler"], &[]),
    ("predictor", &[], &[]),
    ("tunnel", &["identity"], &[]),
    ("identity", &[], &["identity"]),
    ("config", &["identity", "scheduler"], &["identity"]),
    ("telemetry", &[], &[]),
    ("admin", &["config", "identity"], &["identity"]),
    ("cli", &["admin", "config", "identity", "predictor"], &[]),
    ("relay", &["session", "predictor", "tunnel"], &["scheduler"]),
    ("daemon", &["session", "config", "identity", "admin", "relay"], &["tunnel"]),
    (
        "gateway",
        &[
            "session",
            "scheduler",
            "predictor",
            "tunnel",
            "config",
            "identity",
            "admin",
            "telemetry",
            "daemon",
            "relay",
        ],
        &["emulator"],
    ),
    (
        "cloud",
        &[
            "session",
            "scheduler",
            "predictor",
            "tunnel",
            "config",
            "identity",
            "admin",
            "daemon",
            "relay",
        ],
        &["emulator"],
    ),
    ("emulator", &[], &[]),
    ("interop", &["emulator"], &["session"]),
    ("sim", &["scheduler", "session", "predictor", "emulator"], &[]),
    ("tests", ANY, ANY),
];

/// Every crate.
const ANY: &[&str] = &["*"];

#[test]
fn a_forbidden_arrow_is_found_in_every_section() {
    let bad = "[dependencies]\n\
               polyrail-model.workspace = true\n\
               polyrail-scheduler.workspace = true\n\
               polyrail-tunnel.workspace = true\n\
               [dev-dependencies]\n\
               polyrail-relay.workspace = true\n\
               [target.'cfg(unix)'.dependencies]\n\
               polyrail-control = { path = \"../control\" }\n";
    let fine = "[dependencies]\npolyrail-session.workspace = true\nmio.workspace = true\n\
                [dev-dependencies]\npolyrail-control.workspace = true\n";
    let tree = Tree::of(&[
        ("Cargo.toml", "[workspace]\n"),
        ("session/Cargo.toml", bad),
        ("relay/Cargo.toml", fine),
        ("attic/Cargo.toml", "[package]\n"),
    ]);
    let places = [
        "session/Cargo.toml:4",
        "session/Cargo.toml:8",
        "session/Cargo.toml:6",
        "attic/Cargo.toml:0",
    ];
    crate::assert_finds(wrong_arrows, &tree, &places);
}

#[test]
fn a_stale_row_is_found() {
    let mut table = String::from("# x\n");
    for (name, uses, _) in ARROWS {
        let uses: Vec<_> = uses.iter().map(|name| format!("`{name}`")).collect();
        table += &format!("| `{name}` | {} | words |\n", uses.join(", "));
    }
    let places = |text: &str| {
        let findings = stale_table(&Tree::of(&[("CONTRIBUTING.md", text)]));
        findings.iter().map(Finding::place).collect::<Vec<_>>()
    };
    assert_eq!(places(&table), [""; 0]);
    let wrong = table.replace("| `session` | `scheduler` |", "| `session` | `tunnel` |");
    assert_eq!(places(&wrong), ["CONTRIBUTING.md:4"]);
    let gone = table.replace("| `relay` |", "| relay |");
    assert_eq!(places(&gone), ["CONTRIBUTING.md:0"]);
}
