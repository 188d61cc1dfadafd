//! Recorded links: tables in CSV of rate, delay and loss over time.
//!
//! The heading names the columns, in any order and next to others: the time `time_s` or `t_s`, and
//! any of `mbps`, `up_mbps`, `down_mbps`, `delay_ms`, `rtt_ms` (half of it in each direction) and
//! `loss`. A value holds from its time to that of the next line; an empty cell keeps the value
//! before it, and the first value holds from the beginning. The recording repeats after the last
//! line, which lasts as long as the line before it. Empty lines and lines that begin with `#` are
//! skipped.

use std::path::Path;
use std::time::Duration;

use polyrail_model::Bitrate;

use crate::link::{LinkSpec, Probability, Rate, STEPS_MAX, Schedule, ScheduleError};

/// A recorded link in one direction, repeating.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trace {
    pub(super) rate: Option<Schedule<Rate>>,
    pub(super) delay: Option<Schedule<Duration>>,
    pub(super) loss: Option<Schedule<Probability>>,
    /// Its length.
    pub(super) period: Duration,
}

/// Why a file is not a recording.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// A schedule does not hold it.
    #[error("{0}")]
    Schedule(#[from] ScheduleError),
    /// A line is invalid.
    #[error("line {0}: {1}")]
    Line(usize, String),
    /// The file as a whole is invalid.
    #[error("{0}")]
    Whole(&'static str),
}

impl Trace {
    /// Both directions of a file, up and down.
    pub(super) fn load_both(path: &Path) -> Result<[Self; 2], TraceError> {
        if std::fs::metadata(path)?.len() > TRACE_BYTES_MAX {
            return Err(TraceError::Whole("larger than 64 MiB"));
        }
        Self::parse(&std::fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> Result<[Self; 2], TraceError> {
        let both = [Self::read(text, "up_mbps")?, Self::read(text, "down_mbps")?];
        let is_empty = |it: &Self| it.rate.is_none() && it.delay.is_none() && it.loss.is_none();
        if both.iter().all(is_empty) {
            return Err(TraceError::Whole("no line has a rate, a delay or a loss"));
        }
        Ok(both)
    }

    /// The link with its recorded properties in place of its own.
    pub(super) fn on(self, link: LinkSpec) -> LinkSpec {
        let link = LinkSpec {
            rate: self.rate.unwrap_or(link.rate),
            delay: self.delay.unwrap_or(link.delay),
            ..link
        };
        match self.loss {
            Some(loss) => link.with_losses(loss),
            None => link,
        }
    }

    /// One direction; `own` is the column of its rate.
    fn read(text: &str, own: &str) -> Result<Self, TraceError> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (number, heading) = lines.next().ok_or(TraceError::Whole("the file is empty"))?;
        let names: Vec<&str> = heading.split(',').map(str::trim).collect();
        let place = |name: &str| names.iter().position(|other| *other == name);
        let time = place("time_s").or_else(|| place("t_s"));
        let time =
            time.ok_or_else(|| TraceError::Line(number, "the heading lacks time_s".into()))?;
        let rate = place("mbps").or_else(|| place(own));
        let (one_way, round_trip) = (place("delay_ms"), place("rtt_ms"));
        let (delay, ways) = (one_way.or(round_trip), if one_way.is_some() { 1.0 } else { 2.0 });
        let loss = place("loss");
        let (mut rates, mut delays, mut losses) = (Vec::new(), Vec::new(), Vec::new());
        let mut times: Vec<f64> = Vec::new();
        let mut begin = None;
        for (number, line) in lines {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            let value = |place: Option<usize>, max: f64| number_of(&cells, place, max);
            let wrong = |reason: String| TraceError::Line(number, reason);
            let at = value(Some(time), f64::MAX).map_err(wrong)?;
            let at = at.ok_or_else(|| wrong("there is no time".into()))?;
            let at = at - *begin.get_or_insert(at);
            if times.last().is_some_and(|last| *last >= at) {
                return Err(wrong("it is not later than the line before it".into()));
            }
            if times.len() >= STEPS_MAX || at > TIME_S_MAX {
                return Err(wrong(format!("more than {STEPS_MAX} lines, or 24 h")));
            }
            times.push(at);
            let at = Duration::from_secs_f64(at);
            let mbps = value(rate, MBPS_MAX).map_err(wrong)?;
            rates.extend(mbps.map(|mbps| (at, Rate::Limited(Bitrate::from_mbps(mbps)))));
            let ms = value(delay, DELAY_MS_MAX).map_err(wrong)?;
            delays.extend(ms.map(|ms| (at, Duration::from_secs_f64(ms / ways / 1e3))));
            let share = value(loss, 1.0).map_err(wrong)?.and_then(Probability::new);
            losses.extend(share.map(|share| (at, share)));
        }
        let [.., before, last] = times[..] else {
            return Err(TraceError::Whole("a recording has two lines at least"));
        };
        let period = Duration::from_secs_f64(2.0 * last - before);
        Ok(Self {
            rate: schedule(rates, period)?,
            delay: schedule(delays, period)?,
            loss: schedule(losses, period)?,
            period,
        })
    }
}

/// The number in a cell, from 0 to `max`; `None` for an empty or missing one.
fn number_of(cells: &[&str], place: Option<usize>, max: f64) -> Result<Option<f64>, String> {
    let cell = place.and_then(|place| cells.get(place)).filter(|cell| !cell.is_empty());
    let Some(cell) = cell else { return Ok(None) };
    match cell.parse::<f64>() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(Some(value)),
        _ => Err(format!("{cell:?} is not a number from 0 to {max}")),
    }
}

/// A repeating schedule whose first value holds from the beginning.
fn schedule<T: Copy + PartialEq>(
    mut steps: Vec<(Duration, T)>,
    period: Duration,
) -> Result<Option<Schedule<T>>, ScheduleError> {
    steps.dedup_by_key(|step| step.1);
    let mut steps = steps.into_iter();
    steps.next().map(|first| Schedule::new(first.1, steps, Some(period))).transpose()
}

/// The largest file that is read, in bytes.
const TRACE_BYTES_MAX: u64 = 64 << 20;
const TIME_S_MAX: f64 = 24.0 * 3600.0;
const MBPS_MAX: f64 = 100_000.0;
const DELAY_MS_MAX: f64 = 60_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_rates_delays_and_losses() {
        let text = "t_s,down_mbps,up_mbps,rtt_ms,loss\n10,5,2,40,0.1\n11,,3,80,\n13,8,,,0.2\n";
        let [up, down] = Trace::parse(text).unwrap();
        let ms = Duration::from_millis;
        assert_eq!((up.period, down.period), (ms(5_000), ms(5_000)));
        let mbps = |trace: &Trace, at| trace.rate.as_ref().unwrap().at(ms(at)).value;
        let limited = |mbps| Rate::Limited(Bitrate::from_mbps(mbps));
        assert_eq!([mbps(&up, 999), mbps(&up, 1_000)], [limited(2.0), limited(3.0)]);
        assert_eq!([mbps(&down, 2_999), mbps(&down, 3_000)], [limited(5.0), limited(8.0)]);
        let delay = up.delay.unwrap();
        assert_eq!([0, 1_000, 5_000].map(|at| delay.at(ms(at)).value), [ms(20), ms(40), ms(20)]);
        let loss = down.loss.unwrap();
        let at = [0, 2_999, 3_000, 5_000].map(|at| loss.at(ms(at)).value.get());
        assert_eq!(at, [0.1, 0.1, 0.2, 0.1]);
    }

    #[test]
    fn invalid_recording_is_refused_with_its_line() {
        for (text, part) in [
            ("# only this\n", "the file is empty"),
            ("t_s,mbps\n0,5\n", "two lines"),
            ("t_s,mbps\n0,5\n0,6\n", "line 3: it is not later"),
            ("t_s,mbps\n0,5\n1,x\n", "line 3: \"x\" is not a number"),
            ("t_s,mbps\n0,5\n1,NaN\n", "line 3: \"NaN\" is not"),
            ("t_s,loss\n0,0\n1,1.5\n", "line 3: \"1.5\" is not"),
            ("t_s,mbps\n0,5\n,6\n", "line 3: there is no time"),
            ("a,b\n0,5\n", "line 1: the heading lacks"),
            ("t_s,mbps\n0,\n1,\n", "no line has a rate"),
        ] {
            let error = Trace::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
