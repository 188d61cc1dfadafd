//! LinkDB: what carriers did along a track, and what they are going to do there.
//!
//! The learning and forecasting half ([`history`], [`forecast`], [`track`], [`detect`]) knows no
//! socket, thread, file or clock: the caller owns them. Only [`store`] touches a file, through
//! redb. Nothing here decides where data goes: a forecast is handed to the session as a
//! [`polyrail_model::LinkForecast`]. [`sync`] makes the databases of both sides hold the same.

#![forbid(unsafe_code)]

pub mod detect;
pub mod exchange;
pub mod forecast;
pub mod history;
pub mod pilot;
pub mod position;
pub mod record;
#[cfg(test)]
#[path = "tests/simulated.rs"]
mod simulated;
pub mod store;
pub mod sync;
pub mod track;
pub mod wire;
pub mod worker;
