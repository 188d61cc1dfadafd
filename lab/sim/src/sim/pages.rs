//! Web pages: one document, then its objects over several flows at once, a flow each.

use std::time::Duration;

use polyrail_emulator::rail::Trip;

use super::{Contestant, bound, fluids, world};
use crate::dice::Dice;
use crate::world::{FlowNo, World};

/// A page as it was loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page {
    /// All of it, in bytes.
    pub bytes: u64,
    /// From the first connection to the last byte; the trip's end when it did not end.
    pub time: Duration,
    /// It came to its end.
    pub ended: bool,
    /// Its duration over the fluid aggregated link, begun at the same time.
    pub bound: Duration,
}

/// Pages one after another, as many as the trip has time for.
pub fn pages(trip: &Trip, contestant: &Contestant) -> Vec<Page> {
    pages_in(world(trip, contestant), trip)
}

/// The same in a world that stands.
pub fn pages_in(mut world: World, trip: &Trip) -> Vec<Page> {
    let fluids = fluids(trip);
    let mut list = Vec::new();
    for objects in contents(trip) {
        if trip.length.saturating_sub(world.elapsed()) < LAST {
            break;
        }
        let begun = world.elapsed();
        let bound = bound::page(&fluids, begun.as_secs_f64(), &objects);
        let bound = Duration::from_secs_f64(bound.min(trip.length.as_secs_f64())) - begun;
        list.push(Page { bound, ..page(&mut world, trip.length, &objects) });
        world.run_for(PAUSE);
    }
    list
}

/// The sizes of the objects of each page, one page after another.
pub(super) fn contents(trip: &Trip) -> impl Iterator<Item = Vec<u64>> {
    let mut dice = Dice::new(trip.seed ^ 0x9a6e);
    let [least, most] = OBJECT_BYTES;
    let objects = move || (0..OBJECTS).map(|_| dice.scale(least, most)).collect();
    std::iter::repeat_with(objects)
}

/// All of a page, in bytes.
pub(super) fn size(objects: &[u64]) -> u64 {
    DOCUMENT_BYTES + objects.iter().sum::<u64>()
}

fn page(world: &mut World, end: Duration, objects: &[u64]) -> Page {
    let begun = world.elapsed();
    let (bytes, bound) = (size(objects), Duration::ZERO);
    let mut loading = Vec::new();
    let mut left = objects.iter();
    ask(world, &mut loading, DOCUMENT_BYTES);
    while !loading.is_empty() {
        let most = end.saturating_sub(world.elapsed());
        let over = |world: &World, flow: &FlowNo| world.flow(*flow).legs[0].end_seen;
        let some = world.run_until(most, |world| loading.iter().any(|flow| over(world, flow)));
        if some.is_none() {
            return Page { bytes, time: world.elapsed() - begun, ended: false, bound };
        }
        loading.retain(|flow| !over(world, flow));
        while loading.len() < AT_ONCE
            && let Some(bytes) = left.next()
        {
            ask(world, &mut loading, *bytes);
        }
    }
    Page { bytes, time: world.elapsed() - begun, ended: true, bound }
}

fn ask(world: &mut World, loading: &mut Vec<FlowNo>, bytes: u64) {
    if let Ok(flow) = world.open(1) {
        world.flow_mut(flow).server = (bytes, true);
        loading.push(flow);
    }
}

pub(super) const DOCUMENT_BYTES: u64 = 60_000;
const OBJECTS: usize = 30;
/// Evenly by order of magnitude: 34 KB in the mean, a page of about 1 MB.
const OBJECT_BYTES: [u64; 2] = [2_000, 150_000];
/// What a browser does.
pub(super) const AT_ONCE: usize = 8;
pub(super) const PAUSE: Duration = Duration::from_secs(1);
pub(super) const LAST: Duration = Duration::from_secs(10);
