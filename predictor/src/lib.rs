//! LinkDB: records how carriers fail along a track, and forecasts their next failures.
//!
//! The learning and forecasting half ([`history`], [`forecast`], [`track`], [`detect`]) knows no
//! socket, thread, file or clock: the caller owns them. Only [`store`] accesses a file, through
//! redb; [`worker`] is the thread. The session receives a forecast as a
//! [`polyrail_model::LinkForecast`] and decides where data goes. [`sync`] replicates the handovers
//! between both sides, and [`shared`] exchanges them
//! with a database of several clouds.

#![forbid(unsafe_code)]

mod creator;
pub mod detect;
pub mod entry;
pub mod exchange;
mod fair;
pub mod forecast;
pub mod history;
pub mod pilot;
pub mod position;
mod record;
pub mod shared;
#[cfg(test)]
#[path = "tests/simulated.rs"]
mod simulated;
pub mod store;
pub mod sync;
pub mod track;
pub mod views;
pub mod wire;
pub mod worker;
