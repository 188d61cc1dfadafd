//! Which link address may send DNS queries from which source address.
//!
//! A passenger could put a neighbour's address in its queries, and so spend its quota or direct
//! answers to it. So the rules drop a query if its source address is bound to another link address.
//! Addresses are bound to what the kernel's neighbour tables say, as long as that is recent. The
//! rules let a query from an unbound address pass: its answer makes the kernel resolve the address.
//!
//! Only addresses on the link of a passengers' interface are bound. Those behind an on-board router
//! arrive with the router's link address.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use nix::net::if_::if_nametoindex;

use super::InterceptError;
use super::ruleset::{SETS, TABLE};
use crate::neighbours::NeighbourTable;

/// How long ago the kernel confirmed or learned a neighbour, at most, if its address is bound. The
/// kernel confirms an active neighbour every 15 to 50 s. Then a device that takes over an address
/// can use it.
pub(super) const RECENT: Duration = Duration::from_secs(60);

/// The maximum number of bound addresses; further ones are not protected. The kernel's tables have
/// at most 1,024 entries per family by default (`gc_thresh3`).
pub(super) const BOUND_MAX: usize = 4096;

/// The maximum number of addresses in one change: its text fits in a pipe (64 KiB).
const CHANGES_MAX: usize = 256;

/// An interface and an address on its link.
pub(super) type Place = (String, IpAddr);

/// The link address of each bound address.
pub(super) type Bound = BTreeMap<Place, [u8; 6]>;

/// The sets of the rules, kept like the kernel's neighbour tables.
#[derive(Debug)]
pub(super) struct Bindings {
    table: NeighbourTable,
    interfaces: Vec<String>,
    /// The content of the sets; `None` if it is unknown.
    applied: Option<Bound>,
}

/// A change of the sets, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) line: String,
    /// An element of which the kernel shows, after the change, whether it is there.
    pub(super) proof: (String, bool),
    /// The content of the sets after the change.
    pub(super) after: Bound,
}

impl Bindings {
    pub(super) fn new(interfaces: Vec<String>) -> Result<Self, InterceptError> {
        let table = NeighbourTable::new().map_err(InterceptError::Neighbours)?;
        Ok(Self { table, interfaces, applied: None })
    }

    /// The sets are new and empty, or their content is unknown.
    pub(super) fn forget(&mut self) {
        self.applied = None;
    }

    /// Applies the differences between the neighbour tables and the sets, at most [`CHANGES_MAX`].
    pub(super) fn update(
        &mut self,
        apply: impl FnOnce(&Change) -> Result<(), InterceptError>,
    ) -> Result<(), InterceptError> {
        let wanted = self.wanted().map_err(InterceptError::Neighbours)?;
        let Some(change) = change(self.applied.as_ref(), &wanted) else { return Ok(()) };
        self.applied = None;
        apply(&change)?;
        self.applied = Some(change.after);
        Ok(())
    }

    fn wanted(&mut self) -> std::io::Result<Bound> {
        let indices = self
            .interfaces
            .iter()
            .filter_map(|name| Some((if_nametoindex(name.as_str()).ok()?, name.clone())));
        let names: BTreeMap<u32, String> = indices.collect();
        let mut wanted = Bound::new();
        let mut new = Vec::new();
        for neighbour in self.table.recent(RECENT)? {
            let Some(name) = names.get(&neighbour.interface) else { continue };
            let place = (name.clone(), neighbour.address);
            if self.applied.as_ref().is_some_and(|applied| applied.contains_key(&place)) {
                wanted.insert(place, neighbour.link);
            } else {
                new.push((place, neighbour));
            }
        }
        for (place, neighbour) in new {
            if wanted.len() >= BOUND_MAX {
                break;
            }
            // Else a passenger could bind the address of a device behind a router to itself.
            if is_link_local(place.1) || self.table.on_link(place.1)? == Some(neighbour.interface) {
                wanted.insert(place, neighbour.link);
            }
        }
        Ok(wanted)
    }
}

/// The change from the sets' content, or from unknown content, towards the wanted one.
pub(super) fn change(applied: Option<&Bound>, wanted: &Bound) -> Option<Change> {
    let mut after = applied.cloned().unwrap_or_default();
    let gone: Vec<(Place, [u8; 6])> = after
        .iter()
        .filter(|(place, link)| wanted.get(*place) != Some(*link))
        .map(|(place, link)| (place.clone(), *link))
        .take(CHANGES_MAX)
        .collect();
    for (place, _) in &gone {
        after.remove(place);
    }
    let new: Vec<(Place, [u8; 6])> = wanted
        .iter()
        .filter(|(place, _)| !after.contains_key(*place))
        .map(|(place, link)| (place.clone(), *link))
        .take(CHANGES_MAX.saturating_sub(gone.len()))
        .collect();
    after.extend(new.iter().cloned());

    let proof = match (new.last(), gone.last()) {
        (Some(added), _) => (sender(added), true),
        (None, Some(removed)) => (sender(removed), false),
        (None, None) => return None,
    };
    let mut line = String::new();
    if applied.is_none() {
        for set in SETS {
            // Writing to a String cannot fail.
            let _ = write!(line, "flush set {TABLE} {set}; ");
        }
    }
    for (verb, changed) in [("delete", &gone), ("add", &new)] {
        for v4 in [true, false] {
            let of_family = || changed.iter().filter(move |((_, ip), _)| ip.is_ipv4() == v4);
            let (bound, senders) = sets(v4);
            statement(&mut line, verb, bound, of_family().map(address));
            statement(&mut line, verb, senders, of_family().map(sender_key));
        }
    }
    Some(Change { line: line.trim_end_matches("; ").to_owned(), proof, after })
}

/// The names of a family's sets: bound addresses, and those with their link address.
fn sets(v4: bool) -> (&'static str, &'static str) {
    if v4 { (SETS[0], SETS[1]) } else { (SETS[2], SETS[3]) }
}

fn statement(line: &mut String, verb: &str, set: &str, elements: impl Iterator<Item = String>) {
    let list: Vec<String> = elements.collect();
    if !list.is_empty() {
        let _ = write!(line, "{verb} element {TABLE} {set} {{ {} }}; ", list.join(", "));
    }
}

/// The set and element of a bound sender, as `nft get element` takes it.
fn sender(bound: &(Place, [u8; 6])) -> String {
    let (_, senders) = sets(bound.0.1.is_ipv4());
    format!("{senders} {{ {} }}", sender_key(bound))
}

fn address(((interface, address), _): &(Place, [u8; 6])) -> String {
    format!("\"{interface}\" . {address}")
}

fn sender_key(bound: &(Place, [u8; 6])) -> String {
    let [a, b, c, d, e, f] = bound.1;
    format!("{} . {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}", address(bound))
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
