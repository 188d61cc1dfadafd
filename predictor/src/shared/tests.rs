//! Random clouds around a model of the shared database; `predictor/shared` has tests on a real one.

use std::collections::BTreeMap;

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::store::Limits;
use crate::store::tests::entry;

/// What the functions of `schema.sql` do.
#[derive(Default)]
struct Server {
    logs: BTreeMap<LogId, (Reach, BTreeMap<u64, Vec<u8>>)>,
}

impl Server {
    fn append(&mut self, span: Span) -> Option<Mark> {
        let (reach, entries) = self.logs.entry(span.log.clone()).or_default();
        let known = reach.next.max(span.floor);
        if span.first > known {
            return None;
        }
        reach.floor = reach.floor.max(span.floor);
        entries.retain(|number, _| *number >= span.floor);
        entries.extend(span.entries.into_iter().filter(|one| one.0 >= known && one.0 < span.end));
        reach.next = known.max(span.end);
        let Reach { floor, next } = *reach;
        Some(Mark { log: span.log, floor, next })
    }

    fn read(&self, want: &Want, most: usize) -> Span {
        let (Reach { floor, next }, all) = &self.logs[&want.log];
        let recent = all.range(want.recent..).take(most);
        let entries: Vec<_> = recent.map(|(number, bytes)| (*number, bytes.clone())).collect();
        let is_cut = entries.len() == most;
        let end = entries.last().filter(|_| is_cut).map_or(*next, |last| last.0 + 1);
        let (log, floor, first) = (want.log.clone(), *floor, want.since);
        Span { log, floor, first, end: end.max(first), entries }
    }

    fn marks(&self) -> Vec<Mark> {
        let mark = |(log, (reach, _)): (&LogId, &(Reach, _))| Mark {
            log: log.clone(),
            floor: reach.floor,
            next: reach.next,
        };
        self.logs.iter().map(mark).collect()
    }
}

struct Cloud {
    store: Store,
    shared: SharedLogs,
    news: News,
}

impl Cloud {
    fn new(now: Instant, name: &str) -> Self {
        Self::with(now, name, Store::in_memory(Limits::default()).unwrap())
    }

    fn with(now: Instant, name: &str, mut store: Store) -> Self {
        store.set_own_name(name).unwrap();
        let mut cloud = Self { store, shared: SharedLogs::new(now), news: News::default() };
        cloud.lose();
        cloud
    }

    /// The connection ends; answers are lost.
    fn lose(&mut self) {
        self.news = News { error: Some("away".to_owned()), ..News::default() };
    }

    /// One exchange; `fails`: the server does its part, and the answer is lost.
    fn exchange(&mut self, now: Instant, server: &mut Server, refuses: bool, fails: bool) -> bool {
        let was_away = self.news.error.is_some();
        let news = std::mem::take(&mut self.news);
        self.shared.take(now, WALL_MS, &mut self.store, news).unwrap();
        if was_away {
            self.news = News { is_whole: true, marks: server.marks(), ..News::default() };
            return true;
        }
        let answer = self.shared.answer(now, &mut self.store, 1_000_000).unwrap();
        let has_work = answer != Answer::default();
        let mut news = News::default();
        for (index, span) in answer.offers.into_iter().enumerate() {
            let log = span.log.clone();
            let is_refused = refuses && index == 0;
            let taken = if is_refused { None } else { server.append(span) };
            match taken {
                Some(mark) => news.marks.push(mark),
                None => news.refused.push(log),
            }
        }
        news.spans = answer.wants.iter().map(|want| server.read(want, 7)).collect();
        news.marks.extend(server.marks());
        self.news = news;
        if fails {
            self.lose();
        }
        has_work
    }

    fn numbers(&self, log: &LogId) -> Vec<u64> {
        let number = self.store.find(log).unwrap();
        let page = self.store.since(number, 0, usize::MAX).unwrap();
        page.entries.into_iter().map(|(number, _)| number).collect()
    }

