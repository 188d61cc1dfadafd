//! ICMP errors for passengers (RFC 792, RFC 1191, RFC 4443 3): their datagrams are too long to be
//! carried, or the network beyond the cloud has refused them.
//!
//! The error makes the next call on the passenger's connected socket fail.
//!
//! Datagrams that are too long arrive as fragments, which the kernel has reassembled, unless the
//! passengers' link has jumbo frames. The announced MTU is that of the longest datagram that is
//! carried. It is above that of Ethernet, so no other connection to the same destination gets
//! shorter packets.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::time::Instant;

use polyrail_model::UserId;
use polyrail_relay::{IcmpCause, UserLimit, icmp_limit};
use polyrail_session::wire::DATAGRAM_MAX;
use socket2::{Domain, Protocol, Socket, Type};

/// Sends the errors, as many as [`icmp_limit`] permits.
#[derive(Debug)]
pub(crate) struct IcmpErrors(UserLimit);

impl IcmpErrors {
    pub(crate) fn new(now: Instant) -> Self {
        Self(icmp_limit(now))
    }

    /// A passenger has sent a datagram to a server that is too long for the session.
    pub(crate) fn too_long(
        &mut self,
        now: Instant,
        user: UserId,
        (client, server): (SocketAddr, SocketAddr),
        length: usize,
    ) {
        let mtu = (headers(client) + DATAGRAM_MAX) as u16;
        self.send(now, user, (client, server), (length, IcmpCause::TooBig { mtu }));
    }

    /// The network has refused a passenger's datagram to a server.
    pub(crate) fn refused(
        &mut self,
        now: Instant,
        user: UserId,
        (client, server): (SocketAddr, SocketAddr),
        cause: IcmpCause,
    ) {
        // The length is not known, except that a datagram too big is above the MTU.
        let length = match cause {
            IcmpCause::TooBig { mtu } => usize::from(mtu) + 1 - headers(client),
            _ => 0,
        };
        self.send(now, user, (client, server), (length, cause));
    }

    fn send(
        &mut self,
        now: Instant,
        user: UserId,
        (client, server): (SocketAddr, SocketAddr),
        (length, cause): (usize, IcmpCause),
    ) {
        if self.0.permit(now, user)
            && let Err(error) = send(client, server, length, cause)
        {
            tracing::debug!(%client, %error, "cannot send an ICMP error");
        }
    }
}

/// The headers of IP and UDP.
fn headers(client: SocketAddr) -> usize {
    UDP_HEADER + if client.is_ipv4() { V4_HEADER } else { V6_HEADER }
}

/// Sends one error, over a socket of its own: a raw socket that stays open would collect the
/// ICMP messages to this host.
fn send(client: SocketAddr, server: SocketAddr, length: usize, cause: IcmpCause) -> io::Result<()> {
    let (protocol, message) = match (client, server) {
        (SocketAddr::V4(client), SocketAddr::V4(server)) => {
            (Protocol::ICMPV4, of_v4(client, server, length, cause))
        }
        (SocketAddr::V6(client), SocketAddr::V6(server)) => {
            (Protocol::ICMPV6, of_v6(client, server, length, cause))
        }
        _ => return Ok(()),
    };
    let socket = Socket::new(Domain::for_address(client), Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    // With its scope, but without its port (raw(7)).
    let mut to = client;
    to.set_port(0);
    socket.send_to(&message, &to.into()).map(drop)
}

/// The message of RFC 792 and RFC 1191 4, with the headers of the datagram as far as they are
/// known: not its identification, its hops and its checksum.
fn of_v4(client: SocketAddrV4, server: SocketAddrV4, length: usize, cause: IcmpCause) -> Vec<u8> {
    let (code, mtu) = match cause {
        IcmpCause::Network => (0, 0),
        IcmpCause::Host => (1, 0),
        IcmpCause::Port => (3, 0),
        IcmpCause::TooBig { mtu } => (4, mtu),
        IcmpCause::Prohibited => (13, 0),
    };
    let total = (V4_HEADER + UDP_HEADER + length) as u16;
    let mut header = [[0x45, 0], total.to_be_bytes(), [0, 0], [0, 0], [64, UDP], [0, 0]].concat();
    header.extend([client.ip().octets(), server.ip().octets()].concat());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    let mut message = [[3, code], [0, 0], [0, 0], mtu.to_be_bytes()].concat();
    message.extend(header);
    message.extend(udp_header(client.port(), server.port(), length));
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    message
}

/// The message of RFC 4443 3.1 and 3.2. The kernel adds its checksum (RFC 3542 3.1).
fn of_v6(client: SocketAddrV6, server: SocketAddrV6, length: usize, cause: IcmpCause) -> Vec<u8> {
    let (kind, code, mtu) = match cause {
        IcmpCause::Network => (1, 0, 0),
        IcmpCause::Prohibited => (1, 1, 0),
        IcmpCause::Host => (1, 3, 0),
        IcmpCause::Port => (1, 4, 0),
        IcmpCause::TooBig { mtu } => (2, 0, mtu),
    };
    let [high, low] = ((UDP_HEADER + length) as u16).to_be_bytes();
    let header = [[0x60, 0, 0, 0], [high, low, UDP, 64]].concat();
    let mut message = [[kind, code, 0, 0], u32::from(mtu).to_be_bytes()].concat();
    message.extend(header);
    message.extend([client.ip().octets(), server.ip().octets()].concat());
    message.extend(udp_header(client.port(), server.port(), length));
    message
}

fn udp_header(from: u16, to: u16, length: usize) -> Vec<u8> {
    let length = (UDP_HEADER + length) as u16;
    [from.to_be_bytes(), to.to_be_bytes(), length.to_be_bytes(), [0, 0]].concat()
}

/// The checksum of the Internet protocols (RFC 1071) over an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let (words, _) = bytes.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    (!(sum + (sum >> 16)) as u16).to_be_bytes()
}

