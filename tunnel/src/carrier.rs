//! Sockets: a carrier's, bound to its interface and address with the kernel's options, and the
//! cloud's.
//!
//! Opens, binds and connects; the tunnels do the rest. A failure becomes a [`CloseReason`] that
//! tells the operator what to change.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use mio::net::TcpStream;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

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
    /// The expected round-trip time, for the first timeouts of a QUIC connection.
    pub rtt: Option<Duration>,
    /// The folder for a qlog of each QUIC connection.
    pub qlog: Option<std::path::PathBuf>,
}

/// Kernel options of a tunnel's socket. Buffer sizes are left to the kernel's autotuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Congestion control; over TCP by the kernel's name ([`kernel_control`]). `None` leaves the
    /// kernel's default.
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
    /// The largest TCP segment in both directions, in bytes (`TCP_MAXSEG`). Default: none.
    pub segment_max: Option<u32>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            congestion: None,
            user_timeout: Duration::from_secs(60),
            keepalive: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            segment_max: None,
        }
    }
}

/// The kernel's congestion controls, as one line of names.
fn available_congestion_controls() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .map_or_else(|error| format!("unknown ({error})"), |names| names.trim().to_owned())
}

/// Begins a connect over the carrier; the socket is writable when it has succeeded or failed.
pub(crate) fn connect(spec: &CarrierSpec, peer: SocketAddr) -> Result<TcpStream, CloseReason> {
    let socket = open(spec, peer, Type::STREAM)?;
    apply_options(&SockRef::from(&socket), &spec.options)?;
    match socket.connect(&peer.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(connect_failure(&error, peer, spec.options.connect_timeout)),
    }
    Ok(TcpStream::from_std(socket.into()))
}

/// Opens a socket bound to the carrier's interface, mark and source address.
pub(crate) fn open(
    spec: &CarrierSpec,
    peer: SocketAddr,
    kind: Type,
) -> Result<Socket, CloseReason> {
    let unusable = |text: String| Err(CloseReason::Unusable(text));
    let denied = |action: String| {
        unusable(format!(
            "no permission to {action}: the process lacks CAP_NET_ADMIN or CAP_NET_RAW"
        ))
    };
    if let Some(ip) = spec.source.filter(|ip| ip.is_ipv4() != peer.is_ipv4()) {
        return unusable(format!(
            "source address {ip} and {peer} are of different address families"
        ));
    }
    let socket = Socket::new(Domain::for_address(peer), kind.nonblocking().cloexec(), None)
        .map_err(|error| internal("open a socket", &error))?;
    if let Some(interface) = &spec.interface
        && let Err(error) = socket.bind_device(Some(interface.as_bytes()))
    {
        let action = format!("bind a socket to interface {interface:?}");
        return match error.raw_os_error() {
            Some(libc::ENODEV | libc::EINVAL) => unusable(format!(
                "interface {interface:?} does not exist: is the modem there, is the name right?"
            )),
            Some(libc::EPERM) => denied(action),
            _ => Err(internal(&action, &error)),
        };
    }
    if let Some(mark) = spec.mark
        && let Err(error) = socket.set_mark(mark)
    {
        let action = format!("set firewall mark {mark:#x}");
        return match error.raw_os_error() {
            Some(libc::EPERM) => denied(action),
            _ => Err(internal(&action, &error)),
        };
    }
    if let Some(ip) = spec.source
        && let Err(error) = socket.bind(&SocketAddr::new(ip, 0).into())
    {
        return match error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => {
                unusable(format!("source address {ip} is not on this host: is the carrier up?"))
            }
            _ => Err(internal(&format!("bind to source address {ip}"), &error)),
        };
    }
    Ok(socket)
}

/// Opens and binds a socket for peers; an IPv6 wildcard address takes IPv4 as well, and becomes the
/// IPv4 wildcard on a host without IPv6. With `shared`, other sockets of this user that want it too
/// can be bound to the same address (`SO_REUSEPORT`).
pub(crate) fn bind(address: SocketAddr, kind: Type, shared: bool) -> io::Result<Socket> {
    let open =
        |address| Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), None);
    let wildcard = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
    let (socket, address) = match open(address) {
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) && address == wildcard => {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            (open(address)?, address)
        }
        socket => (socket?, address),
    };
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    if kind == Type::STREAM {
        // A restart must not wait for the old connections' TIME_WAIT.
        socket.set_reuse_address(true)?;
    }
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Sets the options of connecting and accepted TCP sockets.
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
        .and_then(|()| options.segment_max.map_or(Ok(()), |bytes| socket.set_tcp_mss(bytes)))
        .map_err(|error| internal("set the options of a TCP socket", &error))
}

/// The kernel's name of a congestion control: the tunnels' own, `rail`, exists over QUIC only, and
/// stands for bbr over TCP.
pub fn kernel_control(name: &str) -> &str {
    if name == "rail" { "bbr" } else { name }
}

/// Sets the congestion control, by its name in configurations.
pub(crate) fn set_congestion(socket: &SockRef<'_>, wanted: &str) -> Result<(), CloseReason> {
    socket.set_tcp_congestion(kernel_control(wanted).as_bytes()).map_err(|error| {
        let forbidden = match error.raw_os_error() {
            Some(libc::EPERM) => {
                " (it exists, but net.ipv4.tcp_allowed_congestion_control does not list it)"
            }
            _ => "",
        };
        let available = available_congestion_controls() + forbidden;
        CloseReason::CongestionControl { wanted: wanted.to_owned(), available }
    })
}

/// The reason for a failed connect.
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

/// `TCP_NOTSENT_LOWAT` until the link is measured: about a run of data, so that the scheduler
/// decides late.
const NOTSENT_LOWAT_FIRST: u32 = 16 * 1024;
