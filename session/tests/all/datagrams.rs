//! Datagrams between two endpoints: which paths carry them, how often, and received once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polyrail_model::{BindingId, Bytes, Destination, PathId, UserId};
use polyrail_scheduler::{
    Chain, ChainSpec, Handler, Input, PathSets, PathView, SEGMENT, Schedulerlet,
};
use polyrail_session::limits::BINDINGS_MAX;
use polyrail_session::wire::{DATAGRAM_MAX, Decoder, Frame};
use polyrail_session::{
    DatagramStatus, Endpoint, Event, FlowKey, Settings, TunnelKey, UserDatagram,
};

use crate::endpoints::{Pair, Wire, sample, session};

fn status(endpoint: &Endpoint) -> DatagramStatus {
    endpoint.status().sessions[0].datagrams
}

fn datagram(binding: u64, payload: Vec<u8>) -> UserDatagram {
    let remote = Destination::Address(([192, 0, 2, 1], 443).into());
    let user = Some(UserId(binding / 100_000));
    UserDatagram { binding: BindingId(binding), user, remote, payload, expedited: false }
}

fn send_up(pair: &mut Pair, binding: u64, payload: &[u8]) {
    let session = session(&pair.gateway);
    pair.gateway.send_datagram(pair.now, session, datagram(binding, payload.to_vec()));
}

fn received(events: &[Event]) -> Vec<&UserDatagram> {
    let received = events.iter().filter_map(|event| match event {
        Event::Datagram { datagram, .. } => Some(datagram),
        _ => None,
    });
    received.collect()
}

/// The bindings of the datagrams that the gateway sends now; all are lost.
fn sent(pair: &mut Pair) -> Vec<u64> {
    let mut wire = Wire::default();
    pair.gateway.transmit(pair.now, &mut wire);
    let mut bindings = Vec::new();
    for (_, bytes) in wire.sent {
        let each = |frame: Frame<'_>| {
            if let Frame::Datagram { datagram, .. } = frame {
                bindings.push(datagram.binding.0);
            }
        };
        Decoder::default().feed(&bytes, each).unwrap();
    }
    bindings
}

#[test]
fn datagrams_cross_both_ways_although_one_side_forgets_the_binding() {
    let mut pair = Pair::over(&["a"]);
    send_up(&mut pair, 7, b"one");
    pair.run();
    assert_eq!(received(&pair.at_cloud), [&datagram(7, b"one".to_vec())]);
    let answer = UserDatagram { user: None, ..datagram(7, b"answer".to_vec()) };
    let to = session(&pair.cloud);
    pair.cloud.send_datagram(pair.now, to, answer.clone());
    pair.run();
    assert_eq!(received(&pair.at_gateway), [&answer]);
    for side in [true, false] {
        let endpoint = if side { &mut pair.cloud } else { &mut pair.gateway };
        let key = session(endpoint);
        endpoint.forget_binding(key, BindingId(7));
        pair.advance(Duration::from_millis(1));
        pair.at_cloud.clear();
        pair.at_gateway.clear();
        send_up(&mut pair, 7, b"two");
        pair.cloud.send_datagram(pair.now, to, answer.clone());
        pair.run();
        assert_eq!(received(&pair.at_cloud), [&datagram(7, b"two".to_vec())]);
        assert_eq!(received(&pair.at_gateway), [&answer]);
    }
}

#[test]
fn waiting_datagrams_of_a_user_and_of_all_users_are_bounded() {
    let mut pair = Pair::over(&["a"]);
    pair.down(0);
    // The cost of each is 1,064 bytes; a user has 1 MiB, all have 4 MiB.
    let mut sent = 0;
    for user in 1..=14 {
        for flow in 0..1_100 {
            send_up(&mut pair, user * 100_000 + flow, &[0; 1_000]);
            sent += 1;
        }
        let waiting = sent - status(&pair.gateway).drops.queue;
        assert_eq!(waiting, (user * 985).min(3_942), "after {user} users");
    }
}

#[test]
fn first_datagrams_of_a_flow_have_a_copy_that_the_receiver_drops() {
    let mut pair = Pair::over(&["a", "b"]);
    for number in 0..6 {
        send_up(&mut pair, 7, &[number]);
        pair.run();
    }
    let numbers: Vec<u8> = received(&pair.at_cloud).iter().map(|one| one.payload[0]).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    let (gateway, cloud) = (status(&pair.gateway), status(&pair.cloud));
    assert_eq!((gateway.sent, gateway.copies_sent), (6, 4));
    assert_eq!((cloud.received, cloud.copies_received), (6, 4));
}

