//! Chains, schedulerlets and handlers by the names that the configuration uses.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::params::{ParamError, Params};
use crate::rule::{Known, Made};
use crate::rules::{CHAINS, RECONSTRUCTED, RULES};
use crate::{Chain, Kind, Parameter};

/// A chain as the configuration names it; builds any number of equal chains.
///
/// Two specifications are equal if their rules have the same names and parameters.
#[derive(Clone)]
pub struct ChainSpec {
    /// The rules as the configuration spells them.
    names: Vec<String>,
    build: Arc<dyn Fn() -> Chain + Send + Sync>,
}

impl fmt::Debug for ChainSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.names).finish()
    }
}

impl Eq for ChainSpec {}

impl PartialEq for ChainSpec {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

/// An invalid chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainSpecError {
    /// No chain has this name.
    #[error("no chain is named {0:?}; there are: {list}", list = listed(chain_names()))]
    UnknownChain(String),
    /// No rule has this name.
    #[error(
        "no schedulerlet is named {0:?}; there are: {list}",
        list = listed(schedulerlet_names())
    )]
    UnknownSchedulerlet(String),
    /// A parameter is invalid.
    #[error(transparent)]
    Parameter(#[from] ParamError),
    /// No rule selects a first path, so the chain would never send.
    #[error("no rule of this chain selects a path: add one of {list}", list = listed(selectors()))]
    NoSelector,
    /// The list is empty or longer than `LINKS_MAX`.
    #[error("a chain has 1 to {LINKS_MAX} schedulerlets, not {0}")]
    Length(usize),
}

/// The longest chain.
const LINKS_MAX: usize = 16;

/// The names of the ready-made chains.
pub fn chain_names() -> impl Iterator<Item = &'static str> {
    CHAINS.iter().map(|(name, _)| *name)
}

/// The names of all schedulerlets and handlers.
pub fn schedulerlet_names() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.name)
}

/// The names of the rules that select a first path.
fn selectors() -> impl Iterator<Item = &'static str> {
    RULES.iter().filter(|rule| rule.selects).map(|rule| rule.name)
}

/// The kind (`None` for a handler) and the parameters of the schedulerlet or handler of this name.
pub fn rule_info(name: &str) -> Option<(Option<Kind>, Vec<Parameter>)> {
    let known = RULES.iter().find(|known| known.name == name)?;
    let (made, parameters) = known.make(&Params::default()).ok()?;
    let kind = match made {
        Made::Link(link) => Some(link.kind()),
        Made::Handler(_) => None,
    };
    Some((kind, parameters))
}

/// Whether this chain or schedulerlet was written from a description because the original code is
/// not published. Its results say nothing about the original.
pub fn is_reconstructed(name: &str) -> bool {
    RECONSTRUCTED.contains(&name)
}

/// The names, for an operator.
fn listed(names: impl Iterator<Item = &'static str>) -> String {
    let name = |name: &'static str| match is_reconstructed(name) {
        true => format!("{name} (reconstructed)"),
        false => name.to_owned(),
    };
    names.map(name).collect::<Vec<_>>().join(", ")
}

impl ChainSpec {
    /// A ready-made chain.
    ///
    /// # Errors
    /// No chain has this name.
    pub fn named(name: &str) -> Result<Self, ChainSpecError> {
        let found = CHAINS.iter().find(|(known, _)| *known == name);
        let (_, rules) = found.ok_or_else(|| ChainSpecError::UnknownChain(name.to_owned()))?;
        Self::of(rules)
    }

