//! The schedulerlets of our own that make the default chain `polyrail`.

pub(in crate::rules) mod completion_reinjection;
pub(in crate::rules) mod earliest_delivery;
pub(in crate::rules) mod message_redundancy;
pub(in crate::rules) mod queue_bound;
