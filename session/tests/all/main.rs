//! Two endpoints in virtual time, in one program: their promises, and the attacks of a hostile one.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests, with a base for their clock

mod clouds;
mod confined;
mod datagrams;
mod endpoints;
mod hostile_gateway;
mod lists;
mod messages;
mod pair;
mod quotas;
mod streams;
mod wishes;
