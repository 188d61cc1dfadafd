//! TELEMETRY and HANDOVER between two endpoints: on which paths, how often, and heard once.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test, with a base for its clock

mod endpoints;

use std::time::Duration;

use endpoints::{Pair, Wire, closes, drain};
use polyrail_model::{
    Bitrate, Bytes, CarrierTelemetry, CellId, Direction, Handover, HandoverOutcome, LedgerMessage,
    LinkForecast, LinkSample, Position, RouteId, Speed, Telemetry, TripId, TripKnown, Urgency,
};
use polyrail_scheduler::ChainSpec;
use polyrail_session::limits::{
    LEDGER_LATER_MAX, LEDGER_LATER_PAUSE_MAX, LEDGER_NOW_BURST, LEDGER_NOW_MAX,
};
use polyrail_session::wire::{Decoder, Frame, encode};
use polyrail_session::{Endpoint, Event, SessionKey, Settings, TunnelKey};

fn telemetry(metres: f64) -> Telemetry {
    let carrier = CarrierTelemetry { carrier: "a".to_owned(), cell: Some(CellId(7)), rsrp: None };
    Telemetry {
        trip: TripId(1),
        route: RouteId(2),
        direction: Direction::Up,
        position: Position::from_metres(metres),
        speed: Speed::from_metres_per_second(80.0),
        error: Position::from_metres(10.0),
        age: Duration::from_millis(100),
        carriers: vec![carrier],
    }
}

fn record(sequence: u32) -> Handover {
    Handover {
        trip: TripId(1),
        sequence,
        at_ms: 1_700_000_000_000,
        carrier: "a".to_owned(),
        route: RouteId(2),
        direction: Direction::Up,
        position: Position::from_metres(100.0),
        speed: Speed::from_metres_per_second(80.0),
        from: CellId(7),
        to: Some(CellId(8)),
        rsrp: None,
        outcome: HandoverOutcome::TypeII,
        dark: Duration::from_secs(1),
    }
}

fn records(sequence: u32) -> LedgerMessage {
    LedgerMessage::Records(vec![record(sequence)])
}

fn pair(carriers: &[&str]) -> Pair {
    let mut pair = Pair::new(Settings::default());
    for (key, carrier) in carriers.iter().enumerate() {
        pair.up(key, carrier);
    }
    // Their greetings and first PINGs are over.
    pair.advance(Duration::from_secs(3));
    pair
}

fn session(endpoint: &Endpoint) -> SessionKey {
    endpoint.status().sessions[0].session
}

/// What the gateway hands out now; nothing of it arrives.
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

/// The tunnels on which frames of this type went out, in order.
fn tunnels_of(sent: &[(usize, Vec<u8>)], kind: u8) -> Vec<usize> {
    sent.iter().filter(|(_, bytes)| kinds(bytes).contains(&kind)).map(|sent| sent.0).collect()
}

fn telemetry_heard(pair: &Pair) -> Vec<Telemetry> {
    let heard = pair.at_cloud.iter().filter_map(|event| match event {
        Event::Telemetry { telemetry, .. } => Some(telemetry.clone()),
        _ => None,
    });
    heard.collect()
}

fn heard(events: &[Event]) -> Vec<LedgerMessage> {
    let heard = events.iter().filter_map(|event| match event {
        Event::Ledger { message, .. } => Some(message.clone()),
        _ => None,
    });
    heard.collect()
}

const TELEMETRY: u8 = 0x0c;
const HANDOVER: u8 = 0x0d;
const DATA: u8 = 0x06;
const OPEN: u8 = 0x05;

#[test]
fn telemetry_goes_on_all_paths_and_is_told_once() {
    let mut pair = pair(&["a", "b", "c"]);
    pair.gateway.send_telemetry(pair.now, &telemetry(1.0));
    let sent = sent(&mut pair);
    let mut on = tunnels_of(&sent, TELEMETRY);
    on.sort_unstable();
    assert_eq!(on, [0, 1, 2]);
    for (tunnel, bytes) in &sent {
        pair.cloud.receive(pair.now, TunnelKey(*tunnel), bytes);
    }
    pair.run();
    assert_eq!(telemetry_heard(&pair), [telemetry(1.0)]);
}

