//! Identity, telemetry and the admin interface: what an operator looks at.
//!
//! The operator's command `polyrail` is a thin shell over it. Nothing here touches a session, a tunnel or a user's byte.

#![forbid(unsafe_code)]

pub mod admin;
pub mod check;
pub mod linkdb;
mod links;
pub mod pki;
pub mod reload;
pub mod telemetry;
