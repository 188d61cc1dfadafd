//! Flows with the tunnels' bbr2 on whole links.

use std::time::Duration;

use polyrail_emulator::link::{Blackout, BlackoutWindow, LinkSpec, Probability, Rate, Schedule};
use polyrail_emulator::trials::{SAMPLE_EVERY, Sample, Trial};
use polyrail_model::{Bitrate, Bytes};

use super::trial::Course;
use super::*;
use crate::congestion::Algorithm;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// 20 Mbit/s and 40 ms there and back, with a queue of 1 MB.
fn link() -> LinkSpec {
    let delay = Duration::from_millis(20);
    LinkSpec::steady(Bitrate::from_bps(20_000_000), delay, Bytes(1_000_000))
}

fn trial(down: LinkSpec, length: Duration) -> Trial {
    Trial { name: "bbr2", links: [link(), down], length, dark: None }
}

fn lossy(share: f64) -> LinkSpec {
    LinkSpec { loss: Probability::new(share).unwrap(), ..link() }
}

/// Megabits a second that the program received.
fn rate(samples: &[Sample], from: f64, to: f64) -> f64 {
    let delivered = |at| samples.iter().rfind(|sample| sample.at_s <= at).unwrap().delivered;
    (delivered(to) - delivered(from)) as f64 * 8.0 / (to - from) / 1e6
}

/// The median of the time that a ping would take, in milliseconds.
fn ping(samples: &[Sample]) -> f64 {
    let mut queues: Vec<u64> = samples.iter().map(|sample| sample.queue).collect();
    queues.sort_unstable();
    40.0 + queues[queues.len() / 2] as f64 * 8.0 / 20e6 * 1e3
}

/// Fills the link from here on, and samples.
fn fill(course: &mut Course, from: Duration, to: Duration) -> Vec<Sample> {
    course.flowing = true;
    let mut samples = Vec::new();
    let mut at = from;
    while at <= to {
        course.run(at);
        course.fill();
        samples.push(course.sample(at));
        at += SAMPLE_EVERY;
    }
    course.flowing = false;
    samples
}

#[test]
fn flow_fills_a_link_with_a_queue_of_one_round_trip() {
    let samples = play(&trial(link(), seconds(30)), Algorithm::Bbr2, 1);
    let rate = rate(&samples, 3.0, 29.0);
    assert!(rate > 18.0, "{rate} Mbit/s");
    let steady: Vec<Sample> = samples.into_iter().filter(|sample| sample.at_s > 3.0).collect();
    let most = steady.iter().map(|sample| sample.queue).max().unwrap();
    assert!(most < 150_000, "{most} bytes wait");
    let ping = ping(&steady);
    assert!((40.0..85.0).contains(&ping), "{ping} ms");
}

#[test]
fn random_loss_costs_little() {
    for seed in 0..3 {
        let samples = play(&trial(lossy(0.01), seconds(30)), Algorithm::Bbr2, seed);
        let rate = rate(&samples, 2.0, 29.0);
        assert!(rate > 17.0, "{rate} Mbit/s, seed {seed}");
    }
}

#[test]
fn round_trip_is_probed_with_half_of_the_window() {
    let samples = play(&trial(link(), seconds(30)), Algorithm::Bbr2, 1);
    let steady = || samples.iter().filter(|sample| sample.at_s > 3.0);
    let least = steady().map(|sample| sample.window).min().unwrap();
    assert!((40_000..60_000).contains(&least), "{least} bytes");
    let narrow = steady().filter(|sample| sample.window == least).count();
    assert!((4..20).contains(&narrow), "{narrow} samples of 50 ms");
}

#[test]
fn flow_follows_the_rate() {
    let at = |mbps: u64| Rate::Limited(Bitrate::from_bps(mbps * 1_000_000));
    let steps = [(seconds(10), at(10)), (seconds(20), at(40))];
    let rates = Schedule::new(at(20), steps, None).unwrap();
    let samples = play(&trial(LinkSpec { rate: rates, ..link() }, seconds(32)), Algorithm::Bbr2, 1);
    let slow = rate(&samples, 12.0, 20.0);
    assert!(slow > 9.0, "{slow} Mbit/s of 10");
    // The probe of the round-trip time during the change finds a full queue, and half of the old
    // rate does not drain it: for ten seconds the result counts as the path's round-trip time.
    let queue = samples.iter().filter(|sample| sample.at_s < 20.0).map(|s| s.queue).max();
    assert!(queue < Some(700_000), "{queue:?} bytes wait after the rate fell");
    let fast = rate(&samples, 28.0, 31.0);
    assert!(fast > 36.0, "{fast} Mbit/s of 40");
}

#[test]
fn pause_of_the_application_costs_nothing() {
    let trial = trial(link(), seconds(40));
    let mut course = Course::new(&trial, Algorithm::Bbr2, 1);
    let before = fill(&mut course, Duration::ZERO, seconds(5));
    course.run(seconds(25));
    let after = fill(&mut course, seconds(25), seconds(27));
    let rate = rate(&after, 25.1, 26.5);
    assert!(rate > 18.0, "{rate} Mbit/s");
    let least = after.iter().map(|sample| sample.window).min();
    let settled = before.last().map(|sample| sample.window * 7 / 10);
    assert!(least >= settled, "no rest for the round-trip time: {least:?} of {settled:?}");
}

#[test]
fn small_messages_keep_the_bandwidth_estimate() {
    let trial = trial(link(), seconds(40));
    let mut course = Course::new(&trial, Algorithm::Bbr2, 1);
    fill(&mut course, Duration::ZERO, seconds(5));
    let mut at = seconds(6);
    while at < seconds(7) {
        at += Duration::from_millis(20);
        course.run(at);
        course.write(SEGMENT);
    }
    let after = fill(&mut course, seconds(7), seconds(9));
    let rate = rate(&after, 7.1, 8.5);
    assert!(rate > 17.0, "{rate} Mbit/s");
}

#[test]
fn blackout_is_probed_with_two_packets_and_recovered() {
    for mode in [Blackout::Drop, Blackout::Hold] {
        let window = BlackoutWindow { start: seconds(10), length: seconds(4), mode };
        let down = link().with_blackouts(&[window]).unwrap();
        let samples = play(&trial(down, seconds(24)), Algorithm::Bbr2, 1);
        let at = |time: f64| samples.iter().rfind(|sample| sample.at_s <= time).unwrap();
        let resent = at(13.9).resent - at(9.9).resent;
        assert!(resent <= 10, "{mode:?}: {resent} packets in the dark");
        let rate = rate(&samples, 17.0, 23.0);
        assert!(rate > 17.0, "{mode:?}: {rate} Mbit/s");
    }
}
