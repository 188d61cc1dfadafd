//! The policy in a small world of virtual time: a carrier that answers, is dark, blocks or polices
//! UDP; a session that lets go of the older path.

mod modes;
mod paths;
mod policed;
mod restart;
mod world;
