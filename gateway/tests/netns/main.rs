//! Interception, DNS and users in real kernels' network namespaces. Needs root.

mod interception;
mod lab;
mod passengers;
mod senders;
