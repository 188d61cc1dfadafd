//! All schedulerlets and handlers, one file each, and the ready-made chains.

mod budget;
mod heads;
mod path_rate;
mod per_flow;
mod per_path;
mod waits;

/// The schedulerlets of POLYCORN's chain HSRSCH, and the path choice that it builds on.
mod hsrsch {
    pub(super) mod disconnect_redundancy;
    pub(super) mod extended_reinjection;
    pub(super) mod handover_rejection;
    pub(super) mod min_rtt;
    pub(super) mod opportunistic_redundancy;
    pub(super) mod tail_reinjection;
    pub(super) mod tail_rejection;
}

/// The schedulerlets of the default chains `polyrail` and `datagrams`.
mod polyrail {
    pub(super) mod completion_reinjection;
    pub(super) mod datagram_redundancy;
    pub(super) mod earliest_delivery;
    pub(super) mod flow_pinning;
    pub(super) mod message_redundancy;
    pub(super) mod queue_bound;
}

/// Schedulers to compare with: those of the Linux kernel, of MPTCP and of papers.
mod rivals {
    pub(super) mod blest;
    pub(super) mod daps;
    pub(super) mod deadline_reinjection;
    pub(super) mod ecf;
    pub(super) mod edpf;
    pub(super) mod flow_round_robin;
    pub(super) mod linux;
    pub(super) mod linux_retransmission;
    pub(super) mod musher;
    pub(super) mod network_adaptive;
    pub(super) mod opportunistic_retransmission;
    pub(super) mod otias;
    pub(super) mod penalisation;
    pub(super) mod raven;
    pub(super) mod redundancy;
    pub(super) mod round_robin;
    pub(super) mod stms;
    pub(super) mod timeout_reinjection;
    pub(super) mod weighted_round_robin;
}

use hsrsch::*;
use polyrail::*;
use rivals::*;

use crate::rule::{Known, Made, beside, first};

/// The rules by name.
pub(crate) const RULES: [Known; 33] = [
    first("blest", |params| link(blest::Blest::new(params)?)),
    beside("completion_reinjection", |params| {
        handler(completion_reinjection::CompletionReinjection::new(params)?)
    }),
    first("daps", |_| link(daps::Daps::default())),
    beside("datagram_redundancy", |params| {
        link(datagram_redundancy::DatagramRedundancy::new(params)?)
    }),
    beside("deadline_reinjection", |params| {
        handler(deadline_reinjection::DeadlineReinjection::new(params)?)
    }),
    beside("disconnect_redundancy", |_| {
        link(disconnect_redundancy::DisconnectRedundancy::default())
    }),
    first("earliest_delivery", |params| link(earliest_delivery::EarliestDelivery::new(params)?)),
    first("ecf", |params| link(ecf::Ecf::new(params)?)),
    first("edpf", |_| link(edpf::Edpf::default())),
    beside("extended_reinjection", |params| {
        handler(extended_reinjection::ExtendedReinjection::new(params)?)
    }),
    first("flow_pinning", |params| link(flow_pinning::FlowPinning::new(params)?)),
    first("flow_round_robin", |_| link(flow_round_robin::FlowRoundRobin::default())),
    beside("handover_rejection", |params| {
        link(handover_rejection::HandoverRejection::new(params)?)
    }),
    first("linux", |_| link(linux::Linux::default())),
    beside("linux_retransmission", |_| {
        handler(linux_retransmission::LinuxRetransmission::default())
    }),
    beside("message_redundancy", |params| {
        link(message_redundancy::MessageRedundancy::new(params)?)
    }),
    first("min_rtt", |_| link(min_rtt::MinRtt)),
    first("musher", |_| link(musher::Musher::new(false))),
    first("musher_scaled", |_| link(musher::Musher::new(true))),
    first("network_adaptive", |params| link(network_adaptive::NetworkAdaptive::new(params)?)),
    beside("opportunistic_redundancy", |params| {
        link(opportunistic_redundancy::OpportunisticRedundancy::new(params)?)
    }),
    beside("opportunistic_retransmission", |_| {
        handler(opportunistic_retransmission::OpportunisticRetransmission::default())
    }),
    first("otias", |_| link(otias::Otias::default())),
    beside("penalisation", |_| handler(penalisation::Penalisation::default())),
    beside("queue_bound", |params| handler(queue_bound::QueueBound::new(params)?)),
    first("raven", |params| link(raven::Raven::new(params)?)),
    beside("redundancy", |_| link(redundancy::Redundancy)),
    first("round_robin", |_| link(round_robin::RoundRobin::default())),
    first("stms", |_| link(stms::Stms::default())),
    beside("tail_reinjection", |params| handler(tail_reinjection::TailReinjection::new(params)?)),
    beside("tail_rejection", |params| link(tail_rejection::TailRejection::new(params)?)),
    beside("timeout_reinjection", |_| handler(timeout_reinjection::TimeoutReinjection::default())),
    first("weighted_round_robin", |params| {
        link(weighted_round_robin::WeightedRoundRobin::new(params)?)
    }),
];

