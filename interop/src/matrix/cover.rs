//! The rows that CI runs. They cover every pair of values of modes, family and fault in few rows.
//!
//! A row has up to three faults in sequence. Faults of UDP with a fallback appear for both
//! families. The test shows that no pair is missing.

use super::Fault::{
    self, AddressChange, BlackoutDrop, BlackoutHold, InterfaceRemoved, LossBursts, Mtu1280,
    Mtu1280Silent, NatRebinding, None, RandomLoss, Reorder, UdpBlocked, UdpBlockedAtStart,
    UdpPoliced,
};
use super::GatewayMode::{self, Auto, Mixed, Quic, Tls};
use super::{CloudMode, Row};
use crate::addresses::Family::{self, V4, V6};

/// The rows of the cover in their order of execution.
pub fn cover() -> Vec<Row> {
    let row = |(gateway, cloud, family, faults): &Covered| Row {
        gateway: *gateway,
        cloud: *cloud,
        family: *family,
        faults: faults.to_vec(),
    };
    ROWS.iter().map(row).collect()
}

type Covered = (GatewayMode, CloudMode, Family, &'static [Fault]);

const ROWS: [Covered; 25] = [
    (Tls, CloudMode::Tls, V6, &[AddressChange, BlackoutDrop(8), BlackoutHold(8)]),
    (Tls, CloudMode::Tls, V4, &[RandomLoss, BlackoutHold(3), LossBursts]),
    (Tls, CloudMode::Tls, V6, &[BlackoutDrop(1), BlackoutHold(1), None]),
    (Tls, CloudMode::Tls, V6, &[Mtu1280, InterfaceRemoved, Mtu1280Silent]),
    (Tls, CloudMode::Auto, V6, &[Reorder, BlackoutDrop(3), NatRebinding]),
    (Quic, CloudMode::Quic, V6, &[UdpPoliced, BlackoutHold(1), NatRebinding]),
    (Quic, CloudMode::Quic, V6, &[BlackoutHold(3), BlackoutDrop(1), BlackoutHold(8)]),
    (Quic, CloudMode::Auto, V4, &[UdpBlocked, None, BlackoutDrop(8)]),
    (Quic, CloudMode::Quic, V6, &[UdpBlockedAtStart, LossBursts, BlackoutDrop(3)]),
    (Quic, CloudMode::Quic, V6, &[AddressChange, RandomLoss, Reorder]),
    (Quic, CloudMode::Quic, V4, &[Mtu1280, InterfaceRemoved, Mtu1280Silent]),
    (Auto, CloudMode::Auto, V6, &[BlackoutHold(8), AddressChange, BlackoutHold(3)]),
    (Auto, CloudMode::Quic, V4, &[BlackoutHold(1), None, BlackoutDrop(3)]),
    (Auto, CloudMode::Auto, V4, &[BlackoutDrop(8), UdpBlocked, InterfaceRemoved]),
    (Auto, CloudMode::Auto, V4, &[Mtu1280, UdpPoliced, NatRebinding]),
    (Auto, CloudMode::Tls, V6, &[RandomLoss, Reorder, BlackoutDrop(1)]),
    (Auto, CloudMode::Auto, V4, &[UdpBlockedAtStart, LossBursts, Mtu1280Silent]),
    (Mixed, CloudMode::Tls, V4, &[BlackoutDrop(3), NatRebinding, BlackoutHold(3)]),
    (Mixed, CloudMode::Auto, V4, &[UdpPoliced, InterfaceRemoved, LossBursts]),
    (Mixed, CloudMode::Auto, V4, &[UdpBlockedAtStart, BlackoutHold(8), BlackoutDrop(1)]),
    (Mixed, CloudMode::Quic, V6, &[UdpBlocked, BlackoutDrop(8), Mtu1280]),
    (Mixed, CloudMode::Auto, V6, &[None, RandomLoss, BlackoutHold(1)]),
    (Mixed, CloudMode::Quic, V4, &[AddressChange, Reorder, Mtu1280Silent]),
    (Auto, CloudMode::Auto, V6, &[UdpBlockedAtStart, UdpBlocked, UdpPoliced]),
    (Tls, CloudMode::Tls, V4, &[None, Mtu1280Silent]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::matrix::{Expected, all_rows};

    /// Two values of different kinds.
    type Pair = (Value, Value);

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Value {
        Gateway(GatewayMode),
        Cloud(CloudMode),
        Family(char),
        Fault(Fault),
        /// The result of a fault, which depends on both modes.
        Expected(Expected),
    }

    /// All pairs of values of a row, the smaller first. A fault forms a pair with its own result
    /// only. A result also forms one with the family, because families do not share all code.
    fn pairs(row: &Row) -> BTreeSet<Pair> {
        let mut values = vec![
            Value::Gateway(row.gateway),
            Value::Cloud(row.cloud),
            Value::Family(row.family.digit()),
        ];
        let plain = values.len();
        values.extend(row.faults.iter().map(|fault| Value::Fault(*fault)));
        let mut pairs = BTreeSet::new();
        for (index, first) in values.iter().enumerate().take(plain) {
            for second in &values[index + 1..] {
                pairs.insert((*first, *second));
            }
        }
        for (fault, expected) in row.faults.iter().zip(row.expectations()) {
            pairs.insert((Value::Fault(*fault), Value::Expected(expected)));
            pairs.insert((Value::Family(row.family.digit()), Value::Expected(expected)));
        }
        pairs
    }

    #[test]
    fn every_pair_that_makes_sense_is_covered_in_few_rows() {
        let rows = cover();
        let covered: BTreeSet<Pair> = rows.iter().flat_map(pairs).collect();
        let wanted: BTreeSet<Pair> =
            all_rows().iter().filter(|row| row.can_connect()).flat_map(pairs).collect();
        let missing: Vec<&Pair> = wanted.difference(&covered).collect();
        assert!(missing.is_empty(), "{} of {} missing: {missing:?}", missing.len(), wanted.len());
        assert!(rows.iter().all(|row| row.victims().is_some()), "a fault without sense");
        assert!(rows.iter().all(|row| row.faults.len() <= 3));
        // Faults that exist from the start come first in their rows.
        let late = |row: &Row| row.faults.iter().skip(1).any(|f| *f == Fault::UdpBlockedAtStart);
        assert!(!rows.iter().any(late));
    }
}