    /// A train sends its log from where this cloud knows it.
    fn upload(&mut self, log: &LogId, next: u64) {
        let from = local(&self.store, log).next;
        let all: Vec<_> = (from..next).map(|n| (n, entry(n / 5, n as u32 % 5, WALL_MS))).collect();
        self.store.append(log, 0, (from, next.max(from)), &all, WALL_MS).unwrap();
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the base of a simulated clock")]
fn clouds_have_all_entries_in_the_end_and_no_purged_one() {
    let base = Instant::now();
    for seed in 0..RUNS {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut server = Server::default();
        let mut now = base;
        let mut clouds = ["a", "b", "c"].map(|name| Cloud::new(now, name));
        let mut trains = [0; 3];
        let id = |train: usize| LogId { writer: format!("train-{train}"), incarnation: 9 };
        for _ in 0..random.random_range(20..200) {
            now += Duration::from_millis(200);
            if random.random_bool(0.02) {
                // Restored from an old backup: all connections end.
                server = Server::default();
                clouds.iter_mut().for_each(Cloud::lose);
            }
            let cloud = &mut clouds[random.random_range(0..3)];
            let train = random.random_range(0..3);
            match random.random_range(0..10) {
                0..4 => {
                    trains[train] += random.random_range(0..20);
                    cloud.upload(&id(train), trains[train]);
                }
                4 if random.random_bool(0.2) => {
                    cloud.store.purge(&format!("train-{train}")).unwrap();
                }
                _ => {
                    let (refuses, fails) = (random.random_bool(0.2), random.random_bool(0.1));
                    cloud.exchange(now, &mut server, refuses, fails);
                }
            }
        }
        let (mut idle, mut turns) = (0, 0);
        while idle < 6 {
            now += Duration::from_secs(1);
            turns += 1;
            assert!(turns < 3_000, "seed {seed}: the clouds never settle");
            let work = clouds
                .iter_mut()
                .filter_map(|cloud| cloud.exchange(now, &mut server, false, false).then_some(()));
            idle = if work.count() > 0 { 0 } else { idle + 1 };
        }
        for train in 0..3 {
            let Some((reach, there)) = server.logs.get(&id(train)) else { continue };
            assert!(there.keys().copied().eq(reach.floor..reach.next), "seed {seed}: a gap");
            // A cloud need not know a log that is empty.
            let is_empty = reach.floor == reach.next;
            let knows = |cloud: &&Cloud| !is_empty || cloud.store.find(&id(train)).is_some();
            for cloud in clouds.iter().filter(knows) {
                assert_eq!(local(&cloud.store, &id(train)), *reach, "seed {seed}");
                assert!(cloud.numbers(&id(train)).into_iter().eq(reach.floor..reach.next));
            }
        }
        let state = clouds[0].shared.state(now, Some(&clouds[0].store));
        assert_eq!((state.waiting, state.behind), (0, 0), "seed {seed}");
    }
}

/// A file of a cloud is restored from a backup, and has new entries before it reaches the server.
#[test]
#[allow(clippy::disallowed_methods, reason = "the base of a simulated clock")]
fn restored_file_uses_no_number_again() {
    let now = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = Store::open(folder.path().join("a"), Limits::default()).unwrap();
        Cloud::with(now, "a", store)
    };
    let (mut server, mut b) = (Server::default(), Cloud::new(now, "b"));
    let observe = |cloud: &mut Cloud, train: &str, trips: std::ops::Range<u64>| {
        let entries: Vec<_> = trips.map(|trip| entry(trip, 0, WALL_MS)).collect();
        cloud.store.append_of(train, &entries, WALL_MS).unwrap();
    };
    let exchange = |cloud: &mut Cloud, server: &mut Server| {
        for _ in 0..4 {
            cloud.exchange(now, server, false, false);
        }
    };
    let mut a = open();
    observe(&mut a, "train-1", 0..2);
    observe(&mut a, "train-2", 0..2);
    drop(a);
    std::fs::copy(folder.path().join("a"), folder.path().join("backup")).unwrap();
    let mut a = open();
    observe(&mut a, "train-1", 2..4);
    observe(&mut a, "train-2", 2..4);
    exchange(&mut a, &mut server);
    drop(a);
    std::fs::rename(folder.path().join("backup"), folder.path().join("a")).unwrap();
    let mut a = open();
    // One log is as long as the server's, and one is longer.
    observe(&mut a, "train-1", 10..12);
    observe(&mut a, "train-2", 10..15);
    let file = a.store.own_incarnation();
    exchange(&mut a, &mut server);
    exchange(&mut b, &mut server);
    assert_ne!(a.store.own_incarnation(), file);
    let wanted = [
        ("train-1", (0..4).chain(10..12).collect::<Vec<_>>()),
        ("train-2", (0..4).chain(10..15).collect()),
    ];
    for (train, wanted) in wanted {
        for cloud in [&a, &b] {
            assert_eq!(trips(&cloud.store, train), wanted, "{train}");
        }
    }
    // Once more nothing is new: the cloud does not move again.
    let file = a.store.own_incarnation();
    a.lose();
    exchange(&mut a, &mut server);
    assert_eq!(a.store.own_incarnation(), file);
}

/// The trips of a writer's entries, ascending.
fn trips(store: &Store, writer: &str) -> Vec<u64> {
    let mut trips = Vec::new();
    let visited = store.visit(|_, key, entry| {
        if let Entry::Handover(one, _) = entry
            && store.log(key.log).unwrap().id.writer == writer
        {
            trips.push(one.trip.0);
        }
        Ok::<_, StoreError>(())
    });
    visited.unwrap();
    trips.sort_unstable();
    trips
}

/// Nine live logs of one writer, of which a database keeps eight.
#[test]
#[allow(clippy::disallowed_methods, reason = "the base of a simulated clock")]
fn log_without_room_replaces_no_other_in_turn() {
    let now = Instant::now();
    let (mut server, mut a) = (Server::default(), Cloud::new(now, "a"));
    for incarnation in 0..=WRITER_LOGS_MAX as u64 {
        let entries = vec![(0, record::encode(&entry(incarnation, 0, WALL_MS)))];
        let log = LogId { writer: "train-1".to_owned(), incarnation };
        server.append(Span { log, end: 1, entries, ..Span::default() }).unwrap();
    }
    let received = |a: &mut Cloud, server: &mut Server| {
        for _ in 0..20 {
            a.exchange(now, server, false, false);
        }
        a.shared.received
    };
    let first = received(&mut a, &mut server);
    assert_eq!(received(&mut a, &mut server), first);
    assert_eq!(a.shared.state(now, Some(&a.store)).behind, 0);
}

const WALL_MS: u64 = 1_790_000_000_000;
const RUNS: u64 = 300;

#[test]
fn small_logs_are_complete_and_large_ones_share_the_rest() {
    for (sizes, room, most) in [
        (vec![], 10, u64::MAX),
        (vec![3, 7], 10, u64::MAX),
        (vec![3, 8], 10, 7),
        (vec![100, 1, 100], 11, 5),
        (vec![5, 5], 0, 0),
    ] {
        let share = share(sizes.iter().copied(), room);
        assert_eq!(share, most, "{sizes:?} {room}");
        assert!(sizes.iter().map(|size| share.min(*size)).sum::<u64>() <= room);
    }
}
