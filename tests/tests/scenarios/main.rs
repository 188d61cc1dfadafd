//! Short scenarios in virtual time: each names its links, its faults, and the bound by which it
//! must be over. The same scenario always gives the same figures.

#![allow(clippy::unwrap_used)] // A panic is how a scenario fails.

mod bonding;
mod dark;
mod delay;
mod fairness;
mod identity;
mod lab;
mod linkdb;
mod memory;
mod paths;
mod regressions;
mod restarts;
mod semantics;
