//! The mode matrix: every mode of gateway and cloud, both families, every fault of a carrier.
//!
//! A [`Row`] is one download over two carriers through the real programs, with faults on the
//! carriers one after another. It succeeds if the download has the right hash and each faulted
//! carrier carries users' data again within the target of its [`Class`]. `docs/matrix.md` documents
//! the rules and targets; a test compares it with this module.

mod clock;
mod command;
mod cover;
mod endless;
mod fault;
mod parallel;
mod row;
mod skew;
mod summary;
mod target;

#[cfg(test)]
mod document;

use std::fmt;

use crate::addresses::Family;

pub use clock::{rows as clock_rows, run as run_clock_rows};
pub use command::{Options, measure, run_rows};
pub use cover::cover;
pub use row::{RowResult, StepResult, Verdict};
pub use skew::{SkewRow, rows as skew_rows, run_all as run_skew_rows};
pub use summary::{Summary, print_row};
pub use target::{Class, TARGETS};

/// The tunnel modes of the gateway's carriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GatewayMode {
    /// Both TLS.
    Tls,
    /// Both QUIC.
    Quic,
    /// Both `auto`.
    Auto,
    /// The first QUIC, the second TLS (`carrier.mode`).
    Mixed,
}

/// The tunnel modes that the cloud accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloudMode {
    /// TLS only.
    Tls,
    /// QUIC only.
    Quic,
    /// Both.
    Auto,
}

/// A fault of a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// No fault.
    None,
    /// UDP is dropped from before the start of the daemons.
    UdpBlockedAtStart,
    /// UDP is dropped from the middle of the transfer.
    UdpBlocked,
    /// UDP beyond 1 Mbit/s is dropped.
    UdpPoliced,
    /// Dark for some seconds; queued packets are dropped.
    BlackoutDrop(u8),
    /// Dark for some seconds; queued packets are kept.
    BlackoutHold(u8),
    /// The carrier's address translator forgets all mappings.
    NatRebinding,
    /// The gateway's interface has another address after a moment without one.
    AddressChange,
    /// The gateway's interface vanishes for 2 s.
    InterfaceRemoved,
    /// 3 % random loss in each direction.
    RandomLoss,
    /// Three bursts of half a second with 30 % loss in each direction.
    LossBursts,
    /// The path carries packets of at most 1280 bytes and reports larger ones by ICMP.
    Mtu1280,
    /// The path silently drops packets of more than 1280 bytes.
    Mtu1280Silent,
    /// 5 % of the packets arrive 10 ms late and out of order.
    Reorder,
}

/// One download with its modes, its family and its faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The gateway's mode.
    pub gateway: GatewayMode,
    /// The cloud's mode.
    pub cloud: CloudMode,
    /// The family of the tunnels and of the user's connection.
    pub family: Family,
    /// The faults in their order, each of one carrier.
    pub faults: Vec<Fault>,
}

/// The transports that a carrier can use, given the modes of both daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// QUIC.
    pub quic: bool,
    /// TLS.
    pub tls: bool,
}

/// The expected result of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expected {
    /// The carrier is in use within the target of this class, counted from the end of the fault. If
    /// the carrier can use another transport, the time counts from the beginning of the fault.
    Back(Class),
    /// The carrier is not in use during the fault, and is in use again within the target after it.
    OutThenBack(Class),
}

impl GatewayMode {
    /// All modes.
    pub const ALL: [GatewayMode; 4] =
        [GatewayMode::Tls, GatewayMode::Quic, GatewayMode::Auto, GatewayMode::Mixed];

    /// The key `mode` of `gateway.toml`.
    pub fn key(self) -> &'static str {
        match self {
            GatewayMode::Tls => "tls",
            GatewayMode::Quic => "quic",
            GatewayMode::Auto | GatewayMode::Mixed => "auto",
        }
    }

    /// The mode of the carrier at `index`.
    pub fn of_carrier(self, index: usize) -> &'static str {
        match self {
            GatewayMode::Mixed if index == 0 => "quic",
            GatewayMode::Mixed => "tls",
            other => other.key(),
        }
    }
}

impl CloudMode {
    /// All modes.
    pub const ALL: [CloudMode; 3] = [CloudMode::Tls, CloudMode::Quic, CloudMode::Auto];

    /// The key `mode` of `cloud.toml`.
    pub fn key(self) -> &'static str {
        match self {
            CloudMode::Tls => "tls",
            CloudMode::Quic => "quic",
            CloudMode::Auto => "auto",
        }
    }
}

