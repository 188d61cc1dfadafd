//! A map for close numbers, such as the serials of segments in flight, kept as an array.
//!
//! Invariant: the first place and the last one are filled.

use std::collections::VecDeque;

/// Values by their numbers.
#[derive(Debug)]
pub(super) struct Sequence<T> {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Option<T>>,
    count: usize,
}

impl<T> Default for Sequence<T> {
    fn default() -> Self {
        Self { first: 0, places: VecDeque::new(), count: 0 }
    }
}

impl<T> Sequence<T> {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// The least number.
    pub fn first(&self) -> Option<u64> {
        (self.count > 0).then_some(self.first)
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        self.places.get(self.place(number)?)?.as_ref()
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        self.places.get_mut(place)?.as_mut()
    }

    /// Inserts or replaces a value.
    pub fn insert(&mut self, number: u64, value: T) {
        if self.count == 0 {
            self.first = number;
        }
        while self.first > number {
            self.places.push_front(None);
            self.first -= 1;
        }
        let place = (number - self.first) as usize;
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        self.count += usize::from(self.places[place].replace(value).is_none());
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        let value = self.places.get_mut(place)?.take()?;
        self.count -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        while let Some(None) = self.places.back() {
            self.places.pop_back();
        }
        Some(value)
    }

    /// Removes the entry with the greatest number.
    pub fn pop_last(&mut self) -> Option<T> {
        let last = self.first + self.places.len().checked_sub(1)? as u64;
        self.remove(last)
    }

    pub fn clear(&mut self) {
        self.places.clear();
        self.count = 0;
    }

    /// The numbers in rising order.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        let filled = |(number, place): (u64, &Option<T>)| place.is_some().then_some(number);
        (self.first..).zip(&self.places).filter_map(filled)
    }

    /// The values in the order of their numbers.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dice::Dice;

    #[test]
    fn agrees_with_a_plain_map() {
        let (mut dice, mut sequence, mut plain) =
            (Dice::new(7), Sequence::default(), BTreeMap::new());
        for value in 0..5_000 {
            let number = 1_000 + dice.number() % 40;
            match dice.number() % 8 {
                0..4 => {
                    sequence.insert(number, value);
                    plain.insert(number, value);
                }
                4..7 => assert_eq!(sequence.remove(number), plain.remove(&number)),
                _ => assert_eq!(sequence.pop_last(), plain.pop_last().map(|(_, value)| value)),
            }
            assert_eq!(sequence.get(number), plain.get(&number));
            assert_eq!(sequence.get_mut(number), plain.get_mut(&number));
            assert_eq!(sequence.first(), plain.keys().next().copied());
            assert_eq!((sequence.len(), sequence.is_empty()), (plain.len(), plain.is_empty()));
            assert!(sequence.numbers().eq(plain.keys().copied()));
            assert!(sequence.values_mut().map(|value| &*value).eq(plain.values()));
        }
        sequence.clear();
        assert!(sequence.is_empty() && sequence.first().is_none());
        sequence.insert(3, 1);
        assert_eq!(sequence.first(), Some(3));
    }
}