    /// A chain of these rules in this order, each `name` or `name(key=value, ...)`. The position of
    /// a handler among the schedulerlets does not matter.
    ///
    /// # Errors
    /// The list is empty or too long, holds an unknown name or an invalid parameter, or no rule
    /// selects a first path.
    pub fn of<S: AsRef<str>>(texts: &[S]) -> Result<Self, ChainSpecError> {
        if texts.is_empty() || texts.len() > LINKS_MAX {
            return Err(ChainSpecError::Length(texts.len()));
        }
        let rules = texts.iter().map(|text| rule(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
        if !rules.iter().any(|(known, _)| known.selects) {
            return Err(ChainSpecError::NoSelector);
        }
        let names = rules.iter().map(|(known, params)| format!("{}{params}", known.name)).collect();
        let build = move || {
            // `rule` has made each of them once.
            let made = rules.iter().filter_map(|(known, params)| known.make(params).ok());
            let (mut links, mut handlers) = (Vec::new(), Vec::new());
            for (made, _) in made {
                match made {
                    Made::Link(link) => links.push(link),
                    Made::Handler(handler) => handlers.push(handler),
                }
            }
            Chain::new(links).with(handlers)
        };
        Ok(Self { names, build: Arc::new(build) })
    }

    /// A chain with rules from outside this crate, under a name of the caller's choice.
    pub fn custom(name: &str, build: impl Fn() -> Chain + Send + Sync + 'static) -> Self {
        Self { names: vec![name.to_owned()], build: Arc::new(build) }
    }

    /// The rules in their order, as the configuration spells them.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// A new chain with fresh state.
    pub fn build(&self) -> Chain {
        (self.build)()
    }
}

impl FromStr for ChainSpec {
    type Err = ChainSpecError;

    /// Parses the name of a chain, or rules separated by commas. A single rule is a chain as well.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut depth = 0_usize;
        let between = |letter: char| {
            match letter {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            letter == ',' && depth == 0
        };
        let rules: Vec<_> = text.split(between).map(str::trim).collect();
        match rules.as_slice() {
            [alone] => Self::named(alone).or_else(|unknown| match Self::of(&[alone]) {
                Err(ChainSpecError::UnknownSchedulerlet(_)) => Err(unknown),
                other => other,
            }),
            rules => Self::of(rules),
        }
    }
}

fn rule(text: &str) -> Result<(Known, Params), ChainSpecError> {
    let (name, params) = Params::split(text)?;
    let found = RULES.iter().find(|known| known.name == name);
    let known = *found.ok_or_else(|| ChainSpecError::UnknownSchedulerlet(name.to_owned()))?;
    known.make(&params)?;
    Ok((known, params))
}

impl Default for ChainSpec {
    /// `polyrail`.
    #[expect(clippy::expect_used, reason = "a test builds every chain of the table")]
    fn default() -> Self {
        Self::named("polyrail").expect("the table has a valid chain of this name")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{base, chosen, path};
    use crate::{Input, SegmentView};

    #[test]
    fn every_rule_and_chain_builds() {
        assert!(chain_names().all(|name| ChainSpec::named(name).is_ok()));
        assert!(schedulerlet_names().all(|name| rule_info(name).is_some()));
        assert!(RULES.is_sorted_by_key(|rule| rule.name));
        assert_eq!(Some(ChainSpec::default()), ChainSpec::named("polyrail").ok());
    }

    #[test]
    fn chain_without_a_selector_is_rejected() {
        let paths = [path(1, 40), path(2, 60)];
        for known in RULES {
            let Made::Link(link) = known.make(&Params::default()).unwrap().0 else {
                assert!(!known.selects, "{}", known.name);
                continue;
            };
            let input = Input { paths: &paths, segment: SegmentView::default(), now: base() };
            let sends = chosen(Chain::new(vec![link]).decide(&input)).is_some();
            assert_eq!(sends, known.selects, "{}", known.name);
            let chain = ChainSpec::of(&[known.name, "redundancy", "extended_reinjection"]);
            assert_eq!(chain.is_ok(), known.selects, "{}", known.name);
        }
        let error = ChainSpec::of(&["handover_rejection"]).unwrap_err().to_string();
        assert!(error.contains("min_rtt") && !error.contains("redundancy"), "{error}");
        assert!(ChainSpec::of(&["redundancy", "min_rtt"]).is_ok(), "the position does not matter");
        assert_eq!(ChainSpec::of::<&str>(&[]), Err(ChainSpecError::Length(0)));
        assert_eq!(ChainSpec::of(&["min_rtt"; 17]), Err(ChainSpecError::Length(17)));
    }

    #[test]
    fn chain_is_parsed_from_one_text() {
        let read = |text: &str| text.parse::<ChainSpec>();
        assert_eq!(read("redundant"), ChainSpec::named("redundant"));
        assert_eq!(read(" min_rtt , redundancy"), ChainSpec::of(&["min_rtt", "redundancy"]));
        let two = "opportunistic_redundancy(bytes=1, idle=2s)";
        assert_eq!(read(&format!("min_rtt, {two}")), ChainSpec::of(&["min_rtt", two]));
        assert_eq!(read("blest( lambda = 1 )").unwrap().names(), ["blest(lambda=1)"]);
        assert_ne!(read("blest(lambda=1)"), read("blest"));
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
        let error = read("best").unwrap_err().to_string();
        assert!(error.contains("stms (reconstructed)"), "{error}");
    }
}
