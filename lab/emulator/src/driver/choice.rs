//! Which driver carries a scenario.

use std::str::FromStr;

use super::{Driver, RunError};
use crate::namespace::Namespace;
use crate::scenario::Scenario;

/// The requested driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// netem where the kernel has it and it can do what the scenario asks, else TUN.
    #[default]
    Auto,
    /// This one or none.
    Only(Driver),
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

/// The driver, and the reason.
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
