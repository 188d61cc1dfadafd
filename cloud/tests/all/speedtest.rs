//! Speed tests of a gateway that asks for more than it may have.

use std::time::{Duration, Instant};

use polyrail_daemon::speedtest::{REQUEST_MAX, Request, Service, USER, destination};
use polyrail_identity::{Authority, NodeRole};
use polyrail_model::{Destination, HostName, UserId};
use polyrail_relay::RelayEvent;
use polyrail_session::{Event, FlowKey, ResetReason};

use crate::common::{Cloud, Gateway, issue};

/// A cloud and a gateway with one path, over carrier `a`; the folder holds their files.
fn joined() -> (tempfile::TempDir, Cloud, Gateway) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(dir, "Test", false).unwrap();
    issue(&authority, dir, "c", NodeRole::Cloud);
    let cloud = Cloud::start(dir, "", "");
    let mut gateway = Gateway::new(&issue(&authority, dir, "train-7", NodeRole::Gateway).0);
    let tunnel = gateway.connect_tls("a", cloud.address);
    gateway.until_path(tunnel);
    (folder, cloud, gateway)
}

fn open(gateway: &mut Gateway, user: UserId, request: &[u8]) -> FlowKey {
    let flow = gateway.relay.endpoint().open(Instant::now(), user, destination()).unwrap();
    gateway.relay.endpoint().write(Instant::now(), flow, request);
    flow
}

fn line(service: Service, seconds: u64, carrier: &str) -> Vec<u8> {
    let carriers = vec![carrier.to_owned()];
    Request { service, seconds, carriers }.line().into_bytes()
}

/// Waits until one of these flows is reset, and discards what arrives.
fn reset(gateway: &mut Gateway, flows: &[FlowKey]) -> (FlowKey, ResetReason) {
    let limit = Instant::now() + Duration::from_secs(20);
    while Instant::now() < limit {
        for event in gateway.turn() {
            match event {
                RelayEvent::Session(Event::Reset { flow, reason }) if flows.contains(&flow) => {
                    return (flow, reason);
                }
                RelayEvent::Session(Event::Readable { flow }) => _ = discard(gateway, flow),
                _ => {}
            }
        }
    }
    panic!("none of {flows:?} is reset");
}

/// Reads all bytes; returns their number.
fn discard(gateway: &mut Gateway, flow: FlowKey) -> usize {
    let endpoint = gateway.relay.endpoint();
    let count = endpoint.readable(flow).iter().map(|part| part.len()).sum();
    endpoint.consume(Instant::now(), flow, count);
    count
}

#[test]
fn refused_speed_tests_are_reset_with_the_reason() {
    let (_folder, cloud, mut gateway) = joined();
    let too_long = vec![b'x'; REQUEST_MAX + 1];
    let cases: [(UserId, &[u8], ResetReason); 6] = [
        (UserId(7), &line(Service::Source, 5, "a"), ResetReason::NameNotFound),
        (USER, &line(Service::Source, 31, "a"), ResetReason::Protocol),
        (USER, &line(Service::Source, 0, "a"), ResetReason::Protocol),
        (USER, &too_long, ResetReason::Protocol),
        (USER, b"connect 192.0.2.1:80\n", ResetReason::Protocol),
        (USER, &line(Service::Source, 5, "b"), ResetReason::Unreachable),
    ];
    for (user, request, reason) in cases {
        let flow = open(&mut gateway, user, request);
        let request = String::from_utf8_lossy(request);
        assert_eq!(reset(&mut gateway, &[flow]).1, reason, "{request}");
    }
    // Any name that only differs in its letters is the reserved one; no name is looked up.
    let name = HostName::new("SPEEDTEST.polyrail.invalid").unwrap();
    let named = Destination::Name(name, 443);
    let flow = gateway.relay.endpoint().open(Instant::now(), UserId(7), named).unwrap();
    assert_eq!(reset(&mut gateway, &[flow]).1, ResetReason::NameNotFound);
    assert!(!cloud.log().contains("dial"), "{}", cloud.log());
}

/// Each further load replaces the one before it, until the gateway has used up its budget.
#[test]
fn gateway_has_one_load_at_a_time_and_a_budget_of_requests() {
    let (_folder, cloud, mut gateway) = joined();
    let memory = cloud.memory();
    let mut running = open(&mut gateway, USER, &line(Service::Source, 30, "a"));
    let (mut begun, mut refused) = (1, 0);
    for _ in 0..130 {
        let next = open(&mut gateway, USER, &line(Service::Source, 30, "a"));
        let (gone, reason) = reset(&mut gateway, &[running, next]);
        assert_eq!(reason, ResetReason::Quota);
        if gone == next {
            refused += 1;
        } else {
            (running, begun) = (next, begun + 1);
        }
    }
    // 108, and one in 5 s.
    assert!((108..=114).contains(&begun) && begun + refused == 131, "{begun}, {refused} refused");
    let (_, list) = cloud.ask("GET /v1/flows", "");
    let flows = list["flows"].as_array().unwrap();
    assert_eq!(flows.iter().filter(|flow| flow["state"] == "open").count(), 1, "{list}");
    let growth = cloud.memory().saturating_sub(memory);
    assert!(growth < 64 << 20, "the cloud grew by {growth} bytes");
}

#[test]
fn echo_returns_a_bounded_number_of_bytes_and_a_sink_reports_in_time() {
    let (_folder, _cloud, mut gateway) = joined();
    let echo = open(&mut gateway, USER, &line(Service::Echo, 1, "a"));
    gateway.relay.endpoint().write(Instant::now(), echo, &[b'?'; 60_000]);
    let sink = open(&mut gateway, USER, &line(Service::Sink, 1, "a"));
    gateway.relay.endpoint().write(Instant::now(), sink, &[0; 30_000]);
    let (mut echoed, mut answer, begun) = (0, Vec::new(), Instant::now());
    while !answer.ends_with(b"\n") {
        assert!(begun.elapsed() < Duration::from_secs(10), "no answer of the sink");
        gateway.turn();
        echoed += discard(&mut gateway, echo);
        let endpoint = gateway.relay.endpoint();
        answer.extend(endpoint.readable(sink).concat());
        discard(&mut gateway, sink);
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(echoed, 16 * 1024);
}
