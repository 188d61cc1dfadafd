//! The cloud's listening socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token, event};
use socket2::{Domain, Protocol, Socket, Type};

/// Listens for gateways; an IPv6 wildcard address takes IPv4 as well.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Listens at an address.
    ///
    /// # Errors
    /// The address is taken, not on this host, or its port needs privileges.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let open = |address| {
            let kind = Type::STREAM.nonblocking().cloexec();
            Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))
        };
        let (socket, address) = match open(address) {
            // A host without IPv6 still serves the default address.
            Err(error)
                if error.raw_os_error() == Some(libc::EAFNOSUPPORT)
                    && address == SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port())) =>
            {
                let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
                (open(address)?, address)
            }
            socket => (socket?, address),
        };
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        // A restart must not wait for the old connections' TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self(TcpListener::from_std(socket.into())))
    }

    /// Takes one connection; `None` when none waits. Call it until `None`, or until the bound on
    /// half-open handshakes is reached, and then again without waiting for an event.
    ///
    /// The peer's address is plain IPv4 where it was mapped into IPv6.
    ///
    /// # Errors
    /// Out of descriptors or memory: wait a while. A connection that died in the queue is none.
    pub fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        loop {
            match self.0.accept() {
                Ok((socket, peer)) => {
                    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                    return Ok(Some((socket, peer)));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Where it listens, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl event::Source for Listener {
    fn register(&mut self, registry: &Registry, token: Token, wanted: Interest) -> io::Result<()> {
        self.0.register(registry, token, wanted)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        wanted: Interest,
    ) -> io::Result<()> {
        self.0.reregister(registry, token, wanted)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.0.deregister(registry)
    }
}

/// Connections that the kernel holds for us (it caps this at `net.core.somaxconn`).
const BACKLOG: i32 = 1024;
