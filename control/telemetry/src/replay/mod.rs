//! Telemetry from lines of JSON (NDJSON): a recording in a file, or a program that writes to a
//! named pipe or serves a Unix socket. `docs/telemetry.md` is the format's reference.
//!
//! A file is played once, in real time. A socket is reconnected when it is lost; a pipe stays open
//! when its writers close it. An invalid line is counted and skipped.

mod line;
mod pace;
#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::fs::File;
use tokio::io::AsyncRead;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::line::route_id;
use self::line::{LineError, ReplayLine};
use self::pace::Pace;
use super::lines::{Line, Lines};
use super::source::{Backoff, Source};
use super::state::SourcePhase;

/// The minimum interval between warnings about invalid lines.
const WARNING_EVERY: Duration = Duration::from_secs(10);

/// Replays lines until the task is dropped. Only `carriers` are reported.
pub(super) async fn run(path: PathBuf, carriers: watch::Receiver<Vec<String>>, source: Source) {
    let mut backoff = Backoff::default();
    loop {
        let (stream, pace, is_file) = match open(&path).await {
            Ok(opened) => opened,
            Err(error) => {
                backoff.pause(&source, error.to_string()).await;
                continue;
            }
        };
        let played = play(stream, pace, &carriers, &source, &mut backoff).await;
        if is_file {
            let message = played.err().unwrap_or("the file was played to its end".to_owned());
            tracing::info!(file = %path.display(), message, "replay ended");
            return source.monitor.set_phase(SourcePhase::Ended, Some(message));
        }
        let reason = played.err().unwrap_or("the other end was closed".to_owned());
        backoff.pause(&source, reason).await;
    }
}

/// Opens a file, pipe or socket; true if it is a file.
async fn open(path: &Path) -> io::Result<(Box<dyn AsyncRead + Send + Unpin>, Pace, bool)> {
    let kind = tokio::fs::metadata(path).await?.file_type();
    if kind.is_socket() {
        return Ok((Box::new(UnixStream::connect(path).await?), Pace::live(), false));
    }
    if kind.is_fifo() {
        // With our own writing end, there is no end of file between two writers.
        let both = pipe::OpenOptions::new().read_write(true).open_receiver(path);
        let pipe = match both {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                pipe::OpenOptions::new().open_receiver(path)
            }
            both => both,
        };
        return Ok((Box::new(pipe?), Pace::live(), false));
    }
    if kind.is_file() {
        let pace = Pace::file(Instant::now().into_std());
        return Ok((Box::new(File::open(path).await?), pace, true));
    }
    Err(io::Error::other("it is neither a file nor a named pipe nor a socket"))
}

/// Observes the contents of each line when it is due, until the stream ends.
///
/// # Errors
/// The stream cannot be read any further; the reason.
async fn play<R: AsyncRead + Unpin>(
    stream: R,
    mut pace: Pace,
    carriers: &watch::Receiver<Vec<String>>,
    source: &Source,
    backoff: &mut Backoff,
) -> Result<(), String> {
    let mut lines = Lines::new(stream);
    let mut invalid_lines = InvalidLines::default();
    source.connected(None);
    loop {
        let text = match lines.next().await {
            Ok(Some(Line::Text(text))) => Ok(text),
            Ok(Some(Line::TooLong)) => Err("it is too long"),
            Ok(Some(Line::NotText)) => Err("it is not text"),
            Ok(None) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        source.monitor.count_line();
        let number = lines.number();
        let entry = text.map_err(|reason| LineError::Invalid(reason.to_owned()));
        match entry.and_then(|text| ReplayLine::parse(&text)) {
            Ok(ReplayLine::Head) => {}
            Ok(ReplayLine::Telemetry(telemetry)) => {
                backoff.reset(source);
                let due = pace.due(telemetry.time_s, Instant::now().into_std());
                tokio::time::sleep_until(due.into()).await;
                let known = |name: &String| carriers.borrow().contains(name);
                telemetry.observations(due, known).into_iter().for_each(|one| source.observe(one));
            }
            Err(LineError::Invalid(reason)) => {
                source.monitor.count_error();
                invalid_lines.log(number, &reason);
            }
            Err(LineError::Incompatible(reason)) => {
                source.monitor.count_error();
                return Err(format!("line {number}: {reason}"));
            }
        }
    }
}

/// Rate-limits warnings about invalid lines.
#[derive(Default)]
struct InvalidLines {
    last: Option<Instant>,
    suppressed: u64,
}

impl InvalidLines {
    /// Logs an invalid line; returns false if it was suppressed.
    fn log(&mut self, line: u64, reason: &str) -> bool {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < WARNING_EVERY) {
            self.suppressed += 1;
            return false;
        }
        self.last = Some(now);
        let suppressed = std::mem::take(&mut self.suppressed);
        tracing::warn!(line, reason, suppressed, "skipped invalid telemetry line");
        true
    }
}
