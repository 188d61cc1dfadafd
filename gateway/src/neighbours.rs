//! Queries to the kernel's neighbour tables (ARP and IPv6 neighbour discovery) and routes, over
//! rtnetlink.
//!
//! The kernel answers within `send`, so a query on a non-blocking socket needs no other thread.

use std::io::{self, Read};
use std::net::IpAddr;
use std::time::Duration;

use rtnetlink::packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::link::{LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use socket2::{Domain, Protocol, Socket, Type};

/// The kernel's neighbour tables, and the routes that say which addresses have neighbours.
#[derive(Debug)]
pub struct NeighbourTable {
    socket: Socket,
    sequence: u32,
}

/// A neighbour whose link address is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The index of its interface.
    pub interface: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub link: [u8; 6],
}

impl NeighbourTable {
    /// The tables of the calling thread's network namespace.
    ///
    /// # Errors
    /// The system cannot create a netlink socket.
    pub fn new() -> io::Result<Self> {
        let domain = Domain::from(libc::AF_NETLINK);
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The link address of the neighbour with this address on an interface, if it is known.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn link_address(&mut self, address: IpAddr, interface: u32) -> io::Result<Option<Vec<u8>>> {
        let mut neighbour = NeighbourMessage::default();
        neighbour.header.family = family(address);
        neighbour.header.ifindex = interface;
        let destination = match address {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        };
        neighbour.attributes.push(NeighbourAttribute::Destination(destination));
        Ok(match self.ask(RouteNetlinkMessage::GetNeighbour(neighbour))? {
            Some(RouteNetlinkMessage::NewNeighbour(found)) => link_address(&found),
            _ => None,
        })
    }

    /// The interface on whose link an address is: its route has no router. `None` for addresses
    /// behind a router, without a route, and of this machine.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn on_link(&mut self, address: IpAddr) -> io::Result<Option<u32>> {
        let mut route = RouteMessage::default();
        let (destination, length) = match address {
            IpAddr::V4(v4) => (RouteAddress::Inet(v4), 32),
            IpAddr::V6(v6) => (RouteAddress::Inet6(v6), 128),
        };
        route.header.address_family = family(address);
        route.header.destination_prefix_length = length;
        route.attributes.push(RouteAttribute::Destination(destination));
        let answer = self.ask(RouteNetlinkMessage::GetRoute(route))?;
        let Some(RouteNetlinkMessage::NewRoute(found)) = answer else { return Ok(None) };
        let routed = found.attributes.iter().any(|attribute| {
            matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_))
        });
        if routed || found.header.kind != RouteType::Unicast {
            return Ok(None);
        }
        Ok(found.attributes.into_iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(index),
            _ => None,
        }))
    }

    /// Whether an interface resolves link addresses: an Ethernet with ARP and neighbour discovery.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn resolves(&mut self, interface: u32) -> io::Result<bool> {
        let mut link = LinkMessage::default();
        link.header.index = interface;
        Ok(match self.ask(RouteNetlinkMessage::GetLink(link))? {
            Some(RouteNetlinkMessage::NewLink(found)) => {
                found.header.link_layer_type == LinkLayerType::Ether
                    && !found.header.flags.contains(LinkFlags::Noarp)
            }
            _ => false,
        })
    }

    /// The neighbours with an Ethernet address that the kernel has confirmed or learned less than
    /// `age` ago, and permanent ones.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn recent(&mut self, age: Duration) -> io::Result<Vec<Neighbour>> {
        let query = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        self.send(query, NLM_F_DUMP)?;
        let mut found = Vec::new();
        let mut buffer = vec![0; DUMP_MAX];
        // The kernel bounds its tables (`gc_thresh3`); this bounds the loop.
        for _ in 0..DUMP_PARTS_MAX {
            let length = (&self.socket).read(&mut buffer)?;
            for message in messages(&buffer[..length]) {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(one)) => {
                        found.extend(recent(&one, age));
                    }
                    NetlinkPayload::InnerMessage(_) => {}
                    _ => return Ok(found),
                }
            }
        }
        Ok(found)
    }

    /// Sends a query and returns its answer; `None` for an error, as for an unknown neighbour.
    fn ask(&mut self, query: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
        self.send(query, 0)?;
        // Skips answers to earlier queries.
        for _ in 0..STALE_MAX {
            let mut answer = [0; ANSWER_MAX];
            let length = (&self.socket).read(&mut answer)?;
            if let Some(payload) = payload(&answer[..length], self.sequence) {
                return Ok(payload);
            }
        }
        Ok(None)
    }

    fn send(&mut self, query: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        (header.flags, header.sequence_number) = (NLM_F_REQUEST | flags, self.sequence);
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(query));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes).map(drop)
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// The content of an answer. The outer `None` means an answer to another query, the inner one an
/// error.
fn payload(answer: &[u8], sequence: u32) -> Option<Option<RouteNetlinkMessage>> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).ok()?;
    if message.header.sequence_number != sequence {
        return None;
    }
    Some(match message.payload {
        NetlinkPayload::InnerMessage(content) => Some(content),
        _ => None,
    })
}

/// The messages of one datagram, up to the first that is invalid.
fn messages(
    mut bytes: &[u8],
) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> + use<'_> {
    std::iter::from_fn(move || {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes).ok()?;
        // Messages are aligned to 4 bytes (netlink(7)).
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        bytes = bytes.get(length..).unwrap_or_default();
        Some(message)
    })
}

