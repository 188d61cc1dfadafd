//! Chooses the cloud's address for the next connection.
//!
//! The address that last worked is preferred; every fourth connection of a search tries another
//! address, because the cloud may have moved. Before any address has worked, each failure advances
//! to the next one.

use std::net::SocketAddr;

/// The addresses of the cloud over one carrier.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    addresses: Vec<SocketAddr>,
    /// The address that last worked.
    good: Option<SocketAddr>,
    /// The index of the next other address.
    cursor: usize,
    drawn: u64,
}

impl AddressBook {
    /// Addresses in order of preference.
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, ..Self::default() }
    }

    /// Replaces the addresses; the one that worked stays preferred if it is among them.
    pub(crate) fn replace(&mut self, addresses: Vec<SocketAddr>) {
        self.good = self.good.filter(|good| addresses.contains(good));
        self.addresses = addresses;
        self.cursor = 0;
    }

    /// Whether the address is known.
    pub(crate) fn contains(&self, address: &SocketAddr) -> bool {
        self.addresses.contains(address)
    }

    /// The address for the next connection; `None` if no address fits.
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

    /// A connection to the address failed: it was refused or unanswered.
    pub(crate) fn failed(&mut self, address: SocketAddr, refused: bool) {
        if refused && self.good == Some(address) {
            self.good = None;
        }
        if self.good.is_some() {
            return;
        }
        let index = self.addresses.iter().position(|known| *known == address);
        // Several attempts may fail at once: only the address at the cursor advances it.
        if let Some(index) = index
            && index == self.cursor % self.addresses.len()
        {
            self.cursor = index + 1;
        }
    }
}

/// One of this many connections goes to another address than the one that worked.
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
    fn failures_advance_and_the_working_address_is_preferred() {
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
        // An unanswered attempt keeps the preference; a refusal removes it.
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
        assert!(drawn.iter().all(|address| *address == Some(all[1])), "there is only one address");
    }
}
