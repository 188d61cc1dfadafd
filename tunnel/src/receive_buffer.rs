//! The size of a socket's receive buffer, and whether the kernel may still enlarge it.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Keeps the kernel from changing the size of a socket's receive buffer, or lets it again
/// (`SO_BUF_LOCK`, Linux 5.14). The data in the buffer stays.
///
/// # Errors
/// The kernel is older.
pub fn freeze_receive_buffer(socket: BorrowedFd<'_>, frozen: bool) -> io::Result<()> {
    let flags: libc::c_int = if frozen { SOCK_RCVBUF_LOCK } else { 0 };
    // SAFETY: the pointer is to a live local variable, and the length is that of its type.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUF_LOCK,
            (&raw const flags).cast(),
            size_of_val(&flags) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SOCK_RCVBUF_LOCK` of `linux/socket.h`.
const SOCK_RCVBUF_LOCK: libc::c_int = 2;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use socket2::SockRef;

    use super::*;

    /// The size of the receive buffer after a reader followed a fast sender.
    fn size_after_transfer(frozen: bool) -> (usize, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        freeze_receive_buffer(near.as_fd(), frozen).unwrap();
        let before = SockRef::from(&near).recv_buffer_size().unwrap();
        let sender = std::thread::spawn(move || {
            let block = vec![7; 1 << 20];
            (0..128).for_each(|_| far.write_all(&block).unwrap());
        });
        std::io::copy(&mut (&mut near).take(128 << 20), &mut std::io::sink()).unwrap();
        sender.join().unwrap();
        (before, SockRef::from(&near).recv_buffer_size().unwrap())
    }

    #[test]
    fn frozen_buffer_does_not_grow() {
        let (before, after) = size_after_transfer(true);
        assert_eq!(before, after);
        let (before, after) = size_after_transfer(false);
        println!("without: from {before} to {after} bytes");
    }
}
