//! The upper bound: workloads over the fluid aggregated link, without congestion control.

use std::time::Duration;

use polyrail_emulator::rail::{Fluid, Trip, fluids};

use super::downloads::{LAST, PAUSE};
use super::{Bulk, Download, Downloads, Message, START, messaging};

/// Downloads in turns: the request's propagation, the server's answer, the fluid's service, and the
/// propagation back.
pub fn downloads(trip: &Trip, sizes: &[u64]) -> Downloads {
    let fluids = fluids(trip);
    let (mut list, mut at) = (Vec::new(), START.as_secs_f64());
    let length = trip.length.as_secs_f64();
    for &bytes in sizes.iter().cycle() {
        if length - at < LAST.as_secs_f64() {
            break;
        }
        let over = download(&fluids, at, bytes);
        let ended = over <= length;
        let time = Duration::from_secs_f64(over.min(length) - at);
        let read = if ended { bytes } else { fluids[1].volume(at, length) as u64 };
        list.push(Download { bytes, read, time, ended });
        at = over + PAUSE.as_secs_f64();
    }
    Downloads { list, resent: 0 }
}

/// When a download requested at `from` ends.
fn download([up, down]: &[Fluid; 2], from: f64, bytes: u64) -> f64 {
    down.delivered(up.arrival(from) + DIAL, bytes)
}

/// The messages of `messaging`, each on the best carrier at its time.
pub fn messages(trip: &Trip, users: usize) -> Vec<Message> {
    let [up, down] = fluids(trip);
    let end = trip.length.as_secs_f64();
    let message = |(sent, user): (Duration, usize)| {
        let sent = sent.as_secs_f64();
        let there = up.arrival(sent);
        let back = down.arrival(there);
        Message { user, up: there.min(end) - sent, round: back.min(end) - sent, ended: back <= end }
    };
    messaging::schedule(trip, users).into_iter().map(message).collect()
}

/// The whole volume of the fluid.
pub fn bulk(trip: &Trip) -> Bulk {
    let [_, down] = fluids(trip);
    let (from, to) = (START.as_secs_f64(), trip.length.as_secs_f64());
    Bulk { bytes: down.volume(from, to) as u64, seconds: to - from, ..Bulk::default() }
}

/// The time that servers of the simulated world take to answer a connection, in seconds.
const DIAL: f64 = 0.005;

#[cfg(test)]
pub(super) mod tests {
    use polyrail_emulator::link::LinkSpec;
    use polyrail_emulator::rail::CarrierTrip;
    use polyrail_model::{Bitrate, Bytes};

    use super::*;

    /// A trip of this many seconds over links of these Mbit/s and delays in ms.
    pub(in crate::sim) fn steady(length: u64, carriers: &[(f64, u64)]) -> Trip {
        let carrier = |(mbps, delay): &(f64, u64)| {
            let link = LinkSpec::steady(
                Bitrate::from_mbps(*mbps),
                Duration::from_millis(*delay),
                Bytes::from_kib(64),
            );
            CarrierTrip { links: [link.clone(), link], handovers: Vec::new() }
        };
        Trip {
            seed: 1,
            length: Duration::from_secs(length),
            carriers: carriers.iter().map(carrier).collect(),
            fixes: Vec::new(),
        }
    }

    #[test]
    fn download_takes_both_delays_and_its_service() {
        let bound = downloads(&steady(20, &[(8.0, 30), (8.0, 50)]), &[1_000_000]);
        let first = bound.list[0];
        // 30 ms, 5 ms, 8 Mbit at 16 Mbit/s, 30 ms.
        assert!((first.time.as_secs_f64() - 0.565).abs() < 1e-6, "{first:?}");
        assert!((first.goodput() - 8.0 / 0.565).abs() < 1e-6);
        // From 4 s on, none begins after 10 s: every 1.065 s.
        assert_eq!(bound.list.len(), 6);
        let unfinished = downloads(&steady(15, &[(0.1, 30)]), &[1_000_000]).list;
        assert_eq!((unfinished.len(), unfinished[0].ended), (1, false));
        assert_eq!(unfinished[0].time, Duration::from_secs(11));
    }

    #[test]
    fn message_takes_the_delay_and_bulk_the_whole_volume() {
        let trip = steady(20, &[(8.0, 30), (8.0, 50)]);
        let list = messages(&trip, 3);
        assert!(list.len() > 30, "{}", list.len());
        for message in list {
            assert!((message.up - 0.03).abs() < 1e-9 && (message.round - 0.06).abs() < 1e-9);
        }
        assert_eq!(bulk(&trip).bytes, 32_000_000);
    }
}
