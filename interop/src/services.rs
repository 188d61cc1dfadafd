//! Small servers of the lab, one thread a connection, each living as long as the harness.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;

use anyhow::{Context, Result};
use polyrail_emulator::namespace::Namespace;

/// What the server that speaks first says.
pub const BANNER: &str = "220 mail.polyrail.test ESMTP ready\r\n";

/// Serves each connection to `address` by `work` on a thread of its own.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve<F>(namespace: &Namespace, address: SocketAddr, work: F) -> Result<()>
where
    F: Fn(TcpStream, SocketAddr) + Send + Sync + 'static,
{
    let listener = namespace
        .run(|| TcpListener::bind(address))?
        .with_context(|| format!("a server at {address}"))?;
    let work = Arc::new(work);
    std::thread::spawn(move || {
        while let Ok((stream, peer)) = listener.accept() {
            let work = Arc::clone(&work);
            std::thread::spawn(move || work(stream, peer));
        }
    });
    Ok(())
}

/// A server that greets before it is spoken to, as SMTP and SSH servers do, and then answers each
/// line with the same line.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve_banner(namespace: &Namespace, address: SocketAddr) -> Result<()> {
    serve(namespace, address, |mut stream, _| {
        // A client that leaves ends the connection; there is nobody to tell.
        let _ = greet(&mut stream);
    })
}

fn greet(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(BANNER.as_bytes())?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        stream.write_all(line.as_bytes())?;
        line.clear();
    }
    Ok(())
}

/// A server that echoes each byte without delay.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve_echo(namespace: &Namespace, address: SocketAddr) -> Result<()> {
    serve(namespace, address, |mut stream, _| {
        let _ = echo(&mut stream);
    })
}

/// Echoes until the client finishes.
///
/// # Errors
/// When the connection breaks.
pub fn echo(stream: &mut TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&chunk[..length])?;
    }
}

/// A server that tells each client the address that it came from, and closes.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve_whoami(namespace: &Namespace, address: SocketAddr) -> Result<()> {
    serve(namespace, address, |mut stream, peer| {
        let _ = stream.write_all(peer.ip().to_string().as_bytes());
    })
}

/// A UDP server that tells each client the address that it came from.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve_whoami_udp(namespace: &Namespace, address: SocketAddr) -> Result<()> {
    let socket = namespace
        .run(|| UdpSocket::bind(address))?
        .with_context(|| format!("a UDP server at {address}"))?;
    std::thread::spawn(move || {
        let mut packet = [0; 1500];
        while let Ok((_, from)) = socket.recv_from(&mut packet) {
            let _ = socket.send_to(from.ip().to_string().as_bytes(), from);
        }
    });
    Ok(())
}
