//! Namespaces and the TUN driver on the host's kernel, in one program. The netem driver runs in a
//! guest, which loads the machine: its program runs after this one.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

#[path = "../common/mod.rs"]
mod common;
mod namespaces;
mod tun;
