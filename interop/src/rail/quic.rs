//! The users' own QUIC of the rail bench: downloads by `quiche` over UDP.
//!
//! One connection a transfer, with cubic. Its packets carry the same request and content as the TCP
//! flows of the load.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quiche::{Connection, ConnectionId, RecvInfo, SendInfo};
use ring::rand::SecureRandom as _;
use socket2::SockRef;

use super::flow::{CHUNK, Content, Faults, Progress, Request, left, unless_broken};
use crate::keys::Keys;
use crate::programs::Programs;

/// Serves on a socket until the process ends; `folder` is for the keys. Packets have at most
/// `packet` bytes of UDP payload.
pub(crate) fn serve(
    socket: UdpSocket,
    folder: &Path,
    packet: usize,
    content: &Arc<Content>,
    faults: &Faults,
) -> Result<()> {
    let folder = folder.join("quic");
    std::fs::create_dir_all(&folder)?;
    Keys::create(&Programs::find()?, &folder)?.issue_cloud(NAME)?;
    let server = Server { folder, packet, content: content.clone(), faults: faults.clone() };
    std::thread::spawn(move || server.run(&socket));
    Ok(())
}

/// Downloads from the server to which the socket is connected.
pub(crate) fn download(
    socket: &UdpSocket,
    packet: usize,
    request: &Request,
    deadline: Instant,
    content: &Content,
    progress: &Progress,
) -> Result<()> {
    let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
    SockRef::from(socket).set_recv_buffer_size(RECEIVE_BUFFER)?;
    let mut config = config(packet)?;
    let id = random_id()?;
    let connection = quiche::connect(Some(NAME), &id, local, peer, &mut config)?;
    let inbox = read_into_channel(socket.try_clone()?, deadline);
    let mut end = End::new(connection, socket, inbox);
    let outcome = receive(&mut end, request, deadline, content, progress);
    // The server stops sending at once.
    let _ = end.connection.close(true, 0, b"");
    let _ = end.turn(Instant::now());
    outcome
}

fn receive(
    end: &mut End,
    request: &Request,
    deadline: Instant,
    content: &Content,
    progress: &Progress,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    let (mut asked, mut offset) = (false, 0);
    while offset < request.bytes {
        left(deadline)?;
        end.turn(deadline)?;
        if !asked && end.connection.is_established() {
            let sent = end.connection.stream_send(STREAM, &request.encode(), true)?;
            ensure!(sent == Request::BYTES, "the request was cut");
            asked = true;
        }
        while let Ok((length, _)) = end.connection.stream_recv(STREAM, &mut chunk) {
            let wanted = content.piece(request.number, offset, length);
            ensure!(chunk[..length] == *wanted, "wrong bytes after {offset} of {request:?}");
            offset += length as u64;
            progress.add(length as u64);
        }
    }
    Ok(())
}

/// Accepts connections and gives each a thread.
struct Server {
    folder: PathBuf,
    packet: usize,
    content: Arc<Content>,
    faults: Faults,
}

impl Server {
    fn run(self, socket: &UdpSocket) {
        let mut config = match config(self.packet).and_then(|it| with_key(it, &self.folder)) {
            Ok(config) => config,
            Err(error) => return self.faults.add(&error),
        };
        let mut connections: HashMap<SocketAddr, Sender<Datagram>> = HashMap::new();
        let mut buffer = [0; PACKET_MAX];
        loop {
            // An error is about an earlier datagram.
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            let mut datagram = Datagram { from, bytes: buffer[..length].to_vec() };
            if let Some(known) = connections.get(&from) {
                match known.send(datagram) {
                    Ok(()) => continue,
                    Err(returned) => datagram = returned.0,
                }
            }
            match self.accept(socket, &mut config, &mut datagram) {
                Ok(Some(sender)) => drop(connections.insert(from, sender)),
                Ok(None) => drop(connections.remove(&from)),
                Err(error) => self.faults.add(&error),
            }
        }
    }

    /// `None` if it is no first packet.
    fn accept(
        &self,
        socket: &UdpSocket,
        config: &mut quiche::Config,
        first: &mut Datagram,
    ) -> Result<Option<Sender<Datagram>>> {
        let header = quiche::Header::from_slice(&mut first.bytes, quiche::MAX_CONN_ID_LEN);
        if !header.is_ok_and(|header| header.ty == quiche::Type::Initial) {
            return Ok(None);
        }
        let id = random_id()?;
        let connection = quiche::accept(&id, None, socket.local_addr()?, first.from, config)?;
        let (sender, inbox) = mpsc::channel();
        let bytes = std::mem::take(&mut first.bytes);
        sender.send(Datagram { from: first.from, bytes }).context("the channel is closed")?;
        let (socket, content, faults) =
            (socket.try_clone()?, self.content.clone(), self.faults.clone());
        std::thread::spawn(move || {
            let mut end = End::new(connection, &socket, inbox);
            if let Err(error) = answer(&mut end, &content).or_else(unless_broken) {
                faults.add(&error);
            }
        });
        Ok(Some(sender))
    }
}

