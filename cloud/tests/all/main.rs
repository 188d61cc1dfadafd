//! The daemon as a process: its start, its service and its reloads, in one program. The tests that
//! load the machine have programs of their own, because programs run one after the other.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

#[path = "../common/mod.rs"]
mod common;
mod daemon;
mod datagrams;
mod reload;
mod speedtest;
mod start;
