//! The daemon on board, as a library: interception, SOCKS5, DNS and users, around the session.

#![deny(unsafe_code)]

pub mod dns;
pub mod intercept;
pub mod socks5;
pub mod transparent;
pub mod users;