const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
/// The number of UDP among the protocols.
const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_announce_the_mtu_and_quote_the_headers() {
        let (client, server) = ("10.9.0.2:4660".parse(), "192.0.2.80:7007".parse());
        let (client, server) = (client.unwrap(), server.unwrap());
        let message = of_v4(client, server, 2_049, IcmpCause::TooBig { mtu: 2_076 });
        #[rustfmt::skip]
        let wanted = [
            // Type, code, checksum, an unused word, MTU 2,076.
            3, 4, 0xbf, 0x43, 0, 0, 0x08, 0x1c,
            // Version 4, length 2,077, UDP, checksum.
            0x45, 0, 0x08, 0x1d, 0, 0, 0, 0, 64, 17, 0xa6, 0x75, 10, 9, 0, 2, 192, 0, 2, 80,
            // Ports, length 2,057.
            0x12, 0x34, 0x1b, 0x5f, 0x08, 0x09, 0, 0,
        ];
        assert_eq!(message, wanted);
        // A receiver sums all of it, the checksum too.
        assert_eq!((checksum(&message), checksum(&message[8..28])), ([0, 0], [0, 0]));
        for (cause, code) in UNREACHABLE.into_iter().zip([0, 1, 3, 13]) {
            let message = of_v4(client, server, 0, cause);
            assert_eq!((&message[..2], &message[4..8]), (&[3, code][..], &[0; 4][..]));
            assert_eq!((checksum(&message), message[8 + 3]), ([0, 0], 28));
        }

        let (client, server) = ("[fd09::2]:4660".parse(), "[2001:db8::50]:7007".parse());
        #[rustfmt::skip]
        let wanted = [
            // Type, code, the kernel's checksum, MTU 2,096.
            2, 0, 0, 0, 0, 0, 0x08, 0x30,
            // Version 6, length 2,057, UDP.
            0x60, 0, 0, 0, 0x08, 0x09, 17, 64,
            0xfd, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50,
            0x12, 0x34, 0x1b, 0x5f, 0x08, 0x09, 0, 0,
        ];
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(of_v6(client, server, 2_049, IcmpCause::TooBig { mtu: 2_096 }), wanted);
        for (cause, code) in UNREACHABLE.into_iter().zip([0, 3, 4, 1]) {
            let message = of_v6(client, server, 0, cause);
            assert_eq!(message[..8], [1, code, 0, 0, 0, 0, 0, 0]);
        }
    }

    const UNREACHABLE: [IcmpCause; 4] =
        [IcmpCause::Network, IcmpCause::Host, IcmpCause::Port, IcmpCause::Prohibited];

    #[test]
    fn checksum_is_that_of_the_standard() {
        // RFC 1071 3.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), [0x22, 0x0d]);
    }
}
