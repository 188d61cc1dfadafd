//! The emulated rail: a link model without clock or sockets, and drivers that carry real packets
//! through it between network namespaces.

#![deny(unsafe_code)]

pub mod link;
pub mod namespace;
mod sys;
