//! Logging of the daemons, to standard error; under systemd that is the journal.
//!
//! Level and format can change while a daemon runs. A full disk drops lines and stops no
//! daemon.

use std::fmt;
use std::io;
use std::sync::Arc;

use tracing::Dispatch;
use tracing::dispatcher::SetGlobalDefaultError;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::{Layer, Registry, reload};

use crate::{LogConfig, LogFormat, LogLevel, Problem};

/// The process's log, to reconfigure it. The log continues without the handle.
#[derive(Clone)]
pub struct LogHandle {
    level: reload::Handle<LevelFilter, Registry>,
    lines: reload::Handle<Lines, Filtered>,
    make_lines: Arc<dyn Fn(LogFormat) -> Lines + Send + Sync>,
}

/// Formats the events that passed the level.
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;
type Filtered = Layered<reload::Layer<LevelFilter, Registry>, Registry>;

/// Starts logging for the whole process, and warns about the deleted keys of its configuration.
///
/// # Errors
/// The process already logs.
pub fn init(config: &LogConfig, ignored: &[Problem]) -> Result<LogHandle, SetGlobalDefaultError> {
    let (dispatch, handle) = dispatch(config, io::stderr);
    tracing::dispatcher::set_global_default(dispatch)?;
    for problem in ignored {
        tracing::warn!("{problem}");
    }
    Ok(handle)
}

/// Makes a log with another output, not yet set for the process; see [`tracing::dispatcher`].
pub fn dispatch<W>(config: &LogConfig, output: W) -> (Dispatch, LogHandle)
where
    W: for<'a> MakeWriter<'a> + Clone + Send + Sync + 'static,
{
    let make_lines = Arc::new(move |format| lines(format, output.clone()));
    let (level_layer, level) = reload::Layer::new(filter(config.level));
    let (lines_layer, lines) = reload::Layer::new(make_lines(config.format));
    let subscriber = Registry::default().with(level_layer).with(lines_layer);
    (Dispatch::new(subscriber), LogHandle { level, lines, make_lines })
}

impl LogHandle {
    /// Continues with this level and format.
    pub fn apply(&self, config: &LogConfig) {
        // Both fail only after the process has dropped its subscriber.
        let _ = self.lines.reload((self.make_lines)(config.format));
        let _ = self.level.reload(filter(config.level));
    }
}

impl fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogHandle").finish_non_exhaustive()
    }
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

fn lines<W>(format: LogFormat, output: W) -> Lines
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // By default the layer reports errors of its writer to standard error, and panics there.
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
    use std::fs::{self, File, OpenOptions};

    use super::*;

    #[test]
    fn level_and_format_change_at_run_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let output = Arc::new(File::create(&path).unwrap());
        let (dispatch, handle) = super::dispatch(&LogConfig::default(), output);
        tracing::dispatcher::with_default(&dispatch, || {
            let say = |text: &str| tracing::debug!("{text}");
            say("too early");
            handle.apply(&LogConfig { level: LogLevel::Debug, format: LogFormat::Json });
            say("in JSON");
            handle.apply(&LogConfig::default());
            say("too late");
            tracing::info!("in text");
        });
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        let first: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
        assert_eq!((&first["message"], &first["level"]), (&"in JSON".into(), &"DEBUG".into()));
        assert!(lines[1].ends_with("in text") && lines[1].contains(" INFO "), "{text}");
    }

    #[test]
    fn full_disk_drops_lines_and_stops_nothing() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (dispatch, _handle) = super::dispatch(&LogConfig::default(), Arc::new(full));
        tracing::dispatcher::with_default(&dispatch, || tracing::info!("a line"));
    }
}
