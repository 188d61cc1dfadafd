//! Flows with the tunnels' own congestion control on whole links.

use std::time::Duration;

use polyrail_emulator::link::{Blackout, BlackoutWindow, LinkSpec, Probability, Rate, Schedule};
use polyrail_emulator::trials::{SAMPLE_EVERY, Sample, Trial};
use polyrail_model::{Bitrate, Bytes};

use super::*;
use crate::congestion::Algorithm;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A link with 40 ms there and back, and a queue of 1 MB.
fn link(mbps: u64) -> LinkSpec {
    let delay = Duration::from_millis(20);
    LinkSpec::steady(Bitrate::from_bps(mbps * 1_000_000), delay, Bytes(1_000_000))
}

fn played(down: LinkSpec, length: u64) -> Vec<Sample> {
    let links = [link(20), down];
    let trial = Trial { name: "rail", links, length: seconds(length), dark: None };
    play(&trial, Algorithm::Rail, 1)
}

/// Megabits a second that the program received.
fn rate(samples: &[Sample], from: f64, to: f64) -> f64 {
    let delivered = |at| samples.iter().rfind(|sample| sample.at_s <= at).unwrap().delivered;
    (delivered(to) - delivered(from)) as f64 * 8.0 / (to - from) / 1e6
}

#[test]
fn flow_fills_a_steady_link_and_the_queue_stays_below_the_target() {
    for mbps in [2, 20, 100] {
        let samples = played(link(mbps), 20);
        let rate = rate(&samples, 2.0, 19.0) / mbps as f64;
        assert!(rate > 0.9, "{rate} of {mbps} Mbit/s");
        // The queue of a steady link never stays far above the target for two seconds.
        let target = mbps * 125 * 30;
        let high = |sample: &Sample| sample.queue > target * 3 / 2 + 8 * SEGMENT as u64;
        println!(
            "{mbps}: {:?}",
            samples.iter().skip(60).step_by(20).map(|s| (s.queue, s.window)).collect::<Vec<_>>()
        );
        let windows = samples.windows((2.0 / SAMPLE_EVERY.as_secs_f64()) as usize);
        let full = windows.filter(|window| window.iter().all(high)).count();
        assert_eq!(full, 0, "{mbps} Mbit/s");
    }
}

#[test]
fn slow_stretch_is_forgotten_within_a_second_and_a_half() {
    let at = |mbps: u64| Rate::Limited(Bitrate::from_bps(mbps * 1_000_000));
    let rates = Schedule::new(at(20), [(seconds(4), at(4)), (seconds(16), at(40))], None).unwrap();
    let samples = played(LinkSpec { rate: rates, ..link(20) }, 20);
    let slow = rate(&samples, 6.0, 16.0);
    assert!(slow > 3.6, "{slow} of 4 Mbit/s");
    let begin = rate(&samples, 16.0, 17.5);
    assert!(begin > 26.0, "{begin} of 40 Mbit/s in the first 1.5 s");
}

#[test]
fn random_loss_costs_little() {
    for (loss, least) in [(0.01, 0.9), (0.05, 0.8)] {
        let down = LinkSpec { loss: Probability::new(loss).unwrap(), ..link(20) };
        let share = rate(&played(down, 20), 2.0, 19.0) / 20.0;
        assert!(share > least, "{share} at a loss of {loss}");
    }
}

#[test]
fn blackout_is_recovered() {
    for mode in [Blackout::Drop, Blackout::Hold] {
        let window = BlackoutWindow { start: seconds(10), length: seconds(4), mode };
        let down = link(20).with_blackouts(&[window]).unwrap();
        let rate = rate(&played(down, 24), 17.0, 23.0);
        assert!(rate > 17.0, "{mode:?}: {rate} Mbit/s");
    }
}
