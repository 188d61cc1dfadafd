//! The Unix socket: made for the daemon's own user alone, and never taken from a live daemon.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{Mode, fchmod};

/// A socket that this process made; its file goes when this is dropped, if it is still the same.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    made: (u64, u64),
}

/// Makes the socket. One that a dead daemon left behind is replaced.
///
/// # Errors
/// Another process answers there, something else stands there, or it cannot be made. The message
/// names the socket and says what to do.
pub(super) fn bind(path: &Path) -> io::Result<(UnixListener, Socket)> {
    let refuse = |kind, reason: &str| {
        io::Error::new(kind, format!("the admin socket {}: {reason}", path.display()))
    };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let reason = "the file is not a socket: remove it, or set another admin.socket";
            return Err(refuse(io::ErrorKind::AlreadyExists, reason));
        }
        Ok(_) => match probe(path) {
            Ok(()) | Err(Errno::EAGAIN) => {
                let reason = "another process listens on it: is a daemon running already?";
                return Err(refuse(io::ErrorKind::AddrInUse, reason));
            }
            Err(Errno::ECONNREFUSED) => {
                fs::remove_file(path).map_err(|e| refuse(e.kind(), &e.to_string()))?;
            }
            Err(Errno::ENOENT) => {}
            Err(error) => {
                let reason = format!(
                    "cannot determine whether a process listens on it ({error}): remove it if none \
                     does, or set another admin.socket"
                );
                return Err(refuse(io::Error::from(error).kind(), &reason));
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refuse(error.kind(), &error.to_string())),
    }
    let listener = listen(path).map_err(|error| refuse(error.kind(), &error.to_string()))?;
    let made = fs::symlink_metadata(path);
    let made = made.map_err(|error| refuse(error.kind(), &error.to_string()))?;
    Ok((listener, Socket { path: path.to_owned(), made: (made.dev(), made.ino()) }))
}

/// Connects without blocking, because a live daemon may be too busy to accept (unix(7),
/// connect(2)).
fn probe(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let client = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(client.as_raw_fd(), &UnixAddr::new(path)?)
}

/// A listener whose file has its mode from the start, because Linux copies the socket's mode
/// (unix(7), "Pathname socket ownership and permissions", and `unix_bind_bsd`).
fn listen(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    nix::sys::socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    nix::sys::socket::listen(&socket, Backlog::new(CLIENTS_WAITING)?)?;
    Ok(UnixListener::from(socket))
}

/// The backlog of the socket.
const CLIENTS_WAITING: i32 = 128;

impl Drop for Socket {
    fn drop(&mut self) {
        let same = |found: fs::Metadata| (found.dev(), found.ino()) == self.made;
        if fs::symlink_metadata(&self.path).is_ok_and(same) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn socket_has_mode_0600_and_is_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (listener, socket) = bind(&path).unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        let error = bind(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("is a daemon running already?"), "{error}");
        assert!(UnixStream::connect(&path).is_ok(), "the live socket is kept");
        drop((listener, socket));
        assert!(!path.exists());
    }

    #[test]
    fn socket_of_a_dead_daemon_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let (_listener, old) = bind(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        // The new file belongs to another process.
        fs::remove_file(&path).unwrap();
        let (_newer, _socket) = bind(&path).unwrap();
        drop(old);
        assert!(path.exists());
    }

    #[test]
    fn busy_live_socket_is_kept_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let full = UnixListener::bind(&path).unwrap();
        nix::sys::socket::listen(&full, Backlog::new(0).unwrap()).unwrap();
        let _first = UnixStream::connect(&path).unwrap();
        let (sender, outcome) = std::sync::mpsc::channel();
        let bound = path.clone();
        std::thread::spawn(move || sender.send(bind(&bound).map(|_| ())));
        let outcome = outcome.recv_timeout(Duration::from_secs(10)).expect("it does not wait");
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn socket_of_unknown_state_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _other = UnixDatagram::bind(&path).unwrap();
        let error = bind(&path).unwrap_err().to_string();
        assert!(error.contains("cannot determine whether a process listens on it"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let error = bind(&folder.path().join("none/s")).unwrap_err();
        assert!(error.to_string().contains("none/s: No such file"), "{error}");
    }
}