impl Fault {
    /// All faults except the step of a clock, which needs a kernel of its own.
    pub const ALL: [Fault; 18] = [
        Fault::None,
        Fault::UdpBlockedAtStart,
        Fault::UdpBlocked,
        Fault::UdpPoliced,
        Fault::BlackoutHold(1),
        Fault::BlackoutHold(3),
        Fault::BlackoutHold(8),
        Fault::BlackoutDrop(1),
        Fault::BlackoutDrop(3),
        Fault::BlackoutDrop(8),
        Fault::NatRebinding,
        Fault::AddressChange,
        Fault::InterfaceRemoved,
        Fault::RandomLoss,
        Fault::LossBursts,
        Fault::Mtu1280,
        Fault::Mtu1280Silent,
        Fault::Reorder,
    ];

    /// Whether the fault affects only UDP.
    pub fn concerns_udp(self) -> bool {
        matches!(self, Fault::UdpBlockedAtStart | Fault::UdpBlocked | Fault::UdpPoliced)
    }

    /// The expected result on a carrier with these transports. `None` if the carrier has none, or
    /// if the fault affects only UDP and the carrier has no QUIC.
    pub fn expected(self, ways: Ways) -> Option<Expected> {
        if !ways.any() || self.concerns_udp() && !ways.quic {
            return None;
        }
        let back = Expected::Back;
        Some(match self {
            Fault::None | Fault::RandomLoss | Fault::Reorder => back(Class::Steady),
            Fault::UdpBlockedAtStart if ways.tls => back(Class::FallbackAtStart),
            Fault::UdpBlocked if ways.tls => back(Class::Fallback),
            Fault::UdpBlockedAtStart => Expected::OutThenBack(Class::First),
            Fault::UdpBlocked => Expected::OutThenBack(Class::Return),
            Fault::UdpPoliced if ways.tls => back(Class::Demotion),
            Fault::UdpPoliced => back(Class::Trickle),
            Fault::BlackoutHold(_) => back(Class::ReturnWithQueue),
            Fault::BlackoutDrop(_)
            | Fault::AddressChange
            | Fault::InterfaceRemoved
            | Fault::LossBursts => back(Class::Return),
            Fault::Mtu1280Silent if !ways.quic => back(Class::BlackHole),
            Fault::NatRebinding | Fault::Mtu1280 | Fault::Mtu1280Silent => back(Class::Change),
        })
    }
}

impl Ways {
    /// The transports of the carrier at `index`.
    pub fn of(gateway: GatewayMode, cloud: CloudMode, index: usize) -> Ways {
        let mode = gateway.of_carrier(index);
        Ways {
            quic: mode != "tls" && cloud != CloudMode::Tls,
            tls: mode != "quic" && cloud != CloudMode::Quic,
        }
    }

    /// Whether there is one.
    pub fn any(self) -> bool {
        self.quic || self.tls
    }

    /// The mode that a carrier with these transports uses if QUIC works.
    pub fn mode(self) -> Option<&'static str> {
        match self {
            Ways { quic: true, .. } => Some("quic"),
            Ways { tls: true, .. } => Some("tls"),
            _ => None,
        }
    }
}

impl Row {
    /// Whether a tunnel is possible over some carrier.
    pub fn can_connect(&self) -> bool {
        (0..2).any(|index| Ways::of(self.gateway, self.cloud, index).any())
    }

    /// The carrier of each fault: alternating, among those that the fault can affect. `None` if a
    /// fault can affect no carrier of this row.
    pub fn victims(&self) -> Option<Vec<usize>> {
        let mut last = 1;
        let mut victims = Vec::new();
        for fault in &self.faults {
            let victim =
                [1 - last, last].into_iter().find(|index| self.can_suffer(*fault, *index))?;
            victims.push(victim);
            last = victim;
        }
        Some(victims)
    }

    fn can_suffer(&self, fault: Fault, carrier: usize) -> bool {
        let ways = |index| Ways::of(self.gateway, self.cloud, index);
        // If both carriers are blocked from the start, there is no download.
        let dead = fault == Fault::UdpBlockedAtStart && !ways(carrier).tls;
        fault.expected(ways(carrier)).is_some() && (!dead || ways(1 - carrier).any())
    }

    fn line(&self, faults: &str) -> String {
        let modes = format!("{} x {}", self.gateway, self.cloud);
        format!("{modes:<12} IPv{} {faults}", self.family.digit())
    }

    /// The expected result of each fault.
    pub fn expectations(&self) -> Vec<Expected> {
        let victims = self.victims().unwrap_or_default();
        let both = self.faults.iter().zip(victims);
        both.filter_map(|(fault, victim)| {
            fault.expected(Ways::of(self.gateway, self.cloud, victim))
        })
        .collect()
    }
}

