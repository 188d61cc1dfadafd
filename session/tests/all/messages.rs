//! Messages between two endpoints: on which paths, how often, and received once.

use std::time::Duration;

use crate::endpoints::{Pair, Wire, closes, drain, sample, session};
use polyrail_model::{Channel, Delivery, LinkForecast, PathWish};
use polyrail_scheduler::ChainSpec;
use polyrail_session::limits::{BACKGROUND_MAX, BACKGROUND_PAUSE_MAX, URGENT_BURST, URGENT_MAX};
use polyrail_session::wire::{Decoder, Frame, MESSAGE_MAX};
use polyrail_session::{Endpoint, Event, Settings, TunnelKey};

/// The channel of the messages that are delivered as [`Delivery::Latest`], and of the others.
const LATEST: Channel = Channel(1);
const OTHER: Channel = Channel(2);

fn send(pair: &mut Pair, delivery: Delivery, payload: u8) {
    let channel = if delivery == Delivery::Latest { LATEST } else { OTHER };
    let to = session(&pair.gateway);
    pair.gateway.send_message(pair.now, to, channel, delivery, vec![payload; 100]);
}

/// The frames that the gateway sends now; they are lost.
fn sent(pair: &mut Pair) -> Vec<(usize, Vec<u8>)> {
    let mut wire = Wire::default();
    pair.gateway.transmit(pair.now, &mut wire);
    wire.sent.into_iter().map(|(tunnel, bytes)| (tunnel.0, bytes)).collect()
}

/// The types of the frames in these bytes.
fn kinds(bytes: &[u8]) -> Vec<u8> {
    let (mut rest, mut kinds) = (bytes, Vec::new());
    while let [_, kind, high, low, ..] = *rest {
        kinds.push(kind);
        rest = &rest[4 + usize::from(u16::from_be_bytes([high, low]))..];
    }
    kinds
}

/// The tunnels that carry messages of a channel, in order.
fn tunnels_of(sent: &[(usize, Vec<u8>)], wanted: Channel) -> Vec<usize> {
    let mut tunnels = Vec::new();
    for (tunnel, bytes) in sent {
        let each = |frame: Frame<'_>| {
            let found = matches!(frame, Frame::Message { channel, .. } if channel == wanted);
            tunnels.extend(found.then_some(*tunnel));
        };
        Decoder::default().feed(bytes, each).unwrap();
    }
    tunnels
}

/// The first bytes of the received messages of a channel.
fn received(events: &[Event], wanted: Channel) -> Vec<u8> {
    let received = events.iter().filter_map(|event| match event {
        Event::Message { channel, payload, .. } if *channel == wanted => Some(payload[0]),
        _ => None,
    });
    received.collect()
}

const MESSAGE: u8 = 0x11;
const DATA: u8 = 0x06;
const OPEN: u8 = 0x05;

#[test]
fn latest_message_is_sent_on_all_paths_and_received_once() {
    let mut pair = Pair::over(&["a", "b", "c"]);
    send(&mut pair, Delivery::Latest, 1);
    let sent = sent(&mut pair);
    let mut on = tunnels_of(&sent, LATEST);
    on.sort_unstable();
    assert_eq!(on, [0, 1, 2]);
    for (tunnel, bytes) in &sent {
        pair.cloud.receive(pair.now, TunnelKey(*tunnel), bytes);
    }
    pair.run();
    assert_eq!(received(&pair.at_cloud, LATEST), [1]);
}

#[test]
fn latest_message_replaces_a_queued_one_and_reports_its_waiting_time() {
    let mut pair = Pair::over(&["a"]);
    pair.down(0);
    send(&mut pair, Delivery::Latest, 1);
    pair.advance(Duration::from_millis(700));
    send(&mut pair, Delivery::Latest, 2);
    pair.advance(Duration::from_millis(300));
    pair.up(1, "a");
    assert_eq!(received(&pair.at_cloud, LATEST), [2]);
    let waited = pair.at_cloud.iter().find_map(|event| match event {
        Event::Message { waited, .. } => Some(*waited),
        _ => None,
    });
    assert_eq!(waited, Some(Duration::from_millis(300)));
}

