//! The schedulerlets of HSRSCH, POLYCORN's scheduler.

pub(in crate::rules) mod disconnect_redundancy;
pub(in crate::rules) mod extended_reinjection;
pub(in crate::rules) mod handover_rejection;
pub(in crate::rules) mod min_rtt;
pub(in crate::rules) mod opportunistic_redundancy;
pub(in crate::rules) mod tail_reinjection;
pub(in crate::rules) mod tail_rejection;
