//! Runs contestants on many trips on all cores. The results do not depend on the number of cores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use polyrail_emulator::rail::Trip;

use super::messaging::Messages;
use super::{Bulk, Contestant, Downloads, Page, bound, bulk, downloads, messaging, pages, world};

/// The workload of a trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Downloads of [`SIZES`] in turns.
    Downloads,
    /// Instant messaging by this many users.
    Messaging(usize),
    /// One endless download.
    Bulk,
    /// Web pages.
    Pages,
}

/// The outcome of one trip.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// For [`Workload::Downloads`].
    Downloads(Downloads),
    /// For [`Workload::Messaging`].
    Messaging(Messages),
    /// For [`Workload::Bulk`].
    Bulk(Bulk),
    /// For [`Workload::Pages`]; the bound has none.
    Pages(Vec<Page>),
    /// The simulated world found a breach; it says which.
    Broken(String),
}

/// The sizes of downloads in bytes.
pub const SIZES: [u64; 4] = [64_000, 256_000, 1_000_000, 4_000_000];

/// What all ratios are over: the paper's engine with the scheduler that kernels had.
pub const BASE: &str = "min_rtt paper";
/// The sizes that the headline ratios are over.
pub const HEADLINE_SIZES: [u64; 3] = [256_000, 1_000_000, 4_000_000];

/// One contestant, or the bound (`None`), in one workload: the outcomes by trip.
#[derive(Clone, Debug)]
pub struct Row {
    /// The contestant; `None`: the fluid bound.
    pub contestant: Option<Contestant>,
    /// The workload.
    pub workload: Workload,
    /// In the order of the trips.
    pub outcomes: Vec<Measured>,
}

impl Row {
    /// Its name in tables.
    pub fn name(&self) -> &str {
        self.contestant.as_ref().map_or(BOUND, |contestant| &contestant.name)
    }
}

/// One contestant, or the bound, in one workload.
pub type Entry = (Option<Contestant>, Workload);

/// Runs each entry on all trips. Entries that differ only in the contestant's name are run once.
pub fn run(trips: &[Trip], entries: &[Entry], threads: usize) -> Vec<Row> {
    let same = |a: &Entry, b: &Entry| {
        a.1 == b.1
            && match (&a.0, &b.0) {
                (Some(a), Some(b)) => a.is_like(b),
                (a, b) => a.is_none() && b.is_none(),
            }
    };
    let first = |entry: &Entry| entries.iter().position(|other| same(entry, other));
    let firsts: Vec<usize> = entries.iter().filter_map(first).collect();
    let mut unique = firsts.clone();
    unique.sort_unstable();
    unique.dedup();
    let outcomes = parallel(unique.len() * trips.len(), threads, |task| {
        let (contestant, workload) = &entries[unique[task / trips.len()]];
        one(&trips[task % trips.len()], contestant.as_ref(), *workload)
    });
    let row = |(entry, first): (&Entry, usize)| {
        let place = unique.iter().position(|one| *one == first).unwrap_or(0) * trips.len();
        Row {
            contestant: entry.0.clone(),
            workload: entry.1,
            outcomes: outcomes[place..place + trips.len()].to_vec(),
        }
    };
    entries.iter().zip(firsts).map(row).collect()
}

/// One trip. A panic of the simulated world is an outcome.
pub fn one(trip: &Trip, contestant: Option<&Contestant>, workload: Workload) -> Measured {
    let run = || match (contestant, workload) {
        (Some(it), Workload::Downloads) => {
            Measured::Downloads(downloads(world(trip, it), trip, &SIZES))
        }
        (Some(it), Workload::Messaging(users)) => {
            Measured::Messaging(messaging(world(trip, it), trip, users))
        }
        (Some(it), Workload::Bulk) => Measured::Bulk(bulk(trip, it)),
        (Some(it), Workload::Pages) => Measured::Pages(pages(world(trip, it), trip)),
        (None, Workload::Downloads) => Measured::Downloads(bound::downloads(trip, &SIZES)),
        (None, Workload::Messaging(users)) => {
            Measured::Messaging(Messages { list: bound::messages(trip, users), resent: 0 })
        }
        (None, Workload::Bulk) => Measured::Bulk(bound::bulk(trip)),
        (None, Workload::Pages) => Measured::Pages(Vec::new()),
    };
    caught(run).unwrap_or_else(Measured::Broken)
}

/// Runs a simulated world.
///
/// # Errors
/// The world found a breach: the text of its panic.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_default()
    })
}

/// Runs tasks `0..count` on this many threads; the results are in the order of the tasks.
pub fn parallel<T: Send>(count: usize, threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let task = next.fetch_add(1, Ordering::Relaxed);
                    if task >= count {
                        return;
                    }
                    let result = work(task);
                    if let Ok(mut done) = done.lock() {
                        done.push((task, result));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(task, _)| *task);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The name of the bound in tables.
pub const BOUND: &str = "bound";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Engine, trips};

    #[test]
    fn results_are_in_order_for_any_number_of_threads() {
        let squares: Vec<usize> = (0..100).map(|n| n * n).collect();
        for threads in [1, 3, 200] {
            assert_eq!(parallel(100, threads, |n| n * n), squares);
        }
        assert!(parallel(0, 2, |n| n).is_empty());
    }

    #[test]
    fn trip_gives_the_same_outcome_with_one_thread_and_with_two() {
        let trips = trips::trips(trips::TUNING, 1).unwrap();
        let polyrail = Contestant::named("polyrail", Engine::Full);
        let twin = Contestant { name: "twin".into(), ..polyrail.clone() };
        let workloads =
            [Workload::Downloads, Workload::Messaging(3), Workload::Bulk, Workload::Pages];
        let mut entries: Vec<Entry> =
            workloads.iter().map(|workload| (Some(polyrail.clone()), *workload)).collect();
        entries.push((None, Workload::Downloads));
        entries.push((Some(twin), Workload::Downloads));
        let rows = run(&trips, &entries, 2);
        let again = run(&trips, &entries, 1);
        for (row, other) in rows.iter().zip(&again) {
            assert_eq!(row.outcomes, other.outcomes, "{}", row.name());
            assert!(!matches!(row.outcomes[0], Measured::Broken(_)), "{:?}", row.outcomes);
        }
        assert_eq!(rows[0].outcomes, rows[5].outcomes);
        let [Measured::Downloads(own), Measured::Downloads(bound)] =
            [&rows[0].outcomes[0], &rows[4].outcomes[0]]
        else {
            panic!("{rows:?}")
        };
        assert!(own.list.len() >= 8 && own.list.len() <= bound.list.len() + 8);
        let Measured::Messaging(messages) = &rows[1].outcomes[0] else { panic!("{rows:?}") };
        let list = &messages.list;
        assert!(list.len() > 250 && list.iter().all(|message| message.up > 0.0));
        assert!(list.iter().all(|message| message.round > message.up));
        let Measured::Bulk(bulk) = &rows[2].outcomes[0] else { panic!("{rows:?}") };
        assert!(bulk.goodput() > 1.0 && bulk.late_share > 0.0 && bulk.worse_use > 0.0);
        let Measured::Pages(pages) = &rows[3].outcomes[0] else { panic!("{rows:?}") };
        assert!(pages.len() >= 3, "{pages:?}");
    }
}
