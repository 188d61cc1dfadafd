//! Trials of one TCP flow, played by both the simulator and the kernel, and their samples.
//!
//! A flow of the cloud fills the downlink of one link from [`FLOW_BEGINS`] on until the trial ends.
//! The kernel plays it in real time (`polyrail-lab trials`), the simulator in virtual time; the
//! samples of both have the same form, so that figures are computed by the same code. The same
//! links are played with a tunnel between gateway and cloud, by the daemons
//! (`polyrail-lab trials`) and by the simulator; there they begin [`TUNNEL_LEAD`] later.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};
use serde::{Deserialize, Serialize};

use crate::link::{
    Blackout, BlackoutWindow, BurstLoss, LinkSpec, Probability, Schedule, ScheduleError,
};
use crate::rail::{CarrierProfile, Route, Speed, Trip};

/// When the flow begins, counted from the link's epoch.
pub const FLOW_BEGINS: Duration = Duration::from_millis(500);
/// The interval of samples.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(50);
/// The time before a trial with daemons, so that tunnels come up ([`Trial::after_lead`]).
pub const TUNNEL_LEAD: Duration = Duration::from_secs(8);

/// A link and for how long a flow uses it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Its name, in tables and figures.
    pub name: &'static str,
    /// From the client to the server, and back: the data goes down.
    pub links: [LinkSpec; 2],
    /// When it ends, counted from the link's epoch.
    pub length: Duration,
    /// The one blackout of the trial, in both directions.
    pub dark: Option<BlackoutWindow>,
}

/// A played flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Played {
    /// The trial's name.
    pub trial: String,
    /// The congestion control, by the kernel's name.
    pub control: String,
    /// The seed of the link's faults.
    pub seed: u64,
    /// [`Trial::mark`]: links that have changed since are not compared.
    pub mark: u64,
    /// Every [`SAMPLE_EVERY`].
    pub samples: Vec<Sample>,
}

/// The flow at one instant, at the sender; only `at_s` and `delivered` are the receiver's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the link's epoch; with a lead, since its end.
    pub at_s: f64,
    /// Bytes that the receiver's program has read.
    pub delivered: u64,
    /// The smoothed round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// The window in bytes.
    pub window: u64,
    /// Timeouts in a row.
    pub backoff: u32,
    /// The next timeout in milliseconds.
    pub rto_ms: f64,
    /// Packets that were sent again.
    pub resent: u64,
    /// Bytes queued before the downlink.
    pub queue: u64,
}

