//! A log of a connection in the qlog format, on demand.
//!
//! One file a connection, named by time and connection id; what exceeds [`FILE_MAX`] is left out.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::SystemTime;

use quiche::{Connection, QlogLevel};

/// Has a connection logged to a new file in `folder`; a failure is told and does no harm.
pub(super) fn begin(connection: &mut Connection, folder: &Path, carrier: &str) {
    let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let carrier: String = carrier.chars().map(safe).take(64).collect();
    let name = format!("{carrier}-{}-{}.sqlog", begun.as_millis(), connection.trace_id());
    let file = folder.join(name);
    let opened = fs::create_dir_all(folder)
        .and_then(|()| File::options().write(true).create_new(true).open(&file));
    match opened {
        Ok(opened) => {
            let writer = Bounded { file: BufWriter::new(opened), left: FILE_MAX };
            let title = "polyrail".to_owned();
            let description = format!("carrier {carrier}");
            let level = QlogLevel::Extra;
            connection.set_qlog_with_level(Box::new(writer), title, description, level);
        }
        Err(error) => tracing::warn!(file = %file.display(), %error, "no qlog"),
    }
}

/// A file that takes no more than a bound and lets the rest fall.
struct Bounded {
    file: BufWriter<File>,
    left: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            self.left = 0;
            return Ok(bytes.len());
        }
        self.left -= bytes.len();
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The longest log.
const FILE_MAX: usize = 256 << 20;
