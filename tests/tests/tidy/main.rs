//! The tidy test: rules for the tree that rustfmt and clippy do not check.
//!
//! Each rule is a function from a [`Tree`] to its findings. One test applies it to the real tree.
//! Another one, next to the rule, applies it to a small tree with the mistake, so that no rule
//! passes because it checks nothing. `CONTRIBUTING.md` lists the rules.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A panic is how a rule fails.

mod arrows;
mod crates;
mod documents;
mod imports;
mod promises;
mod shape;
mod source;
mod tree;
mod unsafety;
mod words;

use tree::{Finding, Tree};

type Rule = fn(&Tree) -> Vec<Finding>;

/// Applies one rule to the tree that this test was built from.
#[track_caller]
fn enforce(rule: Rule) {
    let findings = rule(&Tree::load());
    let list: String = findings.iter().map(|finding| format!("\n  {finding}")).collect();
    assert!(findings.is_empty(), "{} findings:{list}", findings.len());
}

/// Checks that a rule finds exactly these places, given as `path:line`.
#[track_caller]
fn assert_finds(rule: Rule, tree: &Tree, places: &[&str]) {
    let found: Vec<_> = rule(tree).iter().map(Finding::place).collect();
    assert_eq!(found, places);
}

#[test]
fn the_tree_is_read() {
    let tree = Tree::load();
    for path in ["Cargo.toml", "model/src/lib.rs", "tests/tests/tidy/main.rs"] {
        assert!(tree.files.iter().any(|file| file.path == path), "{path} is missing");
    }
    assert!(tree.files.iter().all(|file| !file.path.starts_with("target/")));
}

#[test]
fn files_are_at_most_800_lines() {
    for note in shape::long_files(&Tree::load(), shape::FILE_LINES_REVIEW) {
        println!("REVIEW {note}");
    }
    enforce(|tree| shape::long_files(tree, shape::FILE_LINES_MAX));
}

#[test]
fn functions_fit_a_screen() {
    enforce(shape::long_functions);
}

#[test]
fn lines_are_at_most_100_columns() {
    enforce(shape::wide_lines);
}

#[test]
fn modules_begin_with_their_document() {
    enforce(shape::undocumented_modules);
}

#[test]
fn no_file_is_named_for_having_no_concept() {
    enforce(words::nameless_files);
}

#[test]
fn standard_terms_replace_idiom() {
    enforce(words::idiom);
}

#[test]
fn no_work_is_left_unfinished() {
    enforce(words::leftovers);
}

#[test]
fn crates_depend_along_the_arrows() {
    enforce(arrows::wrong_arrows);
}

#[test]
fn files_do_not_import_each_other_in_cycles() {
    enforce(imports::import_cycles);
}

#[test]
fn pure_crates_stay_pure() {
    enforce(crates::impure);
}

#[test]
fn each_external_crate_has_its_reason() {
    enforce(crates::unreasoned);
}

#[test]
fn unsafe_code_is_in_few_crates() {
    enforce(unsafety::misplaced);
}

#[test]
fn each_promise_and_feature_has_its_tests() {
    enforce(promises::missing_tests);
}

#[test]
fn links_between_documents_lead_to_files() {
    enforce(documents::dead_links);
}
