//! Listeners for connections that the kernel diverts to us (TPROXY).
//!
//! A transparent socket accepts connections to addresses that are not this machine's: the
//! accepted stream's local address is the one that the passenger dialed. The listeners are bound
//! to the loopback addresses, which the interception rules name, so nobody can reach them from
//! outside by their own port. Needs `CAP_NET_ADMIN`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// A listening socket for one address family.
#[derive(Debug)]
pub struct TransparentListener(TcpListener);

/// A passenger's connection.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, not blocking.
    pub stream: TcpStream,
    /// The server that the passenger dialed.
    pub original: SocketAddr,
    /// The passenger.
    pub peer: SocketAddr,
}

impl TransparentListener {
    /// Listens on 127.0.0.1 and, when `ipv6`, on ::1.
    ///
    /// # Errors
    /// The port is taken, or the process lacks `CAP_NET_ADMIN`.
    pub fn bind_loopback(port: u16, ipv4: bool, ipv6: bool) -> io::Result<Vec<Self>> {
        let v4 = ipv4.then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let v6 = ipv6.then(|| SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
        v4.into_iter().chain(v6).map(Self::bind).collect()
    }

    /// Listens on one address.
    ///
    /// # Errors
    /// As for [`Self::bind_loopback`].
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = transparent_socket(address, Type::STREAM, Protocol::TCP)?;
        socket.bind(&SockAddr::from(address))?;
        socket.listen(BACKLOG)?;
        Ok(Self(TcpListener::from_std(socket.into())))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Takes one waiting connection.
    ///
    /// # Errors
    /// `WouldBlock` when none waits; otherwise the kernel's.
    pub fn accept(&self) -> io::Result<Accepted> {
        let (stream, peer) = self.0.accept()?;
        let original = stream.local_addr()?;
        Ok(Accepted { stream, original, peer })
    }
}

impl Source for TransparentListener {
    fn register(&mut self, registry: &Registry, token: Token, want: Interest) -> io::Result<()> {
        self.0.register(registry, token, want)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, want: Interest) -> io::Result<()> {
        self.0.reregister(registry, token, want)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.0.deregister(registry)
    }
}

/// An unbound socket of the address's family that may use foreign addresses as its own.
///
/// # Errors
/// The process lacks `CAP_NET_ADMIN`, or the family is not there.
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

/// Connections that wait for `accept`; the kernel drops SYNs beyond, and passengers try again.
const BACKLOG: i32 = 1024;
