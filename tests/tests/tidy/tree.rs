//! The files of the workspace, as text.

use std::fmt;
use std::fs;
use std::path::Path;

/// The text files that rules read.
pub struct Tree {
    /// Sorted by path.
    pub files: Vec<File>,
    /// The paths of files that no rule reads.
    pub others: Vec<String>,
}

/// One file.
pub struct File {
    /// Relative to the workspace, with `/`.
    pub path: String,
    pub text: String,
}

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    /// From 1; 0 when the file as a whole is meant.
    pub line: usize,
    pub what: String,
}

impl Tree {
    /// Reads the workspace that this test belongs to.
    pub fn load() -> Self {
        let member = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the test");
        let root = Path::new(&member).parent().unwrap();
        let mut tree = Self { files: Vec::new(), others: Vec::new() };
        tree.read_folder(root, root);
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree
    }

    /// A tree for a rule's own test.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Self { files: files.iter().map(file).collect(), others: Vec::new() }
    }

    fn read_folder(&mut self, root: &Path, folder: &Path) {
        let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for path in entries.map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let from_root = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !IGNORED.contains(&name.as_str()) {
                    self.read_folder(root, &path);
                }
            } else if is_text(&path, &name) {
                let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
                self.files.push(File { path: from_root, text });
            } else {
                self.others.push(from_root);
            }
        }
    }

    /// The Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// Whether there is a file or folder at this path.
    pub fn holds(&self, path: &str) -> bool {
        let inside = |file: &File| file.path.strip_prefix(path)?.chars().next();
        let found = |file: &File| file.path == path || inside(file) == Some('/');
        self.files.iter().any(found) || self.others.iter().any(|other| other == path)
    }

    /// The file at this path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl File {
    /// The name of the crate's folder: `relay` of `relay/src/x.rs`, `config` of
    /// `control/config/src/x.rs`.
    pub fn crate_folder(&self) -> &str {
        let parts: Vec<_> = self.path.split('/').collect();
        match parts.as_slice() {
            [_, inner, _, ..] if !OWN_FOLDERS.contains(inner) => inner,
            [outer, ..] => outer,
            [] => "",
        }
    }

    /// Whether all of the file is test code: `X/tests/...`, `X/src/.../tests.rs` and below.
    pub fn is_test(&self) -> bool {
        self.path.split('/').skip(1).any(|part| part == "tests" || part == "tests.rs")
    }

    pub fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }
}

impl Finding {
    /// Where it is, as `path:line`.
    pub fn place(&self) -> String {
        format!("{}:{}", self.path, self.line)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

fn is_text(path: &Path, name: &str) -> bool {
    let extension = path.extension().map(|e| e.to_string_lossy().into_owned());
    matches!(extension.as_deref(), Some("rs" | "toml" | "md" | "sh"))
        || matches!(name, "Makefile" | "run")
}

/// Folders without files of the project.
const IGNORED: &[&str] = &["target", ".git", "corpus"];
/// Folders of a crate that are not crates themselves.
const OWN_FOLDERS: &[&str] = &["src", "tests", "benches", "examples"];
