//! `[intercept]`: transparent interception of users' connections.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};

use crate::carrier::CarrierConfig;
use crate::error::Broken;
use crate::names::{CarrierName, InterfaceName};
use crate::values::{Prefix, as_text, list, yes};

/// `[intercept]`: users' connections are intercepted transparently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intercept {
    /// Where intercepted connections arrive; default 7801.
    #[serde(default = "default_port")]
    pub port: NonZeroU16,
    /// The interfaces of users; 1 to 16, each once, none of them a carrier's.
    #[serde(deserialize_with = "list::<_, InterfaceName, _, 1, 16>")]
    pub interfaces: Vec<InterfaceName>,
    /// The firewall mark of intercepted packets; default 0x706f.
    #[serde(default = "default_mark")]
    pub mark: NonZeroU32,
    /// The routing table for them; default 7801, 1 to 2^32 - 1 without 253 to 255.
    #[serde(default = "default_table", deserialize_with = "table")]
    pub table: u32,
    /// Destinations that are not intercepted; at most 256.
    #[serde(default, deserialize_with = "list::<_, Prefix, _, 0, 256>")]
    pub bypass: Vec<IpNet>,
    /// Traffic to private destinations; default bypass.
    #[serde(default)]
    pub private: PrivateTraffic,
    /// Whether IPv4 is intercepted; default true, `ipv4` or `ipv6` is.
    #[serde(default = "yes")]
    pub ipv4: bool,
    /// Whether IPv6 is intercepted; default true.
    #[serde(default = "yes")]
    pub ipv6: bool,
    /// Users' UDP except DNS; default carry.
    #[serde(default)]
    pub udp: UdpTraffic,
    /// Exceptions from `udp` by destination port; at most 64, without overlap.
    #[serde(default)]
    pub udp_ports: BTreeMap<Ports, UdpTraffic>,
    /// Traffic that is neither TCP nor UDP; default reject.
    #[serde(default)]
    pub other: OtherTraffic,
    /// Users' traffic after the daemon's end; default open.
    #[serde(default)]
    pub on_exit: OnExit,
}

/// Users' traffic after the daemon's end, crashes included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// The rules end with the process: traffic follows the machine's own routes.
    #[default]
    Open,
    /// The rules stay: new connections are refused until the daemon is back or
    /// `polyrail-gateway intercept --remove` was run.
    Closed,
}

/// Traffic to private destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrivateTraffic {
    /// It is not intercepted: the on-board servers.
    #[default]
    Bypass,
    /// It is carried to the cloud.
    Carry,
}

/// Users' UDP except DNS, which the forwarder serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UdpTraffic {
    /// It is carried to the cloud.
    #[default]
    Carry,
    /// The session does not carry it.
    Other(OtherTraffic),
}

/// Destination ports: one, or an ascending range, as `443` and `27000-27100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    first: NonZeroU16,
    last: NonZeroU16,
}

/// Traffic that the session does not carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OtherTraffic {
    /// It is rejected.
    #[default]
    Reject,
    /// It leaves through this carrier, which has an interface and is usable.
    Direct(CarrierName),
}

impl Intercept {
    pub(crate) fn rules(&self, carriers: &[CarrierConfig]) -> Result<(), Broken> {
        if !self.ipv4 && !self.ipv6 {
            return Err(Broken::new("intercept.ipv6", "ipv4 and ipv6 are both false"));
        }
        for (index, interface) in self.interfaces.iter().enumerate() {
            let key = || format!("intercept.interfaces[{}]", index + 1);
            if self.interfaces[..index].contains(interface) {
                let reason = format!("\"{interface}\" is in the list twice");
                return Err(Broken::new(key(), reason));
            }
            if let Some(owner) = carriers.iter().find(|c| c.interface.as_ref() == Some(interface)) {
                let reason = format!("\"{interface}\" belongs to the carrier \"{}\"", owner.name);
                return Err(Broken::new(key(), reason));
            }
        }
        self.port_rules()?;
        let mut direct = self.directs();
        let Some((key, name)) = direct.next() else { return Ok(()) };
        if let Some((other, _)) = direct.find(|(_, other)| *other != name) {
            return Err(Broken::new(key, format!("{other} names another carrier")));
        }
        let reason = match carriers.iter().find(|carrier| carrier.name == *name) {
            None => format!("no carrier is named \"{name}\""),
            Some(carrier) if !carrier.usable() => {
                format!("the carrier \"{name}\" is disabled or has the role \"never\"")
            }
            Some(carrier) if carrier.interface.is_none() => {
                format!("the carrier \"{name}\" has no interface")
            }
            Some(_) => return Ok(()),
        };
        Err(Broken::new(key, reason))
    }

