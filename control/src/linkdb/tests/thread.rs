//! The thread as daemons have it. What is measured by the clock here is only that nothing hangs.

use std::sync::Arc;

use mio::{Poll, Token, Waker};
use polyrail_model::{HandoverOutcome, LedgerMessage, Reported, TripId};

use super::super::{Asker, LinkDb, Options, Role};
use super::*;

fn start(role: Role, path: Option<PathBuf>) -> (LinkDb, Poll) {
    let poll = Poll::new().unwrap();
    let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
    let options = Options { role, path, tuning: tuning(), seed: 1, waker };
    (LinkDb::start(options).unwrap(), poll)
}

/// Asks until it answers as wished.
fn until(asker: &Asker, wish: impl Fn(&LinkDbState) -> bool) -> LinkDbState {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let state = asker.state();
        if let Some(state) = state.clone().filter(&wish) {
            return state;
        }
        assert!(Instant::now() < end, "{state:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn whoever_feeds_it_never_waits() {
    let folder = tempfile::tempdir().unwrap();
    let record = handovers(learned(folder.path(), "one", 1)).into_values().next().unwrap();
    let path = folder.path().join("linkdb.redb");
    let (linkdb, _poll) = start(Role::Ground, Some(path.clone()));
    let session = SessionNumber(3);
    linkdb.feed(Input::Up { session, peer: "train-7".to_owned() });
    // Each of these is a transaction on the disk.
    for trip in 0..BUSY {
        let records =
            (0..12).map(|sequence| Handover { trip: TripId(trip), sequence, ..record.clone() });
        let message = LedgerMessage::Records(records.collect());
        linkdb.feed(Input::Ledger { session, message });
    }
    // While it writes it is told far more than waits for it. Would one of these wait for the disk,
    // nothing would be dropped.
    let observed = Input::Observed(odometer(Instant::now(), 1.0));
    for _ in 0..100_000 {
        linkdb.feed(observed.clone());
    }
    let asker = linkdb.asker();
    let state = until(&asker, |state| state.received == BUSY * 12);
    assert!((1..=100_000).contains(&state.inputs_dropped), "{}", state.inputs_dropped);
    assert_eq!(state.store.stats.unwrap().events, BUSY * 12);
    // Nobody takes its answers: those that find no room are counted.
    let mut outputs = 0;
    while linkdb.try_recv().is_some() {
        outputs += 1;
    }
    assert!(outputs > 0);
    drop(linkdb);
    assert_eq!(handovers(&path).len() as u64, BUSY * 12, "it was closed");
    assert_eq!(asker.state(), None);
}

#[test]
fn it_ends_though_it_has_much_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let record = handovers(learned(folder.path(), "one", 1)).into_values().next().unwrap();
    let path = folder.path().join("linkdb.redb");
    let (linkdb, _poll) = start(Role::Ground, Some(path.clone()));
    let session = SessionNumber(3);
    linkdb.feed(Input::Up { session, peer: "train-7".to_owned() });
    // More than two seconds of work where a transaction takes a millisecond.
    for trip in 0..4_000 {
        let record = Handover { trip: TripId(trip), sequence: 0, ..record.clone() };
        linkdb.feed(Input::Ledger { session, message: LedgerMessage::Records(vec![record]) });
    }
    let asked = Instant::now();
    drop(linkdb);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    // What was done is there, and the file is closed.
    assert!(!handovers(&path).is_empty());
}

