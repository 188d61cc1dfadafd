//! Short scenarios in virtual time. Each defines its links, its faults and its time limit. The same
//! scenario always gives the same figures.

#![allow(clippy::unwrap_used)] // A panic is how a scenario fails.

mod bonding;
mod dark;
mod delay;
mod endpoints;
mod fairness;
mod identity;
mod lab;
mod linkdb;
mod memory;
mod paths;
mod regressions;
mod restarts;
mod semantics;
