//! Readers and writers of single values, named in `#[serde(deserialize_with, serialize_with)]`.
//!
//! Each error is raised where `toml` knows the place of the value.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_model::{Bytes, Identity};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::Serializer;

/// A string that `parse` accepts.
pub(crate) fn text<'de, D, T, E>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: Display,
{
    struct Text<F, T>(F, PhantomData<T>);
    impl<T, E: Display, F: Fn(&str) -> Result<T, E>> Visitor<'_> for Text<F, T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string in quotes")
        }

        fn visit_str<R: Error>(self, text: &str) -> Result<T, R> {
            (self.0)(text).map_err(R::custom)
        }
    }
    deserializer.deserialize_str(Text(parse, PhantomData))
}

/// A string that `T` parses.
pub(crate) fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    text(deserializer, T::from_str)
}

/// A node name.
pub(crate) fn identity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Identity, D::Error> {
    text(deserializer, Identity::new)
}

/// A path that names something.
pub(crate) fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    text(deserializer, |path| match path {
        "" => Err("an empty path"),
        path if path.contains('\0') => Err("a path with a zero byte"),
        path => Ok(PathBuf::from(path)),
    })
}

/// The same for an optional key.
pub(crate) fn some_path<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    path(deserializer).map(Some)
}

/// A whole number from `MIN` to `MAX`.
pub(crate) fn count<'de, D, T, const MIN: u64, const MAX: u64>(
    deserializer: D,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let number = u64::deserialize(deserializer)?;
    let value = (MIN..=MAX).contains(&number).then(|| T::try_from(number).ok()).flatten();
    value.ok_or_else(|| D::Error::custom(format!("{number} is not between {MIN} and {MAX}")))
}

/// A duration from `MIN_MS` to `MAX_MS` milliseconds.
pub(crate) fn duration<'de, D, const MIN_MS: u64, const MAX_MS: u64>(
    deserializer: D,
) -> Result<Duration, D::Error>
where
    D: Deserializer<'de>,
{
    let (min, max) = (Duration::from_millis(MIN_MS), Duration::from_millis(MAX_MS));
    text(deserializer, |text| {
        let found = parse_duration(text).ok_or_else(|| {
            format!("{text:?} is not a duration such as \"120s\" (units: ms, s, m, h)")
        })?;
        let fits = (min..=max).contains(&found);
        fits.then_some(found).ok_or_else(|| format!("{text:?} is not between {min:?} and {max:?}"))
    })
}

/// An amount of data from `MIN_MIB` to `MAX_MIB` mebibytes.
pub(crate) fn mebibytes<'de, D, const MIN_MIB: u64, const MAX_MIB: u64>(
    deserializer: D,
) -> Result<Bytes, D::Error>
where
    D: Deserializer<'de>,
{
    let (min, max) = (Bytes::from_mib(MIN_MIB), Bytes::from_mib(MAX_MIB));
    text(deserializer, |text| {
        let found: Bytes = text.parse().map_err(|error| format!("{error}"))?;
        let fits = (min..=max).contains(&found);
        fits.then_some(found).ok_or_else(|| format!("{text:?} is not between {min} and {max}"))
    })
}

/// A value that is read as `R`.
pub(crate) fn one<'de, D, R, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    R: Deserialize<'de> + Into<T>,
{
    R::deserialize(deserializer).map(R::into)
}

/// The same for an optional key.
pub(crate) fn some<'de, D, R, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    R: Deserialize<'de> + Into<T>,
{
    one::<D, R, T>(deserializer).map(Some)
}

/// A list of `MIN` to `MAX` values, each read as `R`.
pub(crate) fn list<'de, D, R, T, const MIN: usize, const MAX: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    R: Deserialize<'de> + Into<T>,
{
    let found = Vec::<R>::deserialize(deserializer)?;
    let count = found.len();
    if !(MIN..=MAX).contains(&count) {
        return Err(D::Error::custom(format!("{count} entries; {MIN} to {MAX} are allowed")));
    }
    Ok(found.into_iter().map(R::into).collect())
}

/// The same for an optional key.
pub(crate) fn some_list<'de, D, R, T, const MIN: usize, const MAX: usize>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    R: Deserialize<'de> + Into<T>,
{
    list::<D, R, T, MIN, MAX>(deserializer).map(Some)
}