#[test]
fn nothing_is_lost_when_the_path_of_a_real_time_flow_goes_dark() {
    let mut pair = Pair::over(&["a", "b"]);
    for number in 0..100_u8 {
        if number == 50 {
            pair.dark(0);
        }
        send_up(&mut pair, 7, &[number]);
        pair.run();
        pair.advance(Duration::from_millis(20));
    }
    let numbers: Vec<u8> = received(&pair.at_cloud).iter().map(|one| one.payload[0]).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<u8>>());
}

/// Notes whether the session has a call, and chooses the first path.
struct Listener(Arc<AtomicBool>);

impl Schedulerlet for Listener {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        self.0.store(input.paths[0].calls, Ordering::Relaxed);
        sets.select(0);
    }
}

#[test]
fn scheduler_knows_while_a_user_calls() {
    let hears = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&hears);
    let listens = move || Chain::new(vec![Box::new(Listener(Arc::clone(&heard)))]);
    let chain = ChainSpec::custom("listener", listens);
    let mut pair = Pair::new(Settings { chain, ..Settings::default() });
    pair.up(0, "a");
    let flow = pair.open();
    // Datagrams of a binding every 20 ms, and what the scheduler of the gateway knows afterwards.
    let mut send = |seconds: u64, bytes: usize| {
        for _ in 0..seconds * 50 {
            if bytes > 0 {
                send_up(&mut pair, 7, &vec![0; bytes]);
            }
            pair.run();
            pair.advance(Duration::from_millis(20));
        }
        pair.gateway.write(pair.now, flow, b"x");
        pair.run();
        hears.load(Ordering::Relaxed)
    };
    assert!(!send(1, 0));
    assert!(send(3, 160), "a call");
    assert!(!send(2, 0), "it is over");
    assert!(!send(3, 1_200), "a download");
    assert!(!send(1, 160), "its pause");
}

/// Has a cap of 16 segments, and notes the view of the path.
struct Bound(Arc<Mutex<PathView>>);

impl Handler for Bound {
    fn gives_back(&mut self, path: &PathView, _now: Instant) -> bool {
        *self.0.lock().unwrap() = *path;
        false
    }

    fn cap(&self, _path: PathId) -> Option<Bytes> {
        Some(Bytes(16 * SEGMENT))
    }
}

/// One path with such a handler, a flow, and three seconds with or without a call.
fn bounded(calls: bool) -> (Pair, FlowKey, Arc<Mutex<PathView>>) {
    let view = Arc::new(Mutex::new(PathView::default()));
    let held = Arc::clone(&view);
    let chain = ChainSpec::custom("bound", move || {
        let min_rtt = ChainSpec::named("min_rtt").unwrap();
        min_rtt.build().with(vec![Box::new(Bound(Arc::clone(&held)))])
    });
    let mut pair = Pair::new(Settings { chain, ..Settings::default() });
    pair.up(0, "a");
    let flow = pair.open();
    for _ in 0..150 {
        if calls {
            send_up(&mut pair, 7, &[0; 160]);
        }
        pair.run();
        pair.advance(Duration::from_millis(20));
    }
    (pair, flow, view)
}

#[test]
fn runs_are_short_next_to_a_call() {
    for (calls, runs) in [(false, 4), (true, 8)] {
        let (mut pair, flow, _) = bounded(calls);
        pair.slow = Some(TunnelKey(0));
        let before = pair.units.len();
        pair.gateway.write(pair.now, flow, &[7; 60_000]);
        pair.run();
        assert_eq!(pair.units.len() - before, runs, "a call: {calls}");
    }
}

#[test]
fn scheduler_knows_the_queue_of_the_newest_run() {
    let (mut pair, flow, view) = bounded(false);
    for wanted in [0, 30, 0] {
        send_runs(&mut pair, flow, 1, Duration::from_millis(wanted));
        assert_eq!(view.lock().unwrap().queued, Some(Duration::from_millis(wanted)));
    }
}

#[test]
fn scheduler_knows_the_rate_of_the_busy_link() {
    let (mut pair, flow, view) = bounded(false);
    // 1,000 bytes in 10 ms and in 20 are 800 and 400 kbit/s, however little the path delivers.
    for (apart, wanted) in [(10, 0.8), (20, 0.4)] {
        send_runs(&mut pair, flow, 4, Duration::from_millis(apart));
        let rate = view.lock().unwrap().busy_rate.unwrap();
        assert!((rate.as_bps() as f64 / 1e6 - wanted).abs() < 0.01, "{rate:?} instead of {wanted}");
        pair.advance(Duration::from_secs(1));
    }
}

