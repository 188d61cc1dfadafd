//! The crate from outside, in one program: its document, an own schedulerlet, and allocations.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests, with a base for their clock

mod allocation;
mod document;
mod outside;
#[path = "../../benches/scene/mod.rs"]
mod scene;