/// The server's part of one connection, until it is closed.
fn answer(end: &mut End, content: &Content) -> Result<()> {
    let (mut head, mut request, mut offset) = (Vec::new(), None, 0);
    while !end.connection.is_closed() {
        end.turn(Instant::now() + PATIENCE)?;
        if request.is_none() {
            let mut bytes = [0; Request::BYTES];
            while let Ok((length, _)) = end.connection.stream_recv(STREAM, &mut bytes) {
                head.extend_from_slice(&bytes[..length]);
            }
            if let Some(bytes) = head.first_chunk() {
                request = Some(Request::decode(bytes)?);
            }
        }
        let Some(request) = &request else { continue };
        while offset < request.bytes {
            let length = (request.bytes - offset).min(CHUNK as u64) as usize;
            let piece = content.piece(request.number, offset, length);
            let fin = offset + length as u64 == request.bytes;
            match end.connection.stream_send(STREAM, piece, fin) {
                Ok(0) | Err(quiche::Error::Done) => break,
                Ok(sent) => offset += sent as u64,
                // The user has closed it.
                Err(_) if end.connection.is_draining() || end.connection.is_closed() => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

struct Datagram {
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// One end of a connection with its socket.
struct End<'a> {
    connection: Connection,
    socket: &'a UdpSocket,
    inbox: Receiver<Datagram>,
    /// A packet that its pacing holds back.
    held: Option<(usize, SendInfo)>,
    buffer: [u8; PACKET_MAX],
}

impl<'a> End<'a> {
    fn new(connection: Connection, socket: &'a UdpSocket, inbox: Receiver<Datagram>) -> Self {
        Self { connection, socket, inbox, held: None, buffer: [0; PACKET_MAX] }
    }

    /// Sends due packets, and waits for a datagram, a timer or `deadline`.
    fn turn(&mut self, deadline: Instant) -> Result<()> {
        let mut wake = deadline;
        loop {
            if self.held.is_none() {
                match self.connection.send(&mut self.buffer) {
                    Ok(packet) => self.held = Some(packet),
                    Err(quiche::Error::Done) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let Some((length, info)) = self.held else { break };
            if info.at > Instant::now() + SOON {
                wake = wake.min(info.at);
                break;
            }
            // A full queue or a missing route loses it.
            let _ = match self.socket.peer_addr() {
                Ok(_) => self.socket.send(&self.buffer[..length]),
                Err(_) => self.socket.send_to(&self.buffer[..length], info.to),
            };
            self.held = None;
        }
        let wake = wake.min(self.connection.timeout_instant().unwrap_or(wake));
        match self.inbox.recv_timeout(wake.saturating_duration_since(Instant::now())) {
            Ok(datagram) => {
                self.receive(datagram)?;
                while let Ok(datagram) = self.inbox.try_recv() {
                    self.receive(datagram)?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(std::io::Error::from(ErrorKind::ConnectionReset).into());
            }
        }
        if self.connection.timeout_instant().is_some_and(|at| at <= Instant::now()) {
            self.connection.on_timeout();
        }
        if self.connection.is_timed_out() {
            return Err(std::io::Error::from(ErrorKind::TimedOut).into());
        }
        Ok(())
    }

    fn receive(&mut self, mut datagram: Datagram) -> Result<()> {
        let info = RecvInfo { from: datagram.from, to: self.socket.local_addr()? };
        match self.connection.recv(&mut datagram.bytes, info) {
            Ok(_) | Err(quiche::Error::Done) => Ok(()),
            Err(error) => Err(error).context("a packet of the users' QUIC"),
        }
    }
}

/// Hands a socket's datagrams over until the deadline, or until nobody takes them.
fn read_into_channel(socket: UdpSocket, deadline: Instant) -> Receiver<Datagram> {
    let (sender, inbox) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; PACKET_MAX];
        while let Ok(left) = left(deadline) {
            if socket.set_read_timeout(Some(left.min(POLL))).is_err() {
                return;
            }
            // A timeout, or the news that an earlier datagram was refused.
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            if sender.send(Datagram { from, bytes: buffer[..length].to_vec() }).is_err() {
                return;
            }
        }
    });
    inbox
}

fn config(packet: usize) -> Result<quiche::Config> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION)?;
    config.set_application_protos(&[b"polyrail-lab"])?;
    config.set_max_idle_timeout(PATIENCE.as_millis() as u64);
    config.set_max_recv_udp_payload_size(packet);
    config.set_max_send_udp_payload_size(packet);
    config.set_initial_max_data(CREDIT);
    config.set_initial_max_stream_data_bidi_local(CREDIT);
    config.set_initial_max_stream_data_bidi_remote(CREDIT);
    config.set_initial_max_streams_bidi(1);
    config.set_cc_algorithm(quiche::CongestionControlAlgorithm::CUBIC);
    config.verify_peer(false);
    Ok(config)
}

fn with_key(mut config: quiche::Config, folder: &Path) -> Result<quiche::Config> {
    let path = |end: &str| folder.join(format!("{NAME}.{end}")).display().to_string();
    config.load_cert_chain_from_pem_file(&path("crt")).context("the server's certificate")?;
    config.load_priv_key_from_pem_file(&path("key")).context("the server's key")?;
    Ok(config)
}

fn random_id() -> Result<ConnectionId<'static>> {
    let mut id = [0; quiche::MAX_CONN_ID_LEN];
    ring::rand::SystemRandom::new().fill(&mut id).ok().context("no randomness")?;
    Ok(ConnectionId::from_vec(id.to_vec()))
}

/// The UDP payload of browsers' packets, and of WireGuard's on a link of 1,500 bytes.
pub(crate) const BROWSER: usize = 1_350;
pub(crate) const VPN: usize = 1_452;
/// The server's name in its certificate.
const NAME: &str = "quic-server";
const STREAM: u64 = 0;
const PACKET_MAX: usize = 1_500;
/// Chromium's (`kQuicSocketReceiveBufferSize`).
const RECEIVE_BUFFER: usize = 1_024 * 1_024;
/// Bytes that the server may send before the user has read them.
const CREDIT: u64 = 16 * 1_024 * 1_024;
/// How long a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// A packet that is due so soon is sent at once.
const SOON: Duration = Duration::from_millis(1);
const POLL: Duration = Duration::from_millis(200);
