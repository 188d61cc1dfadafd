//! Queries to the kernel's neighbour tables (ARP and IPv6 neighbour discovery), over rtnetlink.
//!
//! The kernel answers within `send`, so a query on a non-blocking socket needs no other thread.

use std::io::{self, Read};
use std::net::IpAddr;

use nix::net::if_::{if_nameindex, if_nametoindex};
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use socket2::{Domain, Protocol, Socket, Type};

/// A source of link addresses of neighbours.
pub trait Neighbours {
    /// The link address of the neighbour with this IP address, if it is known.
    fn link_address(&mut self, address: IpAddr) -> Option<Vec<u8>>;
}

/// The kernel's neighbour tables.
#[derive(Debug)]
pub struct KernelNeighbours {
    socket: Socket,
    interfaces: Vec<String>,
    sequence: u32,
}

impl KernelNeighbours {
    /// Queries neighbours on these interfaces; on all if the list is empty.
    ///
    /// # Errors
    /// The system cannot create a netlink socket.
    pub fn new(interfaces: Vec<String>) -> io::Result<Self> {
        let domain = Domain::from(libc::AF_NETLINK);
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, interfaces, sequence: 0 })
    }

    /// The current indices of the interfaces; a recreated interface has a new one.
    fn indices(&self) -> Vec<u32> {
        if self.interfaces.is_empty() {
            let all = if_nameindex().ok();
            let each = all.iter().flat_map(|all| all.iter());
            return each.map(|one| one.index()).take(INTERFACES_MAX).collect();
        }
        let names = self.interfaces.iter().take(INTERFACES_MAX);
        names.filter_map(|name| if_nametoindex(name.as_str()).ok()).collect()
    }

    fn ask(&mut self, address: IpAddr, index: u32) -> io::Result<Option<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&question(address, index, self.sequence))?;
        // Skips answers to earlier queries.
        for _ in 0..STALE_MAX {
            let mut answer = [0; ANSWER_MAX];
            let length = (&self.socket).read(&mut answer)?;
            if let Some(found) = link_address(&answer[..length], self.sequence) {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

impl Neighbours for KernelNeighbours {
    fn link_address(&mut self, address: IpAddr) -> Option<Vec<u8>> {
        for index in self.indices() {
            match self.ask(address, index) {
                Ok(None) => {}
                Ok(found) => return found,
                Err(error) => tracing::debug!(%error, "no answer of the neighbour table"),
            }
        }
        None
    }
}

/// RTM_GETNEIGH for one address on one interface (rtnetlink(7)).
fn question(address: IpAddr, index: u32, sequence: u32) -> Vec<u8> {
    let (family, destination) = match address {
        IpAddr::V4(v4) => (AddressFamily::Inet, NeighbourAddress::Inet(v4)),
        IpAddr::V6(v6) => (AddressFamily::Inet6, NeighbourAddress::Inet6(v6)),
    };
    let mut neighbour = NeighbourMessage::default();
    (neighbour.header.family, neighbour.header.ifindex) = (family, index);
    neighbour.attributes.push(NeighbourAttribute::Destination(destination));
    let mut header = NetlinkHeader::default();
    (header.flags, header.sequence_number) = (NLM_F_REQUEST, sequence);
    let payload = RouteNetlinkMessage::GetNeighbour(neighbour);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(payload));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// The link address in an answer. The outer `None` means an answer to another query, the inner one
/// an unknown address. Devices without an address have zeros.
fn link_address(answer: &[u8], sequence: u32) -> Option<Option<Vec<u8>>> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).ok()?;
    if message.header.sequence_number != sequence {
        return None;
    }
    let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) =
        message.payload
    else {
        return Some(None);
    };
    Some(neighbour.attributes.into_iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => {
            bytes.iter().any(|byte| *byte != 0).then_some(bytes)
        }
        _ => None,
    }))
}

/// The maximum number of interfaces to query.
const INTERFACES_MAX: usize = 16;
/// The maximum number of answers to earlier queries to skip.
const STALE_MAX: usize = 8;
/// The size of the receive buffer; the kernel's answers have about a hundred bytes.
const ANSWER_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel's answer with this link address.
    fn answer(sequence: u32, link: &[u8]) -> Vec<u8> {
        let mut neighbour = NeighbourMessage::default();
        neighbour.attributes.push(NeighbourAttribute::LinkLayerAddress(link.to_vec()));
        let mut header = NetlinkHeader::default();
        header.sequence_number = sequence;
        let payload = NetlinkPayload::from(RouteNetlinkMessage::NewNeighbour(neighbour));
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn answer_belongs_to_its_query_and_zeros_are_no_address() {
        let known = answer(7, &[2, 0, 0, 0, 0, 9]);
        assert_eq!(link_address(&known, 7), Some(Some(vec![2, 0, 0, 0, 0, 9])));
        assert_eq!(link_address(&known, 8), None);
        assert_eq!(link_address(&answer(7, &[0; 6]), 7), Some(None));
        for cut in 0..known.len() {
            link_address(&known[..cut], 7);
        }
    }
}
