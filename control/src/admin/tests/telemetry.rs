//! Sources of telemetry on the control thread, from the configuration to who learns from them.

use std::time::Instant;

use mio::{Events, Poll, Token, Waker};
use polyrail_model::{CellId, Observation};

use super::super::{AdminHandle, AdminServer};
use super::*;
use crate::reload::Change;
use crate::telemetry::ObservationReceiver;

const WAIT: Duration = Duration::from_secs(20);

fn configure(node: &Node, replay: &str) {
    node.write(&format!("{TEXT}[telemetry]\nreplay = \"{replay}\"\n"));
}

fn next_cell(observations: &ObservationReceiver) -> Option<CellId> {
    match observations.recv_timeout(WAIT) {
        Some(Observation::Serving(serving)) => serving.cell,
        other => panic!("{other:?}"),
    }
}

/// Answers the reload that comes; what it was about.
fn take_reload(poll: &mut Poll, handle: &AdminHandle<GatewayConfig>) -> Vec<Change> {
    let end = Instant::now() + WAIT;
    loop {
        match handle.try_recv() {
            Some(Command::Reload { changes, reply, .. }) => {
                reply.send(Ok(Vec::new()));
                return changes;
            }
            Some(other) => panic!("nobody asked for {other:?}"),
            None => {
                let left = end.checked_duration_since(Instant::now()).expect("no reload came");
                poll.poll(&mut Events::with_capacity(4), Some(left)).unwrap();
            }
        }
    }
}

#[test]
fn sources_run_and_follow_a_reload() {
    let node = Node::new();
    for (name, cell) in [("one", 1), ("two", 2)] {
        let line = format!("{{\"carriers\":[{{\"carrier\":\"a\",\"cell\":{cell}}}]}}\n");
        std::fs::write(node.path(name), line).unwrap();
    }
    configure(&node, "one");
    let mut poll = Poll::new().unwrap();
    let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
    let mut handle = AdminServer::start(node.options(waker)).unwrap();
    let observations = handle.take_observations().unwrap();
    assert!(handle.take_observations().is_none());
    assert_eq!(next_cell(&observations), Some(CellId(1)));

    configure(&node, "two");
    handle.request_reload();
    assert_eq!(take_reload(&mut poll, &handle), [Change::Telemetry]);
    assert_eq!(next_cell(&observations), Some(CellId(2)));
}
