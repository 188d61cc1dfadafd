//! Which crates may contain `unsafe` code. That each block has its `// SAFETY:` note is clippy's
//! `undocumented_unsafe_blocks`, and that a file must allow it the lint `unsafe_code`.

use crate::source::{Source, words};
use crate::tree::{Finding, Tree};

/// `unsafe` outside the crates that may have it.
pub fn misplaced(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !PERMITTED.contains(&file.crate_folder())) {
        let source = Source::new(&file.text);
        let line = |at| file.finding(source.line(at), "`unsafe` is not permitted in this crate");
        findings.extend(words(&source.code, "unsafe").map(line));
    }
    findings
}

/// Crates with socket options and devices that no safe wrapper has.
const PERMITTED: &[&str] = &["tunnel", "emulator"];

#[test]
fn unsafe_code_in_other_crates_is_found() {
    let text = "//! x\nfn a() {\n    unsafe { f() }\n}\n// unsafe in words\n\"unsafe\";\n";
    let tree = Tree::of(&[("tunnel/src/kernel.rs", text), ("session/src/wire.rs", text)]);
    crate::assert_finds(misplaced, &tree, &["session/src/wire.rs:3"]);
}
