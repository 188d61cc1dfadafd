//! The lists of the display, and their orders.

use clap::ValueEnum;

/// The list below the carriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Tab {
    /// Users
    Users,
    /// Flows
    Flows,
    /// Events
    Events,
}

impl Tab {
    pub(super) const ALL: [Self; 3] = [Self::Users, Self::Flows, Self::Events];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Users => "Users",
            Self::Flows => "Flows",
            Self::Events => "Events",
        }
    }

    /// The orders of the list.
    pub(super) fn sorts(self) -> &'static [Sort] {
        match self {
            Self::Users => &[Sort::Rate, Sort::Bytes, Sort::Flows],
            Self::Flows => &[Sort::Rate, Sort::Bytes, Sort::Age],
            Self::Events => &[],
        }
    }
}

/// The order of users and flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Rate,
    Bytes,
    Flows,
    Age,
}

impl Sort {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Bytes => "bytes",
            Self::Flows => "flows",
            Self::Age => "age",
        }
    }
}
