//! The daemon on board, as a library: interception, SOCKS5, DNS and users, around the session.

#![deny(unsafe_code)]

pub mod carriers;
mod clouds;
pub mod command_line;
mod datagrams;
pub mod diversion;
pub mod dns;
mod icmp;
pub mod intercept;
mod name_service;
pub mod neighbours;
mod operate;
pub mod shell;
#[cfg(test)]
#[path = "../../relay/tests/common/side.rs"]
mod side;
pub mod socks5;
mod socks_clients;
mod speedtest;
mod telemetry;
pub mod transparent;
pub mod users;
