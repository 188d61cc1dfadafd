//! The simulated world in virtual time, and the evaluations in it.
//!
//! - [`world`] drives a gateway and a cloud over emulated carriers and checks all that they report.
//! - [`congestion`] has the models of TCP's and QUIC's congestion control.
//! - [`sim`] compares schedulers on the simulated rail.
//! - [`linkdb`] evaluates forecasts over generated trips and recorded runs.
//! - [`dice`] draws all chance from seeds.

#![forbid(unsafe_code)]
#![allow(clippy::new_without_default)]

pub mod congestion;
pub use polyrail_emulator::dice;
pub mod linkdb;
pub mod sim;
pub mod world;
