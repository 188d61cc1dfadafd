//! The authority's own records: `issued.list` and `revoked.list`, one certificate a line.
//!
//! They are text for operators to read. A line that cannot be understood stops every use of the
//! file, so that a damaged list never loses a revocation.

use std::path::{Path, PathBuf};

use polyrail_model::Identity;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::files;
use super::{PkiError, Serial, shown};

/// A record of certificates with a time each: when it ends, or since when it is revoked.
pub(super) struct Ledger {
    path: PathBuf,
    lines: Vec<Line>,
}

/// One certificate.
pub(super) struct Line {
    pub(super) serial: Serial,
    pub(super) time: OffsetDateTime,
    /// The node it is for; unknown when a bare serial was revoked.
    pub(super) name: Option<Identity>,
}

impl Ledger {
    /// Reads a record; one that is not there is empty.
    pub(super) fn read(path: &Path) -> Result<Self, PkiError> {
        let text = match files::read_text("read", path) {
            Err(PkiError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            other => other?,
        };
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let bad = || PkiError::content(path, format!("line {} is damaged", index + 1));
            lines.push(parse(line).ok_or_else(bad)?);
        }
        Ok(Self { path: path.to_owned(), lines })
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(super) fn find(&self, serial: &Serial) -> Option<&Line> {
        self.lines.iter().find(|line| line.serial == *serial)
    }

    /// Adds a certificate and writes the record.
    pub(super) fn add(&mut self, line: Line) -> Result<(), PkiError> {
        self.lines.push(line);
        let text: String = self.lines.iter().map(Line::text).collect();
        files::replace(&self.path, &text, 0o644)
    }
}

impl Line {
    fn text(&self) -> String {
        let name = self.name.as_ref().map_or("-", Identity::as_str);
        format!("{} {} {name}\n", self.serial, shown(self.time))
    }
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let serial = words.next()?.parse().ok()?;
    let time = OffsetDateTime::parse(words.next()?, &Rfc3339).ok()?;
    let name = match words.next()? {
        "-" => None,
        name => Some(Identity::new(name).ok()?),
    };
    words.next().is_none().then_some(Line { serial, time, name })
}
