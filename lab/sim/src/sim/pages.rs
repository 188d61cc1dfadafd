//! Web pages: one document, then its objects, several at once, a flow each.

use std::time::Duration;

use polyrail_emulator::rail::Trip;

use crate::dice::Dice;
use crate::world::{FlowNo, World};

/// A loaded page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page {
    /// From the first connection to the last byte, or to the trip's end if it did not finish.
    pub time: Duration,
    /// It finished.
    pub ended: bool,
}

/// Pages one after another, as many as the trip has time for.
pub fn pages(mut world: World, trip: &Trip) -> Vec<Page> {
    let mut list = Vec::new();
    for objects in contents(trip) {
        if trip.length.saturating_sub(world.elapsed()) < LAST {
            break;
        }
        list.push(page(&mut world, trip.length, &objects));
        world.run_for(PAUSE);
    }
    list
}

/// The sizes of the objects of each page, one page after another.
fn contents(trip: &Trip) -> impl Iterator<Item = Vec<u64>> {
    let mut dice = Dice::new(trip.seed ^ 0x9a6e);
    let [least, most] = OBJECT_BYTES;
    let objects = move || (0..OBJECTS).map(|_| dice.scale(least, most)).collect();
    std::iter::repeat_with(objects)
}

fn page(world: &mut World, end: Duration, objects: &[u64]) -> Page {
    let begun = world.elapsed();
    let mut loading = Vec::new();
    let mut left = objects.iter();
    ask(world, &mut loading, DOCUMENT_BYTES);
    while !loading.is_empty() {
        let most = end.saturating_sub(world.elapsed());
        let over = |world: &World, flow: &FlowNo| world.flow(*flow).legs[0].end_seen;
        let some = world.run_until(most, |world| loading.iter().any(|flow| over(world, flow)));
        if some.is_none() {
            return Page { time: world.elapsed() - begun, ended: false };
        }
        loading.retain(|flow| !over(world, flow));
        while loading.len() < AT_ONCE
            && let Some(bytes) = left.next()
        {
            ask(world, &mut loading, *bytes);
        }
    }
    Page { time: world.elapsed() - begun, ended: true }
}

fn ask(world: &mut World, loading: &mut Vec<FlowNo>, bytes: u64) {
    if let Ok(flow) = world.open(1) {
        world.flow_mut(flow).server = (bytes, true);
        loading.push(flow);
    }
}

const DOCUMENT_BYTES: u64 = 60_000;
const OBJECTS: usize = 30;
/// Uniform in the logarithm: 34 KB in the mean, a page of about 1 MB.
const OBJECT_BYTES: [u64; 2] = [2_000, 150_000];
/// Simultaneous flows of a browser.
const AT_ONCE: usize = 8;
/// Between two pages.
const PAUSE: Duration = Duration::from_secs(1);
/// No page begins so shortly before the end.
const LAST: Duration = Duration::from_secs(10);
