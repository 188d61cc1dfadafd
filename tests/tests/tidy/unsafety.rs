//! Where `unsafe` may stand, and that each use is explained.

use crate::source::{Source, words};
use crate::tree::{File, Finding, Tree};

/// Crate roots without their `unsafe_code` attribute, `unsafe` in crates that may not have it, and
/// `unsafe` without a `// SAFETY:` note right above.
pub fn unexplained(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let permitted = PERMITTED.contains(&file.crate_folder());
        findings.extend(root_attribute(file, permitted));
        let source = Source::new(&file.text);
        for at in words(&source.code, "unsafe") {
            let line = source.line(at);
            if !permitted {
                findings.push(file.finding(line, "`unsafe` is not permitted in this crate"));
            } else if !explained(&source.comments, line) {
                findings.push(file.finding(line, "`unsafe` without a `// SAFETY:` note above it"));
            }
        }
    }
    findings
}

fn root_attribute(file: &File, permitted: bool) -> Option<Finding> {
    let own = |end: &&str| file.path.ends_with(&format!("{}{end}", file.crate_folder()));
    let root = ["/src/lib.rs", "/src/main.rs"].iter().any(own) || file.path.contains("/src/bin/");
    let forbids = file.text.contains("#![forbid(unsafe_code)]");
    let denies = file.text.contains("#![deny(unsafe_code)]");
    let fine = !root || forbids || (permitted && denies);
    let wanted = if permitted { "deny" } else { "forbid" };
    (!fine).then(|| file.finding(1, format!("the crate root needs `#![{wanted}(unsafe_code)]`")))
}

/// Whether the line or the block of comments within the lines above has the note. A few lines may
/// lie between: the beginning of the statement that the block is part of.
fn explained(comments: &str, line: usize) -> bool {
    let lines: Vec<_> = comments.lines().collect();
    let note = |i: usize| lines.get(i).is_some_and(|line| line.contains("SAFETY:"));
    let comment = |i: usize| lines.get(i).is_some_and(|line| !line.trim().is_empty());
    if note(line - 1) {
        return true;
    }
    let Some(mut i) =
        (line.saturating_sub(1 + STATEMENT_LINES)..line - 1).rev().find(|i| comment(*i))
    else {
        return false;
    };
    while comment(i) && !note(i) && i > 0 {
        i -= 1;
    }
    note(i)
}

/// Crates that hold small files with `unsafe`: socket options and namespaces that no wrapper has.
const PERMITTED: &[&str] = &["tunnel", "gateway", "emulator"];
/// How far a statement may begin above its `unsafe`.
const STATEMENT_LINES: usize = 4;

#[test]
fn unsafe_outside_its_crates_and_without_note_is_found() {
    let good = "#![deny(unsafe_code)]\n// SAFETY: the pointer is\n// valid here.\nlet x =\n    \
                unsafe { f() };\n";
    let bare = "//! x\nfn a() {\n    unsafe { f() }\n}\n// unsafe in words\n\"unsafe\";\n";
    let far = "// SAFETY: for another\n\n\n\n\n\nunsafe { f() }\n";
    let tree = Tree::of(&[
        ("tunnel/src/lib.rs", good),
        ("tunnel/src/far.rs", far),
        ("tunnel/src/bare.rs", bare),
        ("session/src/wire.rs", bare),
    ]);
    let places = ["tunnel/src/far.rs:7", "tunnel/src/bare.rs:3", "session/src/wire.rs:3"];
    crate::assert_finds(unexplained, &tree, &places);
}

#[test]
fn a_crate_root_without_attribute_is_found() {
    let tree = Tree::of(&[
        ("model/src/lib.rs", "#![forbid(unsafe_code)]\n"),
        ("session/src/lib.rs", "#![deny(unsafe_code)]\n"),
        ("tunnel/src/lib.rs", "#![deny(unsafe_code)]\n"),
        ("gateway/src/main.rs", "//! x\n"),
        ("interop/src/bin/other.rs", "//! x\n"),
        ("session/src/wire/lib.rs", "//! x\n"),
    ]);
    let places = ["session/src/lib.rs:1", "gateway/src/main.rs:1", "interop/src/bin/other.rs:1"];
    crate::assert_finds(unexplained, &tree, &places);
}
