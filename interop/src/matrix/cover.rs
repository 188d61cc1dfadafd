//! The rows that CI runs: every pair of values of modes, family and fault, in few rows.
//!
//! A row of the cover takes up to [`FAULTS_PER_ROW`] faults, one after another, so that each mode
//! of the gateway meets each fault in a row of its own exactly once. Faults of UDP, which lead to
//! something else where there is a way around, come once more there, for the other family. Clouds
//! and families are then changed until all other pairs are there as well; the generator is seeded,
//! so the rows are always the same.

use std::collections::BTreeSet;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::addresses::Family;

use super::{CloudMode, Expected, Fault, GatewayMode, Row};

/// The most rows of the cover.
pub const ROWS_MAX: usize = 24;

/// The most faults of a row of the cover.
const FAULTS_PER_ROW: usize = 3;
/// What has a way around in mode `auto`, in an order in which it can happen.
const OF_UDP: [Fault; FAULTS_PER_ROW] =
    [Fault::UdpBlockedAtStart, Fault::UdpBlocked, Fault::UdpPoliced];
const SEED: u64 = 3;
/// The most changes that are tried; about a thousand suffice.
const TRIES_MAX: u32 = 200_000;
/// After so many changes without a better cover all is drawn anew.
const PATIENCE: u32 = 2_000;

/// The cover, in the order in which it runs.
pub fn cover() -> Vec<Row> {
    let mut generator = Pcg64::seed_from_u64(SEED);
    let wanted = sensible_pairs();
    let missing = |rows: &[Row]| {
        let covered: BTreeSet<Pair> = rows.iter().flat_map(pairs).collect();
        wanted.difference(&covered).count()
    };
    let mut rows = draw(&mut generator);
    let (mut lacks, mut idle) = (missing(&rows), 0);
    for _ in 0..TRIES_MAX {
        if lacks == 0 {
            break;
        }
        if idle == PATIENCE {
            rows = draw(&mut generator);
            (lacks, idle) = (missing(&rows), 0);
        }
        let mut changed = rows.clone();
        let place = generator.random_range(0..changed.len());
        let old = &changed[place];
        changed[place] = complete(&mut generator, old.gateway, &old.faults);
        let lacks_then = missing(&changed);
        idle = if lacks_then < lacks { 0 } else { idle + 1 };
        if lacks_then <= lacks {
            (rows, lacks) = (changed, lacks_then);
        }
    }
    rows
}

/// Two values of different kinds.
type Pair = (Value, Value);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Gateway(GatewayMode),
    Cloud(CloudMode),
    Family(char),
    Fault(Fault),
    /// What a fault led to, which depends on both modes together.
    Expected(Expected),
}

/// All pairs of values of a row, the smaller first. Of faults and what they lead to, only those
/// that belong together; what they lead to with the family as well, for the ways of both families
/// are not the same code.
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

/// Every pair that some sensible row with one fault has.
fn sensible_pairs() -> BTreeSet<Pair> {
    super::all_rows().iter().filter(|row| row.can_connect()).flat_map(pairs).collect()
}

/// Each gateway's faults in rows of three, with clouds and families as they come.
fn draw(generator: &mut Pcg64) -> Vec<Row> {
    let mut rows = Vec::new();
    for gateway in GatewayMode::ALL {
        let mut faults = Fault::ALL.to_vec();
        faults.retain(|fault| !clouds(gateway, &[*fault]).is_empty());
        faults.shuffle(generator);
        for chunk in faults.chunks(FAULTS_PER_ROW) {
            let mut chunk = chunk.to_vec();
            // What is there from the start comes first.
            chunk.sort_by_key(|fault| *fault != Fault::UdpBlockedAtStart);
            rows.push(complete(generator, gateway, &chunk));
        }
    }
    rows.push(complete(generator, GatewayMode::Auto, &OF_UDP));
    rows
}

/// A row with these faults, any family, and any cloud with which they make sense.
fn complete(generator: &mut Pcg64, gateway: GatewayMode, faults: &[Fault]) -> Row {
    let clouds = clouds(gateway, faults);
    Row {
        gateway,
        cloud: clouds[generator.random_range(0..clouds.len())],
        family: Family::BOTH[generator.random_range(0..2)],
        faults: faults.to_vec(),
    }
}

/// The clouds with which all these faults make sense. One that takes both modes is among them, if
/// any is.
fn clouds(gateway: GatewayMode, faults: &[Fault]) -> Vec<CloudMode> {
    let row = |cloud| Row { gateway, cloud, family: Family::V4, faults: faults.to_vec() };
    CloudMode::ALL.into_iter().filter(|cloud| row(*cloud).victims().is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Class;

    #[test]
    fn every_pair_that_makes_sense_is_covered_in_few_rows() {
        let rows = cover();
        let covered: BTreeSet<Pair> = rows.iter().flat_map(pairs).collect();
        let wanted = sensible_pairs();
        let missing: Vec<&Pair> = wanted.difference(&covered).collect();
        assert!(missing.is_empty(), "{} of {} missing: {missing:?}", missing.len(), wanted.len());
        assert!(rows.len() <= ROWS_MAX, "{} rows", rows.len());
        assert!(rows.iter().all(|row| row.victims().is_some()), "a fault without sense");
        assert!(rows.iter().all(|row| row.faults.len() <= FAULTS_PER_ROW));
        // The faults from the start are the first of their rows.
        let late = |row: &Row| row.faults.iter().skip(1).any(|f| *f == Fault::UdpBlockedAtStart);
        assert!(!rows.iter().any(late));
    }

    #[test]
    fn the_pairs_are_those_of_the_issue() {
        let wanted = sensible_pairs();
        let has = |first, second| wanted.contains(&(first, second));
        let (tls, quic) = (GatewayMode::Tls, GatewayMode::Quic);
        assert!(has(Value::Gateway(GatewayMode::Mixed), Value::Fault(Fault::BlackoutHold(8))));
        assert!(has(Value::Cloud(CloudMode::Quic), Value::Fault(Fault::UdpPoliced)));
        assert!(has(Value::Family('6'), Value::Fault(Fault::NatRebinding)));
        assert!(has(Value::Gateway(tls), Value::Cloud(CloudMode::Auto)));
        assert!(!has(Value::Gateway(quic), Value::Cloud(CloudMode::Tls)));
        assert!(!has(Value::Gateway(tls), Value::Fault(Fault::UdpBlocked)));
        assert!(!has(Value::Cloud(CloudMode::Tls), Value::Fault(Fault::UdpBlocked)));
        for family in Family::BOTH.map(|family| Value::Family(family.digit())) {
            for class in [Class::FallbackAtStart, Class::Fallback, Class::Demotion] {
                assert!(
                    has(family, Value::Expected(Expected::Back(class))),
                    "{family:?} {class:?}"
                );
            }
        }
        assert_eq!(wanted.len(), 65 + 48 + 34 + 10 + 8 + 6 + 20 + 20);
    }

    #[test]
    fn the_cover_is_always_the_same() {
        assert_eq!(cover(), cover());
    }
}
