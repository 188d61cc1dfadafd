//! The lexical structure of Rust, as far as rules need it: code, comments and literals.

/// A Rust file, separated into code and comments.
pub struct Source {
    /// The file with comments and the contents of literals blanked; lines and columns are kept.
    pub code: String,
    /// The file with everything but comments blanked.
    pub comments: String,
}

/// Lines from the first to the last, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: usize,
    pub last: usize,
}

impl Source {
    pub fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let (mut code, mut comments) = (String::new(), String::new());
        let mut i = 0;
        while i < chars.len() {
            let (kind, end) = token(&chars, i);
            for &c in &chars[i..end] {
                let blank = if c == '\n' { '\n' } else { ' ' };
                code.push(if kind == Kind::Code { c } else { blank });
                comments.push(if kind == Kind::Comment { c } else { blank });
            }
            i = end;
        }
        Self { code, comments }
    }

    /// The functions with a body: their names, and the lines from `fn` to the closing brace.
    pub fn functions(&self) -> Vec<(String, Span)> {
        let mut found = Vec::new();
        for at in words(&self.code, "fn") {
            let rest = &self.code[at + 2..];
            let name: String = rest
                .trim_start()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            // `fn(u8)` is a type; a body may be missing in a trait.
            if let Some(open) = body(rest)
                && !name.is_empty()
            {
                found.push((name, self.span(at, at + 2 + open)));
            }
        }
        found
    }

    /// The bodies of `#[cfg(test)] mod name { ... }`, attribute included.
    pub fn test_modules(&self) -> Vec<Span> {
        let mut found = Vec::new();
        for (at, mark) in self.code.match_indices("#[cfg(test)]") {
            let rest = &self.code[at + mark.len()..];
            let head = &rest[..rest.find(['{', ';']).unwrap_or(rest.len())];
            if words(head, "mod").next().is_some()
                && let Some(open) = body(rest)
            {
                found.push(self.span(at, at + mark.len() + open));
            }
        }
        found
    }

    /// The line of a byte offset, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.code[..at].matches('\n').count() + 1
    }

    /// From a byte offset to the brace that closes the one at `open`.
    fn span(&self, first: usize, open: usize) -> Span {
        let last = open + block_length(&self.code[open..]) - 1;
        Span { first: self.line(first), last: self.line(last) }
    }
}

/// The byte offsets at which `word` stands on its own.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        !text[..*at].ends_with(part) && !text[at + word.len()..].starts_with(part)
    })
}

/// The length of the item at the beginning of some code, attributes included.
pub fn item_length(code: &str) -> usize {
    let Some(open) = body(code) else { return code.find(';').map_or(code.len(), |at| at + 1) };
    open + block_length(&code[open..])
}

/// From the brace at the beginning to the one that closes it.
fn block_length(code: &str) -> usize {
    let mut depth = 0usize;
    for (i, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    code.len()
}

/// The offset of the brace that opens an item's body, before any `;` outside brackets.
fn body(text: &str) -> Option<usize> {
    let mut depth = 0i32;
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(i),
            ';' if depth == 0 => return None,
            _ if depth < 0 => return None,
            _ => {}
        }
    }
    None
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// The token at `i`, of which only comments and literals are more than one character.
fn token(chars: &[char], i: usize) -> (Kind, usize) {
    let next = |k: usize| chars.get(i + k).copied().unwrap_or('\0');
    match chars[i] {
        '/' if next(1) == '/' => {
            let length = chars[i..].iter().take_while(|c| **c != '\n').count();
            (Kind::Comment, i + length)
        }
        '/' if next(1) == '*' => (Kind::Comment, block_comment(chars, i)),
        '"' => (Kind::Literal, quoted(chars, i, '"')),
        '\'' if next(1) == '\\' => (Kind::Literal, quoted(chars, i, '\'')),
        '\'' if next(2) == '\'' => (Kind::Literal, i + 3),
        'r' if !in_word(chars, i) => match raw_string(chars, i) {
            Some(end) => (Kind::Literal, end),
            None => (Kind::Code, i + 1),
        },
        _ => (Kind::Code, i + 1),
    }
}

/// Whether the `r` at `i` is inside a word; the prefixes of byte and C strings do not count.
fn in_word(chars: &[char], i: usize) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let before = |k: usize| i.checked_sub(k).map(|i| chars[i]).filter(|c| part(*c));
    match before(1) {
        Some('b' | 'c') => before(2).is_some(),
        other => other.is_some(),
    }
}

fn block_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i.min(chars.len())
}

fn quoted(chars: &[char], start: usize, quote: char) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != quote {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn raw_string(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    let open = start + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes = |i: usize| {
        chars[i] == '"' && chars[i + 1..].iter().take_while(|c| **c == '#').count() >= hashes
    };
    let close = (open + 1..chars.len()).find(|i| closes(*i))?;
    Some(close + 1 + hashes)
}

#[test]
fn comments_and_literals_are_no_code() {
    let code = |text: &str| Source::new(text).code;
    assert_eq!(code("a // b\nc"), "a     \nc");
    assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
    assert_eq!(code(r#"f("}\"{", x)"#), "f(      , x)");
    assert_eq!(code(r##"f(r#"a"b{"#, br"c")"##), "f(         , b    )");
    let blanked = format!("{} &'a str for", " ".repeat(17));
    assert_eq!(code("'{' '\\'' '\\u{7d}' &'a str for"), blanked);
    assert_eq!(code("var\"x\" r#type"), "var    r#type");
    assert_eq!(Source::new("a // b\n\"c // d\"").comments, "  // b\n        ");
    assert_eq!(code("\"multi\nline {\" }"), "      \n        }");
}

#[test]
fn functions_are_found_with_their_lines() {
    let text = "trait T { fn none(&self); }\n\
                fn one() -> [u8; { 3 }] { a }\n\
                type F = fn(u8) -> u8;\n\
                pub fn two<'a>(x: &'a str)\nwhere T: U,\n{\n  if a { '}' } // }\n\
                \x20 fn three() {}\n}\n";
    let spans: Vec<_> = Source::new(text).functions();
    let lines = |name: &str| {
        let (_, span) = spans.iter().find(|(other, _)| other == name).unwrap();
        (span.first, span.last)
    };
    assert_eq!(spans.len(), 3);
    assert_eq!((lines("one"), lines("two"), lines("three")), ((2, 2), (4, 9), (8, 8)));
}

#[test]
fn test_modules_are_found_with_their_lines() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nfn b() {}\n\
                #[cfg(test)]\nmod more {\n  fn c() {}\n}\nfn d() {}\n";
    assert_eq!(Source::new(text).test_modules(), [Span { first: 6, last: 9 }]);
}
