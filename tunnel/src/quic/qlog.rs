//! A log of a connection in the qlog format, on demand.
//!
//! One file a connection, named by time and connection id; bytes beyond [`FILE_MAX`] are dropped.
//! A folder keeps the [`FILES_MAX`] files that were written to last, of at most [`FOLDER_MAX`]
//! bytes.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use quiche::{Connection, QlogLevel};

/// Logs a connection to a new file in `folder`; a failure is only logged.
pub(super) fn begin(connection: &mut Connection, folder: &Path, carrier: &str) {
    let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let carrier: String = carrier.chars().map(safe).take(64).collect();
    let name = format!("{carrier}-{}-{}.{EXTENSION}", begun.as_millis(), connection.trace_id());
    match open(folder, &name) {
        Ok(writer) => {
            let title = "polyrail".to_owned();
            let description = format!("carrier {carrier}");
            let level = QlogLevel::Extra;
            connection.set_qlog_with_level(Box::new(writer), title, description, level);
        }
        Err(error) => {
            tracing::warn!(folder = %folder.display(), name, %error, "cannot write a qlog");
        }
    }
}

fn open(folder: &Path, name: &str) -> io::Result<Bounded> {
    fs::create_dir_all(folder)?;
    make_room(folder)?;
    let file = File::options().write(true).create_new(true).open(folder.join(name))?;
    Ok(Bounded { file: BufWriter::new(file), left: FILE_MAX })
}

/// Removes the logs of a folder that were not written to for longest, so that there is room for one
/// more.
fn make_room(folder: &Path) -> io::Result<()> {
    let mut logs: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // Another connection may have removed it.
        if path.extension().is_some_and(|extension| extension == EXTENSION)
            && let Ok(about) = fs::symlink_metadata(&path)
            && about.is_file()
        {
            logs.push((about.modified()?, about.len(), path));
        }
    }
    logs.sort_unstable_by(|a, b| b.cmp(a));
    let mut bytes = 0;
    for (number, (_, length, path)) in logs.iter().enumerate() {
        bytes += length;
        if number + 1 >= FILES_MAX || bytes > FOLDER_MAX {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// A file that drops everything beyond a bound.
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

/// The longest log, in bytes.
const FILE_MAX: usize = 256 << 20;
/// Logs in a folder, the new one included.
const FILES_MAX: usize = 64;
/// Bytes in a folder when a log begins.
const FOLDER_MAX: u64 = 2 << 30;
const EXTENSION: &str = "sqlog";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn log(folder: &Path, name: &str, age_s: u64, length: u64) {
        let file = File::create(folder.join(name)).unwrap();
        file.set_len(length).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn folder_keeps_the_newest_logs_and_other_files() {
        let folder = tempfile::tempdir().unwrap();
        log(folder.path(), "other.txt", 9_999, 0);
        for number in 0..100 {
            log(folder.path(), &format!("{number:02}.sqlog"), 1_000 - number, 10);
        }
        make_room(folder.path()).unwrap();
        let names = names(folder.path());
        assert_eq!(names.len(), FILES_MAX);
        assert_eq!((names[0].as_str(), names[63].as_str()), ("37.sqlog", "other.txt"));
    }

    #[test]
    fn folder_is_bounded_in_bytes() {
        let folder = tempfile::tempdir().unwrap();
        // Sparse files: they take no room.
        for number in 0..5 {
            log(folder.path(), &format!("{number}.sqlog"), 100 - number, FOLDER_MAX / 3);
        }
        make_room(folder.path()).unwrap();
        assert_eq!(names(folder.path()), ["2.sqlog", "3.sqlog", "4.sqlog"]);
    }
}
