//! UDP sockets for datagrams to any server (TPROXY), and for answers from its address.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use nix::sys::socket::sockopt::{Ipv4OrigDstAddr, Ipv6OrigDstAddr, RcvBufForce};
use nix::sys::socket::{ControlMessageOwned, setsockopt};
use polyrail_relay::{AcceptGate, Marked, receive_marked, watch_marks};
use socket2::{Protocol, SockAddr, Socket, Type};

use super::{loopback, transparent_socket};

/// A socket that receives the datagrams of one address family.
#[derive(Debug)]
pub struct TransparentUdp {
    socket: UdpSocket,
    local: SocketAddr,
    control: Vec<u8>,
}

/// The sockets of all families, with the readiness of each.
#[derive(Debug)]
pub(crate) struct UdpSockets(Vec<(TransparentUdp, AcceptGate)>);

impl UdpSockets {
    /// Registers the sockets under `base` and the following tokens.
    pub(crate) fn new(
        registry: &Registry,
        base: usize,
        sockets: Vec<TransparentUdp>,
    ) -> io::Result<Self> {
        let register = |(token, mut socket): (usize, TransparentUdp)| {
            socket.register(registry, Token(token))?;
            Ok((socket, AcceptGate::default()))
        };
        (base..).zip(sockets).map(register).collect::<io::Result<_>>().map(Self)
    }

    /// The socket with this index is readable.
    pub(crate) fn on_ready(&mut self, index: usize) {
        if let Some((_, gate)) = self.0.get_mut(index) {
            gate.on_ready();
        }
    }

    /// Hands over waiting datagrams, at most `most` of each socket.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        most: usize,
        mut each: impl FnMut(Diverted, &[u8]),
    ) {
        for (socket, gate) in &mut self.0 {
            for _ in 0..most {
                let received = gate.take(now, || socket.receive(buffer).map(Some));
                let Some(datagram) = received else { break };
                each(datagram, &buffer[..datagram.length.min(buffer.len())]);
            }
        }
    }

    /// The socket of this address's family.
    pub(crate) fn serving(&self, address: SocketAddr) -> Option<&TransparentUdp> {
        self.0.iter().map(|(socket, _)| socket).find(|socket| socket.serves(address))
    }

    /// When [`UdpSockets::receive`] is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        self.0.iter().filter_map(|(_, gate)| gate.next_timeout(now)).min()
    }
}

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diverted {
    /// Its length; the buffer holds its beginning if it is longer than that.
    pub length: usize,
    /// The passenger's address.
    pub client: SocketAddr,
    /// The server to which it was sent.
    pub server: SocketAddr,
    /// The passenger marked it as EF.
    pub expedited: bool,
}

impl TransparentUdp {
    /// Listens on 127.0.0.1 if `ipv4`, and on ::1 if `ipv6`. It also accepts datagrams to these
    /// addresses, for a resolver on the gateway.
    ///
    /// # Errors
    /// The port is taken, or the process lacks `CAP_NET_ADMIN`.
    pub fn bind_loopback(port: u16, ipv4: bool, ipv6: bool) -> io::Result<Vec<Self>> {
        loopback(port, ipv4, ipv6).map(Self::bind).collect()
    }

    /// Registers it for reading.
    ///
    /// # Errors
    /// The kernel's.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE)
    }

    /// Receives one datagram into the buffer. A longer one is truncated.
    ///
    /// # Errors
    /// `WouldBlock` if no datagram is queued; otherwise the kernel's.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Diverted> {
        let mut server = None;
        let other = |control: &ControlMessageOwned| match control {
            ControlMessageOwned::Ipv4OrigDstAddr(raw) => {
                let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
                server = Some(SocketAddr::from((ip, u16::from_be(raw.sin_port))));
            }
            ControlMessageOwned::Ipv6OrigDstAddr(raw) => {
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                server = Some(SocketAddr::from((ip, u16::from_be(raw.sin6_port))));
            }
            _ => {}
        };
        let received = receive_marked(&self.socket, buffer, &mut self.control, other)?;
        let Marked { length, from: client, expedited } = received;
        let server = server.ok_or_else(|| io::Error::other("a datagram without a destination"))?;
        Ok(Diverted { length, client, server, expedited })
    }

    /// Sends an answer from the server's address, without blocking: if the kernel's buffer is
    /// full, the datagram is dropped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn reply(&self, server: SocketAddr, client: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        if server == self.local {
            // A second socket on our own address would receive queries while it is open.
            return self.socket.send_to(bytes, client).map(drop);
        }
        let socket = answering_socket(server)?;
        socket.send_to(bytes, &SockAddr::from(client)).map(drop)
    }

    /// Whether the address belongs to this socket's family.
    pub fn serves(&self, address: SocketAddr) -> bool {
        self.local.is_ipv4() == address.is_ipv4()
    }

    fn bind(local: SocketAddr) -> io::Result<Self> {
        let socket = transparent_socket(local, Type::DGRAM, Protocol::UDP)?;
        if local.is_ipv4() {
            setsockopt(&socket, Ipv4OrigDstAddr, &true)?;
        } else {
            setsockopt(&socket, Ipv6OrigDstAddr, &true)?;
        }
        watch_marks(&socket, local.is_ipv4())?;
        // Without the capability in the initial user namespace net.core.rmem_max is the bound.
        if setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER).is_err() {
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        socket.bind(&SockAddr::from(local))?;
        let socket = UdpSocket::from_std(socket.into());
        let local = socket.local_addr()?;
        let control = nix::cmsg_space!(libc::sockaddr_in6, libc::c_int);
        Ok(Self { socket, local, control })
    }
}

/// A socket that sends from a server's address.
///
/// # Errors
/// The process lacks `CAP_NET_ADMIN`.
pub(crate) fn answering_socket(server: SocketAddr) -> io::Result<Socket> {
    let socket = transparent_socket(server, Type::DGRAM, Protocol::UDP)?;
    socket.bind(&SockAddr::from(server))?;
    Ok(socket)
}

/// The receive buffer of all passengers' datagrams. The kernel counts a short datagram as 768 bytes
/// and takes twice this size: 2,700 short datagrams, or 70 ms of long ones at 150 Mbit/s. Its usual
/// buffer is full after 277, and then drops the datagrams of other passengers, too.
const RECEIVE_BUFFER: usize = 1_024 * 1_024;
