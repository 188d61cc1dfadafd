//! What acknowledgements cost: a download over a carrier with a narrow uplink, and the share of
//! the uplink over one whose directions are alike.

use std::time::Duration;

use anyhow::Result;
use polyrail_emulator::link::LinkSpec;
use polyrail_model::{Bitrate, Bytes};

use super::congestion;
use super::worlds::Worlds;
use crate::bench::Effort;
use crate::bulk::{Bulk, Source};
use crate::carrier::{self, Medium};
use crate::client::PATIENCE;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

/// Name, mode, and congestion control of both ends.
const CASES: [(&str, &str, &str); 3] =
    [("quic_bbr", "quic", "bbr"), ("quic_rail", "quic", "rail"), ("tls", "tls", "bbr")];
const DOWN_MBIT_S: f64 = 20.0;
const UPLINKS: [(&str, f64); 2] = [("narrow", 0.128), ("wide", DOWN_MBIT_S)];

/// Mbit/s down and the share of bytes up over bytes down, of each case.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (rounds, time) = effort.pick((5, Duration::from_secs(10)), (1, Duration::from_secs(2)));
    for (uplink, up) in UPLINKS {
        let plans = CASES.map(|(_, mode, congestion)| plan(mode, congestion, up));
        let prepare = |world: &mut World, number: usize| {
            let source = Source::start(world)?;
            let bulk = Bulk::start(world)?;
            bulk.wait_for(2_000_000, PATIENCE)?;
            if CASES[number].1 == "tls" {
                congestion::must_run(world, CASES[number].2)?;
            }
            Ok((source, bulk))
        };
        let measure = move |world: &mut World, (_, bulk): &mut (Source, Bulk), _| {
            let (bytes, up) = (bulk.bytes(), up_bytes(world)?);
            std::thread::sleep(time);
            let down = (bulk.bytes() - bytes) as f64;
            Ok((down * 8e-6 / time.as_secs_f64(), (up_bytes(world)? - up) as f64 / down))
        };
        let worlds = Worlds::start(&plans, prepare, measure)?;
        let mut outcomes = vec![(Vec::new(), Vec::new()); CASES.len()];
        for round in 0..rounds {
            for (lists, (rate, share)) in outcomes.iter_mut().zip(worlds.in_turns(round)?) {
                lists.0.push(rate);
                lists.1.push(share);
            }
        }
        for ((case, mode, _), (rates, shares)) in CASES.into_iter().zip(&outcomes) {
            let is_quic = mode == "quic" && effort == Effort::Full;
            let (fast, thin) = match uplink {
                "narrow" if is_quic => (Goal::AtLeast(6.0), Goal::None),
                "wide" if is_quic => (Goal::None, Goal::AtMost(0.02)),
                _ => (Goal::None, Goal::None),
            };
            let name = format!("uplink_{uplink}_{case}");
            report.result(&name, median(rates), "Mbit/s", fast, rates);
            report.result(&format!("{name}_share"), median(shares), "x", thin, shares);
        }
    }
    Ok(())
}

fn plan(mode: &str, congestion: &str, up: f64) -> Plan {
    let direction = |mbit_s, kib| {
        let delay = Duration::from_millis(30);
        LinkSpec::steady(Bitrate::from_mbps(mbit_s), delay, Bytes::from_kib(kib))
    };
    // The uplink of a phone has a deep queue for its rate: here 4 s.
    let medium = Medium::Course(Box::new([direction(up, 64), direction(DOWN_MBIT_S, 256)]));
    super::plan(mode).medium("alpha", medium).cloud("congestion", congestion).carrier_key(
        0,
        "congestion",
        congestion,
    )
}

fn up_bytes(world: &World) -> Result<u64> {
    Ok(carrier::counters(&world.lab)?.iter().map(|link| link.up_bytes).sum())
}
