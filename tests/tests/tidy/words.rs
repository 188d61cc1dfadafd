//! Names and words that mark unfinished work or a missing concept.

use crate::source::{Source, words};
use crate::tree::{Finding, Tree};

/// Files that are not named for a concept.
pub fn nameless_files(tree: &Tree) -> Vec<Finding> {
    let nameless = |path: &str| path.split('/').any(|part| NAMELESS.contains(&stem(part)));
    tree.rust()
        .filter(|file| nameless(&file.path))
        .map(|file| file.finding(0, "name the file for its concept"))
        .collect()
}

/// Marks of unfinished work and tests that do not run.
pub fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let source = Source::new(&file.text);
        let marks =
            MARKS.iter().flat_map(|word| words(&source.comments, word).map(move |at| (at, *word)));
        let alone = |(at, _): &(usize, &str)| !is_run_by_another(&file.text, &source.code[*at..]);
        let ignored = source.code.match_indices("#[ignore").filter(alone);
        for (at, word) in marks.chain(ignored) {
            // Blanking keeps lines, not bytes: each text counts its own.
            let text = if MARKS.contains(&word) { &source.comments } else { &source.code };
            let line = text[..at].matches('\n').count() + 1;
            findings.push(file.finding(line, format!("`{word}`: finish it or open an issue")));
        }
    }
    findings
}

/// Whether another test of the file names the ignored test that begins here, to run it in a process
/// or a kernel of its own. Its head and the reason for `ignore` do not count.
fn is_run_by_another(text: &str, ignored: &str) -> bool {
    let name = ignored.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
    name.is_some_and(|(name, _)| {
        let head = format!("fn {name}(");
        let others =
            text.lines().filter(|line| !line.contains("#[ignore") && !line.contains(&head));
        others.flat_map(|line| words(line, name)).next().is_some()
    })
}

/// Phrases for which the project has a standard term, in comments, documents, texts and names.
pub fn idiom(tree: &Tree) -> Vec<Finding> {
    let read = |path: &str| !UNREAD.iter().any(|start| path.starts_with(start));
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| read(&file.path)) {
        for (i, line) in file.text.lines().enumerate() {
            let line = line.to_lowercase().replace('_', " ");
            for (phrase, term) in IDIOM.iter().filter(|(phrase, _)| line.contains(phrase)) {
                if words(&line, phrase).next().is_some() {
                    findings.push(file.finding(i + 1, format!("{phrase:?}: write {term}")));
                }
            }
        }
    }
    findings
}

fn stem(name: &str) -> &str {
    name.strip_suffix(".rs").unwrap_or(name)
}

const NAMELESS: &[&str] = &["util", "utils", "helper", "helpers", "misc"];
/// Files whose words are not checked: this list, and code that is about to be replaced.
const UNREAD: &[&str] =
    &["tests/tests/tidy/words.rs", "predictor/src/sync", "predictor/src/forecast"];
/// A phrase and the term to write in its place.
const IDIOM: &[(&str, &str)] = &[
    ("an alarm that was none", "false alarm"),
    ("as it is then", "current"),
    ("as it was then", "former"),
    ("at the most", "at most"),
    ("befall", "affect"),
    ("begun anew", "restarted"),
    ("breaks off", "closes, stops"),
    ("comes of it", "result"),
    ("comes to nothing", "fails"),
    ("dies young", "ends early"),
    ("falls out", "is evicted"),
    ("fell out", "was evicted"),
    ("fell silent", "stalled"),
    ("goes once more", "is retransmitted"),
    ("has haste", "is urgent"),
    ("has out", "has in flight"),
    ("if that goes", "if possible"),
    ("is dismissed", "is closed, shuts down"),
    ("is worth nothing", "has no effect"),
    ("left lying", "unread"),
    ("made anew", "rebuilt"),
    ("no such thing", "is not an error"),
    ("no word of", "no report of"),
    ("not be told", "not be reported, not receive"),
    ("of its own will", "by itself"),
    ("sends anew", "retransmits"),
    ("sent anew", "retransmitted"),
    ("that which", "the noun"),
    ("the most it may", "its limit"),
    ("what is out", "bytes in flight"),
    ("what nobody", "the noun, unread data"),
    ("who asks", "the client"),
    ("who hears", "the receiver"),
    ("who sends", "the sender"),
    ("who writes", "the writer"),
];
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
    let bad = "// é FIXME: later\n#[test]\n#[ignore]\nfn slow() {}\n#[ignore = \"alone\"]\n\
               fn alone() {}\n";
    let good = "fn a() { print(\"FIXME\") }\n// 0xXXXX is no mark\n\
                #[ignore = \"run by `parent`\"]\nfn child() {}\nfn parent() { run(\"child\") }\n";
    let tree = Tree::of(&[("a/src/bad.rs", bad), ("a/src/good.rs", good)]);
    let places = [1, 3, 5].map(|line| format!("a/src/bad.rs:{line}"));
    crate::assert_finds(leftovers, &tree, &places.each_ref().map(String::as_str));
}

#[test]
fn idiom_is_found_in_comments_names_and_documents() {
    let bad = "// A trip that Fell Silent\nfn what_is_out_is_sent() {}\nlet x = \"Left lying\";\n";
    let good = "// It falls outside\nfn somewhat_is_out() {}\n";
    let tree = Tree::of(&[
        ("a/src/bad.rs", bad),
        ("docs/a.md", "Data is left lying.\n"),
        ("a/src/good.rs", good),
        ("predictor/src/sync/mod.rs", bad),
    ]);
    let places = ["a/src/bad.rs:1", "a/src/bad.rs:2", "a/src/bad.rs:3", "docs/a.md:1"];
    crate::assert_finds(idiom, &tree, &places);
}
