//! The cloud's listening socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use mio::net::{TcpListener, TcpStream};
use socket2::Type;

use crate::carrier;

/// Listens for gateways; an IPv6 wildcard address takes IPv4 as well.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Listens at an address.
    ///
    /// # Errors
    /// The address is taken, not on this host, or its port needs privileges.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(address, false)
    }

    /// The same, together with other listeners of this process: the kernel gives each connection to
    /// one of them. The first one checks that nobody else has the address.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_shared(address: SocketAddr, is_first: bool) -> io::Result<Self> {
        if is_first {
            drop(carrier::bind(address, Type::STREAM, false)?);
        }
        Self::bind_with(address, true)
    }

    fn bind_with(address: SocketAddr, shared: bool) -> io::Result<Self> {
        let socket = carrier::bind(address, Type::STREAM, shared)?;
        socket.listen(BACKLOG)?;
        Ok(Self(TcpListener::from_std(socket.into())))
    }

    /// Accepts one connection; `None` if the queue is empty. Call it until `None`, or until the
    /// bound on half-open handshakes is reached, and then again without waiting for an event.
    ///
    /// A peer's IPv4 address that is mapped into IPv6 is returned as plain IPv4.
    ///
    /// # Errors
    /// Out of descriptors or memory: wait a while. A connection that died in the queue is skipped.
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
    /// The kernel fails to report the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Connections that the kernel queues (it caps this at `net.core.somaxconn`).
const BACKLOG: i32 = 1024;
