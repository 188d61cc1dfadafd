//! The simulated world in virtual time, and the evaluations in it.
//!
//! - [`world`] drives a gateway and a cloud over emulated carriers and checks all they say.
//! - [`congestion`] has the models of TCP's and QUIC's congestion control.
//! - [`sim`] compares schedulers on the simulated rail.
//! - [`linkdb`] evaluates forecasts over generated trips and recorded runs.
//! - [`dice`] is the seeded source of all chance.

#![forbid(unsafe_code)]
#![allow(clippy::new_without_default)]

pub mod congestion;
pub mod dice;
pub mod linkdb;
pub mod sim;
pub mod world;