#[test]
fn what_sources_observe_is_recorded_and_the_data_plane_is_woken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let (linkdb, mut poll) = start(Role::Train, Some(path.clone()));
    let observe = linkdb.observer();
    linkdb.feed(Input::Up { session: SessionNumber(1), peer: "cloud".to_owned() });
    let asker = linkdb.asker();
    for cell in 0..=4 {
        let at = Instant::now();
        observe(odometer(at, 1_000.0));
        observe(serving(at, "a", Some(cell)));
        if cell > 0 {
            // The modem says all of it: nothing has to settle.
            let (carrier, dark) = ("a".to_owned(), Some(Duration::from_millis(5)));
            let outcome = HandoverOutcome::Success;
            observe(Observation::Reported(Reported { at, carrier, outcome, dark }));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let state = until(&asker, |state| state.recorded == 4);
    assert_eq!(state.store.stats.unwrap().events, 4);
    assert_eq!(state.trips[0].route.as_deref(), Some("7"));
    let mut events = mio::Events::with_capacity(4);
    poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
    assert!(!events.is_empty());
    let outputs: Vec<Output> = std::iter::from_fn(|| linkdb.try_recv()).collect();
    assert!(outputs.iter().any(|one| matches!(one, Output::Ledger { .. })), "{outputs:?}");
    drop(linkdb);
    assert_eq!(handovers(&path).len(), 4);
}

#[test]
fn a_database_that_fails_does_not_stop_the_thread() {
    let folder = tempfile::tempdir().unwrap();
    for role in [Role::Train, Role::Ground] {
        let (linkdb, _poll) = start(role, Some(folder.path().to_owned()));
        let state = until(&linkdb.asker(), |state| !state.store.open);
        assert!(state.store.error.unwrap().contains("is no ordinary file"));
        drop(linkdb);
    }
}

#[test]
fn what_the_data_plane_has_no_room_for_waits() {
    let (linkdb, mut poll) = start(Role::Ground, None);
    for session in 0..GATEWAYS {
        let (session, peer) = (SessionNumber(session), format!("train-{session}"));
        linkdb.feed(Input::Up { session, peer });
    }
    until(&linkdb.asker(), |state| state.trips.len() as u64 == GATEWAYS);
    // Each is asked what it knows, far more than the channel has room for.
    let mut asked = std::collections::BTreeSet::new();
    let mut events = mio::Events::with_capacity(4);
    while (asked.len() as u64) < GATEWAYS {
        poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        assert!(!events.is_empty(), "only {} were asked", asked.len());
        while let Some(output) = linkdb.try_recv() {
            if let Output::Ledger { session, .. } = output {
                asked.insert(session);
            }
        }
    }
    let state = until(&linkdb.asker(), |_| true);
    assert_eq!((state.inputs_dropped, state.outputs_dropped), (0, 0));
}

#[test]
fn a_panic_ends_neither_the_thread_nor_what_it_says() {
    for role in [Role::Train, Role::Ground] {
        let folder = tempfile::tempdir().unwrap();
        let (linkdb, _poll) = start(role, Some(folder.path().join("linkdb.redb")));
        linkdb.feed(Input::Up { session: SessionNumber(3), peer: "another".to_owned() });
        let asker = linkdb.asker();
        until(&asker, |state| state.store.open);
        while linkdb.try_recv().is_some() {}
        let now = Instant::now();
        linkdb.feed(Input::Observed(odometer(now, 1_900.0)));
        linkdb.feed(Input::Observed(serving(now, "a", Some(1))));
        let on_board = matches!(role, Role::Train);
        until(&asker, |state| !on_board || state.trips[0].metres.is_some());
        let (at, carrier, outcome) = (Instant::now(), "a".to_owned(), HandoverOutcome::Success);
        linkdb.feed(Input::Observed(serving(at, "a", Some(2))));
        let reported = Reported { at, carrier, outcome, dark: Some(Duration::from_millis(5)) };
        linkdb.feed(Input::Observed(Observation::Reported(reported)));
        linkdb.panic();
        // It is begun anew at once, with what it had seen, and knows which sessions stand.
        let state = until(&asker, |state| state.failures == 1 && state.store.open);
        assert_eq!((state.failed, state.trips.len()), (None, 1));
        assert_eq!(state.store.stats.unwrap().events, u64::from(on_board));
        let end = Instant::now() + Duration::from_secs(10);
        while !matches!(linkdb.try_recv(), Some(Output::Ledger { session: SessionNumber(3), .. })) {
            assert!(Instant::now() < end, "nothing is asked");
        }
        // But not again within a minute; it says why.
        linkdb.panic();
        let state = until(&asker, |state| state.failures == 2);
        assert_eq!(state.failed.as_deref(), Some("as the test wants it"));
        assert!(state.forecast && !state.store.open && state.store.path.is_some());
        assert_eq!(state.inputs_dropped, 0);
        (0..3).for_each(|_| linkdb.feed(Input::Observed(odometer(Instant::now(), 2_000.0))));
        until(&asker, |state| state.inputs_dropped == 3);
        linkdb.feed(Input::Retune(Tuning { forecast: false, ..tuning() }));
        until(&asker, |state| !state.forecast && state.failures == 2);
        drop(linkdb);
    }
}

/// Gateways that come at once.
const GATEWAYS: u64 = 3_000;
/// Transactions that keep the thread busy while it is fed.
const BUSY: u64 = 200;
