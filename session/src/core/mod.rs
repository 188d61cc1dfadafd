//! One session: its flows, its paths, and the traffic between them.

mod admission;
mod confined;
mod credit;
mod datagram_traffic;
mod datagrams;
mod flow_control;
mod flows;
mod forecasts;
mod input;
mod lists;
mod messages;
mod outbox;
mod outlet;
mod paths;
mod session;
mod starved;
mod stopped;
mod stream_traffic;
mod streams;
#[cfg(test)]
mod tests;
mod transmit;
mod turns;
mod user_flows;
mod user_traffic;
mod writers;

pub use outlet::Outlet;
pub(crate) use session::Session;
