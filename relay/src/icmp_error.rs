//! ICMP errors about passengers' datagrams: read from a socket of the cloud, and sent to the
//! gateway in a message, as `docs/protocol.md` specifies it (*Errors of datagrams*).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use mio::net::UdpSocket;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use polyrail_model::codec::{Cursor, FieldError, put_number};
use polyrail_model::{BindingId, Channel};

use crate::UserLimit;
use crate::marked::socket_address;

/// The network has refused a datagram that a passenger has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The passenger's endpoint.
    pub binding: BindingId,
    /// To which it has sent.
    pub remote: SocketAddr,
    /// Why the datagram did not arrive.
    pub cause: IcmpCause,
}

/// Why the network has refused a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpCause {
    /// No program listens at the port.
    Port,
    /// The host does not answer.
    Host,
    /// There is no route.
    Network,
    /// A firewall forbids it.
    Prohibited,
    /// It is longer than a link beyond the cloud permits.
    TooBig {
        /// The longest packet of that link, in bytes, from [`MTU_MIN`].
        mtu: u16,
    },
}

impl IcmpError {
    /// The payload of its message.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, mtu) = match self.cause {
            IcmpCause::Port => (1, 0),
            IcmpCause::Host => (2, 0),
            IcmpCause::Network => (3, 0),
            IcmpCause::Prohibited => (4, 0),
            IcmpCause::TooBig { mtu } => (5, mtu),
        };
        let mut out = Vec::new();
        let numbers = [FORM, self.binding.0, kind, u64::from(mtu)];
        numbers.into_iter().for_each(|number| put_number(&mut out, number));
        out.extend_from_slice(&self.remote.port().to_be_bytes());
        match self.remote.ip() {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
        out
    }

    /// Decodes a payload; none for a form or a kind of a later version.
    ///
    /// # Errors
    /// The payload is invalid.
    pub fn decode(payload: &[u8]) -> Result<Option<Self>, FieldError> {
        let mut cursor = Cursor(payload);
        if cursor.number()? != FORM {
            return Ok(None);
        }
        let (binding, kind, mtu) = (cursor.number()?, cursor.number()?, cursor.number()?);
        let port = u16::from_be_bytes(cursor.array()?);
        let rest = cursor.rest();
        let v4 = <[u8; 4]>::try_from(rest).map(IpAddr::from);
        let ip = v4.or_else(|_| <[u8; 16]>::try_from(rest).map(IpAddr::from));
        let ip = ip.map_err(|_| FieldError::Invalid("address"))?;
        let cause = match kind {
            1 => IcmpCause::Port,
            2 => IcmpCause::Host,
            3 => IcmpCause::Network,
            4 => IcmpCause::Prohibited,
            5 => too_big(mtu).ok_or(FieldError::Invalid("MTU"))?,
            _ => return Ok(None),
        };
        let remote = SocketAddr::new(ip, port);
        Ok(Some(Self { binding: BindingId(binding), remote, cause }))
    }
}

/// How many ICMP errors the users of a gateway receive: 10 a second each, and 100 together.
pub fn icmp_limit(now: Instant) -> UserLimit {
    UserLimit::new(now, OF_ALL, OF_USER)
}

/// Has the kernel keep the ICMP errors about a socket's datagrams for [`receive_icmp_error`].
///
/// # Errors
/// The kernel's.
pub fn watch_icmp_errors(socket: &impl AsFd, is_v4: bool) -> io::Result<()> {
    let result = if is_v4 {
        setsockopt(socket, Ipv4RecvErr, &true)
    } else {
        setsockopt(socket, Ipv6RecvErr, &true)
    };
    result.map_err(io::Error::from)
}

/// The next ICMP error of a socket: to which its datagram was sent, and why it did not arrive;
/// none if it is of no use to a passenger.
///
/// # Errors
/// `WouldBlock` if there are no more; otherwise the kernel's.
pub fn receive_icmp_error(socket: &UdpSocket) -> io::Result<Option<(SocketAddr, IcmpCause)>> {
    let fd = socket.as_raw_fd();
    socket.try_io(|| {
        // The socket may have the kernel tell marks, too.
        let mut control =
            nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6, libc::c_int);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<SockaddrStorage>(fd, &mut [], Some(&mut control), flags)?;
        let to = message.address.as_ref().and_then(socket_address);
        let cause = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::Ipv4RecvErr(error, _)
            | ControlMessageOwned::Ipv6RecvErr(error, _) => cause_of(&error),
            _ => None,
        });
        Ok(to.zip(cause))
    })
}

