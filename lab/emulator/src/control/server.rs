//! The listening side of the control socket; it never blocks.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

/// The most connections at a time; one more is closed at once.
const CLIENTS_MAX: usize = 16;

/// The longest line; a longer one ends its connection.
const LINE_BYTES_MAX: usize = 1024;

/// The control socket; dropping it removes its file.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Server {
    /// Listens at `path` and registers with `gate`. The file of a dead emulator is replaced.
    pub(crate) fn new(path: &Path, gate: &Epoll) -> std::io::Result<Self> {
        let is_socket = std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket());
        let refuses = |e: std::io::Error| e.kind() == ErrorKind::ConnectionRefused;
        if is_socket && UnixStream::connect(path).is_err_and(refuses) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        gate.add(listener.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self { path: path.to_owned(), listener, clients: Vec::new() })
    }

    /// Accepts new connections and answers all complete lines.
    pub(crate) fn serve(&mut self, gate: &Epoll, mut answer: impl FnMut(&str) -> String) {
        while let Ok((stream, _)) = self.listener.accept() {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            let wanted = self.clients.len() < CLIENTS_MAX;
            if wanted
                && stream.set_nonblocking(true).is_ok()
                && gate.add(stream.as_fd(), event).is_ok()
            {
                self.clients.push(Connection { stream, input: Vec::new() });
            }
        }
        // A closed descriptor leaves the gate by itself.
        self.clients.retain_mut(|client| client.serve(&mut answer));
    }
}

impl Connection {
    /// False when the connection is over.
    fn serve(&mut self, answer: &mut impl FnMut(&str) -> String) -> bool {
        loop {
            let mut chunk = [0; LINE_BYTES_MAX];
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            }
            while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                let reply = answer(String::from_utf8_lossy(&line).trim_end()) + "\n";
                // A client that does not read the answers loses the connection.
                if self.stream.write_all(reply.as_bytes()).is_err() {
                    return false;
                }
            }
            if self.input.len() > LINE_BYTES_MAX {
                return false;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
