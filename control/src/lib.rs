//! Identity, checks of configurations, and LinkDB's thread.

#![forbid(unsafe_code)]

pub mod check;
pub mod linkdb;
pub mod reload;
