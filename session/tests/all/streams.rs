//! Streams of datagrams between two endpoints: who gets one, what arrives, and what a hostile or an
//! older peer can do.

use std::time::{Duration, Instant};

use polyrail_model::{BindingId, Destination, FlowId, NodeRole, SessionId, UserId, Weight};
use polyrail_session::wire::{
    DataMarks, Datagram, Decoder, Frame, Offer, Open, Reset, Target, Terms, encode,
};
use polyrail_session::{
    DatagramStatus, Endpoint, Event, ResetReason, Settings, TunnelKey, UserDatagram,
};

use crate::endpoints::{Pair, Wire, session};

fn status(endpoint: &Endpoint) -> DatagramStatus {
    endpoint.status().sessions[0].datagrams
}

fn send(pair: &mut Pair, from: NodeRole, binding: u64, number: u32, bytes: usize) {
    let remote = Destination::Address(([192, 0, 2, 1], 443).into());
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(bytes, 0);
    let endpoint = match from {
        NodeRole::Gateway => &mut pair.gateway,
        NodeRole::Cloud => &mut pair.cloud,
    };
    let user = (from == NodeRole::Gateway).then_some(UserId(1));
    let to = session(endpoint);
    let binding = BindingId(binding);
    let datagram = UserDatagram { binding, user, remote, payload, expedited: false };
    endpoint.send_datagram(pair.now, to, datagram);
}

