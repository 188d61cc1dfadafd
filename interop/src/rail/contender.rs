//! The contenders of the rail bench and their names.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};

/// A system under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    /// Both daemons.
    Polyrail {
        /// `quic`, `tls` or `auto`.
        mode: String,
        /// The congestion control of all carriers; `None`: the default one.
        congestion: Option<String>,
        /// The scheduler of both sides, a chain's name or rules with `/` between them; `None`: the
        /// default one.
        chain: Option<String>,
        /// `udp.copies` on both sides, also `COPIES:MAX` with `udp.copies_max`; `None`: the
        /// default.
        copies: Option<String>,
        /// LinkDB on both sides.
        linkdb: Linked,
    },
    /// The kernel's TCP with bbr over one carrier, given by its index.
    Single(usize),
    /// The kernel's TCP with bbr; each flow uses the next carrier.
    RoundRobin,
    /// The kernel's MPTCP with this congestion control.
    Mptcp(String),
    /// The kernel's TCP with bbr over one link with the sum of the rates and the least delay.
    Ideal,
}

/// What LinkDB does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linked {
    /// There is none.
    Off,
    /// It has a learned history and records, and makes no forecasts.
    Records,
    /// It forecasts.
    Forecasts,
}

impl Linked {
    /// The end of a contender's name.
    fn suffix(self) -> &'static str {
        match self {
            Linked::Off => "",
            Linked::Records => "+records",
            Linked::Forecasts => "+linkdb",
        }
    }
}

impl Contender {
    /// The mode of both daemons; `None`: there are none.
    pub(super) fn mode_of(name: &str) -> Option<String> {
        match name.parse() {
            Ok(Contender::Polyrail { mode, .. }) => Some(mode),
            _ => None,
        }
    }

    /// Whether it limits copies and has no LinkDB, to compare with as many copies by forecasts.
    pub(super) fn is_limited(name: &str) -> bool {
        match name.parse() {
            Ok(Contender::Polyrail { copies: Some(copies), linkdb: Linked::Off, .. }) => {
                copies.contains(':')
            }
            _ => false,
        }
    }

    /// The kernel's congestion control; the daemons choose their own.
    pub(super) fn control(&self) -> &str {
        match self {
            Contender::Mptcp(control) => control,
            _ => "bbr",
        }
    }
}

impl FromStr for Contender {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "single-a" => Contender::Single(0),
            "single-b" => Contender::Single(1),
            "round-robin" => Contender::RoundRobin,
            "mptcp-bbr" | "mptcp-cubic" => Contender::Mptcp(text["mptcp-".len()..].to_owned()),
            "ideal" => Contender::Ideal,
            _ => {
                let ends = |linked: &Linked| text.strip_suffix(linked.suffix());
                let known = [Linked::Forecasts, Linked::Records];
                let linkdb = known.into_iter().find(|linked| ends(linked).is_some());
                let linkdb = linkdb.unwrap_or(Linked::Off);
                let rest = ends(&linkdb).unwrap_or(text);
                let (rest, copies) = match rest.split_once('~') {
                    Some((rest, copies)) => (rest, Some(copies.to_owned())),
                    None => (rest, None),
                };
                let (mode, chain) = match rest.split_once('/') {
                    Some((mode, chain)) => (mode, Some(chain.to_owned())),
                    None => (rest, None),
                };
                let (mode, congestion) = match mode.split_once(':') {
                    Some((mode, congestion)) => (mode, Some(congestion.to_owned())),
                    None => (mode, None),
                };
                let max = copies.as_ref().and_then(|copies| copies.split_once(':'));
                let has_max = max.is_none_or(|(_, max)| max.parse::<u32>().is_ok());
                if !["quic", "tls", "auto"].contains(&mode) || !has_max {
                    bail!("{text:?} is no contender; there are {NAMES}");
                }
                let mode = mode.to_owned();
                Contender::Polyrail { mode, congestion, chain, copies, linkdb }
            }
        })
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contender::Polyrail { mode, congestion, chain, copies, linkdb } => {
                let congestion = congestion.iter().map(|it| format!(":{it}")).collect::<String>();
                let chain = chain.iter().map(|chain| format!("/{chain}")).collect::<String>();
                let copies = copies.iter().map(|copies| format!("~{copies}")).collect::<String>();
                write!(f, "{mode}{congestion}{chain}{copies}{}", linkdb.suffix())
            }
            Contender::Single(0) => f.write_str("single-a"),
            Contender::Single(_) => f.write_str("single-b"),
            Contender::RoundRobin => f.write_str("round-robin"),
            Contender::Mptcp(control) => write!(f, "mptcp-{control}"),
            Contender::Ideal => f.write_str("ideal"),
        }
    }
}

/// All names, for messages.
const NAMES: &str = "quic, tls, auto (each with :CONGESTION, /CHAIN, ~COPIES[:MAX], and +linkdb or \
                     +records), single-a, single-b, round-robin, mptcp-bbr, mptcp-cubic, ideal";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for name in [
            "quic",
            "tls+linkdb",
            "auto/hsrsch",
            "quic:rail",
            "tls:cubic/hsrsch+linkdb",
            "quic/min_rtt/queue_bound+linkdb",
            "quic+records",
            "tls/hsrsch~off",
            "quic~forecast+linkdb",
            "quic~always:600",
            "single-a",
            "single-b",
            "round-robin",
            "mptcp-bbr",
            "mptcp-cubic",
            "ideal",
        ] {
            assert_eq!(name.parse::<Contender>().unwrap().to_string(), name);
        }
        for wrong in ["", "quick", "mptcp-reno", "+linkdb", "single-c", "quic+record", "quic~off:x"]
        {
            let error = wrong.parse::<Contender>().unwrap_err().to_string();
            assert!(error.contains("no contender"), "{error}");
        }
    }
}