/// Writes a value as it is displayed.
pub(crate) fn displayed<T: Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Writes a duration with its unit.
pub(crate) fn with_unit<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    match value.subsec_millis() {
        0 => serializer.collect_str(&format_args!("{}s", value.as_secs())),
        _ => serializer.collect_str(&format_args!("{}ms", value.as_millis())),
    }
}

/// The default of a key that is true.
pub(crate) fn yes() -> bool {
    true
}

/// Types that are read and written as text.
macro_rules! as_text {
    ($($name:ident)*) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::values::parsed(deserializer)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $crate::values::displayed(self, serializer)
            }
        }
    )*};
}
pub(crate) use as_text;

/// Declares types for reading, each with the type of the field that it is converted to.
macro_rules! read_as {
    ($($(#[$doc:meta])* $name:ident($inner:ty) = $parse:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name($inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                text(deserializer, $parse).map(Self)
            }
        }

        impl From<$name> for $inner {
            fn from(read: $name) -> Self {
                read.0
            }
        }
    )*};
}

read_as! {
    /// An address and port to listen on.
    ListenAddress(SocketAddr) = listen_address;
    /// A loopback address and port to listen on.
    LoopbackAddress(SocketAddr) = loopback_address;
    /// An address and port to connect to.
    PeerAddress(SocketAddr) = peer_address;
    /// An address of this host to send from.
    SourceAddress(IpAddr) = source_address;
    /// An address prefix without host bits; a bare address is a host's prefix.
    Prefix(IpNet) = prefix;
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        let example = "\"192.0.2.1:4433\" or \"[2001:db8::1]:4433\"";
        format!("{text:?} is not an IP address with a port such as {example}")
    })?;
    match address {
        a if a.port() == 0 => Err(format!("{text:?} has port 0")),
        a if a.ip().is_multicast() => Err(format!("{text:?} is a multicast address")),
        a => Ok(a),
    }
}

fn loopback_address(text: &str) -> Result<SocketAddr, String> {
    let address = listen_address(text)?;
    let is_loopback = address.ip().to_canonical().is_loopback();
    is_loopback.then_some(address).ok_or_else(|| {
        let reason = "other machines could connect, and there is no password";
        format!("\"{address}\" is not a loopback address such as \"127.0.0.1:9464\": {reason}")
    })
}

fn peer_address(text: &str) -> Result<SocketAddr, String> {
    let address = listen_address(text)?;
    let names_host = !address.ip().is_unspecified();
    names_host.then_some(address).ok_or_else(|| format!("\"{address}\" names no host"))
}

fn source_address(text: &str) -> Result<IpAddr, String> {
    let not = || format!("{text:?} is not an IP address such as \"192.0.2.7\"");
    let address: IpAddr = text.parse().map_err(|_| not())?;
    let is_host = !address.is_unspecified() && !address.is_multicast();
    is_host.then_some(address).ok_or_else(|| format!("{text:?} is not the address of a host"))
}

fn prefix(text: &str) -> Result<IpNet, String> {
    let not = || format!("{text:?} is not an address prefix such as \"10.0.0.0/8\"");
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().map_err(|_| not())?,
    };
    if net.trunc() == net {
        return Ok(net);
    }
    Err(format!("{text:?} has bits beyond its length; the prefix would be \"{}\"", net.trunc()))
}

/// Reads `5ms`, `120s`, `2m` or `1h`: a whole number and a unit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok()?;
    let seconds_each = match unit.trim_start() {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => return None,
    };
    number.checked_mul(seconds_each).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_units() {
        let cases = [("5ms", 5), ("120s", 120_000), ("2m", 120_000), (" 1 h ", 3_600_000)];
        for (text, ms) in cases {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for bad in
            ["", "5", "s", "1.5s", "-1s", "1d", "99999999999999999999s", "9999999999999999999h"]
        {
            assert_eq!(parse_duration(bad), None, "{bad:?} passed");
        }
    }

    #[test]
    fn prefixes_have_no_host_bits() {
        assert_eq!(prefix("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(prefix("2001:db8::1").unwrap().to_string(), "2001:db8::1/128");
        assert!(prefix("10.0.0.1/8").unwrap_err().contains("\"10.0.0.0/8\""));
        assert!(prefix("10.0.0.0/33").is_err());
        assert!(prefix("lan").is_err());
    }
}