/// The ready-made chains.
pub(crate) const CHAINS: [(&str, &[&str]); 22] = [
    ("polyrail", &POLYRAIL),
    ("datagrams", &DATAGRAMS),
    ("hsrsch", &HSRSCH),
    ("hsrsch_bare", &HSRSCH_BARE),
    ("min_rtt", &["min_rtt"]),
    ("redundant", &["min_rtt", "redundancy"]),
    ("round_robin", &["round_robin"]),
    ("mptcp", &MPTCP),
    ("blest", &BLEST),
    ("ecf", &ECF),
    ("linux", &LINUX),
    ("flow_round_robin", &["flow_round_robin"]),
    ("weighted_round_robin", &["weighted_round_robin"]),
    ("otias", &["otias"]),
    ("edpf", &["edpf"]),
    ("daps", &["daps"]),
    ("network_adaptive", &["network_adaptive"]),
    ("stms", &["stms"]),
    ("musher", &["musher"]),
    ("musher_scaled", &["musher_scaled"]),
    ("raven", &["raven"]),
    ("xlink", &["min_rtt", "deadline_reinjection"]),
];

/// Rules and chains without published code; of `raven` only the interval.
pub(crate) const RECONSTRUCTED: [&str; 2] = ["raven", "stms"];

/// The default: HSRSCH's forecasts, the earliest delivery in place of the least round trip, and
/// flow ends over the path that delivers them first. A failure costs little, because reinjection is
/// quick. So a forecast rejects a path only where that delivers a flow earlier, and shortens its
/// queue elsewhere.
const POLYRAIL: [&str; 6] = [
    "handover_rejection(hazard=true)",
    "earliest_delivery",
    "message_redundancy",
    "queue_bound",
    "completion_reinjection",
    "extended_reinjection",
];

/// The default for datagrams: nothing can be sent again in time, so each flow stays on a carrier,
/// leaves it before a predicted failure, and has copies where that matters.
const DATAGRAMS: [&str; 3] =
    ["handover_rejection(hazard=true)", "flow_pinning", "datagram_redundancy"];

/// POLYCORN's, with what its 6.2 adds.
const HSRSCH: [&str; 6] = [
    "handover_rejection",
    "min_rtt",
    "tail_rejection",
    "disconnect_redundancy",
    "opportunistic_redundancy",
    "extended_reinjection",
];

/// POLYCORN 4.
const HSRSCH_BARE: [&str; 5] = [
    "handover_rejection",
    "min_rtt",
    "tail_rejection",
    "opportunistic_redundancy",
    "extended_reinjection",
];

/// Out-of-tree MPTCP with its default scheduler; of timeouts see `timeout_reinjection`.
const MPTCP: [&str; 4] =
    ["min_rtt", "penalisation", "opportunistic_retransmission", "timeout_reinjection"];

/// Out-of-tree MPTCP with BLEST.
const BLEST: [&str; 4] =
    ["blest", "penalisation", "opportunistic_retransmission", "timeout_reinjection"];

/// Out-of-tree MPTCP with ECF.
const ECF: [&str; 4] =
    ["ecf", "penalisation", "opportunistic_retransmission", "timeout_reinjection"];

/// MPTCP of the Linux kernel: a subflow is stale, and its data goes elsewhere, after more than
/// `stale_loss_cnt` (4) timeouts.
const LINUX: [&str; 3] = ["linux", "linux_retransmission", "extended_reinjection(timeouts=5)"];

fn link<E>(rule: impl crate::Schedulerlet + 'static) -> Result<Made, E> {
    Ok(Made::Link(Box::new(rule)))
}

fn handler<E>(rule: impl crate::Handler + 'static) -> Result<Made, E> {
    Ok(Made::Handler(Box::new(rule)))
}