#[test]
fn telemetry_grows_older_while_it_waits_and_the_newest_replaces_it() {
    let mut pair = pair(&["a"]);
    pair.down(0);
    pair.gateway.send_telemetry(pair.now, &telemetry(1.0));
    pair.advance(Duration::from_millis(700));
    pair.gateway.send_telemetry(pair.now, &telemetry(2.0));
    pair.advance(Duration::from_millis(300));
    pair.up(1, "a");
    let waited = Duration::from_millis(400);
    assert_eq!(telemetry_heard(&pair), [Telemetry { age: waited, ..telemetry(2.0) }]);
}

#[test]
fn telemetry_that_was_overtaken_is_passed_over() {
    let mut pair = pair(&["a", "b"]);
    pair.gateway.send_telemetry(pair.now, &telemetry(1.0));
    let first = sent(&mut pair);
    pair.gateway.send_telemetry(pair.now, &telemetry(2.0));
    let second = sent(&mut pair);
    for (tunnel, bytes) in second.into_iter().chain(first) {
        pair.cloud.receive(pair.now, TunnelKey(tunnel), &bytes);
    }
    pair.run();
    assert_eq!(telemetry_heard(&pair), [telemetry(2.0)]);
}

#[test]
fn backups_carry_neither_while_another_path_lives() {
    let mut pair = pair(&["a", "b"]);
    pair.gateway.set_backup(pair.now, "b", true);
    pair.run();
    let both = |pair: &mut Pair| {
        pair.gateway.send_telemetry(pair.now, &telemetry(1.0));
        let to = session(&pair.gateway);
        pair.gateway.send_ledger(pair.now, to, &records(1), Urgency::Now);
        let sent = sent(pair);
        (tunnels_of(&sent, TELEMETRY), tunnels_of(&sent, HANDOVER))
    };
    assert_eq!(both(&mut pair), (vec![0], vec![0]));
    pair.down(0);
    assert_eq!(both(&mut pair), (vec![1], vec![1]));
}

#[test]
fn a_cloud_that_tells_telemetry_breaks_the_protocol() {
    let mut pair = pair(&["a"]);
    let mut bytes = Vec::new();
    encode(&Frame::Telemetry { serial: 1, telemetry: telemetry(1.0) }, &mut bytes);
    pair.gateway.receive(pair.now, TunnelKey(0), &bytes);
    pair.run();
    assert!(pair.at_gateway.iter().filter_map(closes).eq([TunnelKey(0)]));
    // Nor does a cloud of ours.
    pair.cloud.send_telemetry(pair.now, &telemetry(1.0));
    let mut wire = Wire::default();
    pair.cloud.transmit(pair.now, &mut wire);
    assert!(wire.sent.iter().all(|(_, bytes)| !kinds(bytes).contains(&TELEMETRY)));
}

#[test]
fn an_urgent_message_goes_first_on_all_paths_and_is_told_once() {
    let mut pair = pair(&["a", "b"]);
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, &[7; 60_000]);
    pair.gateway.send_telemetry(pair.now, &telemetry(1.0));
    let to = session(&pair.gateway);
    pair.gateway.send_ledger(pair.now, to, &records(4), Urgency::Now);
    let sent = sent(&mut pair);
    let first: Vec<u8> = sent.iter().flat_map(|(_, bytes)| kinds(bytes)).take(4).collect();
    assert_eq!(first, [HANDOVER, HANDOVER, TELEMETRY, TELEMETRY]);
    assert!(sent.iter().any(|(_, bytes)| kinds(bytes).iter().any(|k| [OPEN, DATA].contains(k))));
    // The copies, and the whole of it once more as an unordered tunnel may.
    for (tunnel, bytes) in sent.iter().chain(&sent) {
        pair.cloud.receive(pair.now, TunnelKey(*tunnel), bytes);
    }
    pair.run();
    assert_eq!(heard(&pair.at_cloud), [records(4)]);
    // The same from the cloud, and the same again is said again.
    let to = session(&pair.cloud);
    for _ in 0..2 {
        pair.cloud.send_ledger(pair.now, to, &records(4), Urgency::Now);
        pair.run();
    }
    assert_eq!(heard(&pair.at_gateway), [records(4), records(4)]);
}

