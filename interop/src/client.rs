//! TCP connections of the passenger: intercepted, or through SOCKS5.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::namespace::Namespace;
use socket2::{Domain, Socket, Type};

/// The timeout of a connection attempt and of a read.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Connects from inside a namespace.
pub fn connect(namespace: &Namespace, to: SocketAddr) -> Result<TcpStream> {
    let stream = namespace
        .run(|| TcpStream::connect_timeout(&to, PATIENCE))?
        .with_context(|| format!("connecting to {to}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects from a source address of the calling thread's namespace. A connect and a read may take
/// `patience` each.
pub fn connect_from(from: IpAddr, to: SocketAddr, patience: Duration) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), patience).with_context(|| format!("connecting to {to}"))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

/// Starts a thread inside a namespace, for a client that blocks.
pub fn thread<T, F>(namespace: &Namespace, work: F) -> Result<JoinHandle<T>>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    Ok(namespace.run(|| std::thread::spawn(work))?)
}

/// Connects through a SOCKS5 proxy; returns the stream and the reply code (RFC 1928, section 6).
pub fn socks5(namespace: &Namespace, proxy: SocketAddr, to: SocketAddr) -> Result<(TcpStream, u8)> {
    let mut stream = connect(namespace, proxy)?;
    let code = negotiate(&mut stream, to)?;
    Ok((stream, code))
}

/// Negotiates SOCKS5 on a new connection and returns the reply code; 0 is success.
pub fn negotiate(stream: &mut TcpStream, to: SocketAddr) -> Result<u8> {
    Ok(request(stream, 1, to)?.0)
}

/// An address in a SOCKS5 message.
pub fn socks5_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = match address.ip() {
        IpAddr::V4(ip) => [&[1], &ip.octets()[..]].concat(),
        IpAddr::V6(ip) => [&[4], &ip.octets()[..]].concat(),
    };
    bytes.extend_from_slice(&address.port().to_be_bytes());
    bytes
}

/// Sends a SOCKS5 request with this command; returns the reply code and the bound address.
pub fn request(stream: &mut TcpStream, command: u8, to: SocketAddr) -> Result<(u8, SocketAddr)> {
    let request = [&[5, 1, 0, 5, command, 0], &socks5_address(to)[..]].concat();
    stream.write_all(&request[..3])?;
    let mut choice = [0; 2];
    stream.read_exact(&mut choice).context("SOCKS5 method")?;
    ensure!(choice == [5, 0], "the proxy answers {choice:?} to the methods");
    stream.write_all(&request[3..])?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).context("SOCKS5 reply")?;
    let (mut v4, mut v6, mut port) = ([0; 4], [0; 16], [0; 2]);
    let ip = match head {
        [5, _, 0, 1] => stream.read_exact(&mut v4).map(|()| IpAddr::from(v4)),
        [5, _, 0, 4] => stream.read_exact(&mut v6).map(|()| IpAddr::from(v6)),
        _ => bail!("the proxy replies {head:?}"),
    };
    let ip = ip.context("SOCKS5 bound address")?;
    stream.read_exact(&mut port).context("SOCKS5 bound port")?;
    Ok((head[1], (ip, u16::from_be_bytes(port)).into()))
}
