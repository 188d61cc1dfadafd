//! Positions from gpsd, by its JSON protocol over TCP (gpsd_json(5)).
//!
//! Each connection sends one request, `?WATCH`. If gpsd has several receivers, the first with a fix
//! is used, and another one only if the first has no fix for [`FIX_TIMEOUT`]. Receivers do not
//! alternate, because they disagree by metres. A connection that is lost, or without a line for
//! [`LINE_TIMEOUT`], is retried with backoff.

mod report;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::report::{GpsdReport, Reading};
use polyrail_model::{Fix, Observation};

use super::lines::{Line, Lines};
use super::source::{Backoff, Source};

/// The request: all reports as JSON.
const WATCH: &[u8] = b"?WATCH={\"enable\":true,\"json\":true};\n";

/// A connection without a line for this long is lost, because receivers report each second.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a connection and of a request.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// How long a receiver may be without a fix before another one is used.
const FIX_TIMEOUT: Duration = Duration::from_secs(3);

/// The supported protocol version.
const PROTOCOL: u32 = 3;

/// Reports fixes until the task is dropped.
pub(super) async fn run(address: SocketAddr, source: Source) {
    let mut backoff = Backoff::default();
    loop {
        let reason = match timeout(ANSWER_WAIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => run_connection(stream, &source, &mut backoff).await,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        backoff.pause(&source, reason).await;
    }
}

/// Runs one connection; returns the reason for its end.
async fn run_connection<S>(stream: S, source: &Source, backoff: &mut Backoff) -> String
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut lines = Lines::new(stream);
    if let Err(error) = ask(lines.get_mut()).await {
        return error.to_string();
    }
    source.connected(None);
    let mut watch = Watch::default();
    loop {
        let line = match timeout(LINE_TIMEOUT, lines.next()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return "it closed the connection".to_owned(),
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("silent for {} s", LINE_TIMEOUT.as_secs()),
        };
        source.monitor.count_line();
        // Tokio's clock, which tests can pause.
        let now = tokio::time::Instant::now().into_std();
        match watch.parse(line, now) {
            Message::Fix(fix) => {
                backoff.reset(source);
                source.observe(Observation::Fix(fix));
            }
            // A receiver without a view of the sky works, too.
            Message::NoFix => backoff.reset(source),
            Message::Nothing => {}
            Message::Status(message) => source.monitor.set_message(message),
            Message::Invalid(reason) => {
                source.monitor.count_error();
                tracing::debug!(reason, line = lines.number(), "skipped invalid line from gpsd");
            }
            Message::Incompatible(reason) => return reason,
        }
    }
}

async fn ask<W: AsyncWrite + Unpin>(stream: &mut W) -> io::Result<()> {
    let asked = async {
        stream.write_all(WATCH).await?;
        stream.flush().await
    };
    timeout(ANSWER_WAIT, asked).await?
}

/// The meaning of a line.
#[derive(Clone, Debug, PartialEq)]
enum Message {
    /// A new position.
    Fix(Fix),
    /// A receiver has no fix.
    NoFix,
    /// Nothing new.
    Nothing,
    /// A message for the operator, or none.
    Status(Option<String>),
    /// An invalid line.
    Invalid(String),
    /// An unsupported version of gpsd.
    Incompatible(String),
}

/// The state of a connection.
#[derive(Debug, Default)]
struct Watch {
    /// The receiver in use, and the time of its last fix.
    chosen: Option<(String, Instant)>,
    /// Its last reading, because gpsd may repeat a reading.
    last: Option<Reading>,
}

impl Watch {
    fn parse(&mut self, line: Line, now: Instant) -> Message {
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong => return Message::Invalid("a line that is too long".to_owned()),
            Line::NotText => return Message::Invalid("a line that is not text".to_owned()),
        };
        match serde_json::from_str(&text) {
            Ok(GpsdReport::Reading(reading)) => self.read(reading, now),
            Ok(GpsdReport::Version { proto_major, release }) if proto_major != PROTOCOL => {
                let reason = format!("gpsd {release} speaks protocol {proto_major}");
                Message::Incompatible(format!("{reason}; supported is {PROTOCOL}"))
            }
            Ok(GpsdReport::Version { release, .. }) => {
                tracing::debug!(release, "gpsd answered");
                Message::Nothing
            }
            Ok(GpsdReport::Devices { devices }) if devices.is_empty() => {
                Message::Status(Some("gpsd has no receiver".to_owned()))
            }
            Ok(GpsdReport::Devices { .. }) => Message::Status(None),
            Ok(GpsdReport::Device(device)) if device.is_active() => Message::Status(None),
            Ok(GpsdReport::Device(device)) => {
                if self.chosen.as_ref().is_some_and(|(chosen, _)| *chosen == device.path) {
                    self.chosen = None;
                }
                Message::Status(Some(format!("gpsd lost its receiver {}", device.path)))
            }
            Ok(GpsdReport::Error { message }) => Message::Invalid(message),
            Ok(GpsdReport::Other) => Message::Nothing,
            Err(error) => Message::Invalid(error.to_string()),
        }
    }

    fn read(&mut self, reading: Reading, now: Instant) -> Message {
        let fix = match reading.fix(now) {
            Ok(Some(fix)) => fix,
            Ok(None) => return Message::NoFix,
            Err(reason) => return Message::Invalid(reason.to_owned()),
        };
        let late = |since: Instant| now.saturating_duration_since(since) > FIX_TIMEOUT;
        match &mut self.chosen {
            Some((device, since)) if *device == reading.device => *since = now,
            Some((_, since)) if !late(*since) => return Message::Nothing,
            chosen => *chosen = Some((reading.device.clone(), now)),
        }
        let same = |last: &Reading| {
            reading.time.is_some()
                && (&last.time, last.lat, last.lon, &last.device)
                    == (&reading.time, reading.lat, reading.lon, &reading.device)
        };
        let repeated = self.last.as_ref().is_some_and(same);
        self.last = Some(reading);
        if repeated { Message::Nothing } else { Message::Fix(fix) }
    }
}
