//! Chains, schedulerlets and handlers by the names that the configuration uses.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::params::{ParamError, Params, Reader};
use crate::rules::{CHAINS, RECONSTRUCTED, RULES};
use crate::{Chain, Handler, Kind, Parameter, Schedulerlet};

/// A chain as the configuration names it; builds any number of equal chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSpec {
    rules: Vec<Rule>,
    /// As they are written in the configuration.
    names: Vec<String>,
}

#[derive(Clone)]
enum Rule {
    Known(usize, Params),
    Foreign(&'static str, Arc<dyn Fn() -> Made + Send + Sync>),
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(index, params) => write!(f, "{}{params}", RULES[*index].name),
            Self::Foreign(name, _) => f.write_str(name),
        }
    }
}

impl Eq for Rule {}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Known(a, p), Self::Known(b, q)) => a == b && p == q,
            (Self::Foreign(a, make), Self::Foreign(b, other)) => a == b && Arc::ptr_eq(make, other),
            _ => false,
        }
    }
}

/// A rule that was made.
pub enum Made {
    /// A link of the chain.
    Link(Box<dyn Schedulerlet>),
    /// A handler beside it.
    Handler(Box<dyn Handler>),
}

/// A chain that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainSpecError {
    /// There is no chain of this name.
    #[error("no chain is named {0:?}; there are: {list}", list = listed(chain_names()))]
    UnknownChain(String),
    /// There is no rule of this name.
    #[error(
        "no schedulerlet is named {0:?}; there are: {list}",
        list = listed(schedulerlet_names())
    )]
    UnknownSchedulerlet(String),
    /// A parameter is wrong.
    #[error(transparent)]
    Parameter(#[from] ParamError),
    /// Nothing in it selects a first path: no segment would ever go out.
    #[error("no rule of this chain selects a path: add one of {list}", list = listed(selectors()))]
    NoSelector,
    /// The list is empty or longer than `LINKS_MAX`.
    #[error("a chain has 1 to {LINKS_MAX} schedulerlets, not {0}")]
    Length(usize),
}

/// The most rules in one chain.
const LINKS_MAX: usize = 16;

/// Makes a rule of its parameters.
type Make = fn(&mut Reader<'_>) -> Result<Made, ParamError>;

/// A rule of this crate.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub name: &'static str,
    /// It selects a path where none is selected; others filter, add to what is selected, or look at
    /// what is out.
    pub selects: bool,
    make: Make,
}

/// A rule that selects a first path.
pub(crate) const fn first(name: &'static str, make: Make) -> Known {
    Known { name, selects: true, make }
}

/// A rule that stands beside one that selects.
pub(crate) const fn beside(name: &'static str, make: Make) -> Known {
    Known { name, selects: false, make }
}

/// The names of the ready-made chains.
pub fn chain_names() -> impl Iterator<Item = &'static str> {
    CHAINS.iter().map(|(name, _)| *name)
}

/// The names of the schedulerlets and handlers from which chains are made.
pub fn schedulerlet_names() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.name)
}

/// Those of them that select a first path.
fn selectors() -> impl Iterator<Item = &'static str> {
    RULES.iter().filter(|rule| rule.selects).map(|rule| rule.name)
}

/// What is known of a schedulerlet or handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    /// The moves that it makes; `None` for a handler.
    pub kind: Option<Kind>,
    /// What may be written in brackets behind its name, in the order in which it is asked for.
    pub parameters: Vec<Parameter>,
}

/// What is known of the schedulerlet or handler of this name, if there is one.
pub fn rule_info(name: &str) -> Option<RuleInfo> {
    let Known { name, make, .. } = *RULES.iter().find(|known| known.name == name)?;
    let params = Params::default();
    let mut reader = params.reader(name);
    let kind = match make(&mut reader).ok()? {
        Made::Link(link) => Some(link.kind()),
        Made::Handler(_) => None,
    };
    Some(RuleInfo { kind, parameters: reader.parameters() })
}

