//! The events of a driver other than packets: signals, the control socket, and the times of reports
//! and of the end.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::{Value, json};

use super::{LiveLinks, Options, RunError};
use crate::control::{Command, Server};

/// The outside world of a running driver.
pub(super) struct Outside {
    signals: SignalFd,
    server: Option<Server>,
    report_every: Option<Duration>,
    next_report: Option<Instant>,
    end: Option<Instant>,
}

/// A descriptor that becomes readable when [`Outside::attend`] has something to do.
pub(super) fn gate() -> Result<Epoll, RunError> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| system("making an epoll")(e.into()))
}

impl Outside {
    /// Blocks the signals that end a run, and opens the control socket.
    pub(super) fn new(options: &Options, gate: &Epoll) -> Result<Self, RunError> {
        let mut ending = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            ending.add(signal);
        }
        if !is_ignored(Signal::SIGHUP) {
            ending.add(Signal::SIGHUP);
        }
        let signals = ending
            .thread_block()
            .and_then(|()| {
                SignalFd::with_flags(&ending, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            })
            .and_then(|fd| {
                gate.add(fd.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0)).map(|()| fd)
            })
            .map_err(|e| system("taking signals")(e.into()))?;
        let listen = |path: &std::path::PathBuf| {
            Server::new(path, gate).map_err(|error| RunError::Control { path: path.clone(), error })
        };
        let server = options.control.as_ref().map(listen).transpose()?;
        Ok(Self { signals, server, report_every: options.report, next_report: None, end: None })
    }

    /// The links are up: the times of the run count from now.
    pub(super) fn begin(&mut self, now: Instant, duration: Option<Duration>) {
        self.next_report = self.report_every.map(|every| now + every);
        self.end = duration.map(|duration| now + duration);
    }

    /// When [`Outside::attend`] is due without the gate.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.next_report.into_iter().chain(self.end).min()
    }

    /// Runs the due actions; false when the run is over.
    pub(super) fn attend(&mut self, now: Instant, gate: &Epoll, rail: &mut dyn LiveLinks) -> bool {
        if let Ok(Some(signal)) = self.signals.read_signal() {
            let number = signal.ssi_signo;
            let name = Signal::try_from(number as i32).map_or("unknown", Signal::as_str);
            tracing::info!(signal = name, sender = signal.ssi_pid, "ended by a signal");
            return false;
        }
        if self.end.is_some_and(|end| now >= end) {
            return false;
        }
        if let (Some(due), Some(every)) = (self.next_report, self.report_every)
            && now >= due
        {
            print_reports(now, rail);
            self.next_report = Some((due + every).max(now));
        }
        if let Some(server) = &mut self.server {
            server.serve(gate, |line| answer(line, rail).to_string());
        }
        true
    }
}

/// Whether the parent ignores the signal, as `nohup` does with SIGHUP. A descriptor for signals
/// would receive it in spite of that.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal as u32 - 1) & 1 == 1)
}

fn answer(line: &str, rail: &mut dyn LiveLinks) -> Value {
    let now = Instant::now();
    let done = line.parse::<Command>().map_err(|e| e.to_string()).and_then(|command| {
        if command == Command::Stats {
            return Ok(json!({ "links": rail.report(now) }));
        }
        rail.apply(now, &command)?;
        tracing::info!(command = line, "command executed");
        Ok(json!({ "ok": true }))
    });
    done.unwrap_or_else(|error| json!({ "error": error }))
}

/// Prints one line for each link.
pub(super) fn print_reports(now: Instant, rail: &mut dyn LiveLinks) {
    for report in rail.report(now) {
        match serde_json::to_value(&report) {
            Ok(line) => print_line(&line),
            Err(error) => tracing::error!(%error, "cannot write a report"),
        }
    }
}

/// Prints one line at once, even if the reader is gone.
pub(super) fn print_line(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Makes the error of a system call one of the run.
pub(super) fn system(doing: &'static str) -> impl Fn(std::io::Error) -> RunError {
    move |error| RunError::System { doing, error }
}
