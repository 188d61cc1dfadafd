//! Receives datagrams with the mark of their sender: DSCP EF (RFC 3246) asks for low delay.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use mio::net::UdpSocket;
use nix::sys::socket::sockopt::{IpRecvTos, Ipv6RecvTClass};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Its length; the buffer holds its beginning if it is longer than that.
    pub length: usize,
    /// Its sender.
    pub from: SocketAddr,
    /// Its sender marked it as EF.
    pub expedited: bool,
}

/// Has the kernel tell the marks of a socket's datagrams.
///
/// # Errors
/// The kernel's.
pub fn watch_marks(socket: &impl AsFd, is_v4: bool) -> io::Result<()> {
    let result = if is_v4 {
        setsockopt(socket, IpRecvTos, &true)
    } else {
        setsockopt(socket, Ipv6RecvTClass, &true)
    };
    result.map_err(io::Error::from)
}

/// Receives one datagram. `other` gets the control messages that tell no mark; `control` has room
/// for all of them.
///
/// # Errors
/// `WouldBlock` if no datagram is queued; otherwise the kernel's.
pub fn receive_marked(
    socket: &UdpSocket,
    buffer: &mut [u8],
    control: &mut [u8],
    mut other: impl FnMut(&ControlMessageOwned),
) -> io::Result<Marked> {
    let fd = socket.as_raw_fd();
    socket.try_io(|| {
        let mut slices = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        let message = recvmsg::<SockaddrStorage>(fd, &mut slices, Some(control), flags)?;
        let from = message.address.as_ref().and_then(socket_address);
        let from = from.ok_or_else(|| io::Error::other("a datagram without a sender"))?;
        let mut expedited = false;
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::Ipv4Tos(tos) => expedited = i32::from(tos) >> 2 == EF,
                ControlMessageOwned::Ipv6TClass(class) => expedited = class >> 2 == EF,
                control => other(&control),
            }
        }
        Ok(Marked { length: message.bytes, from, expedited })
    })
}

pub(crate) fn socket_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}

/// The code point of expedited forwarding (RFC 3246 2.6).
const EF: i32 = 46;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn mark_length_and_sender_of_each_datagram_are_received() {
        for local in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let receiver = UdpSocket::bind((local, 0).into()).unwrap();
            watch_marks(&receiver, local.is_ipv4()).unwrap();
            let sender = std::net::UdpSocket::bind((local, 0)).unwrap();
            let from = sender.local_addr().unwrap();
            // The whole octet: the code point, and two bits of congestion notification.
            for (octet, length, expedited) in
                [(0, 3, false), (46 << 2, 0, true), ((46 << 2) | 2, 40, true), (34 << 2, 5, false)]
            {
                let socket = socket2::SockRef::from(&sender);
                match local {
                    IpAddr::V4(_) => socket.set_tos_v4(octet).unwrap(),
                    IpAddr::V6(_) => socket.set_tclass_v6(octet).unwrap(),
                }
                sender.send_to(&vec![7; length], receiver.local_addr().unwrap()).unwrap();
                let mut control = nix::cmsg_space!(i32);
                let received = receive_marked(&receiver, &mut [0; 16], &mut control, |_| {});
                assert_eq!(received.unwrap(), Marked { length, from, expedited }, "{octet}");
            }
        }
    }
}
