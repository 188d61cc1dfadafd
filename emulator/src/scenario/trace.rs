//! Recorded links: traces of packet deliveries as mahimahi has them, and tables in CSV.
//!
//! A trace of deliveries has a whole number of milliseconds a line, never falling: each is the
//! moment at which one packet of 1500 bytes could have been sent. It begins anew after its last
//! moment. It becomes a rate for each millisecond, or for longer bins where that would be more
//! steps than a schedule holds; what is sent in one round is the same.
//!
//! A table has the columns `time_s,mbps[,delay_ms[,loss]]` with that heading or without one; with
//! a heading the columns may come in any order, beside others. A value holds from its time to that
//! of the next line; an empty one says that nothing changes. It begins anew after the last line,
//! which lasts as long as the one before it. Loss is the mean over time: links have one loss.
//!
//! Lines that are empty or begin with `#` do not count.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use polyrail_model::Bitrate;

use crate::link::{Probability, Rate, STEPS_MAX, Schedule, ScheduleError};

/// The largest file that is read, in bytes.
pub const TRACE_BYTES_MAX: u64 = 64 << 20;

/// The longest trace.
pub const TRACE_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// A link as it was recorded, in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The rate, over and over.
    pub rate: Schedule<Rate>,
    /// The delay, where the recording has it.
    pub delay: Option<Schedule<Duration>>,
    /// The mean loss, where the recording has it.
    pub loss: Option<Probability>,
    /// After so long it begins anew.
    pub period: Duration,
}

/// The side of a table that has columns for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `up_mbps`.
    Up,
    /// `down_mbps`.
    Down,
}

/// Why there is no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, counted from 1, where one is to blame.
    pub line: Option<usize>,
    /// What is wrong there.
    pub reason: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for TraceError {}

impl From<ScheduleError> for TraceError {
    fn from(error: ScheduleError) -> Self {
        whole(error.to_string())
    }
}