#[test]
fn outdated_latest_message_is_discarded() {
    let mut pair = Pair::over(&["a", "b"]);
    send(&mut pair, Delivery::Latest, 1);
    let first = sent(&mut pair);
    send(&mut pair, Delivery::Latest, 2);
    let second = sent(&mut pair);
    for (tunnel, bytes) in second.into_iter().chain(first) {
        pair.cloud.receive(pair.now, TunnelKey(tunnel), &bytes);
    }
    pair.run();
    assert_eq!(received(&pair.at_cloud, LATEST), [2]);
}

#[test]
fn backup_path_carries_no_message_while_another_path_lives() {
    let mut pair = Pair::over(&["a", "b"]);
    pair.gateway.set_wish(pair.now, "b", PathWish::BACKUP);
    pair.run();
    let both = |pair: &mut Pair| {
        send(pair, Delivery::Latest, 1);
        send(pair, Delivery::Urgent, 1);
        let sent = sent(pair);
        (tunnels_of(&sent, LATEST), tunnels_of(&sent, OTHER))
    };
    assert_eq!(both(&mut pair), (vec![0], vec![0]));
    pair.down(0);
    assert_eq!(both(&mut pair), (vec![1], vec![1]));
}

#[test]
fn urgent_message_is_sent_first_on_all_paths_and_received_once() {
    let mut pair = Pair::over(&["a", "b"]);
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, &[7; 60_000]);
    send(&mut pair, Delivery::Latest, 1);
    send(&mut pair, Delivery::Urgent, 4);
    let sent = sent(&mut pair);
    let kinds = |(_, bytes): &(usize, Vec<u8>)| kinds(bytes);
    assert!(sent.iter().flat_map(kinds).take(4).eq([MESSAGE; 4]));
    assert!(sent.iter().flat_map(kinds).any(|kind| [OPEN, DATA].contains(&kind)));
    let urgent = tunnels_of(&sent[..2], OTHER);
    assert_eq!((urgent.len(), tunnels_of(&sent, LATEST).len()), (2, 2), "the urgent one first");
    // An unordered tunnel may repeat units, so each arrives twice.
    for (tunnel, bytes) in sent.iter().chain(&sent) {
        pair.cloud.receive(pair.now, TunnelKey(*tunnel), bytes);
    }
    pair.run();
    assert_eq!(received(&pair.at_cloud, OTHER), [4]);
    // From the cloud: an equal message is another message.
    let to = session(&pair.cloud);
    for _ in 0..2 {
        pair.cloud.send_message(pair.now, to, OTHER, Delivery::Urgent, vec![4]);
        pair.run();
    }
    assert_eq!(received(&pair.at_gateway, OTHER), [4, 4]);
}

#[test]
fn dark_path_does_not_delay_messages() {
    for dark in [0, 1] {
        let mut pair = Pair::over(&["a", "b"]);
        pair.dark(dark);
        send(&mut pair, Delivery::Latest, 1);
        send(&mut pair, Delivery::Urgent, 4);
        pair.run();
        assert_eq!(received(&pair.at_cloud, LATEST), [1]);
        assert_eq!(received(&pair.at_cloud, OTHER), [4]);
    }
}

/// A carrier's tunnel is lost with everything in flight, and reconnects.
#[test]
fn path_that_comes_up_within_seconds_gets_its_copy() {
    for (after, copies) in [(2_900, 1), (3_100, 0)] {
        let mut pair = Pair::over(&["a"]);
        pair.dark(0);
        send(&mut pair, Delivery::Urgent, 4);
        pair.run();
        pair.advance(Duration::from_millis(after));
        pair.up(1, "a");
        assert_eq!(received(&pair.at_cloud, OTHER).len(), copies, "{after}");
    }
}

