//! The header of each datagram between a client and its relay (RFC 1928 7): RSV (2 bytes), FRAG,
//! and the other end's address. RSV is ignored, and fragments are dropped, as the RFC permits.

use std::net::SocketAddr;

use polyrail_model::Destination;

use super::{Failure, address};

/// The longest header: that of a name of 255 bytes.
pub const HEADER_MAX: usize = 3 + 1 + 1 + 255 + 2;

/// Why a client's datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It ends before its header does.
    #[error("it ends before its header does")]
    Short,
    /// It is a fragment.
    #[error("it is the fragment {0}")]
    Fragment(u8),
    /// Its destination is invalid.
    #[error("{0}")]
    Destination(#[from] Failure),
}

/// The destination of a client's datagram, and its payload.
///
/// # Errors
/// The datagram is to be dropped.
pub fn parse(datagram: &[u8]) -> Result<(Destination, &[u8]), HeaderError> {
    let [_, _, fragment, rest @ ..] = datagram else { return Err(HeaderError::Short) };
    if *fragment != 0 {
        return Err(HeaderError::Fragment(*fragment));
    }
    let (destination, payload) = address::parse(rest)?.ok_or(HeaderError::Short)?;
    if destination.port() == 0 { Err(Failure::Port.into()) } else { Ok((destination, payload)) }
}

/// A datagram for a client, from this address.
pub fn encode(from: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; 3];
    address::encode(from, &mut datagram);
    datagram.extend_from_slice(payload);
    datagram
}

#[cfg(test)]
mod tests {
    use polyrail_model::HostName;

    use super::*;

    #[test]
    fn destination_and_payload_of_each_address_type_are_parsed() {
        let name = HostName::new("example.com").unwrap();
        let address = |text: &str| Destination::Address(text.parse().unwrap());
        let v6 = "[2001:db8::7]:443";
        for (header, destination) in [
            (&b"\0\0\0\x01\xc0\0\x02\x01\0\x35"[..], address("192.0.2.1:53")),
            (&encode(v6.parse().unwrap(), b""), address(v6)),
            (&encode("[::ffff:192.0.2.1]:9".parse().unwrap(), b""), address("192.0.2.1:9")),
            (b"\0\0\0\x03\x0bexample.com\x01\xbb", Destination::Name(name, 443)),
            (b"\x07\x08\0\x03\x09192.0.2.1\0\x35", address("192.0.2.1:53")),
        ] {
            for payload in [&b""[..], b"x", &[0; 2_048]] {
                let datagram = [header, payload].concat();
                assert_eq!(parse(&datagram), Ok((destination.clone(), payload)));
            }
            for end in 0..header.len() {
                assert_eq!(parse(&header[..end]), Err(HeaderError::Short), "{end} bytes");
            }
        }
    }

    #[test]
    fn malformed_datagrams_are_dropped() {
        let long = [&b"\0\0\0\x03\xff"[..], &[b'x'; 255], &[0, 1]].concat();
        assert_eq!(long.len(), HEADER_MAX);
        for (datagram, error) in [
            (&b"\0\0\x01\x01\xc0\0\x02\x01\0\x35x"[..], HeaderError::Fragment(1)),
            (b"\0\0\x80\x01\xc0\0\x02\x01\0\x35x", HeaderError::Fragment(0x80)),
            (b"\0\0\0\0\xc0\0\x02\x01\0\x35x", Failure::AddressType(0).into()),
            (b"\0\0\0\x02\xc0\0\x02\x01\0\x35x", Failure::AddressType(2).into()),
            (b"\0\0\0\x03\x0cexample.com\0", HeaderError::Short),
            (b"\0\0\0\x03\0\0\x35x", Failure::Name.into()),
            (b"\0\0\0\x03\x03a b\0\x35x", Failure::Name.into()),
            (b"\0\0\0\x03\x03a\xffb\0\x35x", Failure::Name.into()),
            (b"\0\0\0\x01\xc0\0\x02\x01\0\0x", Failure::Port.into()),
            (&long, Failure::Name.into()),
        ] {
            assert_eq!(parse(datagram), Err(error), "{datagram:?}");
        }
    }

    #[test]
    fn answer_carries_the_address_of_its_sender() {
        let answer = encode("192.0.2.1:53".parse().unwrap(), b"hi");
        assert_eq!(answer, b"\0\0\0\x01\xc0\0\x02\x01\0\x35hi");
        let answer = encode("[2001:db8::1]:53".parse().unwrap(), b"");
        assert_eq!((answer.len(), &answer[..6]), (22, &b"\0\0\0\x04\x20\x01"[..]));
    }
}
