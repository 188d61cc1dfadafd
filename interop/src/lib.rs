//! The real programs of Polyrail in fresh network namespaces over emulated carriers.
//!
//! The tests and the command `polyrail-lab` share this library. A [`Lab`](lab::Lab) holds the
//! namespaces (passenger, gateway, cloud, server, and a server on board); a
//! [`World`](world::World) adds the carriers, the web server and the daemons.
//!
//! Nothing outlives the harness, whatever ends it: namespaces are anonymous, files lie on a
//! `tmpfs` in a private mount namespace, and every child asks the kernel to be killed with its
//! parent. So there is nothing to clean up, not even after SIGKILL.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod admin;
pub mod bench;
pub mod bench_linkdb;
pub mod bench_tunnel;
mod bulk;
pub mod carrier;
pub mod client;
pub mod configuration;
pub mod demo;
pub mod dns;
pub mod download;
pub mod exchange;
pub mod keys;
pub mod lab;
pub mod linkdb;
pub mod matrix;
pub mod operator;
pub mod privilege;
pub mod process;
pub mod programs;

pub mod scratch;
pub mod services;
pub mod trials;
pub mod usage;
pub mod web;
pub mod world;

pub use polyrail_emulator::results as report;