/// Devices without an address have zeros.
fn link_address(neighbour: &NeighbourMessage) -> Option<Vec<u8>> {
    neighbour.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => {
            bytes.iter().any(|byte| *byte != 0).then(|| bytes.clone())
        }
        _ => None,
    })
}

fn recent(neighbour: &NeighbourMessage, age: Duration) -> Option<Neighbour> {
    let mut address = None;
    let mut since = Duration::MAX;
    for attribute in &neighbour.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::CacheInfo(info) => {
                let ticks = info.confirmed.min(info.updated);
                since = Duration::from_millis(u64::from(ticks) * TICK_MS);
            }
            _ => {}
        }
    }
    let current = match neighbour.header.state {
        NeighbourState::Permanent => true,
        NeighbourState::Reachable
        | NeighbourState::Stale
        | NeighbourState::Delay
        | NeighbourState::Probe => since < age,
        _ => false,
    };
    let link = link_address(neighbour)?.try_into().ok()?;
    let interface = neighbour.header.ifindex;
    current.then_some(Neighbour { interface, address: address?, link })
}

/// The maximum number of answers to earlier queries to skip.
const STALE_MAX: usize = 8;
/// The size of the receive buffer of single answers; that of an interface has about 2 KiB.
const ANSWER_MAX: usize = 8192;
/// The size of the receive buffer of dumps; the kernel fills at most 32 KiB.
const DUMP_MAX: usize = 32 * 1024;
/// The maximum number of datagrams of a dump: about 130,000 neighbours.
const DUMP_PARTS_MAX: usize = 512;
/// The unit of `nda_cacheinfo`: `USER_HZ`, which is 100 on all platforms but Alpha.
const TICK_MS: u64 = 10;

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::neighbour::NeighbourCacheInfo;

    use super::*;

    fn bytes_of(sequence: u32, neighbour: NeighbourMessage) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.sequence_number = sequence;
        let payload = NetlinkPayload::from(RouteNetlinkMessage::NewNeighbour(neighbour));
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    /// A kernel's answer with this link address.
    fn answer(sequence: u32, link: &[u8]) -> Vec<u8> {
        let mut neighbour = NeighbourMessage::default();
        neighbour.attributes.push(NeighbourAttribute::LinkLayerAddress(link.to_vec()));
        bytes_of(sequence, neighbour)
    }

    fn told(answer: &[u8], sequence: u32) -> Option<Option<Vec<u8>>> {
        payload(answer, sequence).map(|content| match content {
            Some(RouteNetlinkMessage::NewNeighbour(found)) => link_address(&found),
            _ => None,
        })
    }

    #[test]
    fn answer_belongs_to_its_query_and_zeros_are_no_address() {
        let known = answer(7, &[2, 0, 0, 0, 0, 9]);
        assert_eq!(told(&known, 7), Some(Some(vec![2, 0, 0, 0, 0, 9])));
        assert_eq!(told(&known, 8), None);
        assert_eq!(told(&answer(7, &[0; 6]), 7), Some(None));
        for cut in 0..known.len() {
            told(&known[..cut], 7);
        }
    }

    #[test]
    fn datagram_has_several_messages() {
        let both = [answer(1, &[2, 0, 0, 0, 0, 1]), answer(2, &[2, 0, 0, 0, 0, 2])].concat();
        let sequences: Vec<_> = messages(&both).map(|one| one.header.sequence_number).collect();
        assert_eq!(sequences, [1, 2]);
        for cut in 0..both.len() {
            assert!(messages(&both[..cut]).count() < 2);
        }
    }

    #[test]
    fn only_confirmed_or_newly_learned_neighbours_are_recent() {
        let address = "10.9.0.2".parse().unwrap();
        let entry = |state, confirmed_s: u32, updated_s: u32, link: &[u8]| {
            let mut neighbour = NeighbourMessage::default();
            (neighbour.header.state, neighbour.header.ifindex) = (state, 3);
            let (confirmed, updated) = (confirmed_s * 100, updated_s * 100);
            // The structure cannot be built outside its crate.
            let raw: Vec<u8> = [confirmed, 0, updated, 1].map(u32::to_ne_bytes).concat();
            let info = NeighbourCacheInfo::parse(&raw).unwrap();
            neighbour.attributes = vec![
                NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
                NeighbourAttribute::LinkLayerAddress(link.to_vec()),
                NeighbourAttribute::CacheInfo(info),
            ];
            recent(&neighbour, Duration::from_secs(60))
        };
        let link = [2, 0, 0, 0, 0, 9];
        let found = Some(Neighbour { interface: 3, address: IpAddr::V4(address), link });
        for (state, confirmed, updated, expected) in [
            (NeighbourState::Reachable, 10, 900, found),
            (NeighbourState::Stale, 900, 10, found),
            (NeighbourState::Stale, 61, 61, None),
            (NeighbourState::Delay, 59, 61, found),
            (NeighbourState::Permanent, 900, 900, found),
            (NeighbourState::Failed, 1, 1, None),
            (NeighbourState::Incomplete, 1, 1, None),
            (NeighbourState::Noarp, 1, 1, None),
        ] {
            assert_eq!(entry(state, confirmed, updated, &link), expected, "{state:?}");
        }
        assert_eq!(entry(NeighbourState::Reachable, 1, 1, &[0; 6]), None);
        assert_eq!(entry(NeighbourState::Reachable, 1, 1, &[9; 20]), None, "no Ethernet address");
    }
}
