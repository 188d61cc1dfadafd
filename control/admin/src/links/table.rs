//! The interfaces and their addresses, assembled from netlink messages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::LinkChange;

/// All interfaces of a network namespace, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    links: BTreeMap<u32, Link>,
    /// Separate from the links, because messages arrive in any order.
    addresses: BTreeMap<u32, BTreeSet<IpAddr>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Link {
    name: String,
    up: bool,
}

/// The maximum number of interfaces and of addresses per interface; further ones are ignored.
const ENTRIES_MAX: usize = 4096;

impl Table {
    /// Applies a message.
    pub(super) fn apply(&mut self, message: &RouteNetlinkMessage) {
        match message {
            RouteNetlinkMessage::NewLink(message) => self.put_link(message),
            RouteNetlinkMessage::DelLink(message) if is_interface(message) => {
                self.links.remove(&message.header.index);
                self.addresses.remove(&message.header.index);
            }
            RouteNetlinkMessage::NewAddress(message) => self.put_address(message),
            RouteNetlinkMessage::DelAddress(message) => {
                if let Some(address) = own_address(message) {
                    self.take_address(message.header.index, address);
                }
            }
            _ => {}
        }
    }

    /// The names of all interfaces.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.links.values().map(|link| link.name.as_str())
    }

    /// The state of an interface.
    pub(super) fn state(&self, name: &str) -> LinkChange {
        let found = self.links.iter().find(|(_, link)| link.name == name);
        let addresses = found.and_then(|(index, _)| self.addresses.get(index));
        LinkChange {
            interface: name.to_owned(),
            index: found.map_or(0, |(index, _)| *index),
            present: found.is_some(),
            up: found.is_some_and(|(_, link)| link.up),
            addresses: addresses.into_iter().flatten().copied().collect(),
        }
    }

    fn put_link(&mut self, message: &LinkMessage) {
        let name = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
        let index = message.header.index;
        let room = self.links.len() < ENTRIES_MAX || self.links.contains_key(&index);
        let Some(name) = name.filter(|_| room && is_interface(message)) else { return };
        // A name has one interface: another interface of this name was renamed or removed.
        self.links.retain(|_, link| link.name != name);
        self.links.insert(index, Link { name, up: is_up(message) });
    }

    fn put_address(&mut self, message: &AddressMessage) {
        let Some(address) = own_address(message) else { return };
        let index = message.header.index;
        if !is_usable(message, address) {
            return self.take_address(index, address);
        }
        let known = self.addresses.entry(index).or_default();
        if known.len() < ENTRIES_MAX {
            known.insert(address);
        }
    }

    fn take_address(&mut self, index: u32, address: IpAddr) {
        if let Some(known) = self.addresses.get_mut(&index) {
            known.remove(&address);
            if known.is_empty() {
                self.addresses.remove(&index);
            }
        }
    }
}

/// Whether the message is about an interface itself: messages about bridge ports look alike.
fn is_interface(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}

/// Administratively up and, if the driver knows, with a carrier (RFC 2863 operational status).
fn is_up(message: &LinkMessage) -> bool {
    let state = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::OperState(state) => Some(*state),
        _ => None,
    });
    let carries = matches!(state, None | Some(State::Up | State::Unknown));
    message.header.flags.contains(LinkFlags::Up) && carries
}

/// The interface's own address; on point-to-point links `IFA_ADDRESS` is the peer's.
fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| {
        message.attributes.iter().find_map(wanted)
    };
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let any = || {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    };
    local.or_else(any)
}

