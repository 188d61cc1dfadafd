//! Recorded links: traces of packet deliveries as mahimahi has them, and tables in CSV.
//!
//! A trace of deliveries has a whole number of milliseconds a line, never falling: each is the
//! moment at which one packet of 1500 bytes could have been sent. It begins anew after its last
//! moment. It becomes a rate for each millisecond, or for longer bins where that would be more
//! steps than a schedule holds; what is sent in one round is the same.
//!
//! A table has the columns `time_s,mbps[,delay_ms[,loss]]` with that heading or without one; with
//! a heading the columns may come in any order, beside others, and any of rate, delay and loss may
//! be missing. A value holds from its time to that of the next line; an empty one says that nothing
//! changes, and the first holds from the beginning. It begins anew after the last line, which lasts
//! as long as the one before it.
//!
//! Lines that are empty or begin with `#` do not count.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use polyrail_model::Bitrate;

use crate::link::{LinkSpec, Probability, Rate, STEPS_MAX, Schedule, ScheduleError};

/// The largest file that is read, in bytes.
pub const TRACE_BYTES_MAX: u64 = 64 << 20;

/// The longest trace.
pub const TRACE_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// A link as it was recorded, in one direction: whatever of it was recorded, over and over.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The rate.
    pub rate: Option<Schedule<Rate>>,
    /// The delay.
    pub delay: Option<Schedule<Duration>>,
    /// The random loss.
    pub loss: Option<Schedule<Probability>>,
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
    /// The file cannot be read, is too large, is no trace, or has nothing of this direction.
    pub fn load(path: &Path, direction: Direction) -> Result<Self, TraceError> {
        Self::parse(&text_of(path)?, direction)
    }

    /// Reads the text of either format; the first line with a comma tells a table.
    ///
    /// # Errors
    /// It is no trace, or has nothing of this direction; the message has the line and the reason.
    pub fn parse(text: &str, direction: Direction) -> Result<Self, TraceError> {
        let trace = Self::read(text, direction)?;
        match trace {
            Self { rate: None, delay: None, loss: None, .. } => {
                Err(whole("no line has a rate, a delay or a loss".into()))
            }
            trace => Ok(trace),
        }
    }

    /// Both directions of a file, up and down; one of them may have nothing.
    ///
    /// # Errors
    /// The file cannot be read, is too large, is no trace, or has nothing at all.
    pub fn load_both(path: &Path) -> Result<[Self; 2], TraceError> {
        let text = text_of(path)?;
        match Self::parse(&text, Direction::Down) {
            Ok(down) => Ok([Self::read(&text, Direction::Up)?, down]),
            Err(error) => {
                let up = Self::parse(&text, Direction::Up).map_err(|_| error)?;
                Ok([up, Self::read(&text, Direction::Down)?])
            }
        }
    }

    /// The link with what was recorded in place of what it says itself.
    pub fn on(self, link: LinkSpec) -> LinkSpec {
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

    fn read(text: &str, direction: Direction) -> Result<Self, TraceError> {
        let mut lines = lines(text).peekable();
        match lines.peek() {
            None => Err(whole("nothing in it".into())),
            Some((_, first)) if first.contains(',') => table(lines, direction),
            Some(_) => deliveries(lines),
        }
    }
}

