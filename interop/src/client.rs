//! TCP connections of the passenger: intercepted, or through SOCKS5.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::namespace::Namespace;

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
    let mut request = vec![5, 1, 0, 5, 1, 0];
    match to.ip() {
        IpAddr::V4(ip) => {
            request.push(1);
            request.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            request.push(4);
            request.extend_from_slice(&ip.octets());
        }
    }
    request.extend_from_slice(&to.port().to_be_bytes());
    stream.write_all(&request[..3])?;
    let mut choice = [0; 2];
    stream.read_exact(&mut choice).context("SOCKS5 method")?;
    ensure!(choice == [5, 0], "the proxy answers {choice:?} to the methods");
    stream.write_all(&request[3..])?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).context("SOCKS5 reply")?;
    let rest = match head {
        [5, _, 0, 1] => 4 + 2,
        [5, _, 0, 4] => 16 + 2,
        _ => bail!("the proxy replies {head:?}"),
    };
    stream.read_exact(&mut vec![0; rest]).context("SOCKS5 bound address")?;
    Ok(head[1])
}
