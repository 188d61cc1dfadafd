//! The real programs of Polyrail in fresh network namespaces over emulated carriers.
//!
//! The tests and the command `polyrail-lab` share this library. A [`Lab`](lab::Lab) holds the
//! namespaces (passenger, gateway, cloud and server); a
//! [`World`](world::World) adds the carriers, the web server and the daemons.
//!
//! Nothing outlives the harness, even after SIGKILL: namespaces are anonymous, files are on a
//! `tmpfs` in a private mount namespace, and the kernel kills every child with its parent.
//!
//! An error ends its experiment. It carries its context and, if a program failed, the output of
//! that program. Functions whose errors say more than that document them.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod admin;
pub mod attack;
pub mod bench;
pub mod bench_fleet;
pub mod bench_linkdb;
pub mod bench_operate;
pub mod bench_tunnel;
pub mod bench_udp;
pub mod bench_workers;
mod bulk;
pub mod carrier;
pub mod client;
pub mod configuration;
pub mod crash;
pub mod datagrams;
pub mod demo;
pub mod dns;
pub mod download;
pub mod exchange;
pub mod fleet;
pub mod intruder;
pub mod keys;
pub mod lab;
pub mod linkdb;
pub mod matrix;
pub mod metrics;
pub mod operator;
pub mod privilege;
pub mod process;
pub mod programs;
pub mod rail;
pub mod scratch;
pub mod services;
pub mod soak;
pub mod trials;
pub mod usage;
pub mod web;
pub mod world;

pub use polyrail_emulator::results as report;