/// Shows each frame that the endpoint sends now, and returns them all.
fn transmit(endpoint: &mut Endpoint, now: Instant, mut each: impl FnMut(Frame<'_>)) -> Wire {
    let mut wire = Wire::default();
    endpoint.transmit(now, &mut wire);
    for (_, bytes) in &wire.sent {
        Decoder::default().feed(bytes, &mut each).unwrap();
    }
    wire
}

/// How many datagrams the endpoint sends now by themselves.
fn singles(endpoint: &mut Endpoint, now: Instant) -> u64 {
    let mut singles = 0;
    transmit(endpoint, now, |frame| {
        singles += u64::from(matches!(frame, Frame::Datagram { .. }));
    });
    singles
}

/// The numbers of the datagrams that have arrived, in their order.
fn arrived(events: &[Event]) -> Vec<u32> {
    let numbers = events.iter().filter_map(|event| match event {
        Event::Datagram { datagram, .. } => datagram.payload.first_chunk().copied(),
        _ => None,
    });
    numbers.map(u32::from_be_bytes).collect()
}

/// A binding whose user has asked for something, with a stream in both endpoints.
fn with_stream(carriers: &[&str]) -> Pair {
    let mut pair = Pair::over(carriers);
    send(&mut pair, NodeRole::Gateway, 7, 0, 1_200);
    pair.run();
    for endpoint in [&pair.gateway, &pair.cloud] {
        assert_eq!(status(endpoint).streams, 1);
    }
    pair.at_cloud.clear();
    pair
}

#[test]
fn binding_gets_a_stream_when_it_begins_quic_or_carries_more_than_a_call() {
    use NodeRole::{Cloud, Gateway};
    // The sender, its datagrams, their length, the pause between them in ms; streams.
    for (what, from, count, bytes, pause_ms, wanted) in [
        ("QUIC's first datagram", Gateway, 1, 1_200, 0, 1),
        ("a query", Gateway, 1, 60, 0, 0),
        ("a call", Cloud, 200, 160, 20, 0),
        ("an upload", Gateway, 40, 1_000, 5, 1),
        ("a download", Cloud, 40, 1_000, 5, 1),
    ] {
        let mut pair = Pair::over(&["a", "b"]);
        send(&mut pair, Gateway, 7, 0, 60);
        pair.run();
        for number in 0..count {
            send(&mut pair, from, 7, number, bytes);
            pair.run();
            pair.advance(Duration::from_millis(pause_ms));
        }
        for endpoint in [&pair.gateway, &pair.cloud] {
            let sessions = endpoint.status().sessions;
            assert_eq!(sessions[0].datagrams.streams, wanted, "{what}");
            assert_eq!((sessions[0].flows, sessions[0].flows_held), (0, 0), "{what}");
            assert_eq!(endpoint.flows_after(None, None).count(), 1, "{what}: the binding");
        }
        pair.advance(Duration::from_secs(60));
        for endpoint in [&pair.gateway, &pair.cloud] {
            assert_eq!(status(endpoint).streams, 0, "{what}: it is idle");
        }
        // The callers learn nothing of a stream.
        let mut told = pair.at_cloud.iter().chain(&pair.at_gateway);
        let of_flow = |event: &Event| {
            matches!(event, Event::Opened { .. } | Event::Readable { .. } | Event::Writable { .. })
                || matches!(event, Event::Dialed { .. } | Event::Closed { .. })
                || matches!(event, Event::Reset { .. })
        };
        assert!(!told.any(of_flow), "{what}");
    }
}

#[test]
fn quic_begins_in_its_stream_although_the_carriers_are_full() {
    let mut pair = Pair::over(&["a"]);
    pair.gateway.tunnel_room(TunnelKey(0), 0);
    (0..3).for_each(|number| send(&mut pair, NodeRole::Gateway, 7, number, 1_200));
    assert_eq!(singles(&mut pair.gateway, pair.now), 0);
    pair.gateway.tunnel_room(TunnelKey(0), 16_384);
    pair.run();
    assert_eq!((arrived(&pair.at_cloud), status(&pair.cloud).streams), (vec![0, 1, 2], 1));
}

#[test]
fn first_datagrams_of_a_stream_arrive_one_by_one() {
    let mut pair = with_stream(&["a", "b"]);
    let mut runs = |from: u32, count: u32| {
        (from..from + count).for_each(|it| send(&mut pair, NodeRole::Cloud, 7, it, 1_350));
        let mut longest = 0;
        let wire = transmit(&mut pair.cloud, pair.now, |frame| {
            if let Frame::Data { data, .. } = frame {
                longest = longest.max(data.len());
            }
        });
        for (tunnel, bytes) in wire.sent {
            pair.gateway.receive(pair.now, tunnel, &bytes);
        }
        pair.advance(Duration::from_millis(100));
        longest
    };
    for round in 0..19 {
        let longest = runs(10 * round, 10);
        assert!((1_350..=1_400).contains(&longest), "{longest} bytes in round {round}");
    }
    let later = runs(190, 10);
    assert!(later > 2_800, "{later} bytes after 256 KiB");
}

#[test]
fn download_in_a_stream_is_whole_and_in_order_although_a_carrier_goes_dark() {
    let mut pair = with_stream(&["a", "b"]);
    for number in 0..600 {
        if number == 300 {
            pair.dark(0);
        }
        send(&mut pair, NodeRole::Cloud, 7, number, 1_200);
        if number % 8 == 7 {
            pair.run();
            pair.advance(Duration::from_millis(5));
        }
    }
    pair.advance(Duration::from_secs(5));
    let drops = status(&pair.cloud).drops;
    let numbers = arrived(&pair.at_gateway);
    assert!(numbers.is_sorted(), "{numbers:?}");
    // While the dark carrier is not known to be dark, the queue is bounded.
    assert_eq!(numbers.len() as u64 + drops.queue + drops.codel + drops.stale, 600, "{drops:?}");
    assert!(numbers.len() > 500, "{} of 600: {drops:?}", numbers.len());
}

#[test]
fn datagram_on_the_way_is_not_overtaken_by_the_stream() {
    let mut pair = Pair::over(&["a", "b"]);
    send(&mut pair, NodeRole::Gateway, 7, 0, 60);
    pair.run();
    pair.at_cloud.clear();
    // The fifth has no copy: it is late.
    for number in 1..=4 {
        send(&mut pair, NodeRole::Gateway, 7, number, 600);
    }
    pair.run();
    let mut late = Wire::default();
    pair.advance(Duration::from_secs(3));
    send(&mut pair, NodeRole::Gateway, 7, 5, 600);
    pair.gateway.transmit(pair.now, &mut late);
    for number in 6..60 {
        send(&mut pair, NodeRole::Gateway, 7, number, 1_000);
    }
    pair.run();
    assert_eq!((status(&pair.cloud).streams, arrived(&pair.at_cloud).last()), (1, Some(&4)));
    for (tunnel, bytes) in late.sent {
        pair.cloud.receive(pair.now, tunnel, &bytes);
    }
    pair.run();
    assert_eq!(arrived(&pair.at_cloud), (1..60).collect::<Vec<u32>>());
}

#[test]
fn stream_of_a_binding_that_is_over_ends_although_the_peer_sends() {
    let mut pair = with_stream(&["a"]);
    let key = session(&pair.gateway);
    pair.gateway.forget_binding(key, BindingId(7));
    for number in 0..400 {
        send(&mut pair, NodeRole::Cloud, 7, number, 1_000);
        pair.advance(Duration::from_millis(5));
    }
    for endpoint in [&pair.gateway, &pair.cloud] {
        assert_eq!(status(endpoint).streams, 0);
    }
    send(&mut pair, NodeRole::Gateway, 7, 9, 1_200);
    pair.run();
    // Its numbers begin elsewhere, as if earlier ones were on the way.
    pair.advance(Duration::from_millis(100));
    assert_eq!((arrived(&pair.at_cloud), status(&pair.gateway).streams), (vec![9], 1));
}

#[test]
fn stream_outlives_a_time_without_carriers() {
    let mut pair = with_stream(&["a"]);
    pair.down(0);
    (0..100).for_each(|number| send(&mut pair, NodeRole::Cloud, 7, number, 1_000));
    pair.advance(Duration::from_secs(30));
    assert_eq!(status(&pair.gateway).streams, 1);
    pair.up(1, "a");
    pair.advance(Duration::from_secs(3));
    send(&mut pair, NodeRole::Cloud, 7, 100, 1_000);
    pair.run();
    assert_eq!(arrived(&pair.at_gateway).last(), Some(&100));
    assert_eq!(status(&pair.cloud).drops.total() + arrived(&pair.at_gateway).len() as u64, 101);
}

#[test]
fn datagrams_that_wait_for_a_stream_go_on_without_it() {
    let mut pair = with_stream(&["a"]);
    (0..10).for_each(|number| send(&mut pair, NodeRole::Cloud, 7, number, 1_000));
    pair.run();
    (0..100).for_each(|number| send(&mut pair, NodeRole::Cloud, 7, number, 1_000));
    let (flow, reason) = (FlowId(1), ResetReason::Idle);
    let reset = Reset { flow, answer: false, reason, last: 1_300, after: 0 };
    let mut bytes = Vec::new();
    encode(&Frame::Reset(reset), &mut bytes);
    pair.cloud.receive(pair.now, TunnelKey(0), &bytes);
    let singles = singles(&mut pair.cloud, pair.now);
    // Those that the stream had taken are lost with it.
    assert!((80..100).contains(&singles), "{singles} single datagrams");
}

#[test]
fn second_stream_of_a_binding_replaces_the_first() {
    let mut pair = with_stream(&["a"]);
    let bytes = stream_open(2, 7, &[]);
    pair.cloud.receive(pair.now, TunnelKey(0), &bytes);
    assert_eq!(status(&pair.cloud).streams, 1);
    assert_eq!(resets(&mut pair), [(FlowId(1), ResetReason::Idle)]);
}

#[test]
fn stream_that_was_behind_is_delivered_bit_by_bit() {
    let mut pair = Pair::over(&["a"]);
    let mut stream = Vec::new();
    (0..400).for_each(|sequence| encode(&datagram(7, sequence, &[0; 1_000]), &mut stream));
    let (head, tail) = stream.split_at(100);
    for (at, part) in tail.chunks(10_000).enumerate() {
        let sequence = 101 + at as u64 * 10_000;
        let (flow, marks) = (FlowId(1), DataMarks::default());
        let mut bytes = Vec::new();
        encode(&Frame::Data { flow, sequence, sent_us: 0, marks, data: part }, &mut bytes);
        pair.cloud.receive(pair.now, TunnelKey(0), &bytes);
    }
    let bytes = stream_open(1, 7, head);
    pair.cloud.receive(pair.now, TunnelKey(0), &bytes);
    let mut turns = Vec::new();
    while turns.iter().sum::<usize>() < 400 && turns.len() < 100 {
        turns.push(std::iter::from_fn(|| pair.cloud.poll_event()).count());
        pair.now = pair.cloud.next_timeout().unwrap().max(pair.now);
        pair.cloud.on_timeout(pair.now);
    }
    let most = 64 * 1_024 / 1_000 + 2;
    assert!(turns.iter().all(|&turn| turn <= most) && turns.len() < 20, "{turns:?}");
}

#[test]
fn streams_of_a_user_are_bounded_and_further_downloads_and_users_go_on() {
    let mut pair = Pair::over(&["a"]);
    for binding in 1..=70 {
        send(&mut pair, NodeRole::Gateway, binding, 0, 1_200);
        pair.run();
    }
    assert_eq!((status(&pair.gateway).streams, status(&pair.cloud).streams), (64, 64));
    pair.at_gateway.clear();
    for number in 0..100 {
        send(&mut pair, NodeRole::Cloud, 70, number, 1_000);
        pair.run();
        pair.advance(Duration::from_millis(5));
    }
    assert_eq!(arrived(&pair.at_gateway).len(), 100, "without a stream");
    let (remote, user) = (Destination::Address(([192, 0, 2, 1], 443).into()), Some(UserId(2)));
    let (binding, payload) = (BindingId(100), vec![0; 1_200]);
    let other = UserDatagram { binding, user, remote, payload, expedited: false };
    let to = session(&pair.gateway);
    pair.gateway.send_datagram(pair.now, to, other);
    pair.run();
    assert_eq!(status(&pair.cloud).streams, 65, "another user's");
}

fn datagram(binding: u64, sequence: u64, data: &[u8]) -> Frame<'_> {
    let remote = Destination::Address(([192, 0, 2, 1], 443).into());
    let (binding, user, weight) = (BindingId(binding), Some(UserId(1)), Weight::default());
    let datagram = Datagram { binding, sequence, sent_us: 0, user, weight, remote };
    Frame::Datagram { datagram, data }
}

