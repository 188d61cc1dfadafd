//! The half of a daemon that the gateway and the cloud share.
//!
//! [`Daemon`] owns what a reload or an operator may change on either side: configuration, session
//! settings, identity, the handles of the control thread and of LinkDB, the shutdown state, and
//! the service manager. [`start`] builds its parts, [`request`] answers the control thread, and
//! [`survey`] translates the relay's status into the types of the admin interface. The relay itself
//! does not know that interface.

#![forbid(unsafe_code)]

mod certificates;
mod daemon;
mod lists;
pub mod refusals;
pub mod request;
pub mod speedtest;
pub mod start;
mod supervisor;
pub mod survey;
mod udp_drops;

pub use certificates::Certificates;
pub use daemon::Daemon;
pub use refusals::{Refusals, Refused};
pub use request::{Operate, serve};
pub use supervisor::Supervisor;
pub use survey::Survey;
pub use udp_drops::{UdpDrop, UdpDrops};

#[cfg(test)]
#[path = "../../tunnel/tests/common/fake.rs"]
mod fake;
#[cfg(test)]
#[path = "../../relay/tests/common/side.rs"]
mod side;
