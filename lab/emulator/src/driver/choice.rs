//! Which driver carries a scenario.

use std::fmt;
use std::str::FromStr;

use super::RunError;
use crate::namespace::Namespace;
use crate::scenario::Scenario;

/// A way to carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// TUN devices and the link model, in this process.
    Tun,
    /// veth pairs and the kernel's `netem`.
    Netem,
}

/// The requested driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// netem where the kernel has it and it can do what the scenario asks, else TUN.
    #[default]
    Auto,
    /// This one or none.
    Only(Driver),
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tun => "tun",
            Self::Netem => "netem",
        })
    }
}

impl FromStr for Choice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "tun" => Ok(Self::Only(Driver::Tun)),
            "netem" => Ok(Self::Only(Driver::Netem)),
            _ => Err("a driver is \"auto\", \"tun\" or \"netem\""),
        }
    }
}

/// The driver, and why it.
pub(super) fn choose(choice: Choice, scenario: &Scenario) -> Result<(Driver, String), RunError> {
    let obstacle = || super::netem::obstacle(scenario).or_else(kernel_lacks_netem);
    match choice {
        Choice::Only(Driver::Tun) => Ok((Driver::Tun, "asked for".into())),
        Choice::Only(Driver::Netem) => match obstacle() {
            None => Ok((Driver::Netem, "asked for".into())),
            Some(reason) => Err(RunError::Unsuitable { driver: Driver::Netem, reason }),
        },
        Choice::Auto => Ok(match obstacle() {
            None => (Driver::Netem, "the kernel has sch_netem".into()),
            Some(reason) => (Driver::Tun, reason),
        }),
    }
}

/// Tries netem for real, in a namespace that vanishes again.
fn kernel_lacks_netem() -> Option<String> {
    let attempt = || Namespace::new()?.tool("tc", "qdisc add dev lo root netem delay 1ms");
    attempt().err().map(|error| format!("no sch_netem here: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read() {
        assert_eq!("auto".parse(), Ok(Choice::Auto));
        for driver in [Driver::Tun, Driver::Netem] {
            assert_eq!(driver.to_string().parse(), Ok(Choice::Only(driver)));
        }
        assert!("both".parse::<Choice>().is_err());
    }
}
