//! One download over two carriers against the same over one, in interleaved pairs.

use anyhow::Result;

use super::Effort;
use crate::carrier::Link;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

const SIZE: u64 = 20_000_000;
const SMOKE_SIZE: u64 = 3_000_000;

/// Two carriers of 20 Mbit/s and 40 ms.
pub(super) fn symmetric(report: &mut Report, effort: Effort) -> Result<()> {
    let one = Plan::new().carrier("alpha", Link::new(20.0, 40));
    let two = one.clone().carrier("beta", Link::new(20.0, 40));
    let ratios = pairs(&one, &two, effort.pick(5, 1), effort.pick(SIZE, SMOKE_SIZE))?;
    report.result("bonding_20_20_ratio", median(&ratios), "x", Goal::AtLeast(1.7), &ratios);
    Ok(())
}

/// Carriers of 20 and 5 Mbit/s.
pub(super) fn asymmetric(report: &mut Report, effort: Effort) -> Result<()> {
    let one = Plan::new().carrier("alpha", Link::new(20.0, 40));
    let two = one.clone().carrier("beta", Link::new(5.0, 40));
    let ratios = pairs(&one, &two, effort.pick(5, 1), effort.pick(SIZE, SMOKE_SIZE))?;
    report.result("bonding_20_5_ratio", median(&ratios), "x", Goal::AtLeast(0.97), &ratios);
    Ok(())
}

/// The ratios of the goodput with `two` to that with `one`, in interleaved pairs.
fn pairs(one: &Plan, two: &Plan, count: usize, size: u64) -> Result<Vec<f64>> {
    let mut ratios = Vec::new();
    for pair in 0..count {
        let (first, second) = if pair % 2 == 0 { (one, two) } else { (two, one) };
        let (first, second) = (goodput(first, size)?, goodput(second, size)?);
        let (alone, bonded) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        println!("pair {pair}: {alone:.2} Mbit/s over one, {bonded:.2} over two");
        ratios.push(bonded / alone);
    }
    Ok(ratios)
}

/// The goodput of one checked download by interception, Mbit/s.
fn goodput(plan: &Plan, size: u64) -> Result<f64> {
    super::in_tls(plan, move |world: &mut World| {
        let file = world.web.add(size, 1)?;
        Ok(world.download(&file).verify(&world.lab.passenger, &file)?.mbit_s())
    })
}
