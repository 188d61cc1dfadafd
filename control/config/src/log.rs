//! Log output of the daemons and the operator's command.
//!
//! A log that cannot be written must not stop a daemon. The writer therefore never fails and
//! never panics: lines that a full disk refuses are counted, standard error hears of it at once
//! and then at most once a minute, and when writes work again the log simply goes on. Level,
//! format and file can change while the daemon runs.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::Dispatch;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::{Layer, Registry, reload};

use crate::{LogConfig, LogFormat, LogLevel};

/// How often standard error hears of lost lines, at most.
pub const NOTICE_EVERY: Duration = Duration::from_secs(60);

/// Why logging could not begin.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log file cannot be opened.
    #[error("cannot open the log file {}: {source}", file.display())]
    Open {
        /// The file as the configuration names it.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The process logs already.
    #[error("logging was set up before")]
    Twice,
}

/// A running log: what can be asked of it. Cheap to clone; the log goes on without it.
#[derive(Clone)]
pub struct LogHandle {
    output: Output,
    level: reload::Handle<LevelFilter, Registry>,
    lines: reload::Handle<Lines, Filtered>,
}

/// A configuration of the log whose file is open: taking it cannot fail.
#[derive(Debug)]
pub struct PreparedLog {
    config: LogConfig,
    file: Option<File>,
}

/// Where lines go; all its clones are one.
#[derive(Clone, Debug)]
struct Output(Arc<Mutex<Sink>>);

/// What makes lines of events that passed the level.
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;
type Filtered = Layered<reload::Layer<LevelFilter, Registry>, Registry>;

/// Begins logging for the whole process.
///
/// # Errors
/// The log file cannot be opened, or the process logs already.
pub fn init(config: &LogConfig) -> Result<LogHandle, LogError> {
    let (dispatch, handle) = dispatch(config)?;
    tracing::dispatcher::set_global_default(dispatch).map_err(|_| LogError::Twice)?;
    Ok(handle)
}

/// Makes a log without setting it up for the process; see [`tracing::dispatcher`].
///
/// # Errors
/// The log file cannot be opened.
pub fn dispatch(config: &LogConfig) -> Result<(Dispatch, LogHandle), LogError> {
    let file = config.file.as_deref().map(open).transpose()?;
    let sink = Sink { file, lost: Lost::default() };
    let output = Output(Arc::new(Mutex::new(sink)));
    let (level_layer, level) = reload::Layer::new(filter(config.level));
    let (lines_layer, lines) = reload::Layer::new(lines(config.format, output.clone()));
    let subscriber = Registry::default().with(level_layer).with(lines_layer);
    Ok((Dispatch::new(subscriber), LogHandle { output, level, lines }))
}

impl LogHandle {
    /// Opens the file that `config` names, also when it is the one in use: one that was moved
    /// away is left alone once this is [taken](LogHandle::take).
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn prepare(&self, config: &LogConfig) -> Result<PreparedLog, LogError> {
        let file = config.file.as_deref().map(open).transpose()?;
        Ok(PreparedLog { config: config.clone(), file })
    }

    /// Goes on with this level, format and file.
    pub fn take(&self, prepared: PreparedLog) {
        let PreparedLog { config, file } = prepared;
        {
            let mut sink = self.output.sink();
            sink.file = file;
            sink.lost.torn = false;
        }
        // Either fails only when the process logs no more.
        let _ = self.lines.reload(lines(config.format, self.output.clone()));
        let _ = self.level.reload(filter(config.level));
    }

    /// How many lines could not be written since the start.
    pub fn lost_lines(&self) -> u64 {
        self.output.sink().lost.total
    }
}

impl fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogHandle").field("output", &self.output).finish_non_exhaustive()
    }
}

impl Output {
    fn sink(&self) -> MutexGuard<'_, Sink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes one event, which `tracing-subscriber` hands over whole; never fails.
#[derive(Debug)]
struct Writer<'a> {
    sink: MutexGuard<'a, Sink>,
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Writer<'a>;

