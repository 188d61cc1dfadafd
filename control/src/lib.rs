//! Identity, checks of configurations, and LinkDB's thread.

#![forbid(unsafe_code)]

pub mod linkdb;