/// Whether connections to a cloud can use the address: not if it is tentative, a duplicate, or
/// link-local.
fn is_usable(message: &AddressMessage, address: IpAddr) -> bool {
    let flags = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    let pending = match flags {
        Some(flags) => flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed),
        None => message
            .header
            .flags
            .intersects(AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed),
    };
    // An optimistic address may be used before it is known to be unique (RFC 4429).
    let optimistic = flags.is_some_and(|flags| flags.contains(AddressFlags::Optimistic));
    let link_local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    (!pending || optimistic) && !link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, flags: LinkFlags, state: State) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = flags;
        message.attributes =
            vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::OperState(state)];
        message
    }

    fn address(index: u32, text: &str, flags: AddressFlags) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.attributes =
            vec![AddressAttribute::Address(text.parse().unwrap()), AddressAttribute::Flags(flags)];
        message
    }

    fn new_link(message: LinkMessage) -> RouteNetlinkMessage {
        RouteNetlinkMessage::NewLink(message)
    }

    fn new_address(message: AddressMessage) -> RouteNetlinkMessage {
        RouteNetlinkMessage::NewAddress(message)
    }

    /// A table with `wwan0` up, with index 3 and one address.
    fn table() -> Table {
        let mut table = Table::default();
        table.apply(&new_link(link(3, "wwan0", LinkFlags::Up, State::Up)));
        table.apply(&new_address(address(3, "192.0.2.7", AddressFlags::Permanent)));
        table
    }

    #[test]
    fn interface_is_added_changed_and_removed() {
        let mut table = table();
        let state = table.state("wwan0");
        assert_eq!((state.index, state.present, state.up), (3, true, true));
        assert_eq!(state.addresses, ["192.0.2.7".parse::<IpAddr>().unwrap()]);

        table.apply(&new_link(link(3, "wwan0", LinkFlags::Up, State::Down)));
        assert!(!table.state("wwan0").up, "no carrier");
        table.apply(&new_link(link(3, "wwan0", LinkFlags::empty(), State::Unknown)));
        assert!(!table.state("wwan0").up, "switched off");
        table.apply(&new_link(link(3, "wwan0", LinkFlags::Up, State::Unknown)));
        assert!(table.state("wwan0").up, "a modem does not report its carrier");

        let gone = address(3, "192.0.2.7", AddressFlags::empty());
        table.apply(&RouteNetlinkMessage::DelAddress(gone));
        assert!(table.state("wwan0").addresses.is_empty());
        let gone = link(3, "wwan0", LinkFlags::empty(), State::Down);
        table.apply(&RouteNetlinkMessage::DelLink(gone));
        let state = table.state("wwan0");
        assert_eq!((state.index, state.present, state.up), (0, false, false));
        assert_eq!(table, Table::default());
    }

    #[test]
    fn only_usable_addresses_are_listed() {
        let mut table = table();
        let many = |table: &Table| table.state("wwan0").addresses.len();
        table.apply(&new_address(address(3, "2001:db8::7", AddressFlags::Tentative)));
        assert_eq!(many(&table), 1, "tentative");
        table.apply(&new_address(address(3, "2001:db8::7", AddressFlags::Permanent)));
        assert_eq!(many(&table), 2);
        table.apply(&new_address(address(3, "2001:db8::7", AddressFlags::Dadfailed)));
        assert_eq!(many(&table), 1, "another host has it");
        table.apply(&new_address(address(3, "fe80::1", AddressFlags::Permanent)));
        assert_eq!(many(&table), 1, "link-local");
        table.apply(&new_address(address(9, "198.51.100.1", AddressFlags::Permanent)));
        assert_eq!(many(&table), 1, "another interface's");

        let mut peer = address(3, "10.64.64.64", AddressFlags::Permanent);
        peer.attributes.push(AddressAttribute::Local("10.0.0.2".parse().unwrap()));
        table.apply(&new_address(peer));
        let own: IpAddr = "10.0.0.2".parse().unwrap();
        assert!(table.state("wwan0").addresses.contains(&own), "the local address, not the peer's");
    }

    #[test]
    fn renames_and_bridge_messages_are_handled() {
        let mut table = table();
        let mut port = link(3, "wwan0", LinkFlags::empty(), State::Down);
        port.header.interface_family = AddressFamily::Bridge;
        table.apply(&RouteNetlinkMessage::DelLink(port.clone()));
        table.apply(&new_link(port));
        assert!(table.state("wwan0").up);
        table.apply(&new_link(link(3, "modem", LinkFlags::Up, State::Up)));
        assert!(!table.state("wwan0").present && table.state("modem").up);
        // The removal of the old index was missed.
        table.apply(&new_link(link(8, "modem", LinkFlags::Up, State::Up)));
        assert_eq!(table.state("modem").index, 8);
        assert_eq!(table.names().collect::<Vec<_>>(), ["modem"]);
        assert_eq!(table.links.len(), 1);
    }
}
