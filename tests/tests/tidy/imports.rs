//! No two files of a crate import each other, directly or through other files.
//!
//! A path in the code (`crate::a::Item`, `super::a::Item`, `child::Item`) imports the file that
//! defines the item. Three paths import nothing: a re-export of a name that the file does not use
//! itself; an item of a module that contains the file, because a module and its children are one
//! unit and share the parent's vocabulary; and a path in test code.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::source::{Source, item_length, words};
use crate::tree::{Finding, Tree};

/// Files that import themselves through other files.
pub fn import_cycles(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for file in tree.rust().filter(|file| !file.is_test()) {
        if let Some((root, inner)) = file.path.split_once("/src/") {
            let inner = inner.trim_end_matches(".rs").trim_end_matches("/mod");
            let name = if inner == "lib" { Vec::new() } else { path_of(&inner.replace('/', "::")) };
            crates.entry(root).or_default().insert(name, Module::read(&file.path, &file.text));
        }
    }
    let mut findings = Vec::new();
    for modules in crates.values_mut() {
        let child =
            |name: &Path, child: &String| [name.as_slice(), std::slice::from_ref(child)].concat();
        let of_tests: Vec<Path> = (modules.iter())
            .flat_map(|(name, module)| module.of_tests.iter().map(move |c| child(name, c)))
            .collect();
        modules.retain(|name, _| !of_tests.iter().any(|of_tests| name.starts_with(of_tests)));
        let imports = modules.iter().map(|(name, module)| (module.path, imports(modules, name)));
        let imports: Imports<'_> = imports.collect();
        for &path in imports.keys() {
            if let Some(files) = cycle(path, &imports) {
                let what = format!("imports itself: {}", files.join(" -> "));
                findings.push(Finding { path: path.to_owned(), line: 0, what });
            }
        }
    }
    findings
}

type Path = Vec<String>;
type Modules<'a> = BTreeMap<Path, Module<'a>>;
type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// A file of a crate.
struct Module<'a> {
    path: &'a str,
    /// The code without `use` and without tests.
    code: String,
    /// What `use` brings in: the local name (`*` for a glob), the path, and whether it is `pub`.
    uses: Vec<(String, Path, bool)>,
    /// Modules below this one that only tests have.
    of_tests: Vec<String>,
}

impl<'a> Module<'a> {
    fn read(path: &'a str, text: &str) -> Self {
        let mut code = Source::new(text).code;
        let mut of_tests = Vec::new();
        while let Some(at) = code.find("#[cfg(test)]") {
            let item = code[at..][..item_length(&code[at..])].to_owned();
            let name = item.strip_suffix(';').and_then(|item| item.split_once("mod "));
            of_tests.extend(name.map(|(_, name)| name.to_owned()));
            code = code.replacen(&item, "", 1);
        }
        let mut uses = Vec::new();
        let first_use = |code: &str| words(code, "use").next();
        while let Some(at) = first_use(&code) {
            let end = at + code[at..].find(';').unwrap_or(0) + 1;
            let exported = code[..at].trim_end().ends_with([')', 'b']);
            leaves(&code[at + 3..end - 1], &[], exported, &mut uses);
            code.replace_range(at..end, "");
        }
        Self { path, code, uses, of_tests }
    }
}

/// The paths of a `use` tree.
fn leaves(tree: &str, prefix: &[String], exported: bool, found: &mut Vec<(String, Path, bool)>) {
    let tree = tree.trim();
    if let Some((head, rest)) = tree.split_once('{') {
        let prefix = [prefix, &path_of(head)].concat();
        let (mut depth, mut first) = (0, 0);
        let inner = &rest[..rest.rfind('}').unwrap_or(0)];
        for (i, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                leaves(&inner[first..i], &prefix, exported, found);
                first = i + 1;
            }
        }
    } else if !tree.is_empty() {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut path = [prefix, &path_of(path)].concat();
        path.pop_if(|last| last == "self");
        let alias = Some(alias.trim().to_owned()).filter(|alias| !alias.is_empty());
        found.push((alias.or(path.last().cloned()).unwrap_or_default(), path, exported));
    }
}

fn path_of(text: &str) -> Path {
    text.split("::").map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()
}