#[test]
fn a_path_that_has_gone_dark_keeps_nothing_back() {
    for dark in [0, 1] {
        let mut pair = pair(&["a", "b"]);
        pair.dark(dark);
        let to = session(&pair.gateway);
        pair.gateway.send_telemetry(pair.now, &telemetry(1.0));
        pair.gateway.send_ledger(pair.now, to, &records(4), Urgency::Now);
        pair.run();
        assert_eq!(telemetry_heard(&pair), [telemetry(1.0)]);
        assert_eq!(heard(&pair.at_cloud), [records(4)]);
    }
}

/// A carrier's tunnel is lost with all that was under way, and made anew.
#[test]
fn a_path_that_comes_within_seconds_gets_its_copy() {
    for (after, heard_by_then) in [(2_900, 1), (3_100, 0)] {
        let mut pair = pair(&["a"]);
        pair.dark(0);
        let to = session(&pair.gateway);
        pair.gateway.send_ledger(pair.now, to, &records(4), Urgency::Now);
        pair.run();
        pair.advance(Duration::from_millis(after));
        pair.up(1, "a");
        assert_eq!(heard(&pair.at_cloud).len(), heard_by_then, "{after}");
    }
}

#[test]
fn long_messages_arrive_in_parts() {
    let mut pair = pair(&["a"]);
    let to = session(&pair.gateway);
    let known = |trip| TripKnown { trip: TripId(trip), next: 3 };
    let long = LedgerMessage::Known((0..150).map(known).collect());
    pair.gateway.send_ledger(pair.now, to, &long, Urgency::Now);
    let long = LedgerMessage::Records((0..30).map(record).collect());
    pair.gateway.send_ledger(pair.now, to, &long, Urgency::Now);
    pair.run();
    let (mut trips, mut handovers, parts) = (Vec::new(), Vec::new(), heard(&pair.at_cloud));
    assert_eq!(parts.len(), 3 + 3);
    for part in parts {
        match part {
            LedgerMessage::Known(known) => trips.extend(known),
            LedgerMessage::Records(records) => handovers.extend(records),
            LedgerMessage::Digest(_) => panic!("nobody said so"),
        }
    }
    assert!(trips.into_iter().eq((0..150).map(known)));
    assert!(handovers.into_iter().eq((0..30).map(record)));
}

#[test]
fn urgent_messages_are_bounded_in_number_and_in_rate() {
    let mut pair = pair(&["a"]);
    let to = session(&pair.gateway);
    pair.down(0);
    let asked = LEDGER_NOW_MAX as u32 + 5;
    for sequence in 0..asked {
        pair.gateway.send_ledger(pair.now, to, &records(sequence), Urgency::Now);
    }
    assert_eq!(pair.gateway.status().sessions[0].ledger_dropped, 5);
    pair.up(1, "a");
    assert_eq!(heard(&pair.at_cloud).len(), LEDGER_NOW_BURST as usize, "the oldest at once");
    assert_eq!(heard(&pair.at_cloud)[0], records(5));
    pair.advance(Duration::from_secs(4));
    assert!(heard(&pair.at_cloud).into_iter().eq((5..asked).map(records)), "the others in turn");
}