impl Trial {
    /// A number that changes with the links.
    pub fn mark(&self) -> u64 {
        // FNV-1a: the same in every program, which the standard library's hashes do not promise.
        let text = format!("{:?} {:?}", self.links, self.length);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// The same trial, [`TUNNEL_LEAD`] later. Before that the links have their initial values and
    /// are not dark.
    ///
    /// # Errors
    /// A schedule repeats, which no trial here has.
    pub fn after_lead(&self) -> Result<Self, ScheduleError> {
        let [up, down] = &self.links;
        let dark = self.dark.map(|dark| BlackoutWindow { start: dark.start + TUNNEL_LEAD, ..dark });
        let length = self.length + TUNNEL_LEAD;
        Ok(Self { name: self.name, links: [later(up)?, later(down)?], length, dark })
    }
}

fn later(link: &LinkSpec) -> Result<LinkSpec, ScheduleError> {
    Ok(LinkSpec {
        rate: put_off(&link.rate, link.rate.at(Duration::ZERO).value)?,
        delay: put_off(&link.delay, link.delay.at(Duration::ZERO).value)?,
        blackouts: put_off(&link.blackouts, None)?,
        ..link.clone()
    })
}

/// `first`, and the schedule [`TUNNEL_LEAD`] later.
fn put_off<T: Copy + PartialEq>(
    schedule: &Schedule<T>,
    first: T,
) -> Result<Schedule<T>, ScheduleError> {
    if schedule.period().is_some() {
        return Err(ScheduleError::Period);
    }
    let steps = schedule.steps().map(|(at, value)| (at + TUNNEL_LEAD, value));
    let same = schedule.at(Duration::ZERO).value == first;
    Schedule::new(first, steps.skip(usize::from(same)), None)
}

/// All trials, in the order of the tables.
///
/// # Errors
/// A schedule is too long for the link model, which no trial here is.
pub fn trials() -> Result<Vec<Trial>, ScheduleError> {
    let steady = |name, link: LinkSpec, seconds| Trial {
        name,
        links: [up(&link), link],
        length: FLOW_BEGINS + Duration::from_secs(seconds),
        dark: None,
    };
    let chance = |value| Probability::new(value).unwrap_or(Probability::NEVER);
    let burst = BurstLoss {
        enter: chance(0.001),
        leave: chance(0.2),
        loss: chance(0.7),
        loss_good: Probability::NEVER,
    };
    let mut all = vec![
        steady("steady_deep", link(20, 256), 25),
        steady("steady_shallow", link(20, 32), 25),
        steady("loss_1_percent", LinkSpec { loss: chance(0.01), ..link(20, 256) }, 30),
        steady("loss_in_bursts", LinkSpec { burst_loss: Some(burst), ..link(20, 256) }, 30),
    ];
    let slow = LinkSpec::steady(Bitrate::from_bps(128_000), DELAY, Bytes::from_kib(16));
    let mut slow_uplink = steady("slow_uplink", link(10, 256), 25);
    slow_uplink.links[0] = slow;
    all.push(slow_uplink);
    all.extend(rail()?);
    for (name, seconds, mode, length) in [
        ("dark_1s_drop", 1, Blackout::Drop, 18),
        ("dark_3s_drop", 3, Blackout::Drop, 24),
        ("dark_8s_drop", 8, Blackout::Drop, 36),
        ("dark_1s_hold", 1, Blackout::Hold, 18),
        ("dark_3s_hold", 3, Blackout::Hold, 24),
        ("dark_8s_hold", 8, Blackout::Hold, 36),
    ] {
        let window = BlackoutWindow { start: DARK_AT, length: Duration::from_secs(seconds), mode };
        // 60 ms there and back: with 40 bbr's timeouts fall on the very end of 8 s, and one in two
        // flows waits for the next.
        let delay = Schedule::constant(Duration::from_millis(30));
        let mut trial = steady(name, LinkSpec { delay, ..link(20, 256) }, length);
        for link in &mut trial.links {
            *link = link.clone().with_blackouts(&[window])?;
        }
        all.push(Trial { dark: Some(window), ..trial });
    }
    Ok(all)
}

/// Carriers A and B on a train at 300 km/h.
fn rail() -> Result<Vec<Trial>, ScheduleError> {
    let carriers = [CarrierProfile::A, CarrierProfile::B];
    let route = Route::new(ROUTE_SEED, Speed::Kmh300, 20_000.0, &carriers);
    let length = FLOW_BEGINS + Duration::from_secs(60);
    let trip = Trip::new(&route, TRIP_SEED, 1_000.0, length)?;
    let both = trip.carriers.into_iter().zip(["rail_a_300", "rail_b_300"]);
    Ok(both
        .map(|(carrier, name)| Trial { name, links: carrier.links, length, dark: None })
        .collect())
}

fn link(mbps: u64, queue_kib: u64) -> LinkSpec {
    LinkSpec::steady(Bitrate::from_bps(mbps * 1_000_000), DELAY, Bytes::from_kib(queue_kib))
}

/// The uplink beside a downlink: as fast, without its faults.
fn up(down: &LinkSpec) -> LinkSpec {
    LinkSpec { loss: Probability::NEVER, burst_loss: None, ..down.clone() }
}

/// One way; 40 ms there and back.
const DELAY: Duration = Duration::from_millis(20);
const DARK_AT: Duration = Duration::from_secs(8);
const ROUTE_SEED: u64 = 1_001;
const TRIP_SEED: u64 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_are_at_least_ten_with_distinct_names() {
        let trials = trials().unwrap();
        let mut names: Vec<_> = trials.iter().map(|trial| trial.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), trials.len());
        assert!(trials.len() >= 10);
        for trial in &trials {
            assert!(trial.length <= Duration::from_secs(61), "{}", trial.name);
            assert!(trial.dark.is_none_or(|dark| dark.start + dark.length < trial.length));
        }
    }
    #[test]
    fn trial_after_the_lead_is_unchanged() {
        for trial in trials().unwrap() {
            let late = trial.after_lead().unwrap();
            assert_eq!(late.length, trial.length + TUNNEL_LEAD);
            assert_ne!(late.mark(), trial.mark());
            for (link, later) in trial.links.iter().zip(&late.links) {
                for at in (0..60_000).step_by(77).map(Duration::from_millis) {
                    let then = at + TUNNEL_LEAD;
                    assert_eq!(later.rate.at(then).value, link.rate.at(at).value);
                    assert_eq!(later.delay.at(then).value, link.delay.at(at).value);
                    assert_eq!(later.blackouts.at(then).value, link.blackouts.at(at).value);
                }
                for at in (0..TUNNEL_LEAD.as_secs()).map(Duration::from_secs) {
                    assert_eq!(later.rate.at(at).value, link.rate.at(Duration::ZERO).value);
                    assert_eq!(later.blackouts.at(at).value, None, "{}", trial.name);
                }
            }
        }
    }
}
