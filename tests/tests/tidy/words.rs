//! Names and words that say that something is unfinished or has no concept.

use crate::source::{Source, words};
use crate::tree::{Finding, Tree};

/// Files that collect what has no home.
pub fn nameless_files(tree: &Tree) -> Vec<Finding> {
    let nameless = |path: &str| path.split('/').any(|part| NAMELESS.contains(&stem(part)));
    tree.rust()
        .filter(|file| nameless(&file.path))
        .map(|file| file.finding(0, "name the file for its concept"))
        .collect()
}

/// Stubs, debug output, marks of unfinished work and tests that do not run.
pub fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let source = Source::new(&file.text);
        let macros = MACROS.iter().flat_map(|word| {
            let called = |at: &usize| source.code[at + word.len()..].starts_with('!');
            words(&source.code, word).filter(called).map(move |at| (at, *word))
        });
        let marks =
            MARKS.iter().flat_map(|word| words(&source.comments, word).map(move |at| (at, *word)));
        let alone = |(at, _): &(usize, &str)| !is_run_by_another(&file.text, &source.code[*at..]);
        let ignored = source.code.match_indices("#[ignore").filter(alone);
        for (at, word) in macros.chain(marks).chain(ignored) {
            // Blanking keeps lines, not bytes: each text counts its own.
            let text = if MARKS.contains(&word) { &source.comments } else { &source.code };
            let line = text[..at].matches('\n').count() + 1;
            findings.push(file.finding(line, format!("`{word}`: finish it or open an issue")));
        }
    }
    findings
}

/// Whether the ignored test that begins here is one that another test of its file names, to run it
/// in a process or a kernel of its own. Its own head and the reason why it is ignored do not count.
fn is_run_by_another(text: &str, ignored: &str) -> bool {
    let name = ignored.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
    name.is_some_and(|(name, _)| {
        let head = format!("fn {name}(");
        let others =
            text.lines().filter(|line| !line.contains("#[ignore") && !line.contains(&head));
        others.flat_map(|line| words(line, name)).next().is_some()
    })
}

fn stem(name: &str) -> &str {
    name.strip_suffix(".rs").unwrap_or(name)
}

const NAMELESS: &[&str] = &["util", "utils", "helper", "helpers", "misc"];
const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];
const MARKS: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

#[test]
fn a_nameless_file_is_found() {
    let tree = Tree::of(&[
        ("a/src/utility.rs", ""),
        ("a/src/util.rs", ""),
        ("a/src/helpers/mod.rs", ""),
        ("a/tests/misc.rs", ""),
    ]);
    let places = ["a/src/util.rs:0", "a/src/helpers/mod.rs:0", "a/tests/misc.rs:0"];
    crate::assert_finds(nameless_files, &tree, &places);
}

#[test]
fn leftovers_are_found_and_texts_about_them_are_not() {
    let bad = "fn a() { todo!() }\nfn b() { dbg!(1); }\n// é FIXME: later\n#[test]\n#[ignore]\n\
               fn slow() {}\n#[ignore = \"alone\"]\nfn alone() {}\n\
               fn e() { unimplemented!(\"x\") }\n";
    let good = "fn a() { print(\"todo! FIXME\"); my_dbg!(1); }\n// 0xXXXX is no mark\n\
                #[ignore = \"run by `parent`\"]\nfn child() {}\nfn parent() { run(\"child\") }\n";
    let tree = Tree::of(&[("a/src/bad.rs", bad), ("a/src/good.rs", good)]);
    let mut found: Vec<_> = leftovers(&tree).iter().map(Finding::place).collect();
    found.sort();
    let lines = [1, 2, 3, 5, 7, 9].map(|line| format!("a/src/bad.rs:{line}"));
    assert_eq!(found, lines);
}
