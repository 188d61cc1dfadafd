//! The simulated world in virtual time, and random operations against a reference.
//!
//! - [`world`] drives a gateway and a cloud over emulated carriers and checks all they say.
//! - [`random`] makes worlds and their troubles from a seed.
//! - [`linkdb`] evaluates forecasts over generated trips and recorded runs.
//! - [`dice`] is the seeded source of all chance.

#![forbid(unsafe_code)]
#![allow(clippy::new_without_default)]

pub mod congestion;
pub mod dice;
pub mod linkdb;
pub mod random;
pub mod sim;
pub mod world;
