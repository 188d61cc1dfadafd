//! The thread, as in daemons. Timeouts only detect hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::entry::LogId;
use crate::wire::{self, SyncMessage};
use polyrail_model::{HandoverOutcome, NodeRole, Reported, TripId};

use super::super::{Feeder, MESSAGES_AT_ONCE, Options, Worker};
use super::*;

fn start(role: NodeRole, path: Option<PathBuf>) -> (Worker, Arc<AtomicUsize>) {
    let notified = Arc::<AtomicUsize>::default();
    let counter = notified.clone();
    let notify = Box::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let name = if role == NodeRole::Gateway { "train-7" } else { "cloud" }.to_owned();
    let options = Options { role, name, path, settings: settings(), seed: 1, notify };
    (Worker::start(options).unwrap(), notified)
}

/// Queries the state until it satisfies a condition.
fn until(feeder: &Feeder, condition: impl Fn(&WorkerState) -> bool) -> WorkerState {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let state = feeder.state();
        if let Some(state) = state.clone().filter(&condition) {
            return state;
        }
        assert!(Instant::now() < end, "{state:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn feeding_never_blocks_and_overflow_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let record = handovers(learned(folder.path(), "one", 1)).into_values().next().unwrap();
    let path = folder.path().join("linkdb.redb");
    let (worker, _) = start(NodeRole::Cloud, Some(path.clone()));
    let session = SessionKey(3);
    worker.feed(Input::Up { session, peer: "train-7".to_owned() });
    // Each of these is a transaction on the disk.
    for trip in 0..BUSY {
        let log = LogId { writer: "train-7".to_owned(), incarnation: 1 };
        let entries = (0..12).map(|sequence| {
            let one = Handover { trip: TripId(trip), sequence, ..record.clone() };
            (trip * 12 + u64::from(sequence), Entry::Handover(one, None))
        });
        let entries: Vec<_> = entries.collect();
        let (first, end) = (trip * 12, trip * 12 + 12);
        let message = SyncMessage::Entries { log, floor: 0, first, end, entries };
        worker.feed(Input::Sync { session, message });
    }
    // Its queue overflows while it writes; if feeding waited for the disk, none would be dropped.
    let observed = Input::Observed(odometer(Instant::now(), 1.0));
    for _ in 0..100_000 {
        worker.feed(observed.clone());
    }
    let feeder = worker.feeder();
    let state = until(&feeder, |state| state.received == BUSY * 12);
    assert!((1..=100_000).contains(&state.inputs_dropped), "{}", state.inputs_dropped);
    // Entries that their cell has dropped are deleted.
    assert!(state.store.stats.unwrap().entries <= BUSY * 12);
    // Its outputs are not polled: those that overflow are counted.
    let mut outputs = 0;
    while worker.try_recv().is_some() {
        outputs += 1;
    }
    assert!(outputs > 0);
    drop(worker);
    assert!(handovers(&path).len() as u64 > BUSY, "it was closed");
    assert_eq!(feeder.state(), None);
}

#[test]
fn observations_are_recorded_and_the_data_plane_is_notified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let (worker, notified) = start(NodeRole::Gateway, Some(path.clone()));
    let send = |observation| worker.feed(Input::Observed(observation));
    worker.feed(Input::Up { session: SessionKey(1), peer: "cloud".to_owned() });
    let feeder = worker.feeder();
    for cell in 0..=4 {
        let at = Instant::now();
        send(odometer(at, 1_000.0));
        send(serving(at, "a", Some(cell)));
        if cell > 0 {
            // The modem reports the outcome: nothing has to settle.
            let (carrier, dark) = ("a".to_owned(), Some(Duration::from_millis(5)));
            let outcome = HandoverOutcome::Success;
            send(Observation::Reported(Reported { at, carrier, outcome, dark }));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let state = until(&feeder, |state| state.recorded == 4);
    assert_eq!(state.store.stats.unwrap().entries, 4);
    assert_eq!(state.trips[0].route.as_deref(), Some("7"));
    assert!(notified.load(Ordering::Relaxed) > 0);
    let outputs: Vec<Output> = std::iter::from_fn(|| worker.try_recv()).collect();
    assert!(outputs.iter().any(|one| matches!(one, Output::Sync { .. })), "{outputs:?}");
    drop(worker);
    assert_eq!(handovers(&path).len(), 4);
}

#[test]
fn unusable_database_does_not_stop_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    for role in [NodeRole::Gateway, NodeRole::Cloud] {
        let (worker, _) = start(role, Some(folder.path().to_owned()));
        let state = until(&worker.feeder(), |state| !state.store.open);
        assert!(state.store.error.unwrap().contains("is no ordinary file"));
        drop(worker);
    }
}

#[test]
fn overflowed_outputs_are_counted() {
    let (worker, notified) = start(NodeRole::Cloud, None);
    let feeder = worker.feeder();
    for session in 0..GATEWAYS {
        let (session, peer) = (SessionKey(session), format!("train-{session}"));
        worker.feed(Input::Up { session, peer });
    }
    let state = until(&feeder, |state| state.outputs_dropped > 0);
    assert_eq!((state.trips.len() as u64, state.inputs_dropped), (GATEWAYS, 0));
    assert!(notified.load(Ordering::Relaxed) > 0);
    assert!(worker.try_recv().is_some());
}

#[test]
fn panic_turns_forecasts_off_until_restart() {
    for role in [NodeRole::Gateway, NodeRole::Cloud] {
        let (worker, _) = start(role, None);
        let feeder = worker.feeder();
        until(&feeder, |state| state.store.open);
        worker.panic();
        let state = until(&feeder, |state| state.failures == 1);
        assert_eq!(state.failed.as_deref(), Some("requested by the test"));
        assert!(state.forecast && !state.store.open);
        while worker.try_recv().is_some() {}
        worker.feed(Input::Up { session: SessionKey(3), peer: "another".to_owned() });
        (0..3).for_each(|_| worker.feed(Input::Observed(odometer(Instant::now(), 2_000.0))));
        let state = until(&feeder, |state| state.inputs_dropped == 4);
        assert_eq!((state.failures, worker.try_recv()), (1, None));
        drop(worker);
        assert_eq!(feeder.state(), None);
    }
}

/// A peer's messages beyond its allowance never enter the channel.
#[test]
fn messages_of_a_session_are_limited() {
    let (mut worker, _) = start(NodeRole::Cloud, None);
    let now = Instant::now();
    let marks = SyncMessage::Marks { end: false, heard: false, marks: vec![] };
    let payload = wire::encode_sync(&marks);
    worker.begin(SessionKey(1), "mallory".to_owned());
    worker.begin(SessionKey(2), "train-2".to_owned());
    let mut send = |session, count| {
        for _ in 0..count {
            worker.receive(now, SessionKey(session), wire::SYNC, Duration::ZERO, &payload);
        }
        worker.feeder()
    };
    let feeder = send(1, 1_000);
    until(&feeder, |state| state.inputs_dropped == 1_000 - MESSAGES_AT_ONCE as u64);
    send(2, MESSAGES_AT_ONCE);
    // Telemetry has an allowance of its own; an ended session has none.
    let dropped = until(&feeder, |_| true).inputs_dropped;
    let bad = [0xff];
    worker.receive(now, SessionKey(1), wire::TELEMETRY, Duration::ZERO, &bad);
    worker.end(now, SessionKey(1));
    worker.receive(now, SessionKey(1), wire::SYNC, Duration::ZERO, &payload);
    until(&feeder, |state| state.inputs_dropped == dropped + 2);
    let later = now + Duration::from_secs(1);
    worker.receive(later, SessionKey(2), wire::SYNC, Duration::ZERO, &payload);
    assert_eq!(until(&feeder, |_| true).inputs_dropped, dropped + 2);
    // A new session of the same peer has no new allowance.
    worker.begin(SessionKey(3), "mallory".to_owned());
    worker.receive(now, SessionKey(3), wire::SYNC, Duration::ZERO, &payload);
    assert_eq!(until(&feeder, |_| true).inputs_dropped, dropped + 3);
    worker.receive(later, SessionKey(3), wire::SYNC, Duration::ZERO, &payload);
    assert_eq!(until(&feeder, |_| true).inputs_dropped, dropped + 3);
}

/// More gateways than the channel holds messages.
const GATEWAYS: u64 = 6_000;
/// Transactions that keep the thread busy while it is fed.
const BUSY: u64 = 200;
