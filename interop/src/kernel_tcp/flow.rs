//! One flow of the kernel's TCP: a server that writes without end, a client that reads.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polyrail_emulator::namespace::Namespace;
use polyrail_emulator::tcp::TcpInfo;
use polyrail_emulator::trials::Sample;
use socket2::{Domain, Socket, Type};

use super::emulate::addresses;

/// A flow under way; dropped, it ends.
pub(super) struct Flow {
    server: TcpStream,
    client: TcpStream,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Flow {
    /// Over the link at `place`; data flows from `begin` on.
    pub(super) fn connect(
        near: &Namespace,
        far: &Namespace,
        place: usize,
        control: &str,
        begin: Instant,
        length: Duration,
    ) -> Result<Self> {
        let [client, server] = addresses(place);
        let listener = far.run(|| listen(server, control))??;
        let address = SocketAddr::from((server, PORT));
        let client = near.run(|| -> Result<TcpStream> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&SocketAddr::from((client, 0)).into())?;
            socket.connect(&address.into())?;
            Ok(socket.into())
        })??;
        let server: TcpStream = listener.accept()?.0.into();
        let received = Arc::new(AtomicU64::new(0));
        let (count, mut reader) = (Arc::clone(&received), client.try_clone()?);
        let mut writer = server.try_clone()?;
        let threads = vec![
            std::thread::spawn(move || {
                let mut buffer = vec![0; CHUNK];
                while let Ok(read @ 1..) = reader.read(&mut buffer) {
                    count.fetch_add(read as u64, Ordering::Relaxed);
                }
            }),
            std::thread::spawn(move || {
                std::thread::sleep(begin.saturating_duration_since(Instant::now()));
                let (chunk, end) = (vec![0; CHUNK], begin + length);
                while Instant::now() < end && writer.write_all(&chunk).is_ok() {}
            }),
        ];
        Ok(Self { server, client, received, threads })
    }

    /// All but the time and the queue.
    pub(super) fn sample(&self) -> Result<Sample> {
        let info = TcpInfo::read(self.server.as_fd()).context("TCP_INFO")?;
        Ok(Sample {
            delivered: self.received.load(Ordering::Relaxed),
            rtt_ms: info.rtt.as_secs_f64() * 1e3,
            window: info.window,
            backoff: info.backoff,
            rto_ms: info.timeout.as_secs_f64() * 1e3,
            resent: info.resent,
            ..Sample::default()
        })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Wakes both threads; a connection that is gone has woken them before.
        for socket in [&self.server, &self.client] {
            let _ = socket.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn listen(address: Ipv4Addr, control: &str) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket
        .set_tcp_congestion(control.as_bytes())
        .with_context(|| format!("TCP cannot use {control} here: run `modprobe tcp_{control}`"))?;
    socket.bind(&SocketAddr::from((address, PORT)).into())?;
    socket.listen(1)?;
    Ok(socket)
}

const PORT: u16 = 5_001;
/// What is read or written at once, in bytes.
const CHUNK: usize = 64 * 1_024;
