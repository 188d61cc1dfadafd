//! Checks and reloads of configurations.

#![forbid(unsafe_code)]

pub mod check;
pub mod reload;
