//! The traffic to intercept, from the configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use polyrail_config::{
    CarrierName, CarrierRole, GatewayConfig, InterfaceName, OnExit, OtherTraffic, Ports,
    PrivateTraffic, UdpTraffic, UserKey,
};
use polyrail_model::Families;

use super::InterceptError;

/// The operator's checked settings. All names in it are safe in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(super) interfaces: Vec<String>,
    pub(super) port: u16,
    pub(super) dns_port: Option<u16>,
    /// What distinguishes users.
    pub(super) user_key: UserKey,
    pub(super) mark: u32,
    pub(super) table: u32,
    pub(super) bypass: Vec<IpNet>,
    pub(super) private: PrivateTraffic,
    /// The intercepted families; the others are rejected.
    pub(super) families: Families,
    /// The treatment of UDP except DNS.
    pub(super) udp: UdpTraffic,
    /// Exceptions from that, by destination port.
    pub(super) udp_ports: BTreeMap<Ports, UdpTraffic>,
    /// Whether UDP of any port is carried, except DNS.
    pub(super) carries_udp: bool,
    /// The treatment of traffic that is neither TCP nor UDP.
    pub(super) other: OtherTraffic,
    /// The interfaces for `direct:` traffic, best first; `None` without `direct:`.
    pub(crate) direct: Option<Vec<String>>,
    /// The treatment of users' traffic after the daemon's end.
    pub(crate) on_exit: OnExit,
}

/// A carrier's interface and its next hops, by family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hops {
    pub(super) interface: String,
    pub(super) v4: Option<Hop>,
    pub(super) v6: Option<Hop>,
}

/// A default route's next hop; a point-to-point link has no router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) router: Option<IpAddr>,
}

impl Plan {
    /// The plan of a configuration.
    ///
    /// # Errors
    /// There is no `[intercept]`, or an interface's name is unsafe in a rule.
    pub fn from_config(config: &GatewayConfig) -> Result<Self, InterceptError> {
        let intercept = config.intercept.as_ref().ok_or(InterceptError::NotConfigured)?;
        let interfaces = intercept.interfaces.iter().map(rule_name).collect::<Result<_, _>>()?;
        // The configuration has checked that there is one carrier, with an interface.
        let carrier = intercept.direct().map(|(_, carrier)| carrier);
        let found = config.carriers.iter().find(|one| Some(&one.name) == carrier);
        let interface = found.and_then(|carrier| carrier.interface.as_ref());
        interface.map(rule_name).transpose()?;
        let direct = carrier.map(|_| direct_carriers(config).map(|(_, interface)| interface));
        let direct = direct.map(Iterator::collect);
        Ok(Self {
            interfaces,
            port: intercept.port.get(),
            dns_port: config.dns.as_ref().map(|dns| dns.port.get()),
            user_key: config.users.key,
            mark: intercept.mark.get(),
            table: intercept.table,
            bypass: intercept.bypass.clone(),
            private: intercept.private,
            families: Families { v4: intercept.ipv4, v6: intercept.ipv6 },
            udp: intercept.udp.clone(),
            udp_ports: intercept.udp_ports.clone(),
            carries_udp: intercept.carries_udp(),
            other: intercept.other.clone(),
            direct,
            on_exit: intercept.on_exit,
        })
    }

    /// Whether a datagram's source address must belong to its link address.
    pub(super) fn binds_senders(&self) -> bool {
        let diverts = self.dns_port.is_some() || self.carries_udp;
        diverts && self.user_key == UserKey::LinkAddress
    }

    /// The mark of packets that are forwarded out of a carrier: the one after `mark`.
    pub(super) fn direct_mark(&self) -> u32 {
        self.mark.checked_add(1).unwrap_or(1)
    }

    /// The routing table of forwarded packets: the one after `table` that is not the kernel's.
    pub(super) fn direct_table(&self) -> u32 {
        match self.table.checked_add(1) {
            None => 1,
            Some(253..=255) => 256,
            Some(table) => table,
        }
    }
}

/// The carriers that `direct:` traffic may use, with their interfaces, best first: the named one,
/// then the other usable ones in the order of the configuration, backups last.
pub(crate) fn direct_carriers(
    config: &GatewayConfig,
) -> impl Iterator<Item = (&CarrierName, String)> {
    let direct = config.intercept.as_ref().and_then(|intercept| intercept.direct());
    let named = direct.map(|(_, carrier)| carrier);
    let usable = config.carriers.iter().filter(|carrier| named.is_some() && carrier.usable());
    let mut carriers: Vec<_> = usable.collect();
    carriers.sort_by_key(|one| (Some(&one.name) != named, one.role == CarrierRole::Backup));
    carriers
        .into_iter()
        .filter_map(|carrier| Some((&carrier.name, rule_name(carrier.interface.as_ref()?).ok()?)))
}

/// The name of an interface, if it is safe in a rule: the kernel permits quotes and wildcards.
fn rule_name(interface: &InterfaceName) -> Result<String, InterceptError> {
    let name = interface.as_str();
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'@' | b'+');
    if name.bytes().all(plain) && !name.starts_with('-') {
        Ok(name.to_owned())
    } else {
        Err(InterceptError::Interface(name.to_owned()))
    }
}
