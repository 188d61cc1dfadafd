//! Addresses in SOCKS5 messages: ATYP, ADDR and PORT (RFC 1928 4 to 7).

use std::net::{IpAddr, SocketAddr};

use polyrail_model::{Destination, HostName};

use super::{Failure, Parsed};

/// The destination at the beginning of the input, and the rest.
pub(super) fn parse(input: &[u8]) -> Parsed<(Destination, &[u8])> {
    let [kind, rest @ ..] = input else { return Ok(None) };
    let (length, rest) = match (*kind, rest) {
        (V4, rest) => (4, rest),
        (V6, rest) => (16, rest),
        (NAME, [0, ..]) => return Err(Failure::Name),
        (NAME, [length, rest @ ..]) => (usize::from(*length), rest),
        (NAME, []) => return Ok(None),
        (other, _) => return Err(Failure::AddressType(other)),
    };
    let Some((host, [high, low, rest @ ..])) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    let port = u16::from_be_bytes([*high, *low]);
    let address = match *kind {
        V4 => <[u8; 4]>::try_from(host).map(IpAddr::from).ok(),
        V6 => <[u8; 16]>::try_from(host).map(IpAddr::from).ok(),
        // Some clients send addresses as text in the name field.
        _ => std::str::from_utf8(host).ok().and_then(|text| text.parse().ok()),
    };
    let destination = match address {
        Some(ip) => Destination::Address(SocketAddr::new(ip.to_canonical(), port)),
        None => {
            let text = std::str::from_utf8(host).map_err(|_| Failure::Name)?;
            Destination::Name(HostName::new(text).map_err(|_| Failure::Name)?, port)
        }
    };
    Ok(Some((destination, rest)))
}

/// Appends an address.
pub(super) fn encode(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(V4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(V6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_be_bytes());
}

const V4: u8 = 1;
const NAME: u8 = 3;
const V6: u8 = 4;