#[test]
fn what_has_time_goes_on_one_path_a_frame_a_round_trip() {
    let mut pair = pair(&["a", "b"]);
    let to = session(&pair.gateway);
    let asked = LEDGER_LATER_MAX as u32 + 3;
    for sequence in 0..asked {
        pair.gateway.send_ledger(pair.now, to, &records(sequence), Urgency::Later);
    }
    assert_eq!(pair.gateway.status().sessions[0].ledger_dropped, 3);
    let first = sent(&mut pair);
    assert_eq!(tunnels_of(&first, HANDOVER).len(), 1);
    assert!(sent(&mut pair).is_empty(), "not before a round trip is over");
    for (tunnel, bytes) in first {
        pair.cloud.receive(pair.now, TunnelKey(tunnel), &bytes);
    }
    // These paths have neither delay nor rate: the longest pause is what is left as a bound.
    pair.advance(LEDGER_LATER_PAUSE_MAX * asked);
    assert!(heard(&pair.at_cloud).into_iter().eq((3..asked).map(records)));
}

#[test]
fn what_has_time_is_slowed_down_by_the_rate_of_its_path_beside_users_alone() {
    for (beside, expected) in [(false, 5), (true, 0)] {
        let mut pair = pair(&["a"]);
        let to = session(&pair.gateway);
        let sample = LinkSample {
            at: pair.now,
            srtt: Duration::from_millis(20),
            rtt_min: Duration::from_millis(20),
            rtt_var: Duration::ZERO,
            window: Bytes(100_000),
            in_flight: Bytes::ZERO,
            unsent: Bytes::ZERO,
            delivery_rate: Some(Bitrate::from_bps(1_000)),
            application_limited: true,
            sent_packets: 10,
            lost_packets: 0,
            timeouts: 0,
            acked: Bytes(1_000),
        };
        pair.gateway.tunnel_sample(pair.now, TunnelKey(0), &sample);
        if beside {
            let flow = pair.open();
            pair.gateway.write(pair.now, flow, b"hello");
            // What is lost stays out for a while.
            sent(&mut pair);
        }
        for sequence in 0..6 {
            pair.gateway.send_ledger(pair.now, to, &records(sequence), Urgency::Later);
        }
        assert_eq!(tunnels_of(&sent(&mut pair), HANDOVER).len(), 1, "beside users: {beside}");
        pair.advance(Duration::from_millis(200));
        assert_eq!(heard(&pair.at_cloud).len(), expected, "beside users: {beside}");
    }
}

#[test]
fn nothing_wakes_a_session_that_cannot_send_what_waits() {
    let mut pair = pair(&["a"]);
    let to = session(&pair.gateway);
    pair.down(0);
    for urgency in [Urgency::Now, Urgency::Later] {
        (0..40).for_each(|n| pair.gateway.send_ledger(pair.now, to, &records(n), urgency));
    }
    pair.gateway.send_telemetry(pair.now, &telemetry(1.0));
    pair.run();
    let next = pair.gateway.next_timeout().unwrap();
    assert!(next > pair.now + Duration::from_secs(60), "only the linger is awaited");
}

/// A peer of the first release knows neither frame. It skips by their length what it does not know;
/// what is left is what it knows, and nobody waits for an answer.
#[test]
fn a_peer_of_the_first_release_skips_both() {
    let mut pair = pair(&["a", "b"]);
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
        assert!(rest.is_empty(), "no frames of version 1");
        (known, skipped)
    };
    let (to, back) = (session(&pair.gateway), session(&pair.cloud));
    let flow = pair.open();
    let mut unknown = 0;
    for round in 0..20 {
        pair.gateway.write(pair.now, flow, &[round as u8; 1_000]);
        pair.gateway.send_telemetry(pair.now, &telemetry(f64::from(round)));
        for urgency in [Urgency::Now, Urgency::Later] {
            pair.gateway.send_ledger(pair.now, to, &records(round), urgency);
            pair.cloud.send_ledger(pair.now, back, &records(round), urgency);
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
    assert!(!events().any(|e| matches!(e, Event::Telemetry { .. })));
}

/// Frames that the first release knew, by type.
const FIRST_RELEASE: [u8; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0a, 0x0b, 0x0e, 0x0f];

/// Both sides know carriers by the gateway's names, so a cloud can foresee for the downlink.
#[test]
fn a_cloud_foresees_by_the_gateways_names() {
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
