//! A LinkDB that several clouds share, in PostgreSQL.
//!
//! A thread of its own appends the entries that LinkDB's thread offers, and reads those that it
//! wants ([`polyrail_predictor::shared`]). It never touches the local database or the data plane,
//! so a server that is slow or away for days costs nothing but the delay of others' entries.
//!
//! The invariants are in the functions of the schema (`schema.sql`); `docs/shared.md` describes
//! them. Rust code of this crate only carries rows.

#![forbid(unsafe_code)]

mod database;
mod error;
mod schema;
#[cfg(feature = "scratch")]
pub mod scratch;
mod server;
mod thread;

pub use error::SharedError;
pub use schema::{VERSION, migrate};
pub use server::Server;
pub use thread::start;
