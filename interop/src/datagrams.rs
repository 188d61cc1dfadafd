//! Datagrams of a passenger: an echo server, single exchanges, also through SOCKS5, and a call.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use polyrail_emulator::namespace::Namespace;

use crate::addresses::{Family, SERVER};
use crate::client;

/// The port of the echo server.
pub const ECHO_PORT: u16 = 7_007;

/// Starts a server in this namespace that returns every datagram, for both families.
///
/// # Errors
/// The port is taken.
pub fn serve_echo(server: &Namespace) -> Result<()> {
    for family in Family::BOTH {
        let address = SERVER.at(family, ECHO_PORT);
        let socket = server.run(|| UdpSocket::bind(address))?.context("echo server")?;
        std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            // An error is about an earlier datagram.
            loop {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        });
    }
    Ok(())
}

/// A socket of a passenger that is connected to an address: it takes only answers from there.
///
/// # Errors
/// The namespace has no route.
pub fn connected(passenger: &Namespace, to: SocketAddr) -> Result<UdpSocket> {
    passenger
        .run(|| {
            let any: IpAddr = match to {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(to)?;
            io::Result::Ok(socket)
        })?
        .context("a passenger's socket")
}

/// Sends one datagram of this length and waits for its echo; false if there is none.
///
/// # Errors
/// The echo differs, or the socket fails.
pub fn echoes(socket: &UdpSocket, length: usize, patience: Duration) -> Result<bool> {
    let sent: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
    socket.set_read_timeout(Some(patience))?;
    socket.send(&sent)?;
    let mut buffer = vec![0; 65_536];
    match socket.recv(&mut buffer) {
        Ok(received) => {
            ensure!(buffer[..received] == sent, "{length} bytes came back as {received} others");
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error).context("an echo"),
    }
}

/// Sends one datagram of this length, and returns the MTU that the network announces because of it
/// (`IP_RECVERR`, ip(7)).
///
/// # Errors
/// The network sends no error, or another one than EMSGSIZE.
pub fn announced_mtu(socket: &UdpSocket, length: usize, patience: Duration) -> Result<u32> {
    match socket.peer_addr()? {
        SocketAddr::V4(_) => setsockopt(socket, Ipv4RecvErr, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, Ipv6RecvErr, &true)?,
    }
    socket.set_read_timeout(Some(patience))?;
    socket.send(&vec![0; length])?;
    let error = socket.recv(&mut [0; 16]).err().context("an answer instead of an error")?;
    ensure!(error.raw_os_error() == Some(libc::EMSGSIZE), "{error}");
    let mut control = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut [], Some(&mut control), flags)?;
    let mtu = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
            Some(error.ee_info)
        }
        _ => None,
    });
    mtu.context("the error has no MTU")
}

/// A SOCKS5 client with a relay for its datagrams (RFC 1928, section 7).
#[derive(Debug)]
pub struct Association {
    /// The association ends with this connection.
    pub connection: TcpStream,
    /// Connected to the relay.
    pub socket: UdpSocket,
}

impl Association {
    /// Asks the proxy for a relay.
    ///
    /// # Errors
    /// The proxy has none.
    pub fn open(passenger: &Namespace, proxy: SocketAddr) -> Result<Self> {
        let mut connection = client::connect(passenger, proxy)?;
        let any = (Ipv4Addr::UNSPECIFIED, 0).into();
        let (code, relay) = client::request(&mut connection, 3, any)?;
        ensure!(code == 0, "SOCKS5 reply {code}");
        ensure!(relay.ip() == proxy.ip(), "the relay is at {relay}");
        Ok(Self { connection, socket: connected(passenger, relay)? })
    }

    /// Sends one datagram of this length to the server, as a name if there is one, and waits for
    /// its echo; false if there is none.
    ///
    /// # Errors
    /// The echo differs or is not from the server, or the socket fails.
    pub fn echoes(&self, to: &[u8], length: usize, patience: Duration) -> Result<bool> {
        let payload: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
        let sent = self.socket.send(&[&[0; 3], to, &payload].concat());
        self.socket.set_read_timeout(Some(patience))?;
        let mut buffer = vec![0; 65_536];
        let received = match sent.and_then(|_| self.socket.recv(&mut buffer)) {
            Ok(received) => &buffer[..received],
            // The relay is closed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error).context("an echo"),
        };
        let is_echo =
            |server| received == [&[0; 3], &client::socks5_address(server)[..], &payload].concat();
        let known = SERVER.both(ECHO_PORT).into_iter().any(is_echo);
        ensure!(known, "{length} bytes came back as {received:?}");
        Ok(true)
    }
}

/// Sends so many datagrams of this length at once, and returns how many echoes come.
///
/// # Errors
/// The socket fails.
pub fn burst(socket: &UdpSocket, count: u8, length: usize, patience: Duration) -> Result<usize> {
    for number in 0..count {
        socket.send(&vec![number; length])?;
    }
    socket.set_read_timeout(Some(patience))?;
    let (mut buffer, mut came) = (vec![0; 65_536], [false; 256]);
    while let Ok(received) = socket.recv(&mut buffer) {
        let number = buffer[0];
        ensure!(buffer[..received] == vec![number; length], "an echo is another one");
        ensure!(!std::mem::replace(&mut came[usize::from(number)], true), "{number} came twice");
    }
    Ok(came.iter().filter(|came| **came).count())
}

/// What happened to the packets of a call.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The round-trip time of each packet; `None` if it was lost. Sent every [`PACKET_EVERY`].
    pub round_trips: Vec<Option<Duration>>,
    /// Echoes that came more than once.
    pub repeated: usize,
}

/// The distance of the packets of a call.
pub const PACKET_EVERY: Duration = Duration::from_millis(20);

impl Call {
    /// Makes a call of this length: 50 packets of 172 bytes a second, which the server returns.
    ///
    /// # Errors
    /// The socket fails.
    pub fn make(socket: &UdpSocket, length: Duration) -> Result<Self> {
        let count = length.div_duration_f64(PACKET_EVERY) as usize;
        let receiver = socket.try_clone()?;
        receiver.set_read_timeout(Some(Duration::from_millis(100)))?;
        let begin = Instant::now();
        let until = begin + length + Duration::from_secs(1);
        let receive = move || {
            let mut call = Self { round_trips: vec![None; count], repeated: 0 };
            let mut buffer = [0; 2_048];
            while Instant::now() < until {
                let Ok(length) = receiver.recv(&mut buffer) else { continue };
                let Some(number) = buffer[..length].first_chunk::<4>() else { continue };
                let number = u32::from_be_bytes(*number) as usize;
                let sent_at = begin + PACKET_EVERY * number as u32;
                match call.round_trips.get_mut(number) {
                    Some(place @ None) => *place = Some(sent_at.elapsed()),
                    Some(Some(_)) => call.repeated += 1,
                    None => {}
                }
            }
            call
        };
        let receiving = std::thread::spawn(receive);
        for number in 0..count as u32 {
            let due = begin + PACKET_EVERY * number;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let mut packet = [0; 172];
            packet[..4].copy_from_slice(&number.to_be_bytes());
            socket.send(&packet)?;
        }
        receiving.join().map_err(|_| anyhow::anyhow!("the receiver of a call panicked"))
    }

    /// How many were lost, or took longer than this.
    pub fn bad(&self, limit: Duration) -> usize {
        self.round_trips.iter().filter(|trip| trip.is_none_or(|trip| trip > limit)).count()
    }
}