/// An OPEN of this flow as a stream, with data.
fn stream_open(flow: u64, binding: u64, data: &[u8]) -> Vec<u8> {
    let (flow, target) = (FlowId(flow), Target::Binding(BindingId(binding)));
    let (user, window, marks) = (UserId(1), 1 << 20, DataMarks::default());
    let open = Open { flow, user, window, sent_us: 0, marks, target };
    let mut bytes = Vec::new();
    encode(&Frame::Open { open, data }, &mut bytes);
    bytes
}

/// The flows that the cloud resets now.
fn resets(pair: &mut Pair) -> Vec<(FlowId, ResetReason)> {
    let mut resets = Vec::new();
    transmit(&mut pair.cloud, pair.now, |frame| {
        if let Frame::Reset(reset) = frame {
            resets.push((reset.flow, reset.reason));
        }
    });
    resets
}

#[test]
fn stream_with_anything_but_its_datagrams_is_reset() {
    let long = [0; 8_000];
    let (flow, marks) = (FlowId(1), DataMarks::default());
    let data = Frame::Data { flow, sequence: 0, sent_us: 0, marks, data: &long };
    let reset = vec![(FlowId(1), ResetReason::Protocol)];
    for (what, frames, arrive, wanted) in [
        ("its own", vec![datagram(7, 5, b"some")], 1, vec![]),
        ("another's", vec![datagram(7, 5, b"some"), datagram(8, 5, b"some")], 1, reset.clone()),
        ("a PING", vec![Frame::Ping { token: 1, sent_us: 2 }], 0, reset.clone()),
        ("a frame longer than a datagram", vec![data], 0, reset),
    ] {
        let mut pair = Pair::over(&["a"]);
        let mut data = Vec::new();
        frames.iter().for_each(|frame| encode(frame, &mut data));
        let bytes = stream_open(1, 7, &data);
        pair.cloud.receive(pair.now, TunnelKey(0), &bytes);
        let events: Vec<Event> = std::iter::from_fn(|| pair.cloud.poll_event()).collect();
        assert_eq!(arrived(&events).len(), arrive, "{what}");
        assert_eq!(resets(&mut pair), wanted, "{what}");
    }
}

#[test]
fn gateway_opens_no_stream_to_a_cloud_that_does_not_offer_it() {
    for streams in [false, true] {
        let mut pair = Pair::new(Settings::default());
        pair.make(0, "a", "train-7", false);
        let session = SessionId([3; 16]);
        let offer = Offer { datagrams: true, streams, ..Offer::default() };
        let terms = Terms { window: 1 << 20, credit: 1 << 24 };
        let mut bytes = Vec::new();
        let welcome = Frame::Welcome { session, counter: 1, founder: 1, offer, terms };
        encode(&welcome, &mut bytes);
        pair.gateway.receive(pair.now, TunnelKey(0), &bytes);
        send(&mut pair, NodeRole::Gateway, 7, 1, 1_200);
        let mut seen = (0, 0);
        transmit(&mut pair.gateway, pair.now, |frame| match frame {
            Frame::Open { open, .. } => {
                assert_eq!(open.target, Target::Binding(BindingId(7)));
                seen.0 += 1;
            }
            Frame::Datagram { .. } => seen.1 += 1,
            _ => {}
        });
        let single = i32::from(!streams);
        assert_eq!(seen, (i32::from(streams), single), "offered: {streams}");
    }
}
