//! A UDP socket with segmentation offload and batches.
//!
//! Opens and binds a carrier's socket or the cloud's, asks for large buffers, sends runs of equal
//! datagrams in one call (GSO) and receives joined ones (GRO). Knows nothing of QUIC.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;
use std::time::{Duration, Instant};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{SockRef, Socket, Type};

use super::steering;
use crate::carrier::{self, connect_failure, internal};
use crate::scratch::{SCRATCH, with_scratch};
use crate::{CarrierSpec, CloseReason};

/// A bound UDP socket.
#[derive(Debug)]
pub(super) struct Udp {
    socket: UdpSocket,
    state: RefCell<State>,
    local: SocketAddr,
    /// Whether IPv4 addresses are mapped into IPv6 (RFC 4291 2.5.5.2).
    ipv6: bool,
    /// Whether segmentation offload is enabled.
    offload: bool,
}

/// What the kernel can do for the socket.
#[derive(Debug)]
struct State {
    udp: UdpSocketState,
    /// When the kernel refused segmentation: quinn-udp then works without it.
    refused: Option<Instant>,
}

/// Datagrams of one source, joined: all `stride` bytes long but the last.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) from: SocketAddr,
    /// The address of ours that they were sent to.
    pub(super) to: SocketAddr,
    pub(super) stride: usize,
}

/// Equal datagrams to one destination: all `segment` bytes long but the last.
#[derive(Clone, Copy)]
pub(super) struct Departure<'a> {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) segment: usize,
    pub(super) bytes: &'a [u8],
}

impl Udp {
    /// Opens a socket bound as the carrier wants it and connected to the peer, so that the kernel
    /// reports when nobody listens there.
    pub(super) fn connect(spec: &CarrierSpec, peer: SocketAddr) -> Result<Self, CloseReason> {
        let socket = carrier::open(spec, peer, Type::DGRAM)?;
        socket
            .connect(&peer.into())
            .map_err(|error| connect_failure(&error, peer, spec.options.connect_timeout))?;
        Self::new(socket).map_err(|error| internal("prepare a UDP socket", &error))
    }

    /// Opens the cloud's socket; an IPv6 wildcard address takes IPv4 as well.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::new(carrier::bind(address, Type::DGRAM, false)?)
    }

    /// Opens one of the sockets that several event loops bind to one address, in their order. The
    /// first one checks that nobody else has the address. With `steered` it has the kernel choose
    /// among so many sockets by the connection id.
    pub(super) fn bind_shared(
        address: SocketAddr,
        is_first: bool,
        steered: Option<u8>,
    ) -> io::Result<Self> {
        if is_first {
            drop(carrier::bind(address, Type::DGRAM, false)?);
        }
        let socket = carrier::bind(address, Type::DGRAM, true)?;
        if let Some(workers) = steered.filter(|_| is_first)
            && let Err(error) = steering::attach(&socket, workers)
        {
            tracing::warn!(%error, "the kernel cannot steer QUIC: workers hand datagrams over");
        }
        Self::new(socket)
    }

    fn new(socket: Socket) -> io::Result<Self> {
        enlarge(&SockRef::from(&socket));
        let socket = UdpSocket::from(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let state = RefCell::new(State { udp: state, refused: None });
        let bound = socket.local_addr()?;
        let offload = std::env::var_os("POLYRAIL_GSO").is_none_or(|value| value != "off");
        Ok(Self { state, local: canonical(bound), ipv6: bound.is_ipv6(), offload, socket })
    }

    /// The bound address; a mapped IPv4 address as plain IPv4.
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// How many datagrams one call may send.
    pub(super) fn segments_max(&self) -> usize {
        if self.offload { self.state.borrow().udp.max_gso_segments().min(SEGMENTS_MAX) } else { 1 }
    }

    /// Notes that quinn-udp has disabled segmentation after an error.
    fn on_refusal(&self, error: &io::Error, segments_before: usize) {
        if segments_before > 1 && self.segments_max() == 1 {
            tracing::warn!(%error, "UDP segmentation offload refused: disabled for a minute");
            self.state.borrow_mut().refused = Some(Instant::now());
        }
    }

    /// Enables segmentation again some time after it was refused: a route may have changed.
    fn try_offload_again(&self) {
        if self.state.borrow().refused.is_none_or(|at| at.elapsed() < REFUSED_FOR) {
            return;
        }
        let mut state = self.state.borrow_mut();
        state.refused = None;
        if let Ok(renewed) = UdpSocketState::new(UdpSockRef::from(&self.socket)) {
            state.udp = renewed;
        }
    }

    /// Sends a run of datagrams.
    ///
    /// # Errors
    /// `WouldBlock` when the kernel takes no more now; others as the kernel has them.
    pub(super) fn send(&self, run: &Departure<'_>) -> io::Result<()> {
        self.try_offload_again();
        if run.bytes.len() <= run.segment {
            return self.send_run(run, None);
        }
        if self.segments_max() > 1 {
            match self.send_run(run, Some(run.segment)) {
                // Not supported by the kernel or the device: quinn-udp has disabled it.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
                        && self.segments_max() == 1 => {}
                result => return result,
            }
        }
        run.bytes.chunks(run.segment).try_for_each(|bytes| {
            // Datagrams that the full socket does not take are lost.
            match self.send_run(&Departure { bytes, ..*run }, None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                result => result,
            }
        })
    }

    fn send_run(&self, run: &Departure<'_>, segment_size: Option<usize>) -> io::Result<()> {
        let source = (!run.from.ip().is_unspecified()).then(|| self.on_wire(run.from).ip());
        let transmit = Transmit {
            destination: self.on_wire(run.to),
            ecn: None,
            contents: run.bytes,
            segment_size,
            src_ip: source,
        };
        let before = self.segments_max();
        let result = self.state.borrow().udp.try_send(UdpSockRef::from(&self.socket), &transmit);
        result.inspect_err(|error| self.on_refusal(error, before))
    }

    /// Receives one batch and passes it to `sink`; returns its bytes.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits; others as the kernel has them.
    pub(super) fn receive(&self, sink: &mut dyn FnMut(&Arrival, &mut [u8])) -> io::Result<usize> {
        with_scratch(|scratch| {
            let mut metas = [RecvMeta::default(); BATCH];
            let count = {
                let mut slices: Vec<IoSliceMut<'_>> =
                    scratch.chunks_mut(SLOT).map(IoSliceMut::new).collect();
                self.state.borrow().udp.recv(
                    UdpSockRef::from(&self.socket),
                    &mut slices,
                    &mut metas,
                )?
            };
            let mut total = 0;
            for (slot, meta) in scratch.chunks_mut(SLOT).zip(&metas[..count]) {
                let arrival = Arrival {
                    from: canonical(meta.addr),
                    to: SocketAddr::new(self.arrived_at(meta.dst_ip), self.local.port()),
                    stride: meta.stride.max(1),
                };
                total += meta.len;
                sink(&arrival, &mut slot[..meta.len]);
            }
            Ok(total)
        })
    }

    /// The address of a socket that is bound to one; else the address that the kernel reports.
    fn arrived_at(&self, told: Option<IpAddr>) -> IpAddr {
        match told {
            Some(ip) if self.local.ip().is_unspecified() => ip.to_canonical(),
            _ => self.local.ip(),
        }
    }

    fn on_wire(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.ipv6 => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())
            }
            _ => address,
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        // A true IPv6 address keeps its scope and flow.
        IpAddr::V6(_) => address,
        ip => SocketAddr::new(ip, address.port()),
    }
}

