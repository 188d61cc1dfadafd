//! The daemon on the ground: accepts gateways, dials destinations, carries flows.

#![forbid(unsafe_code)]

pub mod access;
pub mod command_line;
pub mod dial;
pub mod resolve;
pub mod run;
pub mod shell;

mod congestion;
mod datagrams;
mod descriptors;
#[cfg(test)]
#[path = "../../tunnel/tests/common/fake.rs"]
mod fake;
mod lines;
mod listeners;
mod operate;
mod paths;
mod post;
mod reach;
mod reports;
#[cfg(test)]
#[path = "../../relay/tests/common/side.rs"]
mod side;
mod speedtest;
