//! The upper bound: the workloads over the fluid aggregated link, without congestion
//! control.

use std::time::Duration;

use polyrail_emulator::rail::Trip;

use super::aggregate::Fluid;
use super::downloads::{LAST, PAUSE};
use super::pages::{self as loading, AT_ONCE, DOCUMENT_BYTES};
use super::{Bulk, Download, Downloads, Message, Page, START, fluids, messaging};

/// Downloads in turns: the way of the request, the server's answer, the fluid's service, the way
/// back.
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
        let began = Duration::from_secs_f64(at);
        let read = if ended { bytes } else { fluids[1].volume(at, length) as u64 };
        list.push(Download { bytes, read, at: began, time, ended, bound: time });
        at = over + PAUSE.as_secs_f64();
    }
    Downloads { list, resent: 0 }
}

/// When a download that is asked for at `from` has ended.
pub fn download([up, down]: &[Fluid; 2], from: f64, bytes: u64) -> f64 {
    down.delivered(up.arrival(from) + DIAL, bytes)
}

/// The messages of `messaging`, each on the best carrier of its moment.
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

/// All that the fluid carries.
pub fn bulk(trip: &Trip) -> Bulk {
    let [_, down] = fluids(trip);
    let (from, to) = (START.as_secs_f64(), trip.length.as_secs_f64());
    Bulk { bytes: down.volume(from, to) as u64, seconds: to - from, ..Bulk::default() }
}

/// The pages of `pages`, each over the fluid.
pub fn pages(trip: &Trip) -> Vec<Page> {
    let fluids = fluids(trip);
    let (mut list, mut at) = (Vec::new(), START.as_secs_f64());
    let length = trip.length.as_secs_f64();
    for objects in loading::contents(trip) {
        if length - at < loading::LAST.as_secs_f64() {
            break;
        }
        let over = page(&fluids, at, &objects);
        let time = Duration::from_secs_f64(over.min(length) - at);
        let bytes = loading::size(&objects);
        list.push(Page { bytes, time, ended: over <= length, bound: time });
        at = over + loading::PAUSE.as_secs_f64();
    }
    list
}

/// When a page that is begun at `from` has ended: the document, then these objects, so many at
/// once, each asked for when an earlier one has arrived.
///
/// The fluid gives all it has to the object with the least bytes left. That order has served at
/// least as many objects as any other at every moment, whatever the rate does (Schrage, Operations
/// Research 1968), so that each request leaves as early as it can, and the last byte, too. Served
/// in the order of the requests, or all at the same time, a page never ends earlier.
pub fn page(fluids: &[Fluid; 2], from: f64, objects: &[u64]) -> f64 {
    let least_left = |left: &[u64]| {
        let least = left.iter().enumerate().min_by_key(|(_, bytes)| **bytes);
        least.map_or((0, u64::MAX), |(place, _)| (place, u64::MAX))
    };
    page_by(fluids, from, objects, least_left)
}

/// The same by any order: `turn` names the object that is served now, of the bytes that are left of
/// each, and how many of its bytes at most.
fn page_by(
    fluids: &[Fluid; 2],
    from: f64,
    objects: &[u64],
    mut turn: impl FnMut(&[u64]) -> (usize, u64),
) -> f64 {
    let [up, down] = fluids;
    let mut now = download(fluids, from, DOCUMENT_BYTES);
    let mut ended = now;
    let mut objects = objects.iter().copied();
    let ask = |at: f64, bytes: u64| (up.arrival(at) + DIAL, bytes);
    let first = objects.by_ref().take(AT_ONCE);
    let mut asked: Vec<(f64, u64)> = first.map(|bytes| ask(ended, bytes)).collect();
    let mut left: Vec<u64> = Vec::new();
    loop {
        let next = asked.iter().enumerate().min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let next = next.map(|(place, request)| (place, request.0));
        let comes = next.map_or(f64::INFINITY, |(_, at)| at);
        if left.is_empty() {
            let Some((place, at)) = next else { return ended };
            if at.is_infinite() {
                return at;
            }
            now = now.max(at);
            left.push(asked.remove(place).1);
            continue;
        }
        let (served, most) = turn(&left);
        let bytes = left[served].min(most);
        let over = down.served(now, bytes);
        if let Some((place, _)) = next.filter(|_| comes < over) {
            // What the fluid has done of a byte counts as all of it.
            let done = down.volume(now, comes).ceil() as u64;
            left[served] = left[served].saturating_sub(done).max(1);
            now = now.max(comes);
            left.push(asked.remove(place).1);
            continue;
        }
        if over.is_infinite() {
            return over;
        }
        now = over;
        left[served] -= bytes;
        if left[served] == 0 {
            left.remove(served);
            let arrived = down.arrival(now);
            ended = ended.max(arrived);
            asked.extend(objects.next().map(|bytes| ask(arrived, bytes)));
        }
    }
}

