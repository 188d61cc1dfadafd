//! Chains, schedulerlets and handlers by the names that the configuration uses.

use crate::params::{ParamError, Params, Reader};
use crate::rules::{CHAINS, RECONSTRUCTED, RULES};
use crate::{Chain, Handler, Schedulerlet};

/// A chain as the configuration names it; builds any number of equal chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSpec {
    rules: Vec<Rule>,
    /// As they are written in the configuration.
    names: Vec<String>,
}

#[derive(Clone, Debug)]
enum Rule {
    Known(usize, Params),
    Foreign(&'static str, fn() -> Made),
}

impl Eq for Rule {}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Known(a, p), Self::Known(b, q)) => a == b && p == q,
            (Self::Foreign(a, _), Self::Foreign(b, _)) => a == b,
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
    /// The list is empty or longer than `LINKS_MAX`.
    #[error("a chain has 1 to {LINKS_MAX} schedulerlets, not {0}")]
    Length(usize),
}

/// The most rules in one chain.
const LINKS_MAX: usize = 16;

/// Makes a rule of its parameters.
pub(crate) type Make = fn(&mut Reader<'_>) -> Result<Made, ParamError>;

/// The names of the ready-made chains.
pub fn chain_names() -> impl Iterator<Item = &'static str> {
    CHAINS.iter().map(|(name, _)| *name)
}

/// The names of the schedulerlets and handlers from which chains are made.
pub fn schedulerlet_names() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|(name, _)| *name)
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
    /// The list is empty or too long, or holds an unknown name or a parameter that does not fit.
    pub fn of<S: AsRef<str>>(texts: &[S]) -> Result<Self, ChainSpecError> {
        if texts.is_empty() || texts.len() > LINKS_MAX {
            return Err(ChainSpecError::Length(texts.len()));
        }
        let rules = texts.iter().map(|text| rule(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let name = |rule: &Rule| match rule {
            Rule::Known(index, params) => format!("{}{params}", RULES[*index].0),
            Rule::Foreign(name, _) => (*name).to_owned(),
        };
        let names = rules.iter().map(name).collect();
        Ok(Self { rules, names })
    }

    /// The same with a rule behind it that is not of this crate.
    #[must_use]
    pub fn and(mut self, name: &'static str, make: fn() -> Made) -> Self {
        self.names.push(name.to_owned());
        self.rules.push(Rule::Foreign(name, make));
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

impl Rule {
    fn make(&self) -> Result<Made, ParamError> {
        match self {
            Self::Foreign(_, make) => Ok(make()),
            Self::Known(index, params) => {
                let (name, make) = RULES[*index];
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
    let found = RULES.iter().position(|(known, _)| *known == name);
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