/// Every row: each possible combination with one fault, and each impossible one without.
pub fn all_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for gateway in GatewayMode::ALL {
        for cloud in CloudMode::ALL {
            for family in Family::BOTH {
                let row = |faults| Row { gateway, cloud, family, faults };
                if !row(Vec::new()).can_connect() {
                    rows.push(row(Vec::new()));
                    continue;
                }
                let single = Fault::ALL.map(|fault| row(vec![fault]));
                rows.extend(single.into_iter().filter(|row| row.victims().is_some()));
            }
        }
    }
    rows
}

impl fmt::Display for GatewayMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == GatewayMode::Mixed { "mixed" } else { self.key() })
    }
}

impl fmt::Display for CloudMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Fault::None => "none",
            Fault::UdpBlockedAtStart => "udp-blocked-at-start",
            Fault::UdpBlocked => "udp-blocked",
            Fault::UdpPoliced => "udp-policed",
            Fault::BlackoutDrop(seconds) => return write!(f, "blackout-{seconds}s-drop"),
            Fault::BlackoutHold(seconds) => return write!(f, "blackout-{seconds}s-hold"),
            Fault::NatRebinding => "nat-rebinding",
            Fault::AddressChange => "address-change",
            Fault::InterfaceRemoved => "interface-removed",
            Fault::RandomLoss => "loss-3%",
            Fault::LossBursts => "loss-bursts-30%",
            Fault::Mtu1280 => "mtu-1280",
            Fault::Mtu1280Silent => "mtu-1280-silent",
            Fault::Reorder => "reorder",
        };
        f.write_str(name)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(Fault::to_string).collect();
        let faults = if faults.is_empty() { "refused".into() } else { faults.join(", ") };
        f.write_str(&self.line(&faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_pairs_are_refused_once_a_family_and_the_rest_has_a_victim() {
        let rows = all_rows();
        let refused: Vec<String> =
            rows.iter().filter(|row| row.faults.is_empty()).map(Row::to_string).collect();
        assert_eq!(
            refused,
            [
                "tls x quic   IPv4 refused",
                "tls x quic   IPv6 refused",
                "quic x tls   IPv4 refused",
                "quic x tls   IPv6 refused"
            ]
        );
        assert!(rows.iter().all(|row| row.victims().is_some()));
        assert!(rows.len() > 250, "{} rows", rows.len());
    }

    #[test]
    fn faults_of_udp_hit_only_carriers_with_quic() {
        let row = |gateway, cloud, faults: &[Fault]| Row {
            gateway,
            cloud,
            family: Family::V4,
            faults: faults.to_vec(),
        };
        let (udp, dark) = (Fault::UdpBlocked, Fault::BlackoutDrop(1));
        for (row, victims) in [
            (row(GatewayMode::Auto, CloudMode::Auto, &[dark, udp, dark]), Some(vec![0, 1, 0])),
            (row(GatewayMode::Mixed, CloudMode::Auto, &[udp, udp, dark]), Some(vec![0, 0, 1])),
            (row(GatewayMode::Mixed, CloudMode::Tls, &[dark, dark]), Some(vec![1, 1])),
            (row(GatewayMode::Mixed, CloudMode::Tls, &[udp]), None),
            (row(GatewayMode::Mixed, CloudMode::Quic, &[Fault::UdpBlockedAtStart]), None),
            (row(GatewayMode::Mixed, CloudMode::Auto, &[Fault::UdpBlockedAtStart]), Some(vec![0])),
            (row(GatewayMode::Auto, CloudMode::Tls, &[udp]), None),
            (row(GatewayMode::Quic, CloudMode::Tls, &[dark]), None),
        ] {
            assert_eq!(row.victims(), victims, "{row}");
        }
    }

    #[test]
    fn a_carrier_travels_by_quic_wherever_both_daemons_let_it() {
        for (gateway, cloud, modes) in [
            (GatewayMode::Auto, CloudMode::Auto, [Some("quic"); 2]),
            (GatewayMode::Auto, CloudMode::Tls, [Some("tls"); 2]),
            (GatewayMode::Quic, CloudMode::Auto, [Some("quic"); 2]),
            (GatewayMode::Tls, CloudMode::Auto, [Some("tls"); 2]),
            (GatewayMode::Mixed, CloudMode::Auto, [Some("quic"), Some("tls")]),
            (GatewayMode::Mixed, CloudMode::Quic, [Some("quic"), None]),
            (GatewayMode::Quic, CloudMode::Tls, [None; 2]),
        ] {
            let found = [0, 1].map(|index| Ways::of(gateway, cloud, index).mode());
            assert_eq!(found, modes, "{gateway} x {cloud}");
        }
    }
}