impl Trace {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or is no trace.
    pub fn load(path: &Path, direction: Direction) -> Result<Self, TraceError> {
        let about = std::fs::metadata(path).map_err(|error| whole(error.to_string()))?;
        if about.len() > TRACE_BYTES_MAX {
            return Err(whole(format!("more than {TRACE_BYTES_MAX} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| whole(error.to_string()))?;
        Self::parse(&text, direction)
    }

    /// Reads the text of either format; the first line with a comma tells a table.
    ///
    /// # Errors
    /// It is no trace; the message has the line and the reason.
    pub fn parse(text: &str, direction: Direction) -> Result<Self, TraceError> {
        let mut lines = lines(text).peekable();
        match lines.peek() {
            None => Err(whole("nothing in it".into())),
            Some((_, first)) if first.contains(',') => table(lines, direction),
            Some(_) => deliveries(lines),
        }
    }
}

/// The lines that count, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn deliveries<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Trace, TraceError> {
    let mut moments: Vec<u64> = Vec::new();
    for (number, line) in lines {
        let ms: u64 = line
            .parse()
            .map_err(|_| at(number, format!("{line:?} is not a whole number of milliseconds")))?;
        if moments.last().is_some_and(|last| *last > ms) {
            return Err(at(number, format!("{ms} ms is before the line ahead of it")));
        }
        if u128::from(ms) > TRACE_TIME_MAX.as_millis() {
            return Err(at(number, format!("{ms} ms is more than {} h", hours())));
        }
        moments.push(ms);
    }
    let last = moments.last().copied().unwrap_or(0);
    if last == 0 {
        return Err(whole("the last moment must be later than 0 ms".into()));
    }
    for bin in BINS_MS {
        let steps = binned(&moments, last, bin);
        if steps.len() <= STEPS_MAX {
            return looped(steps, Vec::new(), Duration::from_millis(last), None);
        }
    }
    Err(whole(format!("more than {STEPS_MAX} changes of the rate")))
}

/// The rate of each bin, where it changes. A packet is sent in the time that ends at its moment.
fn binned(moments: &[u64], last: u64, bin: u64) -> Vec<(Duration, Rate)> {
    let mut steps: Vec<(Duration, Rate)> = Vec::new();
    let mut left = moments.iter().peekable();
    for start in (0..last).step_by(bin as usize) {
        let end = (start + bin).min(last);
        let mut packets = 0;
        while left.next_if(|ms| **ms <= end).is_some() {
            packets += 1;
        }
        let rate = Rate::Limited(Bitrate::from_bps(packets * PACKET_BITS * 1_000 / (end - start)));
        if steps.last().is_none_or(|step| step.1 != rate) {
            steps.push((Duration::from_millis(start), rate));
        }
        if steps.len() > STEPS_MAX {
            break;
        }
    }
    steps
}

/// Where a table has what.
struct Columns {
    time: usize,
    mbps: usize,
    delay: Option<usize>,
    /// Its delay is a round trip.
    round_trip: bool,
    loss: Option<usize>,
}

impl Columns {
    /// Of a table without a heading.
    const PLAIN: Self = Self { time: 0, mbps: 1, delay: Some(2), round_trip: false, loss: Some(3) };

    fn named(heading: &str, direction: Direction) -> Option<Self> {
        let names: Vec<&str> = heading.split(',').map(str::trim).collect();
        let place = |name: &str| names.iter().position(|other| *other == name);
        let own = if direction == Direction::Up { "up_mbps" } else { "down_mbps" };
        let (one_way, round_trip) = (place("delay_ms"), place("rtt_ms"));
        Some(Self {
            time: place("time_s").or_else(|| place("t_s"))?,
            mbps: place("mbps").or_else(|| place(own))?,
            delay: one_way.or(round_trip),
            round_trip: one_way.is_none(),
            loss: place("loss"),
        })
    }
}

fn table<'a>(
    mut lines: impl Iterator<Item = (usize, &'a str)>,
    direction: Direction,
) -> Result<Trace, TraceError> {
    let mut first = lines.next();
    let mut columns = Columns::PLAIN;
    if let Some((number, line)) = first
        && line.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        columns = Columns::named(line, direction)
            .ok_or_else(|| at(number, "the heading lacks time_s or mbps".into()))?;
        first = None;
    }
    let mut rows = Rows::default();
    for (number, line) in first.into_iter().chain(lines) {
        rows.take(&columns, line).map_err(|reason| at(number, reason))?;
    }
    rows.trace()
}

/// A table as it is read.
#[derive(Default)]
struct Rows {
    begin: f64,
    times: Vec<f64>,
    rates: Vec<(Duration, Rate)>,
    delays: Vec<(Duration, Duration)>,
    losses: Vec<Option<f64>>,
}

impl Rows {
    fn take(&mut self, columns: &Columns, line: &str) -> Result<(), String> {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let value = |place: Option<usize>, most: f64, what: &str| match place
            .and_then(|place| cells.get(place))
            .filter(|cell| !cell.is_empty())
        {
            None => Ok(None),
            Some(cell) => match cell.parse::<f64>() {
                Ok(value) if (0.0..=most).contains(&value) => Ok(Some(value)),
                _ => Err(format!("{cell:?} is not {what} from 0 to {most}")),
            },
        };
        let seconds = value(Some(columns.time), f64::MAX, "a time in s")?
            .ok_or_else(|| "there is no time".to_owned())?;
        if self.times.is_empty() {
            self.begin = seconds;
        }
        let time = seconds - self.begin;
        if self.times.last().is_some_and(|last| *last >= time) {
            return Err(format!("{seconds} s is not later than the line ahead of it"));
        }
        if self.times.len() >= STEPS_MAX {
            return Err(format!("more than {STEPS_MAX} lines"));
        }
        if time > TRACE_TIME_MAX.as_secs_f64() {
            return Err(format!("{time} s is more than {} h", hours()));
        }
        let at = Duration::from_secs_f64(time);
        if let Some(mbps) = value(Some(columns.mbps), MBPS_MAX, "a rate in Mbit/s")? {
            self.rates.push((at, Rate::Limited(Bitrate::from_mbps(mbps))));
        }
        if let Some(ms) = value(columns.delay, DELAY_MS_MAX, "a delay in ms")? {
            let ms = if columns.round_trip { ms / 2.0 } else { ms };
            self.delays.push((at, Duration::from_secs_f64(ms / 1e3)));
        }
        self.losses.push(value(columns.loss, 1.0, "a share")?);
        self.times.push(time);
        Ok(())
    }

    fn trace(self) -> Result<Trace, TraceError> {
        let [.., before, last] = self.times[..] else {
            return Err(whole("a table needs two lines at least".into()));
        };
        let period = 2.0 * last - before;
        if self.rates.is_empty() {
            return Err(whole("no line has a rate".into()));
        }
        let ends = self.times[1..].iter().chain(std::iter::once(&period));
        let (mut sum, mut time) = (0.0, 0.0);
        for ((loss, start), end) in self.losses.iter().zip(&self.times).zip(ends) {
            if let Some(loss) = loss {
                sum += loss * (end - start);
                time += end - start;
            }
        }
        let loss = (time > 0.0).then(|| Probability::new(sum / time)).flatten();
        looped(self.rates, self.delays, Duration::from_secs_f64(period), loss)
    }
}

/// Schedules that begin anew; the first value holds from the beginning.
fn looped(
    rates: Vec<(Duration, Rate)>,
    delays: Vec<(Duration, Duration)>,
    period: Duration,
    loss: Option<Probability>,
) -> Result<Trace, TraceError> {
    let rate = schedule(rates, period)?.ok_or_else(|| whole("nothing in it".into()))?;
    Ok(Trace { rate, delay: schedule(delays, period)?, loss, period })
}

fn schedule<T: Copy>(
    steps: Vec<(Duration, T)>,
    period: Duration,
) -> Result<Option<Schedule<T>>, ScheduleError> {
    let mut steps = steps.into_iter();
    steps.next().map(|first| Schedule::new(first.1, steps, Some(period))).transpose()
}

fn whole(reason: String) -> TraceError {
    TraceError { line: None, reason }
}

fn at(line: usize, reason: String) -> TraceError {
    TraceError { line: Some(line), reason }
}

fn hours() -> u64 {
    TRACE_TIME_MAX.as_secs() / 3_600
}

/// What one moment of a trace of deliveries lets go.
const PACKET_BITS: u64 = 1_500 * 8;
/// The lengths of bins that are tried, the finest first.
const BINS_MS: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 500, 1_000];
const MBPS_MAX: f64 = 100_000.0;
const DELAY_MS_MAX: f64 = 60_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn mbps(trace: &Trace, at: Duration) -> f64 {
        match trace.rate.at(at).value {
            Rate::Limited(rate) => rate.as_bps() as f64 / 1e6,
            Rate::Unlimited => f64::INFINITY,
        }
    }

