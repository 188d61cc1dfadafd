//! The contestants: schedulers with their engine and their carriers.

use std::borrow::Cow;

use polyrail_emulator::rail::{Trip, aggregated};
use polyrail_scheduler::{ChainSpec, ChainSpecError, chain_names};

use super::Oracle;
use crate::congestion::Algorithm;

/// The features of the engine around the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The features of the paper: no path restart, no withdrawal, reinjection only by the chain's
    /// handlers.
    Paper,
    /// All features.
    Full,
}

impl Engine {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Paper, Self::Full];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Full => "full",
        }
    }
}

/// The transport of a contestant's tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnels {
    /// They deliver bytes in order, else whole messages in any order.
    pub stream: bool,
    /// The congestion control of both ends.
    pub congestion: Algorithm,
}

impl Tunnels {
    /// TLS over the kernel's TCP.
    pub const TLS: Self = Self { stream: true, congestion: Algorithm::Bbr };
    /// QUIC.
    pub const QUIC: Self = Self { stream: false, congestion: Algorithm::Bbr2 };
}

/// The carriers of a trip that a contestant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriers {
    /// All carriers.
    All,
    /// This carrier only.
    Only(usize),
    /// One carrier that is the sum of all.
    Aggregated,
}

/// A contestant of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Contestant {
    /// Its name in tables.
    pub name: String,
    /// The scheduler, on both sides.
    pub chain: ChainSpec,
    /// The engine around it.
    pub engine: Engine,
    /// The transport of all tunnels.
    pub tunnels: Tunnels,
    /// The oracle of failed handovers, if any.
    pub oracle: Option<Oracle>,
    /// Its carriers.
    pub carriers: Carriers,
}

/// One of HSRSCH's parts, alone over `min_rtt`, as in POLYCORN 6.2.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its name in figures.
    pub name: &'static str,
    /// Its rules.
    rules: &'static str,
    /// It needs forecasts.
    pub foresees: bool,
    /// The published gain over `min_rtt` (Fig. 10c).
    pub published: Option<f64>,
}

/// All parts. `disconnect_redundancy` replaces rejection: after rejection, with two carriers, no
/// path is left for a copy.
pub const PARTS: [Part; 5] = [
    Part {
        name: "handover_rejection",
        rules: "handover_rejection/min_rtt",
        foresees: true,
        published: Some(1.070),
    },
    Part {
        name: "disconnect_redundancy",
        rules: "min_rtt/disconnect_redundancy",
        foresees: true,
        published: None,
    },
    Part {
        name: "tail_rejection",
        rules: "min_rtt/tail_rejection",
        foresees: false,
        published: Some(1.188),
    },
    Part {
        name: "extended_reinjection",
        rules: "min_rtt/extended_reinjection",
        foresees: false,
        published: Some(1.042),
    },
    Part {
        name: "redundancy",
        rules: "min_rtt/opportunistic_redundancy",
        foresees: false,
        published: Some(1.029),
    },
];

impl Part {
    /// The texts for [`Contestant::parse`], one for each oracle: the noisy one first.
    pub fn texts(self) -> Vec<String> {
        match self.foresees {
            true => ["noisy", "oracle"].map(|name| format!("{}+{name}", self.rules)).to_vec(),
            false => vec![self.rules.to_owned()],
        }
    }
}

/// `min_rtt` with those of our handlers that have tuned constants, so that it is tuned as carefully
/// as our chain: names and rules.
pub const TUNED: [(&str, &str); 2] = [
    ("min_rtt_tuned", "min_rtt/queue_bound/extended_reinjection"),
    ("min_rtt_tuned_completion", "min_rtt/queue_bound/completion_reinjection/extended_reinjection"),
];

