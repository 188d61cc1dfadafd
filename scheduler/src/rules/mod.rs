//! All schedulerlets and handlers, one file each, and the ready-made chains.

mod figures;
mod heads;
mod hsrsch;
mod per_flow;
mod per_path;
mod polyrail;
pub(crate) mod rivals;
mod waits;
mod window;

use hsrsch::disconnect_redundancy::DisconnectRedundancy;
use hsrsch::extended_reinjection::ExtendedReinjection;
use hsrsch::handover_rejection::HandoverRejection;
use hsrsch::min_rtt::MinRtt;
use hsrsch::opportunistic_redundancy::OpportunisticRedundancy;
use hsrsch::tail_reinjection::TailReinjection;
use hsrsch::tail_rejection::TailRejection;
use polyrail::completion_reinjection::CompletionReinjection;
use polyrail::earliest_delivery::EarliestDelivery;
use polyrail::message_redundancy::MessageRedundancy;
use polyrail::queue_bound::QueueBound;
use rivals::blest::Blest;
use rivals::daps::Daps;
use rivals::deadline_reinjection::DeadlineReinjection;
use rivals::ecf::Ecf;
use rivals::edpf::Edpf;
use rivals::flow_round_robin::FlowRoundRobin;
use rivals::linux::Linux;
use rivals::linux_retransmission::LinuxRetransmission;
use rivals::musher::Musher;
use rivals::network_adaptive::NetworkAdaptive;
use rivals::opportunistic_retransmission::OpportunisticRetransmission;
use rivals::otias::Otias;
use rivals::penalisation::Penalisation;
use rivals::raven::Raven;
use rivals::redundancy::Redundancy;
use rivals::round_robin::RoundRobin;
use rivals::stms::Stms;
use rivals::timeout_reinjection::TimeoutReinjection;
use rivals::weighted_round_robin::WeightedRoundRobin;

use crate::registry::{Known, Made, beside, first};

/// The rules by name.
pub(crate) const RULES: [Known; 31] = [
    first("blest", |params| link(Blest::new(params)?)),
    beside("completion_reinjection", |params| handler(CompletionReinjection::new(params)?)),
    first("daps", |_| link(Daps::default())),
    beside("deadline_reinjection", |params| handler(DeadlineReinjection::new(params)?)),
    beside("disconnect_redundancy", |params| link(DisconnectRedundancy::new(params)?)),
    first("earliest_delivery", |params| link(EarliestDelivery::new(params)?)),
    first("ecf", |params| link(Ecf::new(params)?)),
    first("edpf", |_| link(Edpf::default())),
    beside("extended_reinjection", |params| handler(ExtendedReinjection::new(params)?)),
    first("flow_round_robin", |_| link(FlowRoundRobin::default())),
    beside("handover_rejection", |params| link(HandoverRejection::new(params)?)),
    first("linux", |_| link(Linux::default())),
    beside("linux_retransmission", |_| handler(LinuxRetransmission::default())),
    beside("message_redundancy", |params| link(MessageRedundancy::new(params)?)),
    first("min_rtt", |_| link(MinRtt)),
    first("musher", |_| link(Musher::published())),
    first("musher_scaled", |_| link(Musher::scaled())),
    first("network_adaptive", |params| link(NetworkAdaptive::new(params)?)),
    beside("opportunistic_redundancy", |params| link(OpportunisticRedundancy::new(params)?)),
    beside("opportunistic_retransmission", |_| handler(OpportunisticRetransmission::default())),
    first("otias", |_| link(Otias::default())),
    beside("penalisation", |_| handler(Penalisation::default())),
    beside("queue_bound", |params| handler(QueueBound::new(params)?)),
    first("raven", |params| link(Raven::new(params)?)),
    beside("redundancy", |_| link(Redundancy)),
    first("round_robin", |_| link(RoundRobin::default())),
    first("stms", |_| link(Stms::default())),
    beside("tail_reinjection", |params| handler(TailReinjection::new(params)?)),
    beside("tail_rejection", |params| link(TailRejection::new(params)?)),
    beside("timeout_reinjection", |_| handler(TimeoutReinjection::default())),
    first("weighted_round_robin", |params| link(WeightedRoundRobin::new(params)?)),
];

