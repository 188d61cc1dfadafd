//! The carrier names that a cloud exports, because gateways choose them.
//!
//! The session bounds the names of one moment, but Prometheus keeps every series for weeks: a
//! gateway that invents a name a second would fill it. So a cloud exports the first
//! [`CARRIERS_MAX`] names of each gateway, for as long as it runs. Gateways have names that the
//! operator's certificates state.

use std::collections::{BTreeMap, BTreeSet};

/// The exported names of each gateway's carriers.
#[derive(Debug, Default)]
pub(super) struct ListedNames {
    of: BTreeMap<String, BTreeSet<String>>,
}

impl ListedNames {
    /// Whether to export this carrier of the gateway.
    pub fn permit(&mut self, gateway: &str, carrier: &str) -> bool {
        if !self.of.contains_key(gateway) {
            self.of.insert(gateway.to_owned(), BTreeSet::new());
        }
        let Some(names) = self.of.get_mut(gateway) else { return false };
        let permitted = names.contains(carrier) || names.len() < CARRIERS_MAX;
        if permitted && !names.contains(carrier) {
            names.insert(carrier.to_owned());
        }
        permitted
    }
}

/// Exported carrier names of one gateway, four times as many as its configuration may have.
pub(super) const CARRIERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_carrier_names_are_not_exported_and_take_no_place_of_another_gateway() {
        let mut names = ListedNames::default();
        assert!(names.permit("train-7", "a"));
        let permitted = (0..1_000).filter(|n| names.permit("mallory", &format!("c{n}"))).count();
        assert_eq!(permitted, CARRIERS_MAX);
        assert!(names.permit("mallory", "c0") && !names.permit("mallory", "c999"));
        assert!(names.permit("train-7", "a") && names.permit("train-7", "b"));
    }
}
