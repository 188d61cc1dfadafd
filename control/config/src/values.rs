//! Reads single TOML values into types that hold only what makes sense.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_model::Bytes;
use toml::de::DeValue;

use super::reader::Parsed;

/// A string.
pub(super) fn text<'v>(value: &'v DeValue<'_>) -> Parsed<&'v str> {
    value.as_str().ok_or_else(|| wrong("a string in quotes", value))
}

/// A string that `parse` understands.
pub(super) fn parsed<T, E: ToString>(
    parse: impl Fn(&str) -> Result<T, E>,
) -> impl Fn(&DeValue<'_>) -> Parsed<T> {
    move |value| parse(text(value)?).map_err(|error| error.to_string())
}

/// One of a few words.
pub(super) fn choice<T: Clone>(
    words: &'static [(&'static str, T)],
) -> impl Fn(&DeValue<'_>) -> Parsed<T> {
    move |value| {
        let found = text(value)?;
        let known = words.iter().find(|(word, _)| *word == found);
        known.map(|(_, choice)| choice.clone()).ok_or_else(|| {
            let names: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            format!("{found:?} is not one of {}", names.join(", "))
        })
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: &DeValue<'_>) -> Parsed<bool> {
    value.as_bool().ok_or_else(|| wrong("true or false", value))
}

/// A whole number within bounds, also in hexadecimal.
pub(super) fn integer(bounds: RangeInclusive<u64>) -> impl Fn(&DeValue<'_>) -> Parsed<u64> {
    move |value| {
        let found = value.as_integer().ok_or_else(|| wrong("a whole number", value))?;
        let number = i128::from_str_radix(found.as_str(), found.radix()).ok();
        let number = number.and_then(|number| u64::try_from(number).ok());
        number.filter(|number| bounds.contains(number)).ok_or_else(|| {
            format!("{found} is not between {} and {}", bounds.start(), bounds.end())
        })
    }
}

/// A port that can be listened on or called: 1 to 65535.
pub(super) fn port(value: &DeValue<'_>) -> Parsed<NonZeroU16> {
    let number = integer(1..=u64::from(u16::MAX))(value)?;
    let port = u16::try_from(number).ok().and_then(NonZeroU16::new);
    port.ok_or_else(|| format!("{number} is not a port"))
}

/// A duration within bounds.
pub(super) fn duration(
    bounds: RangeInclusive<Duration>,
) -> impl Fn(&DeValue<'_>) -> Parsed<Duration> {
    move |value| {
        let found = value.as_str().ok_or_else(|| wrong(DURATION, value))?;
        let duration =
            parse_duration(found).ok_or_else(|| format!("{found:?} is not {DURATION}"))?;
        if bounds.contains(&duration) {
            return Ok(duration);
        }
        Err(format!("{found:?} is not between {:?} and {:?}", bounds.start(), bounds.end()))
    }
}

/// An amount of data within bounds.
pub(super) fn bytes(bounds: RangeInclusive<Bytes>) -> impl Fn(&DeValue<'_>) -> Parsed<Bytes> {
    move |value| {
        let found = value.as_str();
        let found = found.ok_or_else(|| wrong("an amount of data such as \"16 MiB\"", value))?;
        let amount: Bytes =
            found.parse().map_err(|error: polyrail_model::ParseUnitError| error.to_string())?;
        if bounds.contains(&amount) {
            return Ok(amount);
        }
        Err(format!("{found:?} is not between {} and {}", bounds.start(), bounds.end()))
    }
}

/// An address prefix such as `10.0.0.0/8`, without host bits; a bare address is a host's prefix.
pub(super) fn prefix(value: &DeValue<'_>) -> Parsed<IpNet> {
    let found = text(value)?;
    let not = || format!("{found:?} is not an address prefix such as \"10.0.0.0/8\"");
    let net = match found.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => found.parse::<IpNet>().map_err(|_| not())?,
    };
    if net.trunc() == net {
        return Ok(net);
    }
    Err(format!("{found:?} has bits beyond its length; the prefix would be \"{}\"", net.trunc()))
}

/// An address and port to listen on.
pub(super) fn listen_address(value: &DeValue<'_>) -> Parsed<SocketAddr> {
    let found = text(value)?;
    let address: SocketAddr = found.parse().map_err(|_| not_socket_address(found))?;
    match address {
        a if a.port() == 0 => Err(format!("{found:?} has port 0")),
        a if a.ip().is_multicast() => Err(format!("{found:?} is a multicast address")),
        a => Ok(a),
    }
}

/// An address and port to connect to.
pub(super) fn peer_address(value: &DeValue<'_>) -> Parsed<SocketAddr> {
    let address = listen_address(value)?;
    if address.ip().is_unspecified() {
        return Err(format!("\"{address}\" names no host"));
    }
    Ok(address)
}

/// An address of this host to send from.
pub(super) fn source_address(value: &DeValue<'_>) -> Parsed<IpAddr> {
    let found = text(value)?;
    let not = || format!("{found:?} is not an IP address such as \"192.0.2.7\"");
    let address: IpAddr = found.parse().map_err(|_| not())?;
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!("{found:?} is no address of a host"));
    }
    Ok(address)
}

/// Reads `5ms`, `120s`, `2m` or `1h`: a whole number and a unit.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok()?;
    let (seconds, factor_ms) = match unit.trim_start() {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => (number, 1),
        "m" | "min" => (number, 60),
        "h" => (number, 3600),
        _ => return None,
    };
    seconds.checked_mul(factor_ms).map(Duration::from_secs)
}

/// What a bad host and port should have been.
fn not_socket_address(found: &str) -> String {
    let example = "\"192.0.2.1:4433\" or \"[2001:db8::1]:4433\"";
    format!("{found:?} is not an IP address with a port such as {example}")
}

fn wrong(expected: &str, value: &DeValue<'_>) -> String {
    format!("expected {expected}, found {}", value.type_str())
}

const DURATION: &str = "a duration such as \"120s\" (units: ms, s, m, h)";

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
        let read = |text: &str| prefix(&DeValue::String(text.into()));
        assert_eq!(read("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(read("2001:db8::1").unwrap().to_string(), "2001:db8::1/128");
        assert!(read("10.0.0.1/8").unwrap_err().contains("\"10.0.0.0/8\""));
        assert!(read("10.0.0.0/33").is_err());
        assert!(read("lan").is_err());
    }
}
