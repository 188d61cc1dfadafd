//! Small servers of the lab with a thread per connection. They live as long as the harness.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result};
use polyrail_emulator::namespace::Namespace;

/// The greeting of the server that speaks first.
pub const BANNER: &str = "220 mail.polyrail.test ESMTP ready\r\n";

/// Runs `work` for each connection to `address` on a thread of its own.
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

/// A server that greets first, as SMTP and SSH servers do, and then echoes each line.
pub fn serve_banner(namespace: &Namespace, address: SocketAddr) -> Result<()> {
    serve(namespace, address, |mut stream, _| {
        // Fails if the client disconnects, which nobody needs to know.
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
pub fn serve_echo(namespace: &Namespace, address: SocketAddr) -> Result<()> {
    serve(namespace, address, |mut stream, _| {
        let _ = echo(&mut stream);
    })
}

/// Echoes until the client finishes.
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
