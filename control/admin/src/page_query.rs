//! Parameters of requests for a page of a list.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// The maximum number of entries of a page.
pub const PAGE_MAX: usize = 1_000;

/// Reads the number of entries of a page.
pub(crate) fn limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let limit = usize::deserialize(deserializer)?;
    let is_valid = (1..=PAGE_MAX).contains(&limit);
    let wrong = || de::Error::custom(format!("limit is 1 to {PAGE_MAX}"));
    is_valid.then_some(limit).ok_or_else(wrong)
}

/// Reads a value that has a text form.
pub(crate) fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(de::Error::custom)
}
