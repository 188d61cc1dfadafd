//! The authority's own records: `issued.list` and `revoked.list`, one certificate a line.
//!
//! They are text for operators to read. An invalid line makes the whole file unusable, so that a
//! damaged record never loses a revocation.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use polyrail_model::Identity;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::publish::{Draft, publish};
use crate::{IdentityError, Serial, files, shown};

/// Certificates with a time each: the end of its validity, or its revocation.
pub(super) struct CertificateList {
    path: PathBuf,
    lines: Vec<Line>,
}

/// One certificate.
pub(super) struct Line {
    pub(super) serial: Serial,
    pub(super) time: OffsetDateTime,
    /// The node it is for; unknown if only a serial number was revoked.
    pub(super) name: Option<Identity>,
}

impl CertificateList {
    /// Reads a record; a missing file is an empty record.
    pub(super) fn read(path: &Path) -> Result<Self, IdentityError> {
        let bytes = match files::read("read", path) {
            Err(IdentityError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Vec::new()
            }
            other => other?,
        };
        let text = String::from_utf8(bytes)
            .map_err(|_| IdentityError::content(path, "this is not text"))?;
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let bad = || IdentityError::content(path, format!("line {} is damaged", index + 1));
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
    pub(super) fn add(&mut self, line: Line) -> Result<(), IdentityError> {
        self.lines.push(line);
        let text: String = self.lines.iter().map(Line::text).collect();
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let dir = self.path.parent().unwrap_or(Path::new("."));
        publish(dir, &[Draft { name: &name, text: &text, mode: 0o644 }])
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
