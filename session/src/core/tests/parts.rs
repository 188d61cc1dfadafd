//! The parts of a session alone: paths, messages, turns and writers.

use std::time::{Duration, Instant};

use polyrail_model::{Channel, Delivery, FlowId, PathId, PathWish, TunnelMode, Unit, UserId};

use super::super::flow_control::FlowControl;
use super::super::flows::Flows;
use super::super::messages::Messages;
use super::super::outlet::Outlet;
use super::super::paths::Paths;
use super::super::turns::Turns;
use super::super::writers::{self, Writers};
use super::base;
use crate::event::TunnelKey;
use crate::flow::Flow;
use crate::limits::{FLOOR, PROMPT_MAX, URGENT_BURST, URGENT_RATE};
use crate::path::{Manner, Path};

/// The tunnels that were used, in order; each keeps this much room.
struct Sent(Vec<usize>, usize);

impl Outlet for Sent {
    fn send(&mut self, tunnel: TunnelKey, _unit: Unit, _frames: &[u8]) -> usize {
        self.0.push(tunnel.0);
        self.1
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

/// Paths by carrier, all proven and with room; the number of a path is that of its tunnel.
fn paths(now: Instant, carriers: &[&str]) -> Paths {
    let mut paths = Paths::new(now);
    for (number, carrier) in carriers.iter().enumerate() {
        let manner =
            Manner { carrier, wish: PathWish::default(), mode: TunnelMode::Quic, proven: true };
        paths.add(now, PathId(number as u64), TunnelKey(number), manner);
        paths.get_mut(number).unwrap().set_room(10_000);
    }
    paths
}

#[test]
fn newer_path_supersedes_and_a_stall_before_it_delivers_reinstates_the_older() {
    let now = base();
    let superseded = |paths: &Paths| paths.iter().map(Path::is_superseded).collect::<Vec<_>>();
    let mut paths = paths(now, &["a", "b", "a"]);
    assert_eq!(superseded(&paths), [true, false, false]);
    assert_eq!(paths.live_slots(), [1, 2]);
    assert!(paths.stall(now, 2), "the current path of its carrier");
    assert_eq!(superseded(&paths), [false, false, false]);
    assert_eq!(paths.live_slots(), [0, 1]);
    // It recovers and delivers: the older path retires and is closed once.
    let progress = paths.progress(now, 2, true);
    assert!(progress.recovered && progress.changed);
    assert_eq!(superseded(&paths), [true, false, false]);
    assert_eq!((paths.close_drained(now), paths.close_drained(now)), (vec![0], vec![]));
    assert!(paths.remove(now, 0).is_some() && paths.slot_of(TunnelKey(0)).is_none());
    // It is dark since it last progressed or received.
    let (path, later) = (paths.get_mut(2).unwrap(), now + Duration::from_secs(1));
    path.stall.sent(now, 10);
    assert_eq!(path.dark_since(later), now);
    path.pings.on_received(later, 10, false);
    assert_eq!(path.dark_since(later), later);
}

#[test]
fn session_is_alone_without_paths_and_control_uses_the_fastest_live_path() {
    let now = base();
    let mut paths = paths(now, &["a", "b"]);
    assert_eq!((paths.alone_since, paths.greeted), (None, true));
    paths.get_mut(0).unwrap().link.measured(Duration::from_millis(80));
    paths.get_mut(1).unwrap().link.measured(Duration::from_millis(30));
    assert_eq!((paths.control_slot(None), paths.control_slot(Some(1))), (Some(1), Some(0)));
    paths.stall(now, 1);
    assert_eq!((paths.control_slot(None), paths.stalled_slots()), (Some(0), vec![1]));
    assert!(paths.remove(now, 0).is_some() && paths.alone_since.is_none());
    assert!(paths.remove(now, 1).is_some());
    assert_eq!(paths.alone_since, Some(now));
}

#[test]
fn messages_are_sent_by_delivery_and_accepted_once() {
    let now = base();
    let (mut paths, mut turns) = (paths(now, &["a", "b"]), Turns::new(now));
    for (delivery, tunnels) in [
        (Delivery::Urgent, 2),
        (Delivery::Latest, 2),
        (Delivery::Prompt, 1),
        (Delivery::Background, 1),
    ] {
        let (mut messages, mut sent) = (Messages::new(now), Sent(Vec::new(), 10_000));
        messages.queue(now, Channel(1), delivery, vec![7; 100]);
        messages.send(now, &mut paths, &mut turns, &mut sent);
        messages.send_background(now, &mut paths, &mut turns, &mut sent);
        messages.send(now, &mut paths, &mut turns, &mut sent);
        assert_eq!(sent.0.len(), tunnels, "{delivery:?}");
    }
    let mut messages = Messages::new(now);
    for _ in 0..=URGENT_BURST as usize {
        messages.queue(now, Channel(1), Delivery::Urgent, vec![7]);
    }
    let mut sent = Sent(Vec::new(), 10_000);
    messages.send(now, &mut paths, &mut turns, &mut sent);
    assert_eq!(sent.0.len(), 2 * URGENT_BURST as usize);
    let next = now + Duration::from_secs_f64(1.0 / URGENT_RATE);
    assert!(turns.wake_at.is_some_and(|at| at >= next), "the last one waits for its token");
    let accepted = [(false, 5), (false, 5), (true, 5), (true, 4), (true, 6)]
        .map(|(latest, serial)| messages.accept(Channel(1), latest, serial));
    assert_eq!(accepted, [true, false, true, false, true]);
}

#[test]
fn prompt_messages_do_not_replace_one_another_and_are_bounded() {
    let now = base();
    let (mut paths, mut turns) = (paths(now, &["a", "b"]), Turns::new(now));
    for (queued, wanted, dropped) in [(2, 2, 0), (PROMPT_MAX + 3, PROMPT_MAX, 3)] {
        let (mut messages, mut sent) = (Messages::new(now), Sent(Vec::new(), 10_000));
        for _ in 0..queued {
            messages.queue(now, Channel(4), Delivery::Prompt, vec![7; 20]);
        }
        messages.send(now, &mut paths, &mut turns, &mut sent);
        assert_eq!((sent.0.len(), messages.dropped), (wanted, dropped), "{queued}");
    }
}

/// Two flows of two users with data, and shares for both.
fn flows(now: Instant) -> (Flows, FlowControl) {
    let (mut flows, mut control) = (Flows::default(), FlowControl::new(1 << 20));
    control.credit.agree(1 << 20);
    for id in [1, 2] {
        let mut flow = Flow::new(now, FlowId(id), UserId(id), false, 1 << 20, 1 << 20);
        flow.send.write(&[7; 1_000]);
        control.held_sent += 1_000;
        control.recount(&mut flow);
        flows.insert(flow);
    }
    (flows, control)
}

#[test]
fn flow_is_queued_once_set_aside_and_starved_without_credit() {
    let now = base();
    let ((mut flows, mut control), mut turns) = (flows(now), Turns::new(now));
    for id in [1, 1, 2] {
        turns.enqueue(now, flows.get_mut(FlowId(id)).unwrap(), &control);
    }
    let order = [(); 3].map(|()| turns.queue.pop().map(|turn| turn.flow.0));
    assert_eq!(order, [Some(1), Some(2), None]);
    flows.get_mut(FlowId(1)).unwrap().queued = false;
    turns.enqueue(now, flows.get_mut(FlowId(1)).unwrap(), &control);
    let turn = turns.queue.pop().unwrap();
    turns.aside.push(turn);
    assert!(turns.queue.pop().is_none() && turns.interactive_waits());
    turns.rejoin();
    assert_eq!(turns.queue.pop().map(|turn| turn.flow), Some(FlowId(1)));
    // All credit is used, and the flow has bytes at the peer: it waits for credit.
    control.credit.sent(1 << 20);
    let flow = flows.get_mut(FlowId(1)).unwrap();
    let piece = flow.send.piece(10).unwrap();
    flow.send.sent(now, &piece, 10, polyrail_scheduler::PathSet::only(0), 0, 0);
    assert!(flow.send.acknowledge(10, &[], |_, _, _| {}));
    flow.queued = false;
    turns.enqueue(now, flow, &control);
    assert!(turns.queue.pop().is_none());
    assert!(turns.starved.holds(FlowId(1)));
}

#[test]
fn waiting_writer_is_woken_once_when_it_has_room() {
    let (now, mut writers) = (base(), Writers::default());
    let (mut flows, mut control) = flows(now);
    let memory = std::mem::replace(&mut control.held_sent, 1 << 20);
    assert_eq!(writers::room(flows.get(FlowId(1)).unwrap(), &control), 0, "no memory is free");
    writers.waiting.insert(FlowId(1));
    assert!(writers.relieve(&flows, &control).is_empty());
    control.held_sent = memory;
    assert!(writers::room(flows.get(FlowId(1)).unwrap(), &control) >= FLOOR);
    assert_eq!(writers.relieve(&flows, &control), [FlowId(1)]);
    assert!(writers.relieve(&flows, &control).is_empty());
    writers.waiting.insert(FlowId(2));
    writers.waiting.remove(&FlowId(2));
    let flow = flows.get_mut(FlowId(2)).unwrap();
    flow.send.finish();
    assert!(!writers.relieve_one(FlowId(2), &flows, &control));
}