/// The types and codes of RFC 792, RFC 1122 3.2.2.1, RFC 1812 5.2.7.1 and RFC 4443 3.1 and 3.2.
fn cause_of(error: &libc::sock_extended_err) -> Option<IcmpCause> {
    match (error.ee_origin, error.ee_type, error.ee_code) {
        (libc::SO_EE_ORIGIN_ICMP, 3, 3) | (libc::SO_EE_ORIGIN_ICMP6, 1, 4) => Some(IcmpCause::Port),
        (libc::SO_EE_ORIGIN_ICMP, 3, 4) | (libc::SO_EE_ORIGIN_ICMP6, 2, _) => {
            too_big(error.ee_info.into())
        }
        (libc::SO_EE_ORIGIN_ICMP, 3, 9 | 10 | 13) | (libc::SO_EE_ORIGIN_ICMP6, 1, 1 | 5 | 6) => {
            Some(IcmpCause::Prohibited)
        }
        (libc::SO_EE_ORIGIN_ICMP, 3, 0 | 6 | 11) | (libc::SO_EE_ORIGIN_ICMP6, 1, 0) => {
            Some(IcmpCause::Network)
        }
        (libc::SO_EE_ORIGIN_ICMP, 3, 1 | 2 | 7 | 8 | 12) | (libc::SO_EE_ORIGIN_ICMP6, 1, 2 | 3) => {
            Some(IcmpCause::Host)
        }
        _ => None,
    }
}

fn too_big(mtu: u64) -> Option<IcmpCause> {
    let mtu = u16::try_from(mtu).ok().filter(|mtu| *mtu >= MTU_MIN)?;
    Some(IcmpCause::TooBig { mtu })
}

/// The channel of the messages.
pub const ICMP_ERROR: Channel = Channel(4);
/// The least MTU that is announced: Linux believes no smaller one (`net.ipv4.route.min_pmtu`).
pub const MTU_MIN: u16 = 552;
/// The form of the payload.
const FORM: u64 = 1;
/// Errors of one user a second, and at once.
const OF_USER: f64 = 10.0;
/// Errors of all users a second, and at once: about 60 kbit/s of small messages.
const OF_ALL: f64 = 100.0;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn errors_are_encoded_as_their_vectors() {
        let vectors = include_str!("../vectors/icmp_error.txt");
        let vectors: Vec<&str> = vectors.lines().filter(|line| !line.starts_with('#')).collect();
        let (v4, v6) = ("192.0.2.80:7007".parse().unwrap(), "[2001:db8::50]:53".parse().unwrap());
        let cases = [
            (7, v4, IcmpCause::Port),
            (7, v6, IcmpCause::Host),
            (7, v4, IcmpCause::Network),
            (7, v6, IcmpCause::Prohibited),
            (100_000, v4, IcmpCause::TooBig { mtu: 1_280 }),
            (100_000, v6, IcmpCause::TooBig { mtu: 1_400 }),
        ];
        assert_eq!(vectors.len(), cases.len());
        for ((binding, remote, cause), vector) in cases.into_iter().zip(vectors) {
            let error = IcmpError { binding: BindingId(binding), remote, cause };
            let bytes = error.encode();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, vector, "{error:?}");
            assert_eq!(IcmpError::decode(&bytes), Ok(Some(error)));
            for length in 0..bytes.len() {
                let short = IcmpError::decode(&bytes[..length]);
                // The beginning of an IPv6 address may be an IPv4 address.
                let is_v4 = matches!(short, Ok(Some(short)) if short.remote.is_ipv4());
                assert!(short.is_err() || (remote.is_ipv6() && is_v4), "{length}: {short:?}");
            }
        }
    }

    #[test]
    fn invalid_payloads_are_refused_and_later_ones_ignored() {
        let address = [0, 53, 192, 0, 2, 1];
        let with = |head: &[u8]| IcmpError::decode(&[head, &address].concat());
        assert!(with(&[1, 7, 1, 0]).is_ok_and(|error| error.is_some()));
        assert_eq!(with(&[2, 7, 1, 0]), Ok(None), "a later form");
        assert_eq!(with(&[1, 7, 6, 0]), Ok(None), "a later kind");
        assert!(with(&[1, 7, 5, 0x42, 0x27]).is_err(), "an MTU of 551 bytes");
        assert!(with(&[1, 7, 5, 0x42, 0x28]).is_ok(), "an MTU of 552 bytes");
        assert!(with(&[1, 7, 5, 0x80, 1, 0, 0]).is_err(), "an MTU of 65,536 bytes");
        assert!(with(&[1, 7, 1, 0, 0]).is_err(), "a byte too much");
    }

    #[test]
    fn closed_port_is_read_from_the_socket() {
        for local in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let closed = std::net::UdpSocket::bind((local, 0)).unwrap().local_addr().unwrap();
            let socket = UdpSocket::bind((local, 0).into()).unwrap();
            watch_icmp_errors(&socket, local.is_ipv4()).unwrap();
            crate::watch_marks(&socket, local.is_ipv4()).unwrap();
            socket.send_to(b"x", closed).unwrap();
            let error = receive_icmp_error(&socket).unwrap();
            assert_eq!(error, Some((closed, IcmpCause::Port)));
            let none = receive_icmp_error(&socket).map_err(|error| error.kind());
            assert_eq!(none, Err(io::ErrorKind::WouldBlock));
        }
    }
}
