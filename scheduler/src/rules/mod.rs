//! All schedulerlets and handlers, one file each, and the ready-made chains.

mod disconnect_redundancy;
mod extended_reinjection;
mod handover_rejection;
mod min_rtt;
mod opportunistic_redundancy;
mod per_path;
mod redundancy;
mod round_robin;
mod tail_rejection;

use disconnect_redundancy::DisconnectRedundancy;
use extended_reinjection::ExtendedReinjection;
use handover_rejection::HandoverRejection;
use min_rtt::MinRtt;
use opportunistic_redundancy::OpportunisticRedundancy;
use redundancy::Redundancy;
use round_robin::RoundRobin;
use tail_rejection::TailRejection;

use crate::registry::{Made, Make};

/// The rules by name.
pub(crate) const RULES: [(&str, Make); 8] = [
    ("disconnect_redundancy", |params| link(DisconnectRedundancy::new(params)?)),
    ("extended_reinjection", |params| handler(ExtendedReinjection::new(params)?)),
    ("handover_rejection", |params| link(HandoverRejection::new(params)?)),
    ("min_rtt", |_| link(MinRtt)),
    ("opportunistic_redundancy", |params| link(OpportunisticRedundancy::new(params)?)),
    ("redundancy", |_| link(Redundancy)),
    ("round_robin", |_| link(RoundRobin::default())),
    ("tail_rejection", |params| link(TailRejection::new(params)?)),
];

/// The ready-made chains.
pub(crate) const CHAINS: [(&str, &[&str]); 6] = [
    ("polyrail", &HSRSCH),
    ("hsrsch", &HSRSCH),
    ("hsrsch_bare", &HSRSCH_BARE),
    ("min_rtt", &["min_rtt"]),
    ("redundant", &["min_rtt", "redundancy"]),
    ("round_robin", &["round_robin"]),
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

fn link<E>(rule: impl crate::Schedulerlet + 'static) -> Result<Made, E> {
    Ok(Made::Link(Box::new(rule)))
}

fn handler<E>(rule: impl crate::Handler + 'static) -> Result<Made, E> {
    Ok(Made::Handler(Box::new(rule)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChainSpec, ChainSpecError, chain_names, schedulerlet_names};

    #[test]
    fn every_name_builds() {
        for name in chain_names() {
            let spec = ChainSpec::named(name).unwrap();
            let mut built: Vec<String> = names(&spec);
            let mut wanted = spec.names().to_vec();
            // Handlers come behind the chain.
            built.sort();
            wanted.sort();
            assert_eq!(built, wanted, "{name}");
        }
        for name in schedulerlet_names() {
            assert_eq!(names(&ChainSpec::of(&[name]).unwrap()), [name]);
        }
        assert!(RULES.is_sorted_by_key(|(name, _)| *name));
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
        let error = ChainSpec::of(&["min_rtt(x=1)"]).unwrap_err().to_string();
        assert_eq!(error, "min_rtt has no parameter \"x\"; it has: none");
        assert_eq!(ChainSpec::of::<&str>(&[]), Err(ChainSpecError::Length(0)));
        assert_eq!(ChainSpec::of(&["min_rtt"; 17]), Err(ChainSpecError::Length(17)));
    }

    #[test]
    fn parameters_are_part_of_a_chain() {
        let spec = |text: &str| ChainSpec::of(&[text]).unwrap();
        let default = spec("opportunistic_redundancy");
        let other = spec("opportunistic_redundancy( segments = 4 )");
        assert_ne!(default, other);
        assert_eq!(other.names(), ["opportunistic_redundancy(segments=4)"]);
        assert_eq!(spec(&other.names()[0]), other);
    }
}
