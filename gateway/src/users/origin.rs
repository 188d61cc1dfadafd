//! Where a source address belongs, from the kernel's tables.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use nix::net::if_::{if_nameindex, if_nametoindex};

use crate::neighbours::NeighbourTable;

/// A source of link addresses of neighbours.
pub trait Neighbours {
    /// Where the source address belongs.
    fn origin(&mut self, address: IpAddr) -> Origin;

    /// The most messages to the kernel that one address costs.
    fn questions(&self) -> usize;

    /// All neighbours with an Ethernet address.
    fn list(&mut self) -> HashMap<IpAddr, [u8; 6]>;
}

/// Where a source address belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// To the neighbour with this link address.
    Neighbour(Vec<u8>),
    /// To the link of an interface, but no neighbour is known to have it yet.
    Unresolved,
    /// To no neighbour, as behind a router or on an interface without link addresses.
    Elsewhere,
}

/// The kernel's tables.
#[derive(Debug)]
pub struct KernelNeighbours {
    table: NeighbourTable,
    interfaces: Vec<String>,
    questions: usize,
}

impl KernelNeighbours {
    /// Queries neighbours on these interfaces; on all if the list is empty.
    ///
    /// # Errors
    /// The system cannot create a netlink socket.
    pub fn new(interfaces: Vec<String>) -> io::Result<Self> {
        let table = NeighbourTable::new()?;
        let count = match interfaces.len() {
            0 => if_nameindex().map_or(0, |all| all.iter().count()),
            named => named,
        };
        // One for each interface, and two about the route.
        let questions = count.min(INTERFACES_MAX) + 2;
        Ok(Self { table, interfaces, questions })
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

    fn find(&mut self, address: IpAddr) -> io::Result<Origin> {
        let indices = self.indices();
        for index in &indices {
            if let Some(link) = self.table.link_address(address, *index)? {
                return Ok(Origin::Neighbour(link));
            }
        }
        Ok(match self.table.on_link(address)? {
            Some(index) if indices.contains(&index) && self.table.resolves(index)? => {
                Origin::Unresolved
            }
            _ => Origin::Elsewhere,
        })
    }
}

impl Neighbours for KernelNeighbours {
    fn origin(&mut self, address: IpAddr) -> Origin {
        self.find(address).unwrap_or_else(|error| {
            tracing::debug!(%error, "no answer of the neighbour table");
            Origin::Elsewhere
        })
    }

    fn questions(&self) -> usize {
        self.questions
    }

    fn list(&mut self) -> HashMap<IpAddr, [u8; 6]> {
        let indices = self.indices();
        let all = self.table.recent(Duration::MAX).unwrap_or_else(|error| {
            tracing::debug!(%error, "no list of the neighbour table");
            Vec::new()
        });
        let inside = all.into_iter().filter(|neighbour| indices.contains(&neighbour.interface));
        inside.map(|neighbour| (neighbour.address, neighbour.link)).collect()
    }
}

/// The maximum number of interfaces to query.
const INTERFACES_MAX: usize = 16;