    fn make_writer(&'a self) -> Writer<'a> {
        Writer { sink: self.sink() }
    }
}

impl Write for Writer<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Sink { file, lost, .. } = &mut *self.sink;
        match file {
            Some(file) => lost.write(Instant::now(), line, file, &mut io::stderr()),
            None => lost.write(Instant::now(), line, &mut io::stderr(), &mut io::sink()),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Sink {
    /// Standard error when there is none.
    file: Option<File>,
    lost: Lost,
}

/// What was lost, and what standard error was told of it.
#[derive(Debug, Default)]
struct Lost {
    /// Lines lost since the start.
    total: u64,
    /// Lines lost since standard error was last told that writes work again.
    recent: u64,
    /// Whether standard error was told of trouble and not yet of its end.
    announced: bool,
    /// When standard error was last told of trouble.
    told: Option<Instant>,
    /// Whether the last line stands in the log in part.
    torn: bool,
}

impl Lost {
    fn write(&mut self, now: Instant, line: &[u8], log: &mut dyn Write, notice: &mut dyn Write) {
        let result = if self.torn { log.write_all(b"\n") } else { Ok(()) };
        let result = result.and_then(|()| {
            self.torn = false;
            self.write_line(line, log)
        });
        let due = self.told.is_none_or(|told| now.duration_since(told) >= NOTICE_EVERY);
        match result {
            Ok(()) if self.recent == 0 || !(self.announced || due) => {}
            Ok(()) => {
                let lost = std::mem::take(&mut self.recent);
                self.announced = false;
                let _ = writeln!(notice, "the log can be written again; {lost} lines were lost");
            }
            Err(error) => {
                self.total = self.total.saturating_add(1);
                self.recent = self.recent.saturating_add(1);
                if due {
                    self.told = Some(now);
                    self.announced = true;
                    let lost = self.recent;
                    let _ = writeln!(notice, "cannot write the log ({error}); {lost} lines lost");
                }
            }
        }
    }

    /// Writes a line and notes when only its beginning got in.
    fn write_line(&mut self, line: &[u8], log: &mut dyn Write) -> io::Result<()> {
        let mut rest = line;
        while !rest.is_empty() {
            let written = match log.write(rest) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
                other => other,
            };
            match written {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) => {
                    self.torn = rest.len() < line.len();
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<File, LogError> {
    let opened = OpenOptions::new().append(true).create(true).mode(0o640).open(path);
    opened.map_err(|source| LogError::Open { file: path.to_owned(), source })
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn lines(format: LogFormat, output: Output) -> Lines {
    // The default of reporting the writer's errors would print to standard error, and panic there.
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .log_internal_errors(false)
        .with_writer(output);
    match format {
        LogFormat::Text => Box::new(layer),
        LogFormat::Json => Box::new(layer.json().flatten_event(true)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A disk with room for so many bytes more.
    struct Disk {
        room: usize,
        written: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.written.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn config(file: &Path, format: LogFormat) -> LogConfig {
        LogConfig { level: LogLevel::Info, file: Some(file.to_owned()), format }
    }

    #[test]
    fn a_full_disk_is_told_once_a_minute_and_forgiven() {
        let (mut lost, mut notice) = (Lost::default(), Vec::new());
        let mut disk = Disk { room: 8, written: Vec::new() };
        let start = Instant::now();
        let mut line = |s: u64, text: &str, disk: &mut Disk, notice: &mut Vec<u8>| {
            lost.write(start + Duration::from_secs(s), text.as_bytes(), disk, notice);
            lost.total
        };
        assert_eq!(line(0, "one\n", &mut disk, &mut notice), 0);
        assert!(notice.is_empty());
        // The second line gets in half, which is marked off when there is room again.
        for s in 0..130 {
            assert_eq!(line(s, "second\n", &mut disk, &mut notice), s + 1);
        }
        disk.room = 100;
        assert_eq!(line(131, "three\n", &mut disk, &mut notice), 130);
        assert_eq!(line(132, "four\n", &mut disk, &mut notice), 130);
        assert_eq!(disk.written, b"one\nseco\nthree\nfour\n");
        let notice = String::from_utf8(notice).unwrap();
        let told: Vec<_> = notice.lines().collect();
        assert_eq!(told.len(), 4, "{notice}");
        assert!(told[0].ends_with("1 lines lost"), "{notice}");
        assert!(told[1].ends_with("61 lines lost"), "{notice}");
        assert!(told[2].ends_with("121 lines lost"), "{notice}");
        assert!(told[3].ends_with("130 lines were lost"), "{notice}");
    }

    #[test]
    fn a_disk_that_is_full_now_and_then_is_told_no_more_often() {
        let (mut lost, mut notice) = (Lost::default(), Vec::new());
        let start = Instant::now();
        for s in 0..300 {
            let mut disk = Disk { room: s % 2 * 10, written: Vec::new() };
            let now = start + Duration::from_secs(s as u64);
            lost.write(now, b"line\n", &mut disk, &mut notice);
        }
        let notice = String::from_utf8(notice).unwrap();
        assert_eq!(notice.matches("cannot write").count(), 5, "{notice}");
        assert_eq!(notice.matches("again").count(), 5, "{notice}");
        assert_eq!((lost.total, lost.recent), (150, 29));
        let mut disk = Disk { room: 10, written: Vec::new() };
        let mut last = Vec::new();
        lost.write(start + Duration::from_secs(400), b"line\n", &mut disk, &mut last);
        assert!(String::from_utf8(last).unwrap().ends_with("29 lines were lost\n"));
    }

    #[test]
    fn a_notice_that_cannot_be_written_is_no_trouble() {
        let mut full = Disk { room: 0, written: Vec::new() };
        let mut deaf = Disk { room: 0, written: Vec::new() };
        let mut lost = Lost::default();
        lost.write(Instant::now(), b"x\n", &mut full, &mut deaf);
        assert_eq!(lost.total, 1);
    }

    #[test]
    fn the_kernels_full_device_loses_lines_and_nothing_else() {
        let (dispatch, handle) =
            super::dispatch(&config(Path::new("/dev/full"), LogFormat::Text)).unwrap();
        tracing::dispatcher::with_default(&dispatch, || {
            for n in 0..100 {
                tracing::info!(n, "a line");
            }
            tracing::debug!("not of this level");
        });
        assert_eq!(handle.lost_lines(), 100);
    }

    #[test]
    fn lines_go_on_in_the_new_file_after_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let (file, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        let (dispatch, handle) = super::dispatch(&config(&file, LogFormat::Json)).unwrap();
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::info!(path = "a", "first");
            std::fs::rename(&file, &moved).unwrap();
            tracing::warn!("second");
            let prepared = handle.prepare(&config(&file, LogFormat::Json)).unwrap();
            handle.take(prepared);
            tracing::info!("third");
        });
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap();
            let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
            text.lines().map(parse).collect::<Vec<_>>()
        };
        let old = read(&moved);
        assert_eq!((&old[0]["message"], &old[0]["path"]), (&"first".into(), &"a".into()));
        assert_eq!(old[1]["level"], "WARN");
        let new = read(&file);
        assert_eq!((new.len(), &new[0]["message"]), (1, &"third".into()));
        assert_eq!(handle.lost_lines(), 0);
    }

    #[test]
    fn level_format_and_file_change_while_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("log"), folder.path().join("other"));
        let (dispatch, handle) = super::dispatch(&config(&file, LogFormat::Text)).unwrap();
        tracing::dispatcher::with_default(&dispatch, || {
            let say = |text: &str| tracing::debug!("{text}");
            say("too early");
            let debug = LogConfig { level: LogLevel::Debug, ..config(&other, LogFormat::Json) };
            handle.take(handle.prepare(&debug).unwrap());
            say("in JSON");
            handle.take(handle.prepare(&config(&other, LogFormat::Text)).unwrap());
            say("too late");
            tracing::info!("in text");
            let nowhere = config(Path::new("/nonexistent/log"), LogFormat::Text);
            assert!(handle.prepare(&nowhere).is_err());
            tracing::info!("still in text");
        });
        assert_eq!(fs::read_to_string(&file).unwrap(), "");
        let text = fs::read_to_string(&other).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let first: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
        assert_eq!((&first["message"], &first["level"]), (&"in JSON".into(), &"DEBUG".into()));
        assert!(lines[1].ends_with("in text") && lines[1].contains(" INFO "), "{text}");
        assert!(lines[2].ends_with("still in text"), "{text}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let file = Path::new("/nonexistent/polyrail.log");
        let error = super::dispatch(&config(file, LogFormat::Text)).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/polyrail.log"), "{error}");
    }
}