/// What the servers of the simulated world take to answer a connection.
const DIAL: f64 = 0.005;

#[cfg(test)]
mod tests {
    use polyrail_emulator::link::LinkSpec;
    use polyrail_emulator::rail::CarrierTrip;
    use polyrail_model::{Bitrate, Bytes};

    use super::*;
    use crate::dice::Dice;
    use crate::sim::{Contestant, Engine, trips};

    fn steady(length: u64, carriers: &[(f64, u64)]) -> Trip {
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
    fn a_download_takes_its_way_its_service_and_its_way_back() {
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
    fn a_page_takes_a_round_for_every_eight_objects() {
        let fluids = fluids(&steady(20, &[(8.0, 30), (8.0, 50)]));
        // A document of 60 KB takes 65 ms of ways and 30 ms of service at 16 Mbit/s.
        let document = 4.095;
        let close = |objects: &[u64], over: f64| {
            let ended = page(&fluids, 4.0, objects);
            assert!((ended - over).abs() < 1e-6, "{ended}, not {over}");
        };
        close(&[], document);
        // 8 objects of 20 KB are 80 ms of service.
        close(&[20_000; 8], document + 0.145);
        // The ninth is asked for when the first has come, 75 ms after the eight; it is there after
        // 35 ms, when the fluid still works on the eight.
        close(&[20_000; 9], document + 0.155);
        // The small one comes first, whatever the order, and the last one is asked for after it.
        let mut objects = [200_000; 9];
        objects[7] = 2_000;
        close(&objects, document + 0.065 + 0.801);
        // Nine that take no time take two rounds.
        close(&[1; 9], document + 0.065 + 0.065 + 9.0 * 0.5e-6 - 3.5e-6);
        let dark = super::fluids(&steady(20, &[(0.0, 30)]));
        assert!(page(&dark, 4.0, &[1]).is_infinite());
    }

    #[test]
    fn no_order_ends_a_page_earlier() {
        let trip = &trips::trips(trips::TUNING, 1).unwrap()[0];
        let fluids = fluids(trip);
        let mut dice = Dice::new(1);
        let mut closest = f64::INFINITY;
        for (objects, number) in loading::contents(trip).zip(0..30) {
            let from = 4.0 + 2.5 * f64::from(number);
            let best = page(&fluids, from, &objects);
            assert!(best > from, "{best} s from {from} s");
            let in_order = page_by(&fluids, from, &objects, |_| (0, u64::MAX));
            let mut turns = 0;
            let equally = page_by(&fluids, from, &objects, |left| {
                turns += 1;
                (turns % left.len(), 1_400)
            });
            let greatest = |left: &[u64]| (0..left.len()).max_by_key(|it| left[*it]).unwrap();
            let greatest = page_by(&fluids, from, &objects, |left| (greatest(left), 1_400));
            let any = page_by(&fluids, from, &objects, |left| {
                (dice.between(0, left.len() as u64) as usize, 1_400)
            });
            for other in [in_order, equally, greatest, any] {
                // Whole bytes favour orders that change often, by microseconds.
                assert!(other > best - 1e-4, "page {number} from {from} s: {other}, not {best}");
                closest = closest.min(other - best);
            }
        }
        assert!(closest < 0.05, "{closest} s: the bound is far from what orders can do");
    }

    #[test]
    fn pages_are_bounded_as_they_are_loaded() {
        let trip = &trips::trips(trips::TUNING, 1).unwrap()[0];
        let bound = pages(trip);
        let loaded = crate::sim::pages(trip, &Contestant::named("polyrail", Engine::Full));
        assert!(bound.len() >= loaded.len() && loaded.len() >= 3, "{loaded:?}");
        for (own, bound) in loaded.iter().zip(&bound) {
            assert_eq!(own.bytes, bound.bytes);
            assert!(own.time >= own.bound && own.bound > Duration::ZERO, "{own:?}");
        }
        assert_eq!(loaded[0].bound, bound[0].time);
    }

    #[test]
    fn a_message_takes_the_way_and_bulk_all_there_is() {
        let trip = steady(20, &[(8.0, 30), (8.0, 50)]);
        let list = messages(&trip, 3);
        assert!(list.len() > 30, "{}", list.len());
        for message in list {
            assert!((message.up - 0.03).abs() < 1e-9 && (message.round - 0.06).abs() < 1e-9);
        }
        assert_eq!(bulk(&trip).bytes, 32_000_000);
    }
}