#[test]
fn urgent_messages_are_bounded_in_number_and_rate() {
    let mut pair = Pair::over(&["a"]);
    pair.down(0);
    let asked = URGENT_MAX as u8 + 5;
    for sequence in 0..asked {
        send(&mut pair, Delivery::Urgent, sequence);
    }
    let (to, long) = (session(&pair.gateway), vec![7; MESSAGE_MAX + 1]);
    pair.gateway.send_message(pair.now, to, OTHER, Delivery::Urgent, long);
    assert_eq!(pair.gateway.status().sessions[0].messages_dropped, 6);
    pair.up(1, "a");
    assert_eq!(received(&pair.at_cloud, OTHER).len(), URGENT_BURST as usize, "the oldest at once");
    assert_eq!(received(&pair.at_cloud, OTHER)[0], 5);
    pair.advance(Duration::from_secs(4));
    assert!(received(&pair.at_cloud, OTHER).into_iter().eq(5..asked), "the others in turn");
}

#[test]
fn background_messages_use_one_path_and_one_a_round_trip() {
    let mut pair = Pair::over(&["a", "b"]);
    let asked = BACKGROUND_MAX as u8 + 3;
    for sequence in 0..asked {
        send(&mut pair, Delivery::Background, sequence);
    }
    assert_eq!(pair.gateway.status().sessions[0].messages_dropped, 3);
    let first = sent(&mut pair);
    assert_eq!(tunnels_of(&first, OTHER).len(), 1);
    assert!(sent(&mut pair).is_empty(), "one a round trip");
    for (tunnel, bytes) in first {
        pair.cloud.receive(pair.now, TunnelKey(tunnel), &bytes);
    }
    // These paths have neither delay nor rate: only the maximum pause bounds them.
    pair.advance(BACKGROUND_PAUSE_MAX * u32::from(asked));
    assert!(received(&pair.at_cloud, OTHER).into_iter().eq(3..asked));
}

#[test]
fn background_messages_are_paced_only_next_to_flows() {
    for (shared, expected) in [(false, 5), (true, 0)] {
        let mut pair = Pair::over(&["a"]);
        pair.gateway.tunnel_sample(pair.now, TunnelKey(0), &sample(pair.now));
        if shared {
            let flow = pair.open();
            pair.gateway.write(pair.now, flow, b"hello");
            // The data is lost, and stays in flight for a while.
            sent(&mut pair);
        }
        for sequence in 0..6 {
            send(&mut pair, Delivery::Background, sequence);
        }
        assert_eq!(tunnels_of(&sent(&mut pair), OTHER).len(), 1, "shared: {shared}");
        pair.advance(Duration::from_millis(200));
        assert_eq!(received(&pair.at_cloud, OTHER).len(), expected, "shared: {shared}");
    }
}

#[test]
fn session_without_a_path_sets_no_timer_for_messages() {
    let mut pair = Pair::over(&["a"]);
    pair.down(0);
    for delivery in [Delivery::Urgent, Delivery::Background] {
        (0..40).for_each(|payload| send(&mut pair, delivery, payload));
    }
    send(&mut pair, Delivery::Latest, 1);
    pair.run();
    let next = pair.gateway.next_timeout().unwrap();
    assert!(next > pair.now + Duration::from_secs(60), "only the linger remains");
}