    #[test]
    fn deliveries_become_rates_and_begin_anew() {
        let trace = Trace::parse("# a comment\n1\n1\n3\n\n4\n", Direction::Down).unwrap();
        assert_eq!(trace.period, ms(4));
        for (at, rate) in [(0, 24.0), (1, 0.0), (2, 12.0), (3, 12.0), (4, 24.0), (6, 12.0)] {
            assert!((mbps(&trace, ms(at)) - rate).abs() < 1e-6, "{at} ms");
        }
    }

    #[test]
    fn many_deliveries_take_longer_bins_and_keep_their_sum() {
        let text: String = (1..=150_000_u64).map(|n| format!("{}\n", 2 * n)).collect();
        let trace = Trace::parse(&text, Direction::Down).unwrap();
        assert_eq!(trace.period, ms(300_000));
        assert!((mbps(&trace, ms(77_000)) - 6.0).abs() < 1e-6);
    }

    #[test]
    fn a_table_has_rates_delays_and_a_mean_loss() {
        let text = "time_s,mbps,delay_ms,loss\n10,5,20,0.1\n11,,40,\n13,8,,0.2\n";
        let trace = Trace::parse(text, Direction::Up).unwrap();
        assert_eq!(trace.period, ms(5_000));
        assert!((mbps(&trace, ms(2_999)) - 5.0).abs() < 1e-6);
        assert!((mbps(&trace, ms(3_000)) - 8.0).abs() < 1e-6);
        let delay = trace.delay.unwrap();
        assert_eq!([0, 1_000, 5_000].map(|at| delay.at(ms(at)).value), [ms(20), ms(40), ms(20)]);
        assert!((trace.loss.unwrap().get() - 0.5 / 3.0).abs() < 1e-9);
        let plain = Trace::parse("0,5\n0.5,6\n", Direction::Up).unwrap();
        assert_eq!((plain.period, plain.delay, plain.loss), (ms(1_000), None, None));
    }

    #[test]
    fn a_heading_names_both_directions() {
        let text = "t_s,down_mbps,up_mbps,rtt_ms\n0,10,2,50\n1,12,3,60\n";
        let up = Trace::parse(text, Direction::Up).unwrap();
        let down = Trace::parse(text, Direction::Down).unwrap();
        assert!((mbps(&up, ms(0)) - 2.0).abs() < 1e-6);
        assert!((mbps(&down, ms(0)) - 10.0).abs() < 1e-6);
        assert_eq!(up.delay.unwrap().at(ms(0)).value, ms(25));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        for (text, line, part) in [
            ("", None, "nothing in it"),
            ("# only this\n", None, "nothing in it"),
            ("1\ntwo\n", Some(2), "\"two\" is not a whole number"),
            ("5\n4\n", Some(2), "before the line ahead"),
            ("0\n0\n", None, "later than 0 ms"),
            ("1\n86400001\n", Some(2), "more than 24 h"),
            ("-1\n", Some(1), "not a whole number"),
            ("0,5\n", None, "two lines"),
            ("0,5\n0,6\n", Some(2), "not later"),
            ("0,5\n1,x\n", Some(2), "\"x\" is not a rate"),
            ("0,5\n1,-3\n", Some(2), "\"-3\" is not a rate"),
            ("0,5\n1,NaN\n", Some(2), "\"NaN\" is not a rate"),
            ("0,5\n1,2,3,1.5\n", Some(2), "\"1.5\" is not a share"),
            ("0,5\n,6\n", Some(2), "no time"),
            ("a,b\n0,5\n", Some(1), "the heading lacks"),
            ("0,\n1,\n", None, "no line has a rate"),
        ] {
            let error = Trace::parse(text, Direction::Down).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.reason.contains(part), "{text:?}: {error}");
        }
        let many: String = (0..=STEPS_MAX).map(|n| format!("{n},1\n")).collect();
        let error = Trace::parse(&many, Direction::Down).unwrap_err();
        assert!(error.line == Some(86_402) || error.reason.contains("more than"), "{error}");
    }
}
