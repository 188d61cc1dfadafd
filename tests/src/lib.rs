//! Random operations on simulated worlds, against a reference. See [`random`].

#![forbid(unsafe_code)]

pub mod random;
