//! Names in a configuration: interfaces, carriers, congestion controls, modems, message buses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::values::parsed;

/// A text that is not a name of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct NameError {
    text: String,
    wanted: &'static str,
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $wanted:literal, $is_valid:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                let is_valid: fn(&str) -> bool = $is_valid;
                let error = || NameError { text: text.to_owned(), wanted: $wanted };
                if is_valid(text) { Ok(Self(text.to_owned())) } else { Err(error()) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                parsed(deserializer)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

names! {
    /// A network interface's name: 1 to 15 characters without `/`, `:` and white space, not `.` or
    /// `..` (Linux `IFNAMSIZ` and `dev_valid_name`; a colon marks the old alias interfaces, to
    /// which a socket cannot be bound).
    InterfaceName: "an interface name (1 to 15 characters)", |text| {
        let odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        is_short(text, 15) && !matches!(text, "." | "..") && !text.contains(odd)
    };
    /// A carrier's name, chosen by the operator: 1 to 32 of `a-z 0-9 - _`.
    CarrierName: "a carrier name (1 to 32 of a-z, 0-9, '-', '_')", |text| is_plain(text, 32);
    /// A kernel congestion control's name: 1 to 15 of `a-z 0-9 - _` (Linux `TCP_CA_NAME_MAX`).
    /// Whether the kernel has it shows when it is used.
    CongestionControl: "a congestion control such as \"bbr\" or \"cubic\"", |text| {
        is_plain(text, 15)
    };
    /// ModemManager's name of a modem: its device identifier, its IMEI, its D-Bus object path or
    /// the path of its device; 1 to 255 printable ASCII characters without spaces.
    ModemName: "a modem's device identifier, IMEI or object path", |text| {
        is_short(text, 255) && text.bytes().all(|c| c.is_ascii_graphic())
    };
    /// A group's name, chosen by the operator: 1 to 32 of `a-z 0-9 - _`.
    GroupName: "a group name (1 to 32 of a-z, 0-9, '-', '_')", |text| is_plain(text, 32);
    /// An Ethernet address: six pairs of lower-case hexadecimal digits with colons between.
    LinkAddress: "a link address such as \"02:00:5e:10:00:01\" (lower case)", |text| {
        text.len() == 17
            && text.bytes().enumerate().all(|(place, c)| match place % 3 {
                2 => c == b':',
                _ => c.is_ascii_digit() || (b'a'..=b'f').contains(&c),
            })
    };
    /// The address of a D-Bus bus: `transport:key=value`, at most 512 bytes (D-Bus specification,
    /// "Server Addresses"). Whether a bus is there shows when it is used.
    BusAddress: "the address of a bus such as \"unix:path=/run/dbus/system_bus_socket\"", |text| {
        let parts = text.split_once(':');
        is_short(text, 512)
            && parts.is_some_and(|(transport, keys)| is_plain(transport, 32) && keys.contains('='))
    };
}

impl LinkAddress {
    /// Its six octets.
    pub fn octets(&self) -> Vec<u8> {
        let pairs = self.0.split(':');
        pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
    }
}

impl CongestionControl {
    /// The default control.
    pub(crate) fn bbr() -> Self {
        Self("bbr".to_owned())
    }
}

fn is_short(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len())
}

fn is_plain(text: &str, bytes_max: usize) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_');
    is_short(text, bytes_max) && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_rejected() {
        for good in ["lan0", "wwan-1.20", "a", "fifteen-charact"] {
            assert_eq!(good.parse::<InterfaceName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a/b", "a b", "eth0:1", "sixteen-characte", "a\nb"] {
            assert!(bad.parse::<InterfaceName>().is_err(), "{bad:?} passed");
        }
        assert!("carrier_a-1".parse::<CarrierName>().is_ok());
        for bad in ["", "Carrier", "a b", "a.b", &"x".repeat(33)] {
            assert!(bad.parse::<CarrierName>().is_err(), "{bad:?} passed");
        }
        let path = "/org/freedesktop/ModemManager1/Modem/0";
        for good in [path, "353270040012345", "1a2b3c"] {
            assert_eq!(good.parse::<ModemName>().unwrap().as_str(), good);
        }
        for bad in ["", "a b", "\u{e9}", "a\n", &"x".repeat(256)] {
            assert!(bad.parse::<ModemName>().is_err(), "{bad:?} passed");
        }
        let link: LinkAddress = "02:00:5e:10:00:ff".parse().unwrap();
        assert_eq!(link.octets(), [2, 0, 0x5e, 0x10, 0, 0xff]);
        for bad in ["", "02:00:5e:10:00:FF", "02:00:5e:10:00:f", "02-00-5e-10-00-ff", "0"] {
            assert!(bad.parse::<LinkAddress>().is_err(), "{bad:?} passed");
        }
        assert!("bbr".parse::<CongestionControl>().is_ok());
        assert!("BBR".parse::<CongestionControl>().is_err());
        assert!("unix:path=/run/bus".parse::<BusAddress>().is_ok());
        assert!("/run/bus".parse::<BusAddress>().is_err());
    }
}
