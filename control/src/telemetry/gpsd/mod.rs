//! Positions from gpsd, by its JSON protocol over TCP (gpsd_json(5)).
//!
//! One request a connection: `?WATCH`. Where gpsd has several receivers the one that had a fix
//! first is heeded, and another one when it is without a fix for [`PATIENCE`]: two receivers never
//! take turns, for they disagree by metres. Nothing is asked again and again; a connection that is
//! lost, or silent for [`SILENCE`], is made anew after a growing wait.

mod report;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::report::{Reading, Report};
use polyrail_model::{Fix, Observation};

use super::lines::{Line, Lines};
use super::source::{Backoff, Sink};

/// What gpsd is asked: all reports as JSON.
const WATCH: &[u8] = b"?WATCH={\"enable\":true,\"json\":true};\n";

/// A connection without a line for so long is lost: receivers report each second.
const SILENCE: Duration = Duration::from_secs(10);

/// How long gpsd may take to answer a connection or to take a request.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// How long a receiver may be without a fix before another one is heeded.
const PATIENCE: Duration = Duration::from_secs(3);

/// The protocol that is spoken here.
const PROTOCOL: u32 = 3;

/// Brings fixes until the task is dropped.
pub(super) async fn run(address: SocketAddr, sink: Sink) {
    let mut backoff = Backoff::default();
    loop {
        let reason = match timeout(ANSWER_WAIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => converse(stream, &sink, &mut backoff).await,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        backoff.pause(&sink, reason).await;
    }
}

/// One connection to its end; why it ended.
async fn converse<S>(stream: S, sink: &Sink, backoff: &mut Backoff) -> String
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut lines = Lines::new(stream);
    if let Err(error) = ask(lines.get_mut()).await {
        return error.to_string();
    }
    sink.connected(None);
    let mut watch = Watch::default();
    loop {
        let line = match timeout(SILENCE, lines.next()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return "it closed the connection".to_owned(),
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("silent for {} s", SILENCE.as_secs()),
        };
        sink.monitor.heard();
        // Tokio's clock, which tests can hold.
        let now = tokio::time::Instant::now().into_std();
        match watch.hear(line, now) {
            Heard::Fix(fix) => {
                backoff.reset(sink);
                sink.observe(Observation::Fix(fix));
            }
            // A receiver that works under a roof is as good as one with a fix.
            Heard::NoFix => backoff.reset(sink),
            Heard::Nothing => {}
            Heard::Says(message) => sink.monitor.says(message),
            Heard::Bad(reason) => {
                sink.monitor.failed();
                tracing::debug!(reason, line = lines.number(), "gpsd: a line was skipped");
            }
            Heard::Foreign(reason) => return reason,
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

/// What a line meant.
#[derive(Clone, Debug, PartialEq)]
enum Heard {
    /// A new position.
    Fix(Fix),
    /// A receiver has none now.
    NoFix,
    /// Nothing of use here, or nothing new.
    Nothing,
    /// Something that an operator may want to know.
    Says(Option<String>),
    /// It could not be understood, or cannot be.
    Bad(String),
    /// Whoever is there is no gpsd that is understood here.
    Foreign(String),
}

/// What is remembered of a connection.
#[derive(Debug, Default)]
struct Watch {
    /// The receiver that is heeded, and when it last had a fix.
    chosen: Option<(String, Instant)>,
    /// Its last reading: gpsd may repeat one when more of it is known.
    last: Option<Reading>,
}

impl Watch {
    fn hear(&mut self, line: Line, now: Instant) -> Heard {
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong => return Heard::Bad("a line that is too long".to_owned()),
            Line::NotText => return Heard::Bad("a line that is not text".to_owned()),
        };
        match serde_json::from_str(&text) {
            Ok(Report::Reading(reading)) => self.read(reading, now),
            Ok(Report::Version { proto_major, release }) if proto_major != PROTOCOL => {
                let reason = format!("gpsd {release} speaks protocol {proto_major}");
                Heard::Foreign(format!("{reason}; understood is {PROTOCOL}"))
            }
            Ok(Report::Version { release, .. }) => {
                tracing::debug!(release, "gpsd answered");
                Heard::Nothing
            }
            Ok(Report::Devices { devices }) if devices.is_empty() => {
                Heard::Says(Some("gpsd has no receiver".to_owned()))
            }
            Ok(Report::Devices { .. }) => Heard::Says(None),
            Ok(Report::Device(device)) if device.is_active() => Heard::Says(None),
            Ok(Report::Device(device)) => {
                if self.chosen.as_ref().is_some_and(|(chosen, _)| *chosen == device.path) {
                    self.chosen = None;
                }
                Heard::Says(Some(format!("gpsd lost its receiver {}", device.path)))
            }
            Ok(Report::Error { message }) => Heard::Bad(message),
            Ok(Report::Other) => Heard::Nothing,
            Err(error) => Heard::Bad(error.to_string()),
        }
    }

    fn read(&mut self, reading: Reading, now: Instant) -> Heard {
        let fix = match reading.fix(now) {
            Ok(Some(fix)) => fix,
            Ok(None) => return Heard::NoFix,
            Err(reason) => return Heard::Bad(reason.to_owned()),
        };
        let late = |since: Instant| now.saturating_duration_since(since) > PATIENCE;
        match &mut self.chosen {
            Some((device, since)) if *device == reading.device => *since = now,
            Some((_, since)) if !late(*since) => return Heard::Nothing,
            chosen => *chosen = Some((reading.device.clone(), now)),
        }
        let same = |last: &Reading| {
            reading.time.is_some()
                && (&last.time, last.lat, last.lon, &last.device)
                    == (&reading.time, reading.lat, reading.lon, &reading.device)
        };
        let repeated = self.last.as_ref().is_some_and(same);
        self.last = Some(reading);
        if repeated { Heard::Nothing } else { Heard::Fix(fix) }
    }
}