fn text_of(path: &Path) -> Result<String, TraceError> {
    let about = std::fs::metadata(path).map_err(|error| whole(error.to_string()))?;
    if about.len() > TRACE_BYTES_MAX {
        return Err(whole(format!("more than {TRACE_BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| whole(error.to_string()))
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
            let period = Duration::from_millis(last);
            let rate = schedule(steps, period)?;
            return Ok(Trace { rate, delay: None, loss: None, period });
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
    mbps: Option<usize>,
    delay: Option<usize>,
    /// Its delay is a round trip.
    round_trip: bool,
    loss: Option<usize>,
}

impl Columns {
    /// Of a table without a heading.
    const PLAIN: Self =
        Self { time: 0, mbps: Some(1), delay: Some(2), round_trip: false, loss: Some(3) };

    fn named(heading: &str, direction: Direction) -> Option<Self> {
        let names: Vec<&str> = heading.split(',').map(str::trim).collect();
        let place = |name: &str| names.iter().position(|other| *other == name);
        let own = if direction == Direction::Up { "up_mbps" } else { "down_mbps" };
        let (one_way, round_trip) = (place("delay_ms"), place("rtt_ms"));
        let columns = Self {
            time: place("time_s").or_else(|| place("t_s"))?,
            mbps: place("mbps").or_else(|| place(own)),
            delay: one_way.or(round_trip),
            round_trip: one_way.is_none(),
            loss: place("loss"),
        };
        let known = names.iter().any(|name| KNOWN.contains(name));
        known.then_some(columns)
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
            .ok_or_else(|| at(number, format!("the heading lacks time_s or one of {KNOWN:?}")))?;
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
    losses: Vec<(Duration, Probability)>,
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
        if let Some(mbps) = value(columns.mbps, MBPS_MAX, "a rate in Mbit/s")? {
            self.rates.push((at, Rate::Limited(Bitrate::from_mbps(mbps))));
        }
        if let Some(ms) = value(columns.delay, DELAY_MS_MAX, "a delay in ms")? {
            let ms = if columns.round_trip { ms / 2.0 } else { ms };
            self.delays.push((at, Duration::from_secs_f64(ms / 1e3)));
        }
        let loss = value(columns.loss, 1.0, "a share")?;
        self.losses.extend(loss.and_then(Probability::new).map(|loss| (at, loss)));
        self.times.push(time);
        Ok(())
    }

    fn trace(self) -> Result<Trace, TraceError> {
        let [.., before, last] = self.times[..] else {
            return Err(whole("a table needs two lines at least".into()));
        };
        let period = Duration::from_secs_f64(2.0 * last - before);
        Ok(Trace {
            rate: schedule(self.rates, period)?,
            delay: schedule(self.delays, period)?,
            loss: schedule(self.losses, period)?,
            period,
        })
    }
}

/// A schedule that begins anew; the first value holds from the beginning. Values that stay the same
/// are one step.
fn schedule<T: Copy + PartialEq>(
    mut steps: Vec<(Duration, T)>,
    period: Duration,
) -> Result<Option<Schedule<T>>, ScheduleError> {
    steps.dedup_by_key(|step| step.1);
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
/// The columns of a heading that make a link.
const KNOWN: [&str; 6] = ["mbps", "up_mbps", "down_mbps", "delay_ms", "rtt_ms", "loss"];
const MBPS_MAX: f64 = 100_000.0;
const DELAY_MS_MAX: f64 = 60_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn mbps(trace: &Trace, at: Duration) -> f64 {
        match trace.rate.as_ref().unwrap().at(at).value {
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
    fn a_table_has_rates_delays_and_losses() {
        let text = "time_s,mbps,delay_ms,loss\n10,5,20,0.1\n11,,40,\n13,8,,0.2\n";
        let trace = Trace::parse(text, Direction::Up).unwrap();
        assert_eq!(trace.period, ms(5_000));
        assert!((mbps(&trace, ms(2_999)) - 5.0).abs() < 1e-6);
        assert!((mbps(&trace, ms(3_000)) - 8.0).abs() < 1e-6);
        let delay = trace.delay.unwrap();
        assert_eq!([0, 1_000, 5_000].map(|at| delay.at(ms(at)).value), [ms(20), ms(40), ms(20)]);
        let loss = trace.loss.unwrap();
        let at = [0, 2_999, 3_000, 4_999, 5_000].map(|at| loss.at(ms(at)).value.get());
        assert_eq!(at, [0.1, 0.1, 0.2, 0.2, 0.1]);
        assert!((loss.mean_of(Probability::get) - 0.14).abs() < 1e-9);
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
    fn a_table_without_rates_leaves_them_to_the_link() {
        let text = "t_s,down_mbps,up_mbps,rtt_ms,loss\n0,,,50,0\n1,,,60,0.5\n2,,,,\n";
        let trace = Trace::parse(text, Direction::Down).unwrap();
        assert_eq!((&trace.rate, trace.period), (&None, ms(3_000)));
        let rate = Schedule::constant(Rate::Limited(Bitrate::from_mbps(7.0)));
        let beside = LinkSpec {
            rate: rate.clone(),
            delay: trace.delay.clone().unwrap(),
            ..LinkSpec::default()
        };
        let link = trace.on(LinkSpec { rate, ..LinkSpec::default() });
        assert_eq!((&link.rate, &link.delay), (&beside.rate, &beside.delay));
        let losses = [0, 1_000, 2_000, 3_000].map(|at| link.loss_at(ms(at)).get());
        assert_eq!(losses, [0.0, 0.5, 0.5, 0.0]);
        assert!((link.loss.get() - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn one_direction_may_have_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.csv");
        std::fs::write(&path, "t_s,down_mbps,up_mbps\n0,,3\n1,,4\n").unwrap();
        let [up, down] = Trace::load_both(&path).unwrap();
        assert!(up.rate.is_some() && down.rate.is_none());
        assert!(Trace::load(&path, Direction::Down).is_err());
        std::fs::write(&path, "t_s,down_mbps,up_mbps\n0,,\n1,,\n").unwrap();
        assert!(Trace::load_both(&path).unwrap_err().reason.contains("no line has"));
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
            ("t_s,b\n0,5\n", Some(1), "the heading lacks"),
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