    fn port_rules(&self) -> Result<(), Broken> {
        let count = self.udp_ports.len();
        if count > PORTS_MAX {
            let reason = format!("{count} entries; 0 to {PORTS_MAX} are allowed");
            return Err(Broken::new("intercept.udp_ports", reason));
        }
        // They are in order.
        let mut pairs = self.udp_ports.keys().zip(self.udp_ports.keys().skip(1));
        if let Some((one, two)) = pairs.find(|(one, two)| two.first <= one.last) {
            let reason = format!("the ports \"{one}\" and \"{two}\" overlap");
            return Err(Broken::new(format!("intercept.udp_ports.{two}"), reason));
        }
        Ok(())
    }

    /// The treatments of UDP, each with its key.
    fn udp_treatments(&self) -> impl Iterator<Item = (String, &UdpTraffic)> {
        let key = |ports| format!("intercept.udp_ports.{ports}");
        let by_port = self.udp_ports.iter().map(move |(ports, udp)| (key(ports), udp));
        std::iter::once(("intercept.udp".to_owned(), &self.udp)).chain(by_port)
    }

    /// The keys that say `direct:`, each with its carrier.
    fn directs(&self) -> impl Iterator<Item = (String, &CarrierName)> {
        let udp = self.udp_treatments().filter_map(|(key, udp)| match udp {
            UdpTraffic::Carry => None,
            UdpTraffic::Other(other) => Some((key, other)),
        });
        let all = udp.chain([("intercept.other".to_owned(), &self.other)]);
        all.filter_map(|(key, other)| match other {
            OtherTraffic::Reject => None,
            OtherTraffic::Direct(carrier) => Some((key, carrier)),
        })
    }

    /// The carrier that `direct:` names, with the first key that does.
    pub fn direct(&self) -> Option<(String, &CarrierName)> {
        self.directs().next()
    }

    /// Whether UDP of any port is carried to the cloud, except DNS.
    pub fn carries_udp(&self) -> bool {
        self.udp_treatments().any(|(_, udp)| *udp == UdpTraffic::Carry)
    }
}

impl OtherTraffic {
    /// `None` if the text is neither of its forms.
    fn read(text: &str) -> Option<Result<Self, String>> {
        if text == "reject" {
            return Some(Ok(Self::Reject));
        }
        let carrier = text.strip_prefix("direct:")?.parse();
        Some(carrier.map(Self::Direct).map_err(|error| format!("{error}")))
    }
}

impl FromStr for OtherTraffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let not = || format!("{text:?} is neither \"reject\" nor \"direct:<carrier>\"");
        Self::read(text).ok_or_else(not)?
    }
}

impl FromStr for UdpTraffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "carry" {
            return Ok(Self::Carry);
        }
        let forms = "\"carry\", \"reject\" and \"direct:<carrier>\"";
        let not = || format!("{text:?} is none of {forms}");
        OtherTraffic::read(text).ok_or_else(not)?.map(Self::Other)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let not = || {
            let range = "an ascending range such as \"27000-27100\"";
            format!("{text:?} is neither a port from 1 to 65535 nor {range}")
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (Ok(first), Ok(last)) = (first.parse(), last.parse()) else { return Err(not()) };
        let ports = Self { first, last };
        // Each range has one form, so that no key hides another.
        let is_valid = first <= last && ports.to_string() == text;
        is_valid.then_some(ports).ok_or_else(not)
    }
}

impl Display for OtherTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reject => f.write_str("reject"),
            Self::Direct(carrier) => write!(f, "direct:{carrier}"),
        }
    }
}

impl Display for UdpTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Carry => f.write_str("carry"),
            Self::Other(other) => other.fmt(f),
        }
    }
}

impl Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { first, last } if first == last => first.fmt(f),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

as_text! { UdpTraffic OtherTraffic Ports }

fn table<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match NonZeroU32::deserialize(deserializer)?.get() {
        table @ 253..=255 => {
            Err(serde::de::Error::custom(format!("table {table} belongs to the kernel")))
        }
        table => Ok(table),
    }
}

fn default_port() -> NonZeroU16 {
    const { NonZeroU16::new(7801).unwrap() }
}

fn default_mark() -> NonZeroU32 {
    const { NonZeroU32::new(0x706f).unwrap() }
}

fn default_table() -> u32 {
    7801
}

/// Entries of `udp_ports`.
const PORTS_MAX: usize = 64;
