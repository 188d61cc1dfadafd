//! `[intercept]`: transparent interception of users' connections.

use std::num::{NonZeroU16, NonZeroU32};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::carrier::CarrierConfig;
use crate::error::Broken;
use crate::names::{CarrierName, InterfaceName};
use crate::values::{Prefix, list, text, yes};

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
    /// It is rejected.
    Reject,
    /// It leaves through this carrier, which has an interface and is usable.
    Direct(CarrierName),
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
        let udp = match &self.udp {
            UdpTraffic::Direct(name) => Some(("intercept.udp", name)),
            UdpTraffic::Carry | UdpTraffic::Reject => None,
        };
        let other = match &self.other {
            OtherTraffic::Direct(name) => Some(("intercept.other", name)),
            OtherTraffic::Reject => None,
        };
        if let (Some((key, one)), Some((_, two))) = (udp, other)
            && one != two
        {
            return Err(Broken::new(key, "intercept.other names another carrier"));
        }
        let Some((key, name)) = udp.or(other) else { return Ok(()) };
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
}

impl<'de> Deserialize<'de> for UdpTraffic {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text(deserializer, |found| match (found, found.strip_prefix("direct:")) {
            ("carry", _) => Ok(Self::Carry),
            ("reject", _) => Ok(Self::Reject),
            (_, Some(carrier)) => {
                carrier.parse().map(Self::Direct).map_err(|error| format!("{error}"))
            }
            _ => {
                Err(format!("{found:?} is none of \"carry\", \"reject\" and \"direct:<carrier>\""))
            }
        })
    }
}

impl Serialize for UdpTraffic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Carry => serializer.serialize_str("carry"),
            Self::Reject => serializer.serialize_str("reject"),
            Self::Direct(carrier) => serializer.collect_str(&format_args!("direct:{carrier}")),
        }
    }
}

impl<'de> Deserialize<'de> for OtherTraffic {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text(deserializer, |found| match (found, found.strip_prefix("direct:")) {
            ("reject", _) => Ok(Self::Reject),
            (_, Some(carrier)) => {
                carrier.parse().map(Self::Direct).map_err(|error| format!("{error}"))
            }
            _ => Err(format!("{found:?} is neither \"reject\" nor \"direct:<carrier>\"")),
        })
    }
}

impl Serialize for OtherTraffic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Reject => serializer.serialize_str("reject"),
            Self::Direct(carrier) => serializer.collect_str(&format_args!("direct:{carrier}")),
        }
    }
}

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
