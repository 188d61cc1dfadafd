//! A carrier's socket: bound to the carrier's interface or address, with the kernel's options set.
//!
//! Opens, binds and connects; does not speak TLS. Every failure becomes a [`CloseReason`] that
//! names what the operator can change.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mio::net::TcpStream;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::CloseReason;

/// How a carrier's connections leave this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierSpec {
    /// The carrier's name: the key of its TLS tickets.
    pub name: String,
    /// The interface to bind to (`SO_BINDTODEVICE`).
    pub interface: Option<String>,
    /// The source address to bind to.
    pub source: Option<IpAddr>,
    /// The firewall mark of its packets (`SO_MARK`; needs `CAP_NET_ADMIN`).
    pub mark: Option<u32>,
    /// The kernel's options.
    pub options: SocketOptions,
    /// Whether early data is attempted when a ticket permits it.
    pub early: bool,
    /// The round-trip time that is expected, for the first timeouts of a QUIC connection.
    pub rtt: Option<Duration>,
    /// The folder for a qlog of each QUIC connection.
    pub qlog: Option<std::path::PathBuf>,
}

/// Kernel options of a tunnel's socket. Buffer sizes are left to the kernel's autotuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Congestion control by the kernel's name; `None` leaves the kernel's default.
    pub congestion: Option<String>,
    /// How long sent data may stay unacknowledged before the kernel gives the connection up
    /// (`TCP_USER_TIMEOUT`). Default 60 s; 30 s or less would let a blackout end the path.
    pub user_timeout: Duration,
    /// Idle time before a keep-alive probe, and between probes. Default 30 s.
    pub keepalive: Duration,
    /// How long to wait for the peer's answer to the connect. Default 10 s.
    pub connect_timeout: Duration,
    /// How long to wait for the end of the TLS handshake. Default 10 s.
    pub handshake_timeout: Duration,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            congestion: None,
            user_timeout: Duration::from_secs(60),
            keepalive: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// The kernel's congestion controls, as one line of names.
pub fn available_congestion_controls() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .map_or_else(|error| format!("unknown ({error})"), |names| names.trim().to_owned())
}

/// Begins a connect over the carrier; the socket is writable when it has succeeded or failed.
pub(crate) fn connect(spec: &CarrierSpec, peer: SocketAddr) -> Result<TcpStream, CloseReason> {
    check_family(spec, peer)?;
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(peer), kind, Some(Protocol::TCP))
        .map_err(|error| internal("open a socket", &error))?;
    bind(&socket, spec)?;
    apply_options(&SockRef::from(&socket), &spec.options)?;
    match socket.connect(&peer.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(connect_failure(&error, peer, spec.options.connect_timeout)),
    }
    Ok(TcpStream::from_std(socket.into()))
}

/// Refuses a source address of another family than the peer's.
pub(crate) fn check_family(spec: &CarrierSpec, peer: SocketAddr) -> Result<(), CloseReason> {
    match spec.source {
        Some(source_ip) if source_ip.is_ipv4() != peer.is_ipv4() => {
            Err(CloseReason::FamilyMismatch { source_ip, peer })
        }
        _ => Ok(()),
    }
}

/// Binds a socket to the carrier's interface, mark and source address.
pub(crate) fn bind(socket: &Socket, spec: &CarrierSpec) -> Result<(), CloseReason> {
    if let Some(interface) = &spec.interface {
        socket.bind_device(Some(interface.as_bytes())).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENODEV | libc::EINVAL) => {
                    CloseReason::InterfaceMissing { interface: interface.clone() }
                }
                Some(libc::EPERM) => CloseReason::NotPermitted {
                    action: format!("bind a socket to interface {interface:?}"),
                },
                _ => internal(&format!("bind to interface {interface:?}"), &error),
            }
        })?;
    }
    if let Some(mark) = spec.mark {
        socket.set_mark(mark).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => {
                CloseReason::NotPermitted { action: format!("set firewall mark {mark:#x}") }
            }
            _ => internal(&format!("set firewall mark {mark:#x}"), &error),
        })?;
    }
    let Some(source_ip) = spec.source else { return Ok(()) };
    socket.bind(&SocketAddr::new(source_ip, 0).into()).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => CloseReason::SourceMissing { source_ip },
        _ => internal(&format!("bind to source address {source_ip}"), &error),
    })
}

/// Sets what a connecting and an accepted socket have in common.
pub(crate) fn apply_options(
    socket: &SockRef<'_>,
    options: &SocketOptions,
) -> Result<(), CloseReason> {
    if let Some(wanted) = &options.congestion {
        set_congestion(socket, wanted)?;
    }
    let keepalive =
        TcpKeepalive::new().with_time(options.keepalive).with_interval(options.keepalive);
    socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_user_timeout(Some(options.user_timeout)))
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        .and_then(|()| socket.set_tcp_notsent_lowat(NOTSENT_LOWAT_FIRST))
        .map_err(|error| internal("set the options of a TCP socket", &error))
}

/// Sets the congestion control by the kernel's name.
pub(crate) fn set_congestion(socket: &SockRef<'_>, wanted: &str) -> Result<(), CloseReason> {
    socket.set_tcp_congestion(wanted.as_bytes()).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => CloseReason::CongestionControl {
            wanted: wanted.to_owned(),
            available: format!(
                "{} (it exists, but net.ipv4.tcp_allowed_congestion_control does not list it)",
                available_congestion_controls()
            ),
        },
        _ => CloseReason::CongestionControl {
            wanted: wanted.to_owned(),
            available: available_congestion_controls(),
        },
    })
}

/// What a failed connect means.
pub(crate) fn connect_failure(
    error: &io::Error,
    peer: SocketAddr,
    timeout: Duration,
) -> CloseReason {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => CloseReason::Refused { peer },
        Some(libc::ETIMEDOUT) => CloseReason::ConnectTimedOut { peer, after: timeout },
        Some(
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::EADDRNOTAVAIL
            | libc::EACCES
            | libc::EPERM
            | libc::EINVAL,
        ) => CloseReason::Unreachable { peer, detail: error.to_string() },
        _ => internal(&format!("connect to {peer}"), error),
    }
}

pub(crate) fn internal(action: &str, error: &io::Error) -> CloseReason {
    CloseReason::Internal { action: action.to_owned(), detail: error.to_string() }
}

/// `TCP_NOTSENT_LOWAT` until the link was measured (FACTS: about 16 KB keeps decisions late).
const NOTSENT_LOWAT_FIRST: u32 = 16 * 1024;
