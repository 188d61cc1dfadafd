//! Links between documents.

use crate::tree::{Finding, Tree};

/// Links between documents whose target is not in the tree.
pub fn dead_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (i, line) in file.text.lines().enumerate() {
            for target in targets(line).filter(|target| !target.contains("://")) {
                let path = target.split('#').next().unwrap_or_default();
                let found = resolved(&file.path, path).is_some_and(|path| tree.holds(&path));
                if !path.is_empty() && !found {
                    findings.push(file.finding(i + 1, format!("{path} does not exist")));
                }
            }
        }
    }
    findings
}

/// The targets of links `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// A link's path as seen from the root; `None` when it leads out of the tree.
fn resolved(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[test]
fn a_dead_link_is_found() {
    let text = "[a](docs/a.md) [b](b.md#x)\n[up](../README.md) [web](https://example.com/c.md)\n\
                [here](#here) [docs](docs/)\n";
    let tree = Tree::of(&[("README.md", text), ("docs/a.md", text), ("docs/b.md", "")]);
    let places = ["README.md:1", "README.md:2", "docs/a.md:1", "docs/a.md:3"];
    crate::assert_finds(dead_links, &tree, &places);
}
