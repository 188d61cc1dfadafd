//! The kernel's state of a TCP connection (`TCP_INFO`), as far as trials need it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys;

/// The state of the sender's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Timeouts in a row.
    pub backoff: u32,
    /// The next timeout.
    pub timeout: Duration,
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The congestion window in bytes.
    pub window: u64,
    /// Packets sent again so far.
    pub resent: u64,
}

impl TcpInfo {
    /// Reads it from a TCP socket.
    ///
    /// # Errors
    /// It is no TCP socket.
    pub fn read(socket: BorrowedFd<'_>) -> io::Result<Self> {
        Self::decode(&sys::tcp_info(socket)?).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// By the fixed layout of `struct tcp_info` (`linux/tcp.h`).
    fn decode(bytes: &[u8]) -> Option<Self> {
        let quad = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let micros = |at: usize| quad(at).map(|us| Duration::from_micros(us.into()));
        Some(Self {
            backoff: u32::from(*bytes.get(4)?),
            timeout: micros(8)?,
            rtt: micros(68)?,
            window: u64::from(quad(80)?) * u64::from(quad(16)?),
            resent: quad(100)?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn a_connection_begins_with_ten_segments() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = TcpInfo::read(socket.as_fd()).unwrap();
        assert_eq!((info.backoff, info.resent), (0, 0));
        assert!(info.window > 10_000 && info.timeout >= Duration::from_millis(200), "{info:?}");
        assert!(TcpInfo::decode(&[0; 90]).is_none());
    }
}
