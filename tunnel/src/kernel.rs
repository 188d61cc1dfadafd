//! The kernel's account of a TCP connection: `TCP_INFO`.
//!
//! The kernel's structure grows from release to release and libc's
//! is an old, short one, so it is read as bytes and decoded by offset (`struct tcp_info` in
//! `linux/tcp.h`, whose layout is fixed), as far as the kernel says that it wrote.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, LinkSample};

/// The fields of `struct tcp_info` that a [`LinkSample`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// Unrecovered retransmission timeouts; 0 as soon as anything is acknowledged.
    retransmits: u8,
    /// How often the retransmission (or zero-window probe) timer was doubled.
    backoff: u8,
    application_limited: bool,
    mss: u32,
    unacked_packets: u32,
    rtt_us: u32,
    rtt_var_us: u32,
    window_packets: u32,
    retransmitted_packets: u32,
    acked_bytes: u64,
    unsent_bytes: u32,
    rtt_min_us: u32,
    sent_packets: u32,
    /// Bytes a second; 0 before the first measurement.
    delivery_rate: u64,
    sent_bytes: u64,
    resent_bytes: u64,
    /// Segments that the peer received twice (DSACK, RFC 2883).
    duplicate_packets: u32,
}

impl TcpInfo {
    /// Reads it from a TCP socket.
    pub(crate) fn read(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut buffer = [0u8; READ_MAX];
        let mut length = READ_MAX as libc::socklen_t;
        // SAFETY: the pointers are to live local variables, `length` says how large the buffer
        // is, the kernel writes at most that much, and any bytes are valid in a byte array.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                buffer.as_mut_ptr().cast(),
                &mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let written = buffer.get(..length as usize).unwrap_or(&buffer);
        Self::decode(written).ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, "TCP_INFO of a kernel older than 4.19")
        })
    }

    /// Decodes the bytes of the kernel; `None` if some are missing.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let quad = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let oct = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            retransmits: *bytes.get(2)?,
            backoff: *bytes.get(4)?,
            application_limited: app_limited_bit(*bytes.get(7)?),
            mss: quad(16)?,
            unacked_packets: quad(24)?,
            rtt_us: quad(68)?,
            rtt_var_us: quad(72)?,
            window_packets: quad(80)?,
            retransmitted_packets: quad(100)?,
            acked_bytes: oct(120)?,
            unsent_bytes: quad(144)?,
            rtt_min_us: quad(148)?,
            sent_packets: quad(156)?,
            delivery_rate: oct(160)?,
            sent_bytes: oct(200)?,
            resent_bytes: oct(208)?,
            duplicate_packets: quad(216)?,
        })
    }

    /// The figures as a sample; `pending` are the bytes that the tunnel holds for the kernel.
    pub(crate) fn sample(&self, at: Instant, pending: usize) -> LinkSample {
        let micros = |us: u32| Duration::from_micros(u64::from(us));
        let packets = |n: u32| Bytes(u64::from(n) * u64::from(self.mss));
        // On the connecting side the acknowledged SYN counts as a byte that was not sent.
        let once = self.sent_bytes.saturating_sub(self.resent_bytes);
        let in_flight =
            Bytes(once.saturating_sub(self.acked_bytes)).min(packets(self.unacked_packets));
        // The kernel reports its largest value for "none yet".
        let rtt_min = if self.rtt_min_us == u32::MAX { self.rtt_us } else { self.rtt_min_us };
        LinkSample {
            at,
            srtt: micros(self.rtt_us),
            rtt_min: micros(rtt_min),
            rtt_var: micros(self.rtt_var_us),
            window: packets(self.window_packets),
            in_flight,
            unsent: Bytes(u64::from(self.unsent_bytes) + pending as u64),
            delivery_rate: (self.delivery_rate > 0)
                .then(|| Bitrate::from_bytes_per_second(self.delivery_rate)),
            application_limited: self.application_limited,
            sent_packets: u64::from(self.sent_packets),
            lost_packets: u64::from(self.retransmitted_packets),
            spurious_packets: u64::from(self.duplicate_packets),
            // Zero-window probes back off as well, but are not timeouts of the path.
            timeouts: if self.retransmits == 0 { 0 } else { u32::from(self.backoff).max(1) },
            acked: Bytes(self.acked_bytes),
        }
    }
}

/// The bytes of a TCP socket that its peer's kernel has not acknowledged, rounded up to whole
/// packets.
///
/// # Errors
/// It is not a TCP socket.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let info = TcpInfo::read(socket)?;
    let in_flight = u64::from(info.unacked_packets) * u64::from(info.mss.max(1));
    Ok(in_flight + u64::from(info.unsent_bytes))
}

/// The C bit field's first bit, which is the lowest on little-endian machines only.
fn app_limited_bit(byte: u8) -> bool {
    byte & if cfg!(target_endian = "little") { 0x01 } else { 0x80 } != 0
}

/// The size of the buffer: more than the structure has in Linux 6.18 (280 bytes).
const READ_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn loopback_connection_is_measured() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        near.write_all(&[7; 50_000]).unwrap();
        far.read_exact(&mut [0; 50_000]).unwrap();
        far.write_all(b"done").unwrap();
        near.read_exact(&mut [0; 4]).unwrap();
        let info = TcpInfo::read(near.as_fd()).unwrap();
        let sample = info.sample(Instant::now(), 11);
        // The acknowledgement counts the SYN as a byte.
        assert_eq!(sample.acked, Bytes(50_001));
        assert_eq!((sample.in_flight, sample.unsent), (Bytes::ZERO, Bytes(11)));
        assert!(sample.srtt > Duration::ZERO && sample.srtt < Duration::from_secs(1));
        assert!(sample.rtt_min <= sample.srtt);
        assert!(sample.window >= Bytes(1_000));
        assert!(sample.delivery_rate.is_some());
        assert_eq!(sample.timeouts, 0);
    }

    #[test]
    fn blocked_peer_shows_bytes_in_flight_and_unsent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(n) = (&near).write(&[0; 65_536]) {
            written += n as u64;
        }
        let sample = TcpInfo::read(near.as_fd()).unwrap().sample(Instant::now(), 0);
        assert_eq!(sample.acked + sample.in_flight + sample.unsent, Bytes(written));
        assert!(sample.unsent > Bytes::ZERO);
    }

    #[test]
    fn answer_is_decoded_by_offset_and_a_short_one_is_rejected() {
        let mut bytes = [0u8; 220];
        bytes[2] = 3;
        bytes[4] = 3;
        bytes[7] = 1;
        bytes[16..20].copy_from_slice(&1_000u32.to_ne_bytes());
        bytes[24..28].copy_from_slice(&5u32.to_ne_bytes());
        bytes[200..208].copy_from_slice(&4_500u64.to_ne_bytes());
        bytes[216..220].copy_from_slice(&2u32.to_ne_bytes());
        let sample = |bytes: &[u8]| TcpInfo::decode(bytes).unwrap().sample(Instant::now(), 0);
        assert_eq!(sample(&bytes).in_flight, Bytes(4_500));
        assert_eq!((sample(&bytes).timeouts, sample(&bytes).spurious_packets), (3, 2));
        assert!(sample(&bytes).application_limited);
        assert_eq!(sample(&bytes).delivery_rate, None);
        assert!(TcpInfo::decode(&bytes[..219]).is_none());
        bytes[2] = 0;
        assert_eq!(sample(&bytes).timeouts, 0, "zero-window probes are not timeouts");
    }
}
