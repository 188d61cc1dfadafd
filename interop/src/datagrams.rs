//! Datagrams of a passenger: an echo server, single exchanges, also through SOCKS5, and a call.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
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
#[derive(Clone, Debug)]
pub struct Call {
    /// The round-trip time of each packet; `None` if it was lost. Sent every [`PACKET_EVERY`].
    pub round_trips: Vec<Option<Duration>>,
    /// Echoes that came more than once.
    pub repeated: usize,
    /// Datagrams that nobody has sent.
    pub corrupted: usize,
    begin: Instant,
}

/// The distance of the packets of a call.
pub const PACKET_EVERY: Duration = Duration::from_millis(20);
/// How long echoes are awaited after the last packet.
const LINGER: Duration = Duration::from_millis(500);

impl Call {
    /// Makes a call of this length: 50 packets of 172 bytes a second, which the server returns.
    ///
    /// # Errors
    /// The socket fails.
    pub fn make(socket: &UdpSocket, length: Duration) -> Result<Self> {
        let running = RunningCall::start(socket)?;
        std::thread::sleep(length);
        running.end()
    }

    /// How many were lost, or took longer than this.
    pub fn bad(&self, limit: Duration) -> usize {
        self.round_trips.iter().filter(|trip| trip.is_none_or(|trip| trip > limit)).count()
    }

    /// The packets sent in this time.
    pub fn within(&self, time: Range<Instant>) -> &[Option<Duration>] {
        let number = |at: Instant| {
            let after = at.saturating_duration_since(self.begin).div_duration_f64(PACKET_EVERY);
            (after.ceil() as usize).min(self.round_trips.len())
        };
        &self.round_trips[number(time.start)..number(time.end)]
    }
}

/// A call that lasts until [`RunningCall::end`], or until it is dropped.
#[derive(Debug)]
pub struct RunningCall {
    begin: Instant,
    enough: Arc<AtomicBool>,
    threads: Option<(JoinHandle<io::Result<u32>>, JoinHandle<Received>)>,
}

/// The round-trip times of echoes by number, and the counts of repeated and corrupted ones.
type Received = (HashMap<u32, Duration>, usize, usize);

impl RunningCall {
    /// Begins to send.
    ///
    /// # Errors
    /// The socket fails.
    pub fn start(socket: &UdpSocket) -> Result<Self> {
        let (sender, receiver) = (socket.try_clone()?, socket.try_clone()?);
        receiver.set_read_timeout(Some(Duration::from_millis(100)))?;
        let (enough, over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let begin = Instant::now();
        let flags = (Arc::clone(&enough), Arc::clone(&over));
        let sending = std::thread::spawn(move || {
            let sent = send_until(&sender, begin, &flags.0);
            std::thread::sleep(LINGER);
            flags.1.store(true, Ordering::Relaxed);
            sent
        });
        let receiving = std::thread::spawn(move || receive_until(&receiver, begin, &over));
        Ok(Self { begin, enough, threads: Some((sending, receiving)) })
    }

    /// Ends it and waits for the last echoes.
    ///
    /// # Errors
    /// The socket failed.
    pub fn end(mut self) -> Result<Call> {
        self.enough.store(true, Ordering::Relaxed);
        let (sending, receiving) = self.threads.take().context("the call has ended")?;
        let sent = sending.join().map_err(|_| anyhow!("the sender of a call panicked"))?;
        let sent = sent.context("a call")?;
        let received = receiving.join().map_err(|_| anyhow!("the receiver of a call panicked"))?;
        let (echoes, repeated, corrupted) = received;
        let round_trips = (0..sent).map(|number| echoes.get(&number).copied()).collect();
        Ok(Call { round_trips, repeated, corrupted, begin: self.begin })
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

/// The packet of a call with this number.
fn packet(number: u32) -> [u8; 172] {
    let mut packet = [number as u8; 172];
    packet[..4].copy_from_slice(&number.to_be_bytes());
    packet
}

fn send_until(socket: &UdpSocket, begin: Instant, enough: &AtomicBool) -> io::Result<u32> {
    let mut number = 0;
    while !enough.load(Ordering::Relaxed) {
        match socket.send(&packet(number)) {
            // The answer to an earlier packet, as while the gateway restarts. That one is lost.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            sent => drop(sent?),
        }
        number += 1;
        let due = begin + PACKET_EVERY * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(number)
}

fn receive_until(socket: &UdpSocket, begin: Instant, over: &AtomicBool) -> Received {
    let (mut echoes, mut repeated, mut corrupted) = (HashMap::new(), 0, 0);
    let mut buffer = [0; 2_048];
    while !over.load(Ordering::Relaxed) {
        let Ok(length) = socket.recv(&mut buffer) else { continue };
        let number = buffer.first_chunk().map_or(0, |number| u32::from_be_bytes(*number));
        if buffer[..length] != packet(number) {
            corrupted += 1;
            continue;
        }
        let trip = (begin + PACKET_EVERY * number).elapsed();
        repeated += usize::from(echoes.insert(number, trip).is_some());
    }
    (echoes, repeated, corrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_counts_lost_repeated_and_corrupted_packets() {
        let [passenger, server] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        passenger.connect(server.local_addr().unwrap()).unwrap();
        server.connect(passenger.local_addr().unwrap()).unwrap();
        let begin = Instant::now();
        let call = RunningCall::start(&passenger).unwrap();
        let mut buffer = [0; 2_048];
        for number in 0..6 {
            let length = server.recv(&mut buffer).unwrap();
            // Number 1 is lost, number 2 is repeated, and number 3 is changed.
            buffer[100] ^= u8::from(number == 3);
            for _ in 0..[1, 0, 2, 1, 1, 1][number] {
                server.send(&buffer[..length]).unwrap();
            }
        }
        let call = call.end().unwrap();
        assert_eq!((call.repeated, call.corrupted), (1, 1));
        let lost: Vec<bool> = call.round_trips[..6].iter().map(Option::is_none).collect();
        assert_eq!(lost, [false, true, false, true, false, false]);
        assert_eq!(call.within(begin..begin).len(), 0);
        let all = call.within(begin..begin + Duration::from_secs(60));
        assert_eq!(all.len(), call.round_trips.len());
    }
}
