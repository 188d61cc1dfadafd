//! Chains and schedulerlets by the names that the configuration uses.

use crate::{Chain, MinRtt, Redundancy, RoundRobin, Schedulerlet};

/// A chain as the configuration names it; builds any number of equal chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSpec {
    links: Vec<&'static str>,
}

/// A chain that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainSpecError {
    /// There is no chain of this name.
    #[error("no chain is named {0:?}; there are: {list}", list = CHAINS.map(|c| c.0).join(", "))]
    UnknownChain(String),
    /// There is no schedulerlet of this name.
    #[error(
        "no schedulerlet is named {0:?}; there are: {list}",
        list = LINKS.map(|l| l.0).join(", ")
    )]
    UnknownSchedulerlet(String),
    /// The list is empty or longer than `LINKS_MAX`.
    #[error("a chain has 1 to {LINKS_MAX} schedulerlets, not {0}")]
    Length(usize),
}

/// The most schedulerlets in one chain.
const LINKS_MAX: usize = 16;

type Make = fn() -> Box<dyn Schedulerlet>;

const LINKS: [(&str, Make); 3] = [
    ("min_rtt", || Box::new(MinRtt)),
    ("round_robin", || Box::new(RoundRobin::default())),
    ("redundancy", || Box::new(Redundancy)),
];

const CHAINS: [(&str, &[&str]); 3] = [
    ("min_rtt", &["min_rtt"]),
    ("round_robin", &["round_robin"]),
    ("redundant", &["min_rtt", "redundancy"]),
];

/// The names of the ready-made chains.
pub fn chain_names() -> impl Iterator<Item = &'static str> {
    CHAINS.iter().map(|(name, _)| *name)
}

/// The names of the schedulerlets from which chains are made.
pub fn schedulerlet_names() -> impl Iterator<Item = &'static str> {
    LINKS.iter().map(|(name, _)| *name)
}

impl ChainSpec {
    /// A ready-made chain.
    ///
    /// # Errors
    /// No chain has this name.
    pub fn named(name: &str) -> Result<Self, ChainSpecError> {
        let found = CHAINS.iter().find(|(known, _)| *known == name);
        let (_, links) = found.ok_or_else(|| ChainSpecError::UnknownChain(name.to_owned()))?;
        Self::of(links)
    }

    /// A chain of these schedulerlets in this order.
    ///
    /// # Errors
    /// The list is empty or too long, or holds an unknown name.
    pub fn of<S: AsRef<str>>(names: &[S]) -> Result<Self, ChainSpecError> {
        if names.is_empty() || names.len() > LINKS_MAX {
            return Err(ChainSpecError::Length(names.len()));
        }
        let known = |name: &S| {
            let found = LINKS.iter().find(|(known, _)| *known == name.as_ref());
            let unknown = || ChainSpecError::UnknownSchedulerlet(name.as_ref().to_owned());
            found.map(|(known, _)| *known).ok_or_else(unknown)
        };
        Ok(Self { links: names.iter().map(known).collect::<Result<_, _>>()? })
    }

    /// The names of its schedulerlets in their order.
    pub fn names(&self) -> &[&'static str] {
        &self.links
    }

    /// A new chain with fresh state.
    pub fn build(&self) -> Chain {
        let make = |name: &&str| LINKS.iter().find(|(known, _)| known == name).map(|(_, m)| m());
        Chain::new(self.links.iter().filter_map(make).collect())
    }
}

impl Default for ChainSpec {
    /// `min_rtt`.
    fn default() -> Self {
        Self { links: vec![LINKS[0].0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_builds() {
        for name in chain_names() {
            let spec = ChainSpec::named(name).unwrap();
            assert_eq!(format!("{:?}", spec.build()), format!("{:?}", spec.links));
        }
        for name in schedulerlet_names() {
            assert_eq!(ChainSpec::of(&[name]).unwrap().build().to_string_list(), [name]);
        }
    }

    #[test]
    fn what_is_unknown_is_named() {
        let error = ChainSpec::named("fastest").unwrap_err().to_string();
        assert!(error.contains("\"fastest\"") && error.contains("min_rtt"), "{error}");
        let error = ChainSpec::of(&["min_rtt", "x"]).unwrap_err().to_string();
        assert!(error.contains("\"x\"") && error.contains("redundancy"), "{error}");
        assert_eq!(ChainSpec::of::<&str>(&[]), Err(ChainSpecError::Length(0)));
        assert_eq!(ChainSpec::of(&["min_rtt"; 17]), Err(ChainSpecError::Length(17)));
    }

    impl Chain {
        fn to_string_list(&self) -> Vec<String> {
            let text = format!("{self:?}");
            text.trim_matches(['[', ']']).split(", ").map(|s| s.trim_matches('"').into()).collect()
        }
    }
}
