//! The machine's interfaces as the control thread reports them, and each carrier's view of its own.

use std::collections::BTreeMap;
use std::net::IpAddr;

use polyrail_admin::LinkChange;

use super::policy::Link;

/// The known interfaces; at most [`LINKS_MAX`]. When it is full, removed interfaces are evicted;
/// if there are none, further interfaces are ignored.
#[derive(Debug, Default)]
pub(super) struct Links {
    known: BTreeMap<String, LinkChange>,
}

impl Links {
    /// Stores the new state of an interface.
    pub(super) fn take(&mut self, change: LinkChange) {
        if self.known.len() >= LINKS_MAX {
            self.known.retain(|_, known| known.present);
        }
        if self.known.len() < LINKS_MAX || self.known.contains_key(&change.interface) {
            self.known.insert(change.interface.clone(), change);
        }
    }

    /// The state of the interface that a carrier is bound to; `None` while no interface with that
    /// name or address was reported.
    pub(super) fn of(&self, interface: Option<&str>, source: Option<IpAddr>) -> Option<Link> {
        match (interface, source) {
            (Some(name), _) => self.known.get(name).map(|change| link(change, source)),
            (None, Some(source)) => {
                let mut holders = self.known.values();
                let holder = holders.find(|change| change.addresses.contains(&source));
                holder.map(|change| link(change, Some(source)))
            }
            (None, None) => Some(Link::Unknown),
        }
    }
}

fn link(change: &LinkChange, source: Option<IpAddr>) -> Link {
    if !change.present {
        return Link::Absent;
    }
    if !change.up {
        return Link::Down;
    }
    let wanted = |address: &&IpAddr| match source {
        Some(source) => **address == source,
        None => !is_link_local(address),
    };
    let addresses = change.addresses.iter().filter(wanted).copied().collect();
    Link::Up { index: change.index, addresses }
}

/// Link-local addresses (RFC 4291 2.5.6, RFC 3927).
fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The maximum number of known interfaces.
const LINKS_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, up: bool, addresses: &[&str]) -> LinkChange {
        LinkChange {
            interface: name.to_owned(),
            index: 4,
            present: true,
            up,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn link_of_a_carrier_follows_its_interface_and_source() {
        let mut links = Links::default();
        let source = Some("10.0.0.2".parse().unwrap());
        assert_eq!(links.of(Some("wwan0"), None), None);
        assert_eq!(links.of(None, source), None);
        assert_eq!(links.of(None, None), Some(Link::Unknown));
        links.take(change("wwan0", true, &["10.0.0.2", "fe80::1", "169.254.0.1"]));
        let alone = Link::Up { index: 4, addresses: vec!["10.0.0.2".parse().unwrap()] };
        assert_eq!(links.of(Some("wwan0"), None), Some(alone.clone()));
        assert_eq!(links.of(None, source), Some(alone));
        assert_eq!(links.of(None, Some("10.0.0.9".parse().unwrap())), None);
        let other = Some("10.0.0.9".parse().unwrap());
        let none = Some(Link::Up { index: 4, addresses: vec![] });
        assert_eq!(links.of(Some("wwan0"), other), none);
        links.take(change("wwan0", false, &["10.0.0.2"]));
        assert_eq!(links.of(Some("wwan0"), None), Some(Link::Down));
        links.take(LinkChange { present: false, ..change("wwan0", false, &[]) });
        assert_eq!(links.of(Some("wwan0"), None), Some(Link::Absent));
        assert_eq!(links.of(None, source), None);
    }

    #[test]
    fn known_interfaces_are_bounded() {
        let mut links = Links::default();
        for place in 0..LINKS_MAX + 10 {
            links.take(change(&format!("veth{place}"), true, &[]));
        }
        assert_eq!(links.known.len(), LINKS_MAX);
        links.take(change("veth0", false, &[]));
        assert_eq!(links.of(Some("veth0"), None), Some(Link::Down));
        links.take(LinkChange { present: false, ..change("veth1", false, &[]) });
        links.take(change("wwan0", false, &[]));
        assert_eq!(links.of(Some("wwan0"), None), Some(Link::Down), "replaces a removed interface");
    }
}
