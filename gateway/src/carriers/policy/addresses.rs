//! Which of the cloud's addresses the next connection goes to.
//!
//! The one that worked last is preferred; every fourth connection of a search tries another, so
//! that a cloud that moved is found while the carrier is searched. Before one has worked, every
//! failure leads to the next.

use std::net::SocketAddr;

/// The addresses of the cloud over one carrier.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    addresses: Vec<SocketAddr>,
    /// The one that worked last.
    good: Option<SocketAddr>,
    /// Where the search among the others stands.
    cursor: usize,
    drawn: u64,
}

impl AddressBook {
    /// A book of these addresses, in order of preference.
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, ..Self::default() }
    }

    /// Takes other addresses; what worked stays preferred while it is among them.
    pub(crate) fn replace(&mut self, addresses: Vec<SocketAddr>) {
        self.good = self.good.filter(|good| addresses.contains(good));
        self.addresses = addresses;
        self.cursor = 0;
    }

    /// Whether the address is in the book.
    pub(crate) fn contains(&self, address: &SocketAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Where the next connection goes; `None` when no address fits.
    pub(crate) fn draw(&mut self, fits: impl Fn(&SocketAddr) -> bool) -> Option<SocketAddr> {
        let good = self.good.filter(&fits);
        self.drawn = if good.is_some() { self.drawn + 1 } else { 0 };
        if let Some(good) = good.filter(|_| !self.drawn.is_multiple_of(OTHER_EVERY)) {
            return Some(good);
        }
        let count = self.addresses.len();
        let others = (0..count).map(|step| (self.cursor + step) % count);
        let other = others.into_iter().find(|index| {
            let address = &self.addresses[*index];
            fits(address) && Some(*address) != good
        });
        let Some(index) = other else { return good };
        self.cursor = if good.is_some() { index + 1 } else { index };
        Some(self.addresses[index])
    }

    /// Whether any address fits.
    pub(crate) fn any(&self, fits: impl Fn(&SocketAddr) -> bool) -> bool {
        self.addresses.iter().any(fits)
    }

    /// A connection to the address became a path.
    pub(crate) fn worked(&mut self, address: SocketAddr) {
        self.good = Some(address);
        self.drawn = 0;
    }

    /// A connection to the address failed: `refused` by somebody, or without any answer.
    pub(crate) fn failed(&mut self, address: SocketAddr, refused: bool) {
        if refused && self.good == Some(address) {
            self.good = None;
        }
        if self.good.is_some() {
            return;
        }
        let index = self.addresses.iter().position(|known| *known == address);
        // Several may fail at once: only the address at the cursor moves it.
        if let Some(index) = index
            && index == self.cursor % self.addresses.len()
        {
            self.cursor = index + 1;
        }
    }
}

/// Of so many connections one goes to another address than the one that worked.
const OTHER_EVERY: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn book(count: u16) -> (AddressBook, Vec<SocketAddr>) {
        let addresses: Vec<SocketAddr> =
            (1..=count).map(|port| SocketAddr::from(([192, 0, 2, 1], port))).collect();
        (AddressBook::new(addresses.clone()), addresses)
    }

    #[test]
    fn failures_lead_on_and_what_worked_stays() {
        let (mut book, all) = book(3);
        let any = |_: &SocketAddr| true;
        assert_eq!((book.draw(any), book.draw(any)), (Some(all[0]), Some(all[0])));
        book.failed(all[0], false);
        book.failed(all[0], false);
        assert_eq!(book.draw(any), Some(all[1]));
        book.failed(all[1], true);
        assert_eq!(book.draw(any), Some(all[2]));
        book.worked(all[2]);
        let drawn: Vec<_> = (0..8).map(|_| book.draw(any).unwrap().port()).collect();
        assert_eq!(drawn, [3, 3, 3, 1, 3, 3, 3, 2]);
        // Silence does not condemn what worked; a refusal does.
        book.failed(all[2], false);
        assert_eq!(book.draw(any), Some(all[2]));
        book.failed(all[2], true);
        assert_ne!(book.draw(any), Some(all[2]));
    }

    #[test]
    fn only_fitting_addresses_are_drawn() {
        let (mut book, all) = book(2);
        assert_eq!(book.draw(|address| address.port() == 2), Some(all[1]));
        assert_eq!(book.draw(|_| false), None);
        assert_eq!(AddressBook::default().draw(|_| true), None);
        book.worked(all[0]);
        book.replace(vec![all[1]]);
        assert_eq!(book.draw(|_| true), Some(all[1]));
        book.worked(all[1]);
        let drawn: Vec<_> = (0..8).map(|_| book.draw(|_| true)).collect();
        assert!(drawn.iter().all(|address| *address == Some(all[1])), "one address alone");
    }
}
