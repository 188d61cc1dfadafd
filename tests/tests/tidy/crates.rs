//! External crates in the manifests, and the purity of crates without I/O.

use toml::{Table, Value};

use crate::tree::{File, Finding, Tree};

/// Pure crates without their list of forbidden calls and types, or with a crate that does I/O.
pub fn impure(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in PURE {
        let path = format!("{name}/clippy.toml");
        let Some(file) = tree.file(&path) else {
            let what = "missing: a pure crate forbids clocks and random order".into();
            findings.push(Finding { path, line: 0, what });
            continue;
        };
        let table = parsed(file);
        for (list, wanted) in
            [("disallowed-methods", FORBIDDEN_METHODS), ("disallowed-types", FORBIDDEN_TYPES)]
        {
            let have = disallowed(&table, list);
            for path in wanted.iter().filter(|path| !have.contains(path)) {
                findings.push(file.finding(0, format!("{list} lacks {path}")));
            }
        }
        let Some(file) = tree.file(&format!("{name}/Cargo.toml")) else { continue };
        for outer in keys(&parsed(file), "dependencies") {
            if IO_CRATES.contains(&outer.as_str()) {
                findings.push(file.finding(0, format!("a pure crate may not use {outer}")));
            }
        }
    }
    findings
}

/// External crates without a reason, without a user, or outside the root's list.
pub fn unreasoned(tree: &Tree) -> Vec<Finding> {
    let Some(root) = tree.file("Cargo.toml") else { return Vec::new() };
    let members: Vec<(&File, Table)> = tree
        .files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .map(|file| (file, parsed(file)))
        .collect();
    let mut findings = Vec::new();
    let lines = root.text.lines().enumerate();
    let list = lines.skip_while(|(_, line)| *line != "[workspace.dependencies]").skip(1);
    for (i, line) in list.take_while(|(_, line)| !line.starts_with('[')) {
        let Some((name, rest)) = line.split_once(" = ") else { continue };
        if name.starts_with('#') || name.starts_with("polyrail-") {
            continue;
        }
        let reason = rest.rsplit_once("# ").map_or("", |(_, reason)| reason);
        if reason.split_whitespace().count() < 2 {
            findings.push(root.finding(i + 1, format!("{name}: why is it carried?")));
        }
        if !members.iter().any(|(_, manifest)| SECTIONS.iter().any(|s| has(manifest, s, name))) {
            findings.push(root.finding(i + 1, format!("{name}: no member uses it")));
        }
    }
    for (file, manifest) in &members {
        for section in SECTIONS {
            let table = manifest.get(*section).and_then(Value::as_table);
            for (name, spec) in table.into_iter().flatten() {
                if spec.get("workspace").and_then(Value::as_bool) != Some(true) {
                    let what = format!("{name}: name it in the root's list, with its reason");
                    findings.push(file.finding(0, what));
                }
            }
        }
    }
    findings
}

fn parsed(file: &File) -> Table {
    file.text.parse().unwrap_or_else(|e| panic!("{}: {e}", file.path))
}

fn keys(manifest: &Table, section: &str) -> Vec<String> {
    let table = manifest.get(section).and_then(Value::as_table);
    table.into_iter().flat_map(|table| table.keys().cloned()).collect()
}

fn has(manifest: &Table, section: &str, name: &str) -> bool {
    keys(manifest, section).iter().any(|key| key == name)
}

/// The paths of a list in `clippy.toml`, whose entries are texts or tables.
fn disallowed<'a>(table: &'a Table, list: &str) -> Vec<&'a str> {
    let entries = table.get(list).and_then(Value::as_array);
    let path = |entry: &'a Value| entry.get("path").unwrap_or(entry).as_str();
    entries.into_iter().flatten().filter_map(path).collect()
}

const SECTIONS: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];
/// Crates that know no socket, thread, file or clock.
const PURE: &[&str] = &["model", "scheduler", "session", "tunnel/congestion"];
const FORBIDDEN_METHODS: &[&str] =
    &["std::time::Instant::now", "std::time::SystemTime::now", "std::thread::sleep"];
const FORBIDDEN_TYPES: &[&str] = &["std::collections::HashMap", "std::collections::HashSet"];
const IO_CRATES: &[&str] =
    &["libc", "mio", "nix", "rustls", "signal-hook", "socket2", "tempfile", "tokio"];

#[test]
fn a_pure_crate_that_may_read_the_clock_is_found() {
    let good = "disallowed-methods = [\"std::time::Instant::now\", \
                { path = \"std::time::SystemTime::now\" }, \"std::thread::sleep\"]\n\
                disallowed-types = [\"std::collections::HashMap\", \
                \"std::collections::HashSet\"]\n";
    let bad = good.replace("\"std::time::Instant::now\", ", "").replace("HashSet", "BTreeSet");
    let tree = Tree::of(&[
        ("model/clippy.toml", good),
        (
            "model/Cargo.toml",
            "[dependencies]\nthiserror = \"2\"\n[dev-dependencies]\nmio = \"1\"\n",
        ),
        ("scheduler/clippy.toml", &bad),
        ("scheduler/Cargo.toml", "[dependencies]\nmio = \"1\"\n"),
    ]);
    let found = impure(&tree);
    let places: Vec<_> = found.iter().map(Finding::place).collect();
    let expected = [
        "scheduler/clippy.toml:0",
        "scheduler/clippy.toml:0",
        "scheduler/Cargo.toml:0",
        "session/clippy.toml:0",
        "tunnel/congestion/clippy.toml:0",
    ];
    assert_eq!(places, expected);
    assert!(found[0].what.contains("Instant::now") && found[1].what.contains("HashSet"));
}

#[test]
fn a_crate_without_reason_user_or_entry_is_found() {
    let root = "[workspace.dependencies]\n# Why.\npolyrail-model = { path = \"model\" }\n\
                mio = \"1\"  # the event loop\nserde = \"1\"\nslab = \"0.4\" # yes\n\
                ring = \"0.17\" # digests of proofs\n[profile.ci]\nlto = \"off\"\n";
    let member = "[dependencies]\nmio.workspace = true\nserde = { workspace = true }\n\
                  rand = \"0.9\"\n[dev-dependencies]\nslab.workspace = true\n";
    let tree = Tree::of(&[("Cargo.toml", root), ("a/Cargo.toml", member)]);
    let places = ["Cargo.toml:5", "Cargo.toml:6", "Cargo.toml:7", "a/Cargo.toml:0"];
    crate::assert_finds(unreasoned, &tree, &places);
}
