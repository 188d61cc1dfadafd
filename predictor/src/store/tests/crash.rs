//! The disk fails, the power goes, the process is killed: what is there afterwards is what was
//! there before the call that was cut, or after it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::faults::Disk;
use super::*;

const LIMITS: Limits = Limits {
    events_max: 60,
    trips_max: 5,
    trip_events_max: 30,
    cells_max: 12,
    tracks_max: 2,
    track_bytes_max: 20_000,
    places_max: 9,
};

/// One call of a fixed script that uses everything.
fn call(store: &mut Store, step: u64) -> Result<(), StoreError> {
    match step % 7 {
        3 => store.put_track(RouteId(step % 4), &vec![step as u8; 3000 * step as usize % 20_000]),
        4 => store.record_places(&[place(step, step as f64 * 90.0, 5), place(step, 7.0, 6)]),
        5 => store.forget_before(NOW + step - 12).map(|_| ()),
        6 => store.compact().map(|_| ()),
        _ => {
            let (trip, from) = (step / 2, step as u32 % 2 * 9);
            store.append(&events(trip, from..from + 13, NOW + step), NOW).map(|_| ())
        }
    }
}

const STEPS: u64 = 28;

fn on(disk: &Disk) -> Result<Store, StoreError> {
    Store::from_source(Source::Faulty(disk.clone()), LIMITS)
}

/// What is there after each call when nothing fails, the empty database first; and how many
/// operations of the disk it takes.
fn healthy() -> (Vec<Dump>, u64, u64) {
    let disk = Disk::default();
    let mut store = on(&disk).unwrap();
    let begun = disk.operations();
    let mut states = vec![dump(&store).unwrap()];
    for step in 0..STEPS {
        call(&mut store, step).unwrap();
        states.push(dump(&store).unwrap());
    }
    (states, begun, disk.operations())
}

#[test]
fn a_crash_leaves_the_state_before_or_after_the_call() {
    let (states, begun, operations) = healthy();
    assert!(operations > 300, "{operations} operations");
    let mut half_made = 0;
    for case in 0..300 {
        let mut rng = Pcg64Mcg::seed_from_u64(case);
        let disk = Disk::default();
        let at = rng.random_range(0..operations);
        disk.fail_after(Some(at));
        let done = match on(&disk) {
            Ok(mut store) => {
                let done = (0..STEPS).take_while(|step| call(&mut store, *step).is_ok()).count();
                drop(store);
                done
            }
            Err(_) => 0,
        };
        assert!(disk.failed(), "case {case}: it was not cut");
        let store = match on(&disk.after_crash(&mut rng)) {
            Ok(store) => store,
            Err(error) => {
                // On a file system a database is made beside its place and then renamed.
                assert!(at <= begun, "case {case}, cut at {at} of {operations}: {error}");
                half_made += 1;
                continue;
            }
        };
        let found = dump(&store).unwrap();
        let fits = found == states[done] || states.get(done + 1) == Some(&found);
        assert!(fits, "case {case}, cut at {at} in call {done}: {found:#?}");
    }
    assert!(half_made < 40, "{half_made}");
}

#[test]
fn after_a_full_disk_the_next_write_goes_on() {
    let (states, begun, operations) = healthy();
    for case in 0..100 {
        let mut rng = Pcg64Mcg::seed_from_u64(1000 + case);
        let disk = Disk::default();
        let mut store = on(&disk).unwrap();
        disk.fail_after(Some(rng.random_range(0..operations - begun)));
        let mut step = 0;
        while step < STEPS {
            match call(&mut store, step) {
                Ok(()) => step += 1,
                Err(error) => {
                    let full = matches!(error, StoreError::NoSpace { .. });
                    assert!(full, "case {case}, call {step}: {error}");
                    assert!(matches!(store.stats(), Err(StoreError::Closed { .. })));
                    let still = call(&mut store, step).unwrap_err();
                    assert!(matches!(still, StoreError::NoSpace { .. }), "case {case}: {still}");
                    disk.fail_after(None);
                }
            }
        }
        // A call that failed while it was committed may have been done, and is then done twice.
        let found = dump(&store).unwrap();
        let last = states.last().unwrap();
        assert_eq!(found.events, last.events, "case {case}");
        assert_eq!(found.cells, last.cells, "case {case}");
        assert_eq!(found.tracks, last.tracks, "case {case}");
    }
}

/// Copies come on all paths, and again when an answer is lost.
#[test]
fn what_is_known_waits_for_no_disk() {
    let disk = Disk::default();
    let mut store = on(&disk).unwrap();
    store.append(&events(1, 0..9, NOW), NOW).unwrap();
    let before = disk.operations();
    let copies = events(1, 2..9, NOW);
    let appended = store.append(&copies, NOW).unwrap();
    assert_eq!(appended, Appended { fresh: 0, known: 7, refused: 0 });
    assert_eq!(disk.operations(), before);
    assert_eq!(store.append(&events(1, 8..10, NOW), NOW).unwrap().fresh, 1);
    assert!(disk.operations() > before);
}

/// The child of the test below; without its variable it does nothing.
#[test]
fn appends_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut store = Store::open(path, Limits::default()).unwrap();
    let begin = store.known_of(TripId(1)).unwrap();
    for sequence in begin.. {
        store.append(&[event(1, sequence, NOW)], NOW).unwrap();
        println!("{TOLD}{sequence}");
    }
}

#[test]
fn a_killed_process_loses_nothing_that_it_has_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    let mut acknowledged = None;
    for round in 0..10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::crash::appends_until_it_is_killed", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..rng.random_range(1..30u32) {
            let told = lines.find_map(|line| line.ok()?.strip_prefix(TOLD)?.parse::<u32>().ok());
            acknowledged = Some(told.expect("the child tells what it has appended"));
        }
        child.kill().unwrap();
        // It may have got further than was read.
        let rest = lines.filter_map(|line| line.ok()?.strip_prefix(TOLD)?.parse::<u32>().ok());
        acknowledged = rest.last().or(acknowledged);
        child.wait().unwrap();
        let store = Store::open(&path, Limits::default()).unwrap();
        let found = store.records(TripId(1), 0, usize::MAX).unwrap();
        let next = acknowledged.unwrap() + 1;
        let count = found.len() as u32;
        assert!((next..=next + 1).contains(&count), "round {round}: {count}, told {next}");
        assert_eq!(found, events(1, 0..count, NOW));
    }
}

const CHILD: &str = "POLYRAIL_TEST_APPEND_TO";
const TOLD: &str = "appended ";
