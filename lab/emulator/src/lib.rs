//! The emulated rail: a link model without clock or sockets, and drivers that carry real packets
//! through it between network namespaces.
//!
//! - [`link`] is one direction of a link, for virtual time or real time.
//! - The private module `packet` recognises UDP, answers packets that are too big, and has the NAT.
//! - [`scenario`] reads the links from a TOML file (`docs/emulation.md`).
//! - [`driver`] runs a scenario, [`control`] changes it while it runs.
//! - [`rail`] makes the links of a train from seeds, [`dice`] draws all chance.
//! - [`record`] is the form in which the rail bench writes its runs.
//! - [`results`] prints and writes figures, for all programs of the project.
//! - [`statistics`] has means, quantiles and bootstrap intervals, for all programs.
//! - [`trials`] has the links on which simulator and kernel are compared, [`tcp`] reads `TCP_INFO`.
//! - [`namespace`] makes network namespaces that leave nothing behind.

#![deny(unsafe_code)]

pub mod control;
pub mod dice;
pub mod driver;
pub mod guest;
pub mod link;
pub mod namespace;
mod packet;
pub mod rail;
pub mod record;
pub mod report;
pub mod results;
pub mod scenario;
pub mod statistics;
mod sys;
pub mod tcp;
pub mod trials;
pub mod usage;
