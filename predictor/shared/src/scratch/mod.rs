//! Clouds and a PostgreSQL server in scratch folders, for tests and measurements.

mod cloud;
mod postgres;

pub use cloud::{Cloud, Contents, handovers};
pub use postgres::Postgres;
