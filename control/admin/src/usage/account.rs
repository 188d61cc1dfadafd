//! The bytes of one carrier, by day, so that the period may begin on any day.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::{Date, Duration, Month};

/// The account of a carrier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Account {
    /// The interface whose counter was read last.
    interface: String,
    /// Its number; a new one means a new interface, which counts from zero.
    index: u32,
    /// Its counter then; `None` before the first reading.
    counter: Option<u64>,
    /// The newest day on which bytes counted.
    #[serde(with = "day")]
    today: Option<Date>,
    /// Bytes by day, at most [`DAYS_MAX`].
    #[serde(with = "days")]
    days: BTreeMap<Date, u64>,
}

/// The counter of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub index: u32,
    /// Bytes in both directions since the interface was created.
    pub bytes: u64,
}

impl Account {
    /// Takes a reading of the interface; returns whether anything has changed. The first one only
    /// sets the zero.
    pub fn take(&mut self, clock: Date, interface: &str, reading: Option<Reading>) -> bool {
        let moved = self.follow(clock);
        let Some(Reading { index, bytes }) = reading else { return moved };
        let new = match self.counter {
            // Another interface of the carrier: its earlier bytes were not the carrier's.
            Some(_) if self.interface != interface => 0,
            Some(before) if self.index == index && before <= bytes => bytes - before,
            // The interface was created again.
            Some(_) => bytes,
            None => 0,
        };
        let counter = Some(bytes);
        let changed = new > 0 || self.counter != counter || self.index != index;
        (self.interface, self.index, self.counter) = (interface.to_owned(), index, counter);
        self.add(new);
        moved || changed
    }

    /// The first day of the current period, and that of the next one.
    pub fn period(&self, clock: Date, reset_day: u8) -> (Date, Date) {
        let since = begin(self.today.unwrap_or(clock), reset_day);
        (since, next(since))
    }

    /// The bytes from a day on, before another one.
    pub fn used(&self, since: Date, until: Date) -> u64 {
        self.days.range(since..until).fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Follows the clock, unless it is wrong: before 2020, as without a battery, or a little behind
    /// the newest day. If it is far behind, the newest day was wrong. Then the bytes of that day's
    /// month count for the clock's day, too, so that a clock that jumps wipes nothing.
    fn follow(&mut self, clock: Date) -> bool {
        let Some(today) = self.today else {
            self.today = Some(clock);
            return true;
        };
        let is_set = clock.year() >= YEAR_MIN;
        if clock == today || !is_set || (clock < today && today - clock <= BEHIND_MAX) {
            return false;
        }
        let was_set = today.year() >= YEAR_MIN;
        let kept = if clock < today || !was_set {
            self.used(today.saturating_sub(BEHIND_MAX), today.saturating_add(Duration::DAY))
        } else {
            0
        };
        if !was_set {
            self.days.clear();
        }
        self.today = Some(clock);
        self.add(kept);
        true
    }

    fn add(&mut self, bytes: u64) {
        let Some(today) = self.today.filter(|_| bytes > 0) else { return };
        let day = self.days.entry(today).or_default();
        *day = day.saturating_add(bytes);
        while self.days.len() > DAYS_MAX {
            self.days.pop_first();
        }
    }
}

/// The first day of the period that holds this day.
fn begin(day: Date, reset_day: u8) -> Date {
    let month = if day.day() >= reset_day {
        Some(day)
    } else {
        let year = day.year() - i32::from(day.month() == Month::January);
        Date::from_calendar_date(year, day.month().previous(), 1).ok()
    };
    month.and_then(|day| day.replace_day(reset_day).ok()).unwrap_or(day)
}

/// The first day of the period after the one that begins on this day.
fn next(since: Date) -> Date {
    let year = since.year() + i32::from(since.month() == Month::December);
    Date::from_calendar_date(year, since.month().next(), since.day()).unwrap_or(Date::MAX)
}

/// The first year in which a clock may be right.
const YEAR_MIN: i32 = 2020;
/// How far a clock may be behind before the newest day counts as wrong: more than a period.
const BEHIND_MAX: Duration = Duration::days(40);
/// Days that are kept: more than two periods, and some of a wrong clock.
const DAYS_MAX: usize = 100;

/// A day as text.
mod day {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
    use time::Date;
    use time::format_description::BorrowedFormatItem;
    use time::macros::format_description;

    pub(super) const FORMAT: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]");

    pub(super) fn serialize<S: Serializer>(day: &Option<Date>, to: S) -> Result<S::Ok, S::Error> {
        day.map(|day| day.to_string()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Date>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| Date::parse(&text, FORMAT)).transpose().map_err(de::Error::custom)
    }
}

/// Bytes by day.
mod days {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer, de};
    use time::Date;

    use super::day::FORMAT;

    pub(super) fn serialize<S: Serializer>(
        days: &BTreeMap<Date, u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(days.iter().map(|(day, bytes)| (day.to_string(), bytes)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Date, u64>, D::Error> {
        let days = BTreeMap::<String, u64>::deserialize(from)?.into_iter();
        let days = days.map(|(day, bytes)| Ok((Date::parse(&day, FORMAT)?, bytes)));
        days.collect::<Result<_, time::error::Parse>>().map_err(de::Error::custom)
    }
}