/// The files that a file imports.
fn imports<'a>(modules: &Modules<'a>, name: &Path) -> BTreeSet<&'a str> {
    let module = &modules[name];
    let occurs = |name: &str| words(&module.code, name).next().is_some();
    let used = module.uses.iter().filter(|(local, _, exported)| !exported || occurs(local));
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let inline = module.code.split(|c| !part(c)).filter(|path| path.contains("::")).map(path_of);
    let paths = used.map(|(_, path, _)| path.clone()).chain(inline);
    let files = paths.filter_map(|path| definer(modules, name, &path, 0));
    let around: Vec<_> = (0..=name.len()).filter_map(|n| modules.get(&name[..n])).collect();
    files.filter(|file| !around.iter().any(|module| module.path == *file)).collect()
}

/// The file that defines the item at a path; `None` for modules and for items of other crates.
fn definer<'a>(
    modules: &Modules<'a>,
    from: &[String],
    path: &[String],
    depth: u32,
) -> Option<&'a str> {
    let mut at = from.to_vec();
    let mut rest = path;
    while let Some((segment, after)) = rest.split_first() {
        let child = [at.as_slice(), std::slice::from_ref(segment)].concat();
        match segment.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            _ if modules.contains_key(&child) => at = child,
            _ => break,
        }
        rest = after;
    }
    let (module, segment) = (modules.get(&at)?, rest.first()?);
    match module.uses.iter().find(|(local, ..)| local == segment) {
        Some((_, target, _)) if depth < DEPTH_MAX => {
            definer(modules, &at, &[target, &rest[1..]].concat(), depth + 1)
        }
        // A path that begins with neither a module nor a name in use.
        _ if rest.len() == path.len() => None,
        _ => Some(module.path),
    }
}

/// The files from `path` back to itself, the shortest way.
fn cycle<'a>(path: &'a str, imports: &Imports<'a>) -> Option<Vec<&'a str>> {
    let mut ways = VecDeque::from([vec![path]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for &next in imports.get(way.last()?).into_iter().flatten() {
            let longer = [way.as_slice(), &[next]].concat();
            if next == path {
                return Some(longer);
            }
            if seen.insert(next) {
                ways.push_back(longer);
            }
        }
    }
    None
}

/// How often a name may be re-exported on its way.
const DEPTH_MAX: u32 = 8;

#[test]
fn cycles_are_found_with_their_files() {
    // a -> b -> c -> a: c takes the name of a from lib.rs, which re-exports it.
    let lib = "mod a;\nmod b;\nmod c;\nmod d;\npub use a::A;\nuse d::{D, deep::E as F};\n";
    let tree = Tree::of(&[
        ("x/src/lib.rs", lib),
        ("x/src/a.rs", "use crate::b;\npub struct A;\nfn f() { b::g() }\n"),
        ("x/src/b.rs", "use super::c::{self, C};\npub fn g() -> C { C::new() }\n"),
        ("x/src/c.rs", "use crate::A;\npub struct C(A);\n"),
        ("x/src/d/mod.rs", "pub mod deep;\npub struct D;\nfn f() { deep::h() }\n"),
        ("x/src/d/deep.rs", "use crate::e;\npub struct E;\npub fn h() { e::f() }\n"),
        ("x/src/e.rs", "use crate::d::D;\npub fn f() -> D { D }\n"),
    ]);
    let places = ["a", "b", "c", "d/deep", "d/mod", "e"].map(|file| format!("x/src/{file}.rs:0"));
    crate::assert_finds(import_cycles, &tree, &places.each_ref().map(String::as_str));
}

#[test]
fn a_module_with_children_is_no_cycle() {
    let parent = "mod child;\nmod aside;\npub use child::{Child, Other};\npub use crate::b::B;\n\
                  pub struct Parent;\nfn f() { child::g() }\n#[cfg(test)]\nmod rig;\n\
                  #[cfg(test)]\nmod tests { use super::child::Child; fn f() { child::g() } }\n";
    let tree = Tree::of(&[
        ("x/src/lib.rs", "mod a;\nmod b;\n/// crate::a::f\nfn f() { a::Parent; }\n"),
        ("x/src/a/mod.rs", parent),
        ("x/src/a/child.rs", "use super::{Parent, aside};\nfn f(_: Parent) { aside::g() }\n"),
        ("x/src/a/aside.rs", "use crate::a::Parent;\npub fn g() {}\n"),
        ("x/src/a/rig.rs", "use crate::b::B;\n"),
        ("x/src/b.rs", "use crate::a::Child;\nuse other::a::f;\npub struct B;\n"),
        ("x/src/tests.rs", "use crate::a::*;\n"),
    ]);
    crate::assert_finds(import_cycles, &tree, &[]);
}
