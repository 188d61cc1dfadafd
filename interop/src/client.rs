//! TCP connections of the passenger: intercepted, or through SOCKS5.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::namespace::Namespace;

/// How long a connection may take to stand, and a read to give something.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Connects from inside a namespace.
///
/// # Errors
/// When the connection is refused or not answered within [`PATIENCE`].
pub fn connect(namespace: &Namespace, to: SocketAddr) -> Result<TcpStream> {
    let stream = namespace
        .run(|| TcpStream::connect_timeout(&to, PATIENCE))?
        .with_context(|| format!("connecting to {to}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Starts a thread inside a namespace, for a client that blocks.
///
/// # Errors
/// When the namespace cannot be entered.
pub fn thread<T, F>(namespace: &Namespace, work: F) -> Result<JoinHandle<T>>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    Ok(namespace.run(|| std::thread::spawn(work))?)
}

/// Where a SOCKS5 client wants to go.
#[derive(Clone, Debug)]
pub enum Target {
    /// To an address.
    Address(SocketAddr),
    /// To a name that the far end resolves.
    Name(String, u16),
}

/// Connects through a SOCKS5 proxy and gives the reply code (RFC 1928, 6) with the stream.
///
/// # Errors
/// When the proxy is not there or does not speak SOCKS5.
pub fn socks5(namespace: &Namespace, proxy: SocketAddr, to: &Target) -> Result<(TcpStream, u8)> {
    let mut stream = connect(namespace, proxy)?;
    let code = negotiate(&mut stream, to)?;
    Ok((stream, code))
}

/// Speaks SOCKS5 as a client on a fresh connection and returns the reply code; 0 is success.
///
/// # Errors
/// When the proxy does not speak SOCKS5.
pub fn negotiate(stream: &mut TcpStream, to: &Target) -> Result<u8> {
    let mut request = vec![5, 1, 0, 5, 1, 0];
    let port = match to {
        Target::Address(address) => {
            match address.ip() {
                IpAddr::V4(ip) => {
                    request.push(1);
                    request.extend_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    request.push(4);
                    request.extend_from_slice(&ip.octets());
                }
            }
            address.port()
        }
        Target::Name(name, port) => {
            request.push(3);
            request.push(u8::try_from(name.len()).context("name too long for SOCKS5")?);
            request.extend_from_slice(name.as_bytes());
            *port
        }
    };
    request.extend_from_slice(&port.to_be_bytes());
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