/// Asks for large buffers and logs their size once a process.
fn enlarge(socket: &SockRef<'_>) {
    let _ = socket.set_recv_buffer_size(BUFFER_WANTED);
    let _ = socket.set_send_buffer_size(BUFFER_WANTED);
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        // Linux reports twice the payload.
        let granted = |size: io::Result<usize>| size.unwrap_or(0) / 2;
        let receive_bytes = granted(socket.recv_buffer_size());
        let send_bytes = granted(socket.send_buffer_size());
        if receive_bytes.min(send_bytes) < BUFFER_WANTED / 4 {
            tracing::warn!(
                receive_bytes,
                send_bytes,
                wanted_bytes = BUFFER_WANTED,
                "small UDP buffers: raise net.core.rmem_max and net.core.wmem_max"
            );
        } else {
            tracing::info!(receive_bytes, send_bytes, "UDP buffers granted");
        }
    });
}

/// Runs of joined datagrams that one call receives.
const BATCH: usize = SCRATCH / SLOT;
/// Bytes of the longest run that the kernel joins.
const SLOT: usize = 64 * 1024;
/// Datagrams that one call may send (`UDP_MAX_SEGMENTS`).
const SEGMENTS_MAX: usize = 64;
/// Buffers that hold some 300 ms at 100 Mbit/s while this process is busy elsewhere.
const BUFFER_WANTED: usize = 4 << 20;
/// How long segmentation stays disabled after a refusal.
const REFUSED_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segmentation_is_enabled_again_after_a_refusal() {
        let udp = Udp::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let able = udp.segments_max();
        if able == 1 {
            println!("no segmentation offload here: nothing to test");
            return;
        }
        let to = udp.local_addr();
        let run = Departure { from: to, to, segment: 10, bytes: &[0; 20] };
        // More segments than the kernel takes: they go one by one.
        udp.send(&Departure { segment: 1, bytes: &[0; 1_000], ..run }).unwrap();
        assert_eq!(udp.segments_max(), 1);
        udp.send(&run).unwrap();
        assert_eq!(udp.segments_max(), 1, "not at once");
        udp.state.borrow_mut().refused = Instant::now().checked_sub(REFUSED_FOR);
        udp.send(&run).unwrap();
        assert_eq!(udp.segments_max(), able);
    }
}
