//! Sizes, widths and opening documents.

use crate::source::Source;
use crate::tree::{File, Finding, Tree};

/// Files with more lines than this, test code not counted.
pub fn long_files(tree: &Tree, lines_max: usize) -> Vec<Finding> {
    let long = |file: &File| {
        let lines = code_lines(file);
        (lines > lines_max).then(|| file.finding(0, format!("{lines} lines of code: split it")))
    };
    tree.rust().filter(|file| !file.is_test()).filter_map(long).collect()
}

/// Functions longer than a screen.
pub fn long_functions(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (name, span) in Source::new(&file.text).functions() {
            let lines = span.last - span.first + 1;
            if lines > FUNCTION_LINES_MAX {
                findings.push(file.finding(span.first, format!("`{name}` has {lines} lines")));
            }
        }
    }
    findings
}

/// Lines that are too wide. Addresses of web pages, tables in documents and the table of crates in
/// the root `Cargo.toml` cannot be folded.
pub fn wide_lines(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path != "Cargo.toml") {
        let table = |line: &str| file.path.ends_with(".md") && line.starts_with('|');
        for (i, line) in file.text.lines().enumerate() {
            let width = line.chars().count();
            if width > WIDTH_MAX && !line.contains("://") && !table(line) {
                findings.push(file.finding(i + 1, format!("{width} columns")));
            }
        }
    }
    findings
}

/// Rust files that do not open with `//!`.
pub fn undocumented_modules(tree: &Tree) -> Vec<Finding> {
    let open = |file: &&File| file.text.starts_with("//! ");
    tree.rust()
        .filter(|file| !open(file))
        .map(|file| file.finding(1, "begin with `//!`: what the module does and does not do"))
        .collect()
}

fn code_lines(file: &File) -> usize {
    let tests = Source::new(&file.text).test_modules();
    file.text.lines().count() - tests.iter().map(|s| s.last - s.first + 1).sum::<usize>()
}

/// A larger file has more than one concept.
pub const FILE_LINES_MAX: usize = 800;
/// A file of this size is listed for review.
pub const FILE_LINES_REVIEW: usize = 500;
/// A function fits on a screen.
const FUNCTION_LINES_MAX: usize = 70;
/// As in rustfmt.toml.
const WIDTH_MAX: usize = 100;

#[test]
fn a_long_file_is_found_and_tests_do_not_count() {
    let long = "//! x\n".repeat(801);
    let fits =
        format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "//! x\n".repeat(800), "\n".repeat(50));
    let tree = Tree::of(&[
        ("a/src/long.rs", &long),
        ("a/src/fits.rs", &fits),
        ("a/src/long/tests.rs", &long),
        ("a/tests/long.rs", &long),
        ("tests/src/long.rs", &long),
    ]);
    let rule = |tree: &Tree| long_files(tree, FILE_LINES_MAX);
    crate::assert_finds(rule, &tree, &["a/src/long.rs:0", "tests/src/long.rs:0"]);
}

#[test]
fn a_long_function_is_found() {
    let function =
        |lines: usize| format!("//! x\nfn f() {{\n{}}}\n", "    a();\n".repeat(lines - 2));
    let tree = Tree::of(&[("a/src/b.rs", &function(70)), ("a/src/c.rs", &function(71))]);
    crate::assert_finds(long_functions, &tree, &["a/src/c.rs:2"]);
}

#[test]
fn a_wide_line_is_found() {
    let wide = format!("a\n{}\n{}\n", "é".repeat(100), "x".repeat(101));
    let free = format!("| {} |\nsee https://example.com/{}\n", "x".repeat(101), "x".repeat(101));
    let tree = Tree::of(&[("a/src/b.rs", &wide), ("docs/c.md", &free), ("d.md", &wide)]);
    crate::assert_finds(wide_lines, &tree, &["a/src/b.rs:3", "d.md:3"]);
}

#[test]
fn a_module_without_document_is_found() {
    let tree = Tree::of(&[
        ("a/src/a.rs", "//! Does a.\n"),
        ("a/src/b.rs", "// Does b.\n//! Late.\n"),
        ("a/src/c.rs", ""),
    ]);
    crate::assert_finds(undocumented_modules, &tree, &["a/src/b.rs:1", "a/src/c.rs:1"]);
}
