//! Listeners for connections that the kernel diverts to us (TPROXY).
//!
//! A transparent socket accepts connections to addresses that are not this machine's: the local
//! address of the accepted stream is the one that the passenger dialed. The listeners are bound to
//! the loopback addresses that the interception rules name, so their own port is unreachable from
//! outside. Needs `CAP_NET_ADMIN`.

mod udp;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use mio::net::TcpListener;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
pub use udp::{Diverted, TransparentUdp};
pub(crate) use udp::{UdpSockets, answering_socket};

/// The loopback address of each wanted family, with this port.
pub(crate) fn loopback(port: u16, ipv4: bool, ipv6: bool) -> impl Iterator<Item = SocketAddr> {
    let v4 = ipv4.then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let v6 = ipv6.then(|| SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    v4.into_iter().chain(v6)
}

/// Listens on 127.0.0.1 if `ipv4`, and on ::1 if `ipv6`.
///
/// # Errors
/// The port is taken, or the process lacks `CAP_NET_ADMIN`.
pub fn listen(port: u16, ipv4: bool, ipv6: bool) -> io::Result<Vec<TcpListener>> {
    let listen = |address| {
        let socket = transparent_socket(address, Type::STREAM, Protocol::TCP)?;
        socket.bind(&SockAddr::from(address))?;
        socket.listen(BACKLOG)?;
        Ok(TcpListener::from_std(socket.into()))
    };
    loopback(port, ipv4, ipv6).map(listen).collect()
}

/// An unbound socket of the address's family that may use foreign addresses as its own.
///
/// # Errors
/// The process lacks `CAP_NET_ADMIN`, or the kernel lacks the family.
pub(crate) fn transparent_socket(
    address: SocketAddr,
    kind: Type,
    protocol: Protocol,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv4() {
        socket.set_ip_transparent_v4(true)?;
    } else {
        socket.set_only_v6(true)?;
        socket.set_ip_transparent_v6(true)?;
    }
    Ok(socket)
}

/// The maximum number of connections that wait for `accept`; the kernel drops further SYNs, and
/// passengers retry.
const BACKLOG: i32 = 1024;