/// Whether the original of this chain or schedulerlet was described and not published, so that ours
/// is no measure of it. Lists of names say so.
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

    /// A chain of these rules in this order, each `name` or `name(key=value, ...)`. Handlers may
    /// stand anywhere.
    ///
    /// # Errors
    /// As [`Self::parts`], or no rule selects a first path: nothing would be sent.
    pub fn of<S: AsRef<str>>(texts: &[S]) -> Result<Self, ChainSpecError> {
        let spec = Self::parts(texts)?;
        let selects = |rule: &Rule| matches!(rule, Rule::Known(index, _) if RULES[*index].selects);
        if spec.rules.iter().any(selects) { Ok(spec) } else { Err(ChainSpecError::NoSelector) }
    }

    /// The same without a look at whether a path would ever be selected: parts of a chain that
    /// [`Self::then`] and [`Self::and`] put together.
    ///
    /// # Errors
    /// The list is empty or too long, or holds an unknown name or a parameter that does not fit.
    pub fn parts<S: AsRef<str>>(texts: &[S]) -> Result<Self, ChainSpecError> {
        if texts.is_empty() || texts.len() > LINKS_MAX {
            return Err(ChainSpecError::Length(texts.len()));
        }
        let rules = texts.iter().map(|text| rule(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let name = |rule: &Rule| match rule {
            Rule::Known(index, params) => format!("{}{params}", RULES[*index].name),
            Rule::Foreign(name, _) => (*name).to_owned(),
        };
        let names = rules.iter().map(name).collect();
        Ok(Self { rules, names })
    }

    /// A chain of one rule that is not of this crate, as [`ChainSpec::and`] adds it.
    pub fn made(name: &'static str, make: impl Fn() -> Made + Send + Sync + 'static) -> Self {
        Self { rules: Vec::new(), names: Vec::new() }.and(name, make)
    }

    /// The same with a rule behind it that is not of this crate, or that holds what parameters
    /// cannot say, such as a database. `make` is called for every chain that is built; only clones
    /// of this specification are equal to it.
    #[must_use]
    pub fn and(
        mut self,
        name: &'static str,
        make: impl Fn() -> Made + Send + Sync + 'static,
    ) -> Self {
        self.names.push(name.to_owned());
        self.rules.push(Rule::Foreign(name, Arc::new(make)));
        self
    }

    /// The same with the rules of another chain behind its own.
    #[must_use]
    pub fn then(mut self, other: Self) -> Self {
        self.names.extend(other.names);
        self.rules.extend(other.rules);
        self
    }

    /// The rules in their order, as they are written in the configuration.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// A new chain with fresh state.
    pub fn build(&self) -> Chain {
        let (mut links, mut handlers) = (Vec::new(), Vec::new());
        for rule in &self.rules {
            match rule.make() {
                Ok(Made::Link(link)) => links.push(link),
                Ok(Made::Handler(handler)) => handlers.push(handler),
                // Looked at when the specification was made.
                Err(_) => {}
            }
        }
        Chain::new(links).with(handlers)
    }
}

impl FromStr for ChainSpec {
    type Err = ChainSpecError;

    /// The name of a chain, or rules with commas between them; a rule alone is a chain as well.
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

impl Rule {
    fn make(&self) -> Result<Made, ParamError> {
        match self {
            Self::Foreign(_, make) => Ok(make()),
            Self::Known(index, params) => {
                let Known { name, make, .. } = RULES[*index];
                let mut reader = params.reader(name);
                let made = make(&mut reader)?;
                reader.finish()?;
                Ok(made)
            }
        }
    }
}

fn rule(text: &str) -> Result<Rule, ChainSpecError> {
    let (name, params) = Params::split(text)?;
    let found = RULES.iter().position(|known| known.name == name);
    let index = found.ok_or_else(|| ChainSpecError::UnknownSchedulerlet(name.to_owned()))?;
    let rule = Rule::Known(index, params);
    rule.make()?;
    Ok(rule)
}

impl Default for ChainSpec {
    /// `polyrail`.
    fn default() -> Self {
        let (_, rules) = CHAINS[0];
        Self::of(rules).unwrap_or_else(|_| Self { rules: Vec::new(), names: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use polyrail_model::Bitrate;

    use super::*;
    use crate::view::samples::{base, path};
    use crate::{Decision, Figures, Input, NetworkAdaptive, Outlook, PathView, SegmentView};

    /// The delay of each path in milliseconds, by its id; shared by all chains.
    #[derive(Clone, Default)]
    struct Database(Arc<Mutex<Vec<u64>>>);

    impl Outlook for Database {
        fn at(&self, path: &PathView, _now: Instant, _at: Instant) -> Option<Figures> {
            let ms = *self.0.lock().ok()?.get(path.id.0 as usize)?;
            Some(Figures { rate: Bitrate::from_mbps(8.0), delay: Duration::from_millis(ms) })
        }
    }

    #[test]
    fn a_rule_from_outside_holds_what_it_was_given() {
        let database = Database::default();
        let knows = database.clone();
        let spec = ChainSpec::made("network_adaptive", move || {
            let params = Params::default();
            let rule = NetworkAdaptive::new(&mut params.reader("network_adaptive")).unwrap();
            Made::Link(Box::new(rule.with(Box::new(knows.clone()))))
        });
        assert_eq!(spec.names(), ["network_adaptive"]);
        assert_eq!(spec, spec.clone());
        assert_ne!(spec, ChainSpec::named("network_adaptive").unwrap());
        let paths = [path(0, 40), path(1, 50)];
        let choice = |delays: &[u64]| {
            *database.0.lock().unwrap() = delays.to_vec();
            let input = Input { paths: &paths, segment: SegmentView::default(), now: base() };
            match spec.build().decide(&input) {
                Decision::Send { primary, .. } => primary,
                wait @ Decision::Wait { .. } => panic!("{wait:?}"),
            }
        };
        assert_eq!((choice(&[]), choice(&[300, 20]), choice(&[20, 300])), (0, 1, 0));
    }
}
