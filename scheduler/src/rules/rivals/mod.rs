//! The schedulers of others, to compare with: the Linux kernel's, MPTCP's and those of papers.

pub(in crate::rules) mod blest;
pub(in crate::rules) mod daps;
pub(in crate::rules) mod deadline_reinjection;
pub(in crate::rules) mod ecf;
pub(in crate::rules) mod edpf;
pub(in crate::rules) mod flow_round_robin;
pub(in crate::rules) mod linux;
pub(in crate::rules) mod linux_retransmission;
pub(in crate::rules) mod musher;
pub(crate) mod network_adaptive;
pub(in crate::rules) mod opportunistic_retransmission;
pub(in crate::rules) mod otias;
pub(in crate::rules) mod penalisation;
pub(in crate::rules) mod raven;
pub(in crate::rules) mod redundancy;
pub(in crate::rules) mod round_robin;
pub(in crate::rules) mod stms;
pub(in crate::rules) mod timeout_reinjection;
pub(in crate::rules) mod weighted_round_robin;
