//! Names that a configuration may hold: interfaces, carriers, congestion controls, modems.

use std::fmt;
use std::str::FromStr;

/// A network interface's name: 1 to 15 characters without `/` and white space, not `.` or `..`
/// (Linux `IFNAMSIZ` and `dev_valid_name`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(String);

/// A carrier's name, chosen by the operator: 1 to 32 of `a-z 0-9 - _`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CarrierName(String);

/// A kernel congestion control's name: 1 to 15 of `a-z 0-9 - _` (Linux `TCP_CA_NAME_MAX`).
/// Whether the kernel has it is found when it is used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CongestionControl(String);

/// What ModemManager calls a modem: its device identifier, its IMEI, its D-Bus object path or the
/// path of its device; 1 to 255 printable ASCII characters without spaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModemName(String);

/// A text that is not a name of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct NameError {
    text: String,
    wanted: &'static str,
}

impl FromStr for InterfaceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        // A colon marks the old alias interfaces, which a socket cannot be bound to.
        let odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        let fits = (1..=15).contains(&text.len()) && !matches!(text, "." | "..");
        checked(text, fits && !text.chars().any(odd), "an interface name (1 to 15 characters)")
            .map(Self)
    }
}

impl FromStr for CarrierName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wanted = "a carrier name (1 to 32 of a-z, 0-9, '-', '_')";
        checked(text, is_plain(text, 32), wanted).map(Self)
    }
}

impl FromStr for CongestionControl {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wanted = "a congestion control such as \"bbr\" or \"cubic\"";
        checked(text, is_plain(text, 15), wanted).map(Self)
    }
}

impl FromStr for ModemName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let fits = (1..=255).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic());
        let wanted = "a modem's device identifier, IMEI or object path";
        checked(text, fits, wanted).map(Self)
    }
}

fn is_plain(text: &str, most: usize) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_');
    (1..=most).contains(&text.len()) && text.bytes().all(plain)
}

fn checked(text: &str, valid: bool, wanted: &'static str) -> Result<String, NameError> {
    if valid { Ok(text.to_owned()) } else { Err(NameError { text: text.to_owned(), wanted }) }
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
as_text!(InterfaceName, CarrierName, CongestionControl, ModemName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
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
        assert!("bbr".parse::<CongestionControl>().is_ok());
        assert!("BBR".parse::<CongestionControl>().is_err());
    }
}