/// The gateway sends runs of 1,000 bytes at once, which arrive so far apart, and has a sample.
fn send_runs(pair: &mut Pair, flow: FlowKey, count: usize, apart: Duration) {
    let mut wire = Wire::default();
    for _ in 0..count {
        pair.gateway.write(pair.now, flow, &[7; 1_000]);
        pair.gateway.transmit(pair.now, &mut wire);
    }
    for (tunnel, frames) in &wire.sent {
        pair.now += apart;
        pair.cloud.receive(pair.now, *tunnel, frames);
        pair.run();
    }
    pair.advance(Duration::from_millis(20));
    pair.gateway.tunnel_sample(pair.now, TunnelKey(0), &sample(pair.now));
}

#[test]
fn datagrams_without_a_path_are_bounded_and_stale_ones_are_not_sent() {
    let mut pair = Pair::over(&["a"]);
    pair.down(0);
    for _ in 0..4_000 {
        send_up(&mut pair, 7, &[0; 100]);
    }
    pair.advance(Duration::from_secs(1));
    send_up(&mut pair, 7, b"fresh");
    pair.up(1, "a");
    let payloads: Vec<_> = received(&pair.at_cloud).iter().map(|one| &one.payload[..]).collect();
    assert_eq!(payloads, [b"fresh"]);
    let DatagramStatus { drops, sent, .. } = status(&pair.gateway);
    // The cost of each is 164 bytes; 512 KiB may wait for a stream.
    assert_eq!((drops.queue, drops.stale, drops.total(), sent), (804, 3_196, 4_000, 1));
}

#[test]
fn longest_datagram_passes_and_a_longer_one_is_counted() {
    let mut pair = Pair::over(&["a"]);
    for length in [0, DATAGRAM_MAX, DATAGRAM_MAX + 1] {
        send_up(&mut pair, 7, &vec![1; length]);
    }
    pair.run();
    let lengths: Vec<_> = received(&pair.at_cloud).iter().map(|one| one.payload.len()).collect();
    assert_eq!((lengths, status(&pair.gateway).drops.too_long), (vec![0, DATAGRAM_MAX], 1));
}

#[test]
fn bindings_are_bounded_on_both_sides_and_make_room_when_they_are_idle_or_over() {
    let mut pair = Pair::over(&["a"]);
    for binding in 1..=BINDINGS_MAX as u64 + 10 {
        send_up(&mut pair, binding, b"x");
        pair.run();
    }
    let (gateway, cloud) = (status(&pair.gateway), status(&pair.cloud));
    assert_eq!((gateway.bindings, gateway.drops.bindings), (BINDINGS_MAX, 10));
    assert_eq!(cloud.bindings, BINDINGS_MAX);
    let key = session(&pair.gateway);
    pair.gateway.forget_binding(key, BindingId(1));
    send_up(&mut pair, 1 << 20, b"x");
    assert_eq!(status(&pair.gateway).drops.total(), 10);
    pair.advance(Duration::from_secs(300));
    send_up(&mut pair, 1 << 21, b"x");
    pair.run();
    assert_eq!((status(&pair.gateway).bindings, status(&pair.cloud).bindings), (1, 1));
}

#[test]
fn datagrams_of_an_ended_binding_are_counted() {
    let mut pair = Pair::over(&["a"]);
    pair.down(0);
    for _ in 0..3 {
        send_up(&mut pair, 7, b"x");
    }
    let key = session(&pair.gateway);
    pair.gateway.forget_binding(key, BindingId(7));
    let drops = status(&pair.gateway).drops;
    assert_eq!((drops.ended, drops.total()), (3, 3));
}

/// A user with a flood of small flows exceeds its priority; then its datagrams wait for its turn.
#[test]
fn flood_of_one_users_flows_delays_no_call_of_another() {
    let mut pair = Pair::over(&["a"]);
    let call = 200_000;
    for turn in 0..50 {
        for flow in 0..400 {
            send_up(&mut pair, 100_000 + flow, &[0; 1_000]);
        }
        send_up(&mut pair, call, &[turn; 160]);
        let bindings = sent(&mut pair);
        let place = bindings.iter().position(|binding| *binding == call);
        assert!(place.is_some_and(|place| place <= 1), "turn {turn}: {place:?}");
        pair.now += Duration::from_millis(20);
    }
}