/// A peer of the first release skips the unknown frame by its length; no answer is expected.
#[test]
fn peer_of_the_first_release_skips_messages() {
    let mut pair = Pair::over(&["a", "b"]);
    let older = |bytes: &[u8]| {
        let (mut rest, mut known, mut skipped) = (bytes, Vec::new(), 0);
        while let [1, kind, high, low, ..] = *rest {
            let (frame, after) = rest.split_at(4 + usize::from(u16::from_be_bytes([high, low])));
            if FIRST_RELEASE.contains(&kind) {
                known.extend_from_slice(frame)
            } else {
                skipped += 1
            }
            rest = after;
        }
        assert!(rest.is_empty(), "not frames of version 1");
        (known, skipped)
    };
    let back = session(&pair.cloud);
    let flow = pair.open();
    let mut unknown = 0;
    for round in 0..20 {
        pair.gateway.write(pair.now, flow, &[round; 1_000]);
        for delivery in [Delivery::Latest, Delivery::Urgent, Delivery::Background] {
            send(&mut pair, delivery, round);
            pair.cloud.send_message(pair.now, back, OTHER, delivery, vec![round]);
        }
        for _ in 0..5 {
            let (mut up, mut down) = (Wire::default(), Wire::default());
            pair.gateway.transmit(pair.now, &mut up);
            pair.cloud.transmit(pair.now, &mut down);
            for (tunnel, bytes) in up.sent {
                let (known, skipped) = older(&bytes);
                unknown += skipped;
                pair.cloud.receive(pair.now, tunnel, &known);
            }
            for (tunnel, bytes) in down.sent {
                let (known, skipped) = older(&bytes);
                unknown += skipped;
                pair.gateway.receive(pair.now, tunnel, &known);
            }
        }
        pair.now += Duration::from_millis(200);
        pair.gateway.on_timeout(pair.now);
        pair.cloud.on_timeout(pair.now);
    }
    pair.run();
    assert!(unknown > 100, "{unknown}");
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served).len(), 20_000);
    let events = || pair.at_gateway.iter().chain(&pair.at_cloud);
    assert_eq!(events().filter_map(closes).count(), 0);
    assert!(!events().any(|e| matches!(e, Event::Message { .. })));
}

/// Frames that the first release knew, by type.
const FIRST_RELEASE: [u8; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0a, 0x0b, 0x0e, 0x0f];

/// Both sides know the gateway's carrier names, so a cloud can forecast for the downlink.
#[test]
fn cloud_forecasts_use_the_carrier_names_of_the_gateway() {
    let chain = ChainSpec::of(&["handover_rejection", "min_rtt"]).unwrap();
    let mut pair = Pair::new(Settings { chain, ..Settings::default() });
    pair.up(0, "carrier-a");
    pair.up(1, "carrier-b");
    pair.advance(Duration::from_secs(3));
    let names = |endpoint: &Endpoint| -> Vec<String> {
        endpoint.status().sessions[0].paths.iter().map(|path| path.carrier.clone()).collect()
    };
    assert_eq!(names(&pair.cloud), ["carrier-a", "carrier-b"]);
    assert_eq!(names(&pair.cloud), names(&pair.gateway));
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"hello");
    pair.run();
    let served = pair.opened();
    for (bad, good) in [("carrier-a", 1), ("carrier-b", 0)] {
        let soon = LinkForecast {
            fails_at: pair.now + Duration::from_millis(10),
            ends_at: pair.now + Duration::from_millis(10),
            uncertainty: Duration::from_millis(200),
            permille: 900,
            expires_at: pair.now + Duration::from_secs(3),
        };
        let back = session(&pair.cloud);
        for carrier in ["carrier-a", "carrier-b"] {
            let forecast = (carrier == bad).then_some(soon);
            pair.cloud.set_forecast(pair.now, back, carrier, forecast);
        }
        pair.cloud.write(pair.now, served, &[1; 5_000]);
        let mut wire = Wire::default();
        pair.cloud.transmit(pair.now, &mut wire);
        let mut on = Vec::new();
        for (tunnel, bytes) in &wire.sent {
            let each = |frame: Frame<'_>| {
                on.extend(matches!(frame, Frame::Data { .. }).then_some(tunnel.0));
            };
            Decoder::default().feed(bytes, each).unwrap();
            pair.gateway.receive(pair.now, *tunnel, bytes);
        }
        assert!(!on.is_empty() && on.iter().all(|&tunnel| tunnel == good), "{bad}: {on:?}");
        pair.run();
    }
}