impl Contestant {
    /// A ready-made chain with bbr.
    ///
    /// # Panics
    /// There is no such chain.
    pub fn named(chain: &str, engine: Engine) -> Self {
        Self::parse(chain, engine).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A contestant by its name: a ready-made chain, a tuned one, or rules with `/` between them;
    /// `+oracle` adds perfect forecasts, `+noisy` imperfect ones; `@a` to `@h` has one carrier,
    /// `@aggregated` the sum of all.
    ///
    /// # Errors
    /// There is no such chain or rule.
    pub fn parse(text: &str, engine: Engine) -> Result<Self, ChainSpecError> {
        let (rest, place) = text.split_once('@').unwrap_or((text, ""));
        let carriers = match place.as_bytes() {
            [] => Carriers::All,
            [letter @ b'a'..=b'h'] => Carriers::Only(usize::from(letter - b'a')),
            _ if place == "aggregated" => Carriers::Aggregated,
            _ => return Err(ChainSpecError::UnknownChain(text.to_owned())),
        };
        let (chain, oracle) = match rest.split_once('+') {
            None => (rest, None),
            Some((chain, "oracle")) => (chain, Some(Oracle::PERFECT)),
            Some((chain, "noisy")) => (chain, Some(Oracle::NOISY)),
            Some(_) => return Err(ChainSpecError::UnknownChain(text.to_owned())),
        };
        let tuned = TUNED.iter().find(|(name, _)| *name == chain);
        let chain = tuned.map_or(chain, |(_, rules)| rules);
        let spec = match chain.contains('/') {
            true => ChainSpec::of(&chain.split('/').collect::<Vec<_>>())?,
            false => ChainSpec::named(chain)?,
        };
        let name = format!("{text} {}", engine.name());
        // The paper's tunnels are TCP's, ours QUIC's.
        let tunnels = match engine {
            Engine::Paper => Tunnels::TLS,
            Engine::Full => Tunnels::QUIC,
        };
        Ok(Self { name, chain: spec, engine, tunnels, oracle, carriers })
    }

    /// Everything worth comparing on these carriers: all ready-made chains, forecasts of two
    /// qualities, `min_rtt` tuned, HSRSCH's parts, each carrier alone, and the sum of all.
    pub fn catalogue(carriers: usize) -> Vec<String> {
        let mut names: Vec<String> = chain_names().map(str::to_owned).collect();
        for chain in ["polyrail", "hsrsch"] {
            names.extend(["oracle", "noisy"].map(|oracle| format!("{chain}+{oracle}")));
        }
        names.extend(TUNED.map(|(name, _)| name.to_owned()));
        names.extend(PARTS.into_iter().flat_map(Part::texts));
        let letters = "abcdefgh".chars().take(carriers);
        names.extend(letters.map(|letter| format!("min_rtt@{letter}")));
        names.push("min_rtt@aggregated".to_owned());
        names
    }

    /// A scheduler on all carriers and without forecasts that is not our own.
    pub fn is_other(&self) -> bool {
        let own = self.name.starts_with("polyrail");
        self.carriers == Carriers::All && self.oracle.is_none() && !own
    }

    /// One of those as it was published: neither HSRSCH nor made of parts of ours.
    pub fn is_rival(&self) -> bool {
        let ours = ["hsrsch", TUNED[0].0].iter().any(|ours| self.name.starts_with(ours));
        self.is_other() && !ours && !self.name.contains('/')
    }

    /// Whether two differ only in their names.
    pub fn is_like(&self, other: &Self) -> bool {
        let named = Self { name: other.name.clone(), ..self.clone() };
        named == *other
    }

    /// The trip as this contestant has it.
    pub fn trip<'a>(&self, trip: &'a Trip) -> Cow<'a, Trip> {
        match self.carriers {
            Carriers::All => Cow::Borrowed(trip),
            Carriers::Only(number) => {
                let carriers = trip.carriers.get(number).cloned().into_iter().collect();
                Cow::Owned(Trip { carriers, ..trip.clone() })
            }
            Carriers::Aggregated => match aggregated(trip) {
                Ok(sum) => Cow::Owned(sum),
                Err(error) => panic!("{error}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let parse = |text| Contestant::parse(text, Engine::Paper).unwrap();
        assert_eq!(parse("hsrsch+noisy").oracle, Some(Oracle::NOISY));
        assert_eq!(parse("min_rtt@b").carriers, Carriers::Only(1));
        assert_eq!(parse("min_rtt@aggregated").carriers, Carriers::Aggregated);
        assert_eq!(parse("min_rtt/tail_rejection").chain.names(), ["min_rtt", "tail_rejection"]);
        assert!(parse("min_rtt").is_like(&Contestant { name: "x".into(), ..parse("min_rtt") }));
        assert!(!parse("min_rtt").is_like(&parse("min_rtt@a")));
        for wrong in ["fastest", "min_rtt+magic", "min_rtt@z", "min_rtt/fastest"] {
            assert!(Contestant::parse(wrong, Engine::Full).is_err(), "{wrong}");
        }
        let tuned = parse("min_rtt_tuned");
        assert_eq!(tuned.chain.names(), ["min_rtt", "queue_bound", "extended_reinjection"]);
        for (name, other, rival) in [
            ("mptcp", true, true),
            ("redundant", true, true),
            ("hsrsch", true, false),
            ("min_rtt_tuned_completion", true, false),
            ("min_rtt/tail_rejection", true, false),
            ("hsrsch+noisy", false, false),
            ("min_rtt@a", false, false),
            ("polyrail", false, false),
        ] {
            let it = parse(name);
            assert_eq!((it.is_other(), it.is_rival()), (other, rival), "{name}");
        }
        for name in Contestant::catalogue(2) {
            assert!(Contestant::parse(&name, Engine::Full).is_ok(), "{name}");
        }
    }
}
