//! The carriers of a session by number, and sets of them.
//!
//! A carrier keeps its number until the session ends, so that a flow can remember which carriers
//! have carried it. At most [`CARRIERS_MAX`] names are remembered: further carriers have larger
//! numbers, which no set takes.

/// The carriers that sets can hold; a session has at most as many paths.
pub(crate) const CARRIERS_MAX: usize = 64;

/// The names of a session's carriers, by number.
#[derive(Debug, Default)]
pub(crate) struct CarrierNames(Vec<String>);

impl CarrierNames {
    /// The number of a carrier; `None` if there is no room for another name.
    pub fn number(&mut self, name: &str) -> Option<u32> {
        let known = self.0.iter().position(|known| known == name);
        let number = known.unwrap_or(self.0.len());
        if number >= CARRIERS_MAX {
            return None;
        }
        if known.is_none() {
            self.0.push(name.to_owned());
        }
        Some(number as u32)
    }

    /// The names of a set, in the order in which the carriers came up.
    pub fn of(&self, set: CarrierSet) -> impl Iterator<Item = &str> {
        let numbered = (0..).zip(&self.0);
        numbered.filter(move |(number, _)| set.contains(*number)).map(|(_, name)| name.as_str())
    }

    /// The set of these carriers; unknown names are ignored.
    pub fn set(&self, names: &[String]) -> CarrierSet {
        let mut set = CarrierSet::default();
        let known = (0..).zip(&self.0).filter(|(_, name)| names.contains(name));
        known.for_each(|(number, _)| set.insert(number));
        set
    }

    /// The name of a carrier.
    pub fn name(&self, number: u32) -> Option<&str> {
        self.0.get(number as usize).map(String::as_str)
    }
}

/// A set of carriers by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarrierSet(u64);

impl CarrierSet {
    /// Adds a carrier; one without a remembered name is ignored.
    pub fn insert(&mut self, number: u32) {
        self.0 |= 1_u64.checked_shl(number).unwrap_or(0);
    }

    /// Adds the carriers of another set.
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether the carrier is in the set.
    pub fn contains(self, number: u32) -> bool {
        self.0.checked_shr(number).is_some_and(|bits| bits & 1 != 0)
    }

    /// Whether no carrier is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriers_keep_their_numbers_and_further_ones_are_in_no_set() {
        let mut names = CarrierNames::default();
        let numbers = ["a", "b", "a"].map(|name| names.number(name));
        assert_eq!(numbers, [Some(0), Some(1), Some(0)]);
        let mut set = CarrierSet::default();
        assert_eq!(names.of(set).count(), 0);
        (2..CARRIERS_MAX).for_each(|number| _ = names.number(&number.to_string()));
        assert_eq!((names.number("c"), names.number("b")), (None, Some(1)));
        [1, 63, 64, 1_000].into_iter().for_each(|number| set.insert(number));
        assert_eq!(names.of(set).collect::<Vec<_>>(), ["b", "63"]);
        assert!(set.contains(63) && !set.contains(64) && !set.contains(2));
        let known = names.set(&["63", "b", "c"].map(str::to_owned));
        assert!(known == set && !known.is_empty());
        assert!(names.set(&["c".to_owned()]).is_empty(), "an unknown name gets no number");
        assert_eq!((names.name(1), names.name(64)), (Some("b"), None));
    }
}
