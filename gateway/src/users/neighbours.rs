//! Questions to the kernel's neighbour tables (ARP and IPv6 neighbour discovery), over rtnetlink.

use std::io::{self, Read};
use std::net::IpAddr;

use nix::net::if_::{if_nameindex, if_nametoindex};
use socket2::{Domain, Protocol, Socket, Type};

/// A link-layer address of up to [`LINK_ADDRESS_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    bytes: [u8; LINK_ADDRESS_MAX],
    length: usize,
}

/// The longest link address that is told apart: Ethernet has 6 bytes, InfiniBand 20.
pub const LINK_ADDRESS_MAX: usize = 20;

/// Something that knows the link addresses of neighbours.
pub trait Neighbours {
    /// The link address of the neighbour with this IP address; `None` when it is no neighbour or
    /// was not heard of yet.
    fn link_address(&mut self, address: IpAddr) -> Option<LinkAddress>;
}

/// The kernel's neighbour tables.
#[derive(Debug)]
pub struct KernelNeighbours {
    socket: Socket,
    interfaces: Vec<String>,
    sequence: u32,
}

impl LinkAddress {
    /// An address; `None` when it is empty, too long or all zero, as devices without one have it.
    pub fn new(address: &[u8]) -> Option<Self> {
        let mut bytes = [0; LINK_ADDRESS_MAX];
        bytes.get_mut(..address.len())?.copy_from_slice(address);
        let real = address.iter().any(|byte| *byte != 0);
        real.then_some(Self { bytes, length: address.len() })
    }

    /// The address.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl KernelNeighbours {
    /// Asks about neighbours on these interfaces, by name; on all when there are none given.
    ///
    /// # Errors
    /// The system gives no netlink socket.
    pub fn new(interfaces: Vec<String>) -> io::Result<Self> {
        let domain = Domain::from(libc::AF_NETLINK);
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, interfaces, sequence: 0 })
    }

    /// The interfaces' indices now: an interface that came back has a new one.
    fn indices(&self) -> Vec<u32> {
        if self.interfaces.is_empty() {
            let all = if_nameindex().ok();
            let each = all.iter().flat_map(|all| all.iter());
            return each.map(|one| one.index()).take(INTERFACES_MAX).collect();
        }
        let names = self.interfaces.iter().take(INTERFACES_MAX);
        names.filter_map(|name| if_nametoindex(name.as_str()).ok()).collect()
    }

    fn ask(&mut self, address: IpAddr, index: u32) -> io::Result<Option<LinkAddress>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request(address, index, self.sequence))?;
        // The kernel answers within `send`. Answers to older questions are skipped.
        for _ in 0..STALE_MAX {
            let mut answer = [0; ANSWER_MAX];
            let length = (&self.socket).read(&mut answer)?;
            if let Some(found) = parse(&answer[..length], self.sequence) {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

impl Neighbours for KernelNeighbours {
    fn link_address(&mut self, address: IpAddr) -> Option<LinkAddress> {
        for index in self.indices() {
            match self.ask(address, index) {
                Ok(None) => {}
                Ok(found) => return found,
                Err(error) => tracing::debug!(%error, "the neighbour table did not answer"),
            }
        }
        None
    }
}

/// RTM_GETNEIGH for one address on one interface (rtnetlink(7)); integers in host order.
fn request(address: IpAddr, index: u32, sequence: u32) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let length = MESSAGE_HEADER + NEIGHBOUR_HEADER + ATTRIBUTE_HEADER + octets.len();
    let mut bytes = Vec::with_capacity(length);
    // nlmsghdr: length, type, flags, sequence, port.
    bytes.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    bytes.extend(libc::RTM_GETNEIGH.to_ne_bytes());
    bytes.extend(u16::try_from(libc::NLM_F_REQUEST).unwrap_or_default().to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    // ndmsg: family, padding, interface, state, flags, type.
    bytes.extend([u8::try_from(family).unwrap_or_default(), 0, 0, 0]);
    bytes.extend(index.to_ne_bytes());
    bytes.extend([0; 4]);
    // rtattr: length, type, the address.
    let attribute = u16::try_from(ATTRIBUTE_HEADER + octets.len()).unwrap_or_default();
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(NDA_DST.to_ne_bytes());
    bytes.extend(octets);
    bytes
}

/// The link address in an answer; `None` inside when the kernel knows none, `None` outside when
/// this is the answer to another question.
fn parse(answer: &[u8], sequence: u32) -> Option<Option<LinkAddress>> {
    let header = answer.get(..MESSAGE_HEADER)?;
    let length = usize::try_from(u32_at(header, 0)?).ok()?;
    if u32_at(header, 8)? != sequence {
        return None;
    }
    if u16_at(header, 4)? != libc::RTM_NEWNEIGH {
        // NLMSG_ERROR: no such neighbour.
        return Some(None);
    }
    let mut rest = answer.get(MESSAGE_HEADER + NEIGHBOUR_HEADER..length.min(answer.len()))?;
    while let Some(size) = u16_at(rest, 0).map(usize::from) {
        let (Some(kind), Some(value)) = (u16_at(rest, 2), rest.get(ATTRIBUTE_HEADER..size)) else {
            break;
        };
        if kind == NDA_LLADDR {
            return Some(LinkAddress::new(value));
        }
        // Attributes are aligned to four bytes.
        rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(None)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Interfaces that are asked about.
const INTERFACES_MAX: usize = 16;
/// Answers to older questions that are skipped.
const STALE_MAX: usize = 8;
/// An answer's size; the kernel's are about a hundred bytes.
const ANSWER_MAX: usize = 1024;
const MESSAGE_HEADER: usize = 16;
const NEIGHBOUR_HEADER: usize = 12;
const ATTRIBUTE_HEADER: usize = 4;
/// Attribute types (linux/neighbour.h).
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A kernel's answer with these attributes.
    fn answer(kind: u16, sequence: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; NEIGHBOUR_HEADER];
        for (kind, value) in attributes {
            let size = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap();
            body.extend(size.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut bytes = u32::try_from(MESSAGE_HEADER + body.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn answers_are_read() {
        let known = [(NDA_DST, &[10, 9, 0, 2][..]), (NDA_LLADDR, &[2, 0, 0, 0, 0, 9])];
        let found = LinkAddress::new(&[2, 0, 0, 0, 0, 9]);
        assert!(found.is_some());
        assert_eq!(parse(&answer(libc::RTM_NEWNEIGH, 7, &known), 7), Some(found));
        assert_eq!(parse(&answer(libc::RTM_NEWNEIGH, 6, &known), 7), None);
        assert_eq!(parse(&answer(libc::RTM_NEWNEIGH, 7, &known[..1]), 7), Some(None));
        assert_eq!(parse(&answer(2, 7, &[]), 7), Some(None));
        for silent in [&[][..], &[0; 6], &[1; 21]] {
            assert_eq!(LinkAddress::new(silent), None);
        }
    }

    proptest! {
        #[test]
        fn no_answer_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..120),
            sizes in prop::collection::vec((0u16..40, 0u16..4), 0..4),
        ) {
            parse(&bytes, 0);
            let mut damaged = answer(libc::RTM_NEWNEIGH, 7, &[(1, &bytes)]);
            for (size, kind) in sizes {
                damaged.extend(size.to_ne_bytes());
                damaged.extend(kind.to_ne_bytes());
            }
            let length = u32::try_from(damaged.len()).unwrap().to_ne_bytes();
            damaged[..4].copy_from_slice(&length);
            parse(&damaged, 7);
        }
    }
}