/// The ready-made chains.
pub(crate) const CHAINS: [(&str, &[&str]); 21] = [
    ("polyrail", &POLYRAIL),
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

/// The rules and chains that are made after descriptions: of `raven` the interval.
pub(crate) const RECONSTRUCTED: [&str; 2] = ["raven", "stms"];

/// Our own: HSRSCH's foresight, the earliest delivery in place of the least round trip, and ends
/// that go where they arrive first. What it loses in a failure it soon has elsewhere, so a path
/// that most probably goes on is not taken out: it is used, and what goes then is copied to others
/// that have room.
const POLYRAIL: [&str; 7] = [
    "handover_rejection(permille=350)",
    "earliest_delivery",
    "disconnect_redundancy",
    "message_redundancy",
    "queue_bound",
    "completion_reinjection",
    "extended_reinjection",
];

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples::{base, path};
    use crate::{
        ChainSpec, ChainSpecError, Decision, Input, SegmentView, chain_names, schedulerlet_names,
    };

    #[test]
    fn every_name_builds() {
        for name in chain_names() {
            let spec = ChainSpec::named(name).unwrap();
            let mut built: Vec<String> = names(&spec);
            let bare = |rule: &String| rule.split('(').next().map(str::to_owned);
            let mut wanted: Vec<String> = spec.names().iter().filter_map(bare).collect();
            // Handlers come behind the chain.
            built.sort();
            wanted.sort();
            assert_eq!(built, wanted, "{name}");
        }
        for name in schedulerlet_names() {
            assert_eq!(names(&ChainSpec::parts(&[name]).unwrap()), [name]);
        }
        assert!(RULES.is_sorted_by_key(|rule| rule.name));
    }

    fn names(spec: &ChainSpec) -> Vec<String> {
        let text = format!("{:?}", spec.build());
        text.trim_matches(['[', ']']).split(", ").map(|s| s.trim_matches('"').into()).collect()
    }

    #[test]
    fn what_is_unknown_is_named() {
        let error = ChainSpec::named("fastest").unwrap_err().to_string();
        assert!(error.contains("\"fastest\"") && error.contains("min_rtt"), "{error}");
        let error = ChainSpec::of(&["min_rtt", "x"]).unwrap_err().to_string();
        assert!(error.contains("\"x\"") && error.contains("redundancy"), "{error}");
        assert!(error.contains("stms (reconstructed)"), "{error}");
        let error = ChainSpec::of(&["min_rtt(x=1)"]).unwrap_err().to_string();
        assert_eq!(error, "min_rtt has no parameter \"x\"; it has: none");
        assert_eq!(ChainSpec::of::<&str>(&[]), Err(ChainSpecError::Length(0)));
        assert_eq!(ChainSpec::of(&["min_rtt"; 17]), Err(ChainSpecError::Length(17)));
    }

    #[test]
    fn a_chain_without_a_rule_that_selects_a_path_is_refused() {
        let paths = [path(1, 40), path(2, 60)];
        for Known { name, selects, .. } in RULES {
            let spec = ChainSpec::parts(&[name]).unwrap();
            let input = Input { paths: &paths, segment: SegmentView::default(), now: base() };
            let sends = matches!(spec.build().decide(&input), Decision::Send { .. });
            assert_eq!(sends, selects, "{name}");
            let of = ChainSpec::of(&[name, "redundancy", "extended_reinjection"]);
            assert_eq!(of.is_ok(), selects, "{name}");
        }
        let error = ChainSpec::of(&["handover_rejection"]).unwrap_err();
        assert_eq!(error, ChainSpecError::NoSelector);
        let error = error.to_string();
        assert!(error.contains("min_rtt") && error.contains("stms (reconstructed)"), "{error}");
        assert!(!error.contains("redundancy"), "{error}");
        let selects = ChainSpec::of(&["redundancy", "min_rtt"]);
        assert!(selects.is_ok(), "in any place");
        // What is put together in code is not looked at: a rule from outside may select.
        assert!(ChainSpec::parts(&["redundancy"]).is_ok());
        assert_eq!(ChainSpec::parts(&["x"]), ChainSpec::of(&["x"]));
    }

    #[test]
    fn a_chain_may_stand_in_one_text() {
        let read = |text: &str| text.parse::<ChainSpec>();
        assert_eq!(read("redundant"), ChainSpec::named("redundant"));
        assert_eq!(read(" min_rtt , redundancy"), ChainSpec::of(&["min_rtt", "redundancy"]));
        let two = "opportunistic_redundancy(bytes=1, idle=2s)";
        assert_eq!(read(&format!("min_rtt, {two}")), ChainSpec::of(&["min_rtt", two]));
        assert_eq!(read("blest(lambda=1)"), ChainSpec::of(&["blest(lambda=1)"]), "a rule alone");
        for (text, error) in [
            ("best", "no chain is named \"best\""),
            ("min_rtt,best", "no schedulerlet is named \"best\""),
            ("blest(lambda=9)", "blest: lambda is a number from 1 to 1.3"),
            ("min_rtt, blest(lambda=1.2", "\"blest(lambda=1.2\" is not a rule"),
            (two, "no rule of this chain selects a path: add one of blest, daps, "),
        ] {
            let found = read(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{text}: {found}");
        }
    }

    #[test]
    fn parameters_are_part_of_a_chain() {
        let spec = |text: &str| ChainSpec::parts(&[text]).unwrap();
        let default = spec("opportunistic_redundancy");
        let other = spec("opportunistic_redundancy( segments = 4 )");
        assert_ne!(default, other);
        assert_eq!(other.names(), ["opportunistic_redundancy(segments=4)"]);
        assert_eq!(spec(&other.names()[0]), other);
    }
}
