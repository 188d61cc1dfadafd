//! Two connected endpoints without delay: requests, losses, resets, restarts and backups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::endpoints::{Pair, Wire, closes, drain};
use polyrail_model::{
    Bytes, Destination, HostName, Identity, PathId, PathWish, TunnelMode, UserId,
};
use polyrail_scheduler::{Chain, ChainSpec, Handler, Input, PathSets, SEGMENT, Schedulerlet};
use polyrail_session::limits::{self, SESSION_PATHS_MAX};
use polyrail_session::{Endpoint, Event, PathReport, ResetReason, Settings, TunnelInfo, TunnelKey};

#[test]
fn request_and_answer_are_delivered() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    assert_eq!(pair.gateway.write(pair.now, flow, b"hello"), 5);
    pair.gateway.finish(pair.now, flow);
    pair.run();
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"hello");
    assert!(pair.cloud.finished(served));
    let answer: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < answer.len() {
        sent += pair.cloud.write(pair.now, served, &answer[sent..]);
        pair.run();
        got.extend(drain(&mut pair.gateway, pair.now, flow));
        pair.advance(Duration::from_millis(20));
    }
    assert!(got == answer);
    pair.cloud.finish(pair.now, served);
    pair.run();
    assert!(pair.gateway.finished(flow) || pair.at_gateway.contains(&Event::Closed { flow }));
    pair.advance(Duration::from_secs(1));
    assert!(pair.at_gateway.contains(&Event::Closed { flow }));
    assert!(pair.at_cloud.contains(&Event::Closed { flow: served }));
    let status = pair.gateway.status();
    assert_eq!(status.sessions[0].flows, 0);
    assert_eq!(status.sessions[0].memory_sent, Bytes::ZERO);
}

#[test]
fn open_is_sent_without_data_after_five_milliseconds() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.open();
    pair.advance(Duration::from_millis(4));
    assert!(!pair.at_cloud.iter().any(|e| matches!(e, Event::Opened { .. })));
    pair.advance(Duration::from_millis(2));
    let served = pair.opened();
    pair.cloud.write(pair.now, served, b"220 ready\r\n");
    pair.cloud.dialed(pair.now, served);
    pair.run();
    assert!(pair.at_gateway.iter().any(|e| matches!(e, Event::Dialed { .. })));
    assert!(pair.at_gateway.iter().any(|e| matches!(e, Event::Readable { .. })));
}

#[test]
fn flows_that_end_before_their_open_is_sent_use_no_numbers() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    for _ in 0..(1 << 20) + 10 {
        let flow = pair.open();
        pair.gateway.reset(pair.now, flow, ResetReason::PeerReset);
    }
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"hello");
    pair.run();
    let served = pair.opened();
    assert_eq!((drain(&mut pair.cloud, pair.now, served), served.flow.0), (b"hello".to_vec(), 1));
    // The ends of both agree about the flow, whatever it is called on board.
    pair.cloud.write(pair.now, served, b"answer");
    pair.cloud.reset(pair.now, served, ResetReason::PeerReset);
    pair.run();
    assert_eq!(drain(&mut pair.gateway, pair.now, flow), b"answer");
    let reset = Event::Reset { flow, reason: ResetReason::PeerReset };
    pair.run();
    assert!(pair.at_gateway.contains(&reset));
}

#[test]
fn data_of_a_dark_path_is_reinjected_on_the_other() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.up(1, "b");
    let flow = pair.open();
    pair.dark(0);
    pair.gateway.write(pair.now, flow, b"lost");
    pair.gateway.finish(pair.now, flow);
    pair.run();
    let begun = pair.now;
    pair.advance(Duration::from_secs(2));
    let served = pair.opened();
    let stalls: Vec<_> = pair
        .at_gateway
        .iter()
        .filter_map(|event| match event {
            Event::PathStalled { tunnel, since } => Some((*tunnel, *since)),
            _ => None,
        })
        .collect();
    // The copy on the other path is acknowledged: only the PONG is missing on the dark path.
    let pinged = begun + limits::PING_ACTIVE;
    assert_eq!(stalls, [(TunnelKey(0), pinged)], "one stall, since the PING");
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"lost");
    assert!(pair.cloud.finished(served));
}

#[test]
fn idle_gateway_notices_a_silent_cloud_and_tests_one_path_after_another() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.up(1, "b");
    pair.advance(Duration::from_secs(60));
    assert!(!pair.at_gateway.iter().any(|event| matches!(event, Event::PathStalled { .. })));
    [0, 1].into_iter().for_each(|number| pair.dark(number));
    let begun = pair.now;
    pair.advance(limits::PING_SILENT + 2 * limits::STALL_MIN + Duration::from_millis(200));
    let stalled = |event: &Event| match event {
        Event::PathStalled { since, .. } => Some(*since),
        _ => None,
    };
    let at: Vec<_> = pair.at_gateway.iter().filter_map(stalled).collect();
    assert_eq!(at.len(), 2, "both stall");
    assert!(at[0] <= begun + limits::PING_SILENT && at[1] <= at[0] + Duration::from_secs(1));
}

#[test]
fn data_of_a_lost_path_is_delivered_by_its_replacement() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    pair.dark(0);
    pair.gateway.write(pair.now, flow, b"early");
    pair.run();
    pair.advance(Duration::from_secs(30));
    pair.down(0);
    pair.advance(Duration::from_secs(30));
    pair.up(1, "a");
    pair.advance(Duration::from_millis(100));
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"early");
}

#[test]
fn reset_is_delivered_after_earlier_data() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"last words");
    pair.run();
    let served = pair.opened();
    pair.gateway.reset(pair.now, flow, ResetReason::PeerReset);
    pair.run();
    let reset = Event::Reset { flow: served, reason: ResetReason::PeerReset };
    assert!(!pair.at_cloud.contains(&reset));
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"last words");
    pair.advance(Duration::from_millis(100));
    assert!(pair.at_cloud.contains(&reset));
    for endpoint in [&pair.gateway, &pair.cloud] {
        assert_eq!(endpoint.status().sessions[0].flows, 0);
    }
}

#[test]
fn join_with_another_certificate_is_rejected() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.up_as(1, "b", "train-8");
    let refused = |e: &Event| match e {
        Event::CloseTunnel { tunnel: TunnelKey(1), reason, superseded: false } => {
            reason.contains("certificate")
        }
        _ => false,
    };
    assert!(pair.at_cloud.iter().any(refused), "{:?}", pair.at_cloud);
}

#[test]
fn restarted_cloud_resets_flows_and_begins_a_new_session() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"x");
    pair.run();
    pair.down(0);
    pair.cloud = Endpoint::cloud(pair.now, Settings::default(), [2; 32]);
    pair.up(1, "a");
    let reset = Event::Reset { flow, reason: ResetReason::SessionLost };
    assert!(pair.at_gateway.contains(&reset), "{:?}", pair.at_gateway);
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"again");
    pair.run();
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served), b"again");
}

/// No redundant copies.
fn without_copies() -> Settings {
    let rules = ["min_rtt", "extended_reinjection"];
    let chain = ChainSpec::of(&rules).unwrap();
    Settings { chain, ..Settings::default() }
}

#[test]
fn unit_that_arrived_over_another_path_is_withdrawn_once() {
    let mut pair = Pair::new(without_copies());
    pair.up(0, "a");
    pair.up(1, "b");
    let flow = pair.open();
    pair.dark(0);
    pair.gateway.write(pair.now, flow, &[7; 30_000]);
    pair.run();
    let dark: Vec<_> = pair.units.iter().copied().filter(|(tunnel, _)| *tunnel == 0).collect();
    assert!(!dark.is_empty() && pair.withdrawn.is_empty(), "{:?}", pair.withdrawn);
    pair.advance(Duration::from_secs(2));
    let served = pair.opened();
    assert_eq!(drain(&mut pair.cloud, pair.now, served).len(), 30_000);
    pair.advance(Duration::from_secs(2));
    for unit in dark {
        assert_eq!(pair.withdrawn.iter().filter(|w| **w == unit).count(), 1, "{unit:?}");
    }
    let sent: std::collections::BTreeSet<_> = pair.units.iter().collect();
    assert_eq!(sent.len(), pair.units.len(), "a tag was used twice on one tunnel");
    assert!(pair.withdrawn.iter().all(|unit| sent.contains(unit)));
}

/// A flow that has written while its only path is dark, and the number of units sent before.
fn in_the_dark() -> (Pair, polyrail_session::FlowKey, usize) {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, b"here");
    pair.run();
    let arrived = pair.units.len();
    pair.dark(0);
    pair.gateway.write(pair.now, flow, &[7; 30_000]);
    pair.run();
    (pair, flow, arrived)
}

#[test]
fn units_of_a_stalled_path_are_withdrawn_before_its_tunnel_is_closed() {
    let (mut pair, _flow, arrived) = in_the_dark();
    let dark: Vec<_> = pair.units[arrived..].to_vec();
    assert!(dark.len() > 1, "{dark:?}");
    pair.advance(Duration::from_secs(3));
    assert!(pair.withdrawn.is_empty(), "it may recover: {:?}", pair.withdrawn);
    // The carrier's next tunnel works; no data is acknowledged yet.
    pair.slow = Some(TunnelKey(1));
    pair.up(1, "a");
    let closed: Vec<TunnelKey> = pair.at_gateway.iter().filter_map(closes).collect();
    assert_eq!(closed, [TunnelKey(0)]);
    assert_eq!(pair.withdrawn, dark);
    let again = pair.units.iter().filter(|(tunnel, _)| *tunnel == 1).count();
    assert_eq!(again, dark.len(), "all of it is reinjected on the fresh path");
}

#[test]
fn data_in_flight_of_a_reset_flow_is_withdrawn() {
    let (mut pair, flow, arrived) = in_the_dark();
    assert!(pair.withdrawn.is_empty());
    pair.gateway.reset(pair.now, flow, ResetReason::Idle);
    pair.run();
    assert_eq!(pair.withdrawn, pair.units[arrived..]);
}

#[test]
fn data_on_one_path_is_never_withdrawn() {
    let mut pair = Pair::new(without_copies());
    pair.up(0, "a");
    pair.up(1, "b");
    let flow = pair.open();
    for _ in 0..20 {
        pair.gateway.write(pair.now, flow, &[7; 20_000]);
        pair.run();
        for served in pair.at_cloud.clone() {
            if let Event::Opened { flow, .. } = served {
                drain(&mut pair.cloud, pair.now, flow);
            }
        }
        pair.advance(Duration::from_millis(20));
    }
    assert!(pair.units.len() > 20 && pair.withdrawn.is_empty(), "{:?}", pair.withdrawn);
}

#[test]
fn report_over_all_paths_is_an_event_once() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.up(1, "b");
    let report = PathReport::Policed { rate: polyrail_model::Bitrate::from_bps(1_000_000) };
    pair.cloud.report_path(pair.now, TunnelKey(1), report);
    pair.run();
    let reported = Event::PathReport { tunnel: TunnelKey(1), report };
    assert_eq!(pair.at_gateway.iter().filter(|event| **event == reported).count(), 1);
    pair.dark(1);
    pair.gateway.report_path(pair.now, TunnelKey(1), PathReport::Stalled);
    pair.run();
    let reported = Event::PathReport { tunnel: TunnelKey(1), report: PathReport::Stalled };
    assert_eq!(pair.at_cloud.iter().filter(|event| **event == reported).count(), 1);
}

#[test]
fn carrier_becomes_a_backup_on_both_sides() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    pair.up(1, "b");
    pair.gateway.set_wish(pair.now, "a", PathWish::BACKUP);
    pair.run();
    for endpoint in [&pair.gateway, &pair.cloud] {
        let paths = &endpoint.status().sessions[0].paths;
        assert_eq!([paths[0].wish, paths[1].wish], [PathWish::BACKUP, PathWish::default()]);
    }
    let flow = pair.open();
    let before = pair.units.len();
    pair.gateway.write(pair.now, flow, &[7; 20_000]);
    pair.run();
    assert!(pair.units[before..].iter().all(|(tunnel, _)| *tunnel == 1));
}

#[test]
fn carrier_becomes_a_backup_on_both_sides_while_its_hello_is_in_flight() {
    let wish = |backup| if backup { PathWish::BACKUP } else { PathWish::default() };
    for backup in [true, false] {
        let mut pair = Pair::new(Settings::default());
        let tunnel = TunnelKey(0);
        let info = |carrier: &str, peer: &str| TunnelInfo {
            carrier: carrier.to_owned(),
            peer: Identity::new(peer).unwrap(),
            exporter: Some([1; 32]),
            mode: TunnelMode::Quic,
            wish: wish(!backup),
        };
        pair.tunnels.push((tunnel, true));
        pair.gateway.tunnel_up(pair.now, tunnel, info("a", "cloud"));
        let mut hello = Wire::default();
        pair.gateway.transmit(pair.now, &mut hello);
        pair.gateway.set_wish(pair.now, "a", wish(backup));
        pair.cloud.tunnel_up(pair.now, tunnel, info("", "train-7"));
        pair.cloud.receive(pair.now, tunnel, &hello.sent[0].1);
        assert_eq!(pair.cloud.status().sessions[0].paths[0].wish, wish(!backup));
        pair.run();
        for endpoint in [&pair.gateway, &pair.cloud] {
            assert_eq!(endpoint.status().sessions[0].paths[0].wish, wish(backup));
        }
    }
}

#[test]
fn settings_change_with_open_flows_except_the_memory() {
    let mut pair = Pair::new(Settings::default());
    pair.up(0, "a");
    let flow = pair.open();
    let settings = Settings {
        flows_max: 1,
        linger: Duration::from_secs(5),
        memory: Bytes::from_mib(1),
        chain: polyrail_scheduler::ChainSpec::named("round_robin").unwrap(),
        ..Settings::default()
    };
    pair.gateway.set_settings(pair.now, settings);
    let destination = Destination::Name(HostName::new("b.example").unwrap(), 80);
    assert!(pair.gateway.open(pair.now, UserId(1), destination).is_err());
    pair.gateway.write(pair.now, flow, &[7; 60_000]);
    pair.run();
    let granted = pair.cloud.status().sessions[0].credit;
    assert!(granted > Bytes::from_mib(15), "{granted:?}");
    pair.down(0);
    pair.advance(Duration::from_secs(6));
    let lost = Event::Reset { flow, reason: ResetReason::SessionLost };
    assert!(pair.at_gateway.contains(&lost));
}

#[test]
fn fresh_path_carries_data_after_its_welcome_or_without_live_paths() {
    for alone in [false, true] {
        let mut pair = Pair::new(without_copies());
        pair.up(0, "a");
        if !alone {
            pair.up(1, "b");
        }
        let flow = pair.open();
        pair.gateway.write(pair.now, flow, b"first");
        pair.run();
        // The carrier is dark, and so is its next tunnel.
        pair.dark(0);
        pair.gateway.write(pair.now, flow, b"second");
        pair.run();
        pair.advance(Duration::from_secs(1));
        for attempt in 2..5 {
            pair.make(attempt, "a", "train-7", false);
        }
        let paths = pair.gateway.status().sessions[0].paths.clone();
        assert!(paths.iter().all(|path| !path.superseded), "no path is superseded: {paths:?}");
        let before = pair.units.len();
        pair.gateway.write(pair.now, flow, b"third");
        pair.run();
        let used: Vec<usize> = pair.units[before..].iter().map(|(tunnel, _)| *tunnel).collect();
        assert_eq!(used, [if alone { 4 } else { 1 }]);
    }
}

#[test]
fn attempts_beyond_the_bound_of_paths_replace_older_ones() {
    let mut pair = Pair::new(Settings::default());
    pair.user_bytes = vec![0; 160];
    pair.up(0, "a");
    for attempt in 1..160 {
        pair.make(attempt, "a", "train-7", false);
        let closed: Vec<TunnelKey> = pair.at_gateway.iter().filter_map(closes).collect();
        assert_eq!(closed.len(), (attempt + 1).saturating_sub(SESSION_PATHS_MAX), "{closed:?}");
    }
    let paths = &pair.gateway.status().sessions[0].paths;
    let first = paths.iter().find(|path| path.tunnel == TunnelKey(0)).expect("it continues");
    assert!(!first.superseded && paths.iter().any(|path| path.tunnel == TunnelKey(159)));
}

/// The maximum that each path may have in flight.
struct Cap(Arc<AtomicU64>);

impl Handler for Cap {
    fn cap(&self, _path: PathId) -> Option<Bytes> {
        Some(Bytes(self.0.load(Ordering::Relaxed)))
    }
}

/// One path with a cap; the gateway's data on it does not arrive.
fn capped(bytes: u64) -> (Pair, Arc<AtomicU64>) {
    let cap = Arc::new(AtomicU64::new(bytes));
    let held = Arc::clone(&cap);
    let chain = ChainSpec::custom("cap", move || {
        let min_rtt = ChainSpec::named("min_rtt").unwrap();
        min_rtt.build().with(vec![Box::new(Cap(Arc::clone(&held)))])
    });
    let mut pair = Pair::new(Settings { chain, stall: false, ..Settings::default() });
    pair.up(0, "a");
    pair.slow = Some(TunnelKey(0));
    (pair, cap)
}

fn outstanding(pair: &Pair) -> u64 {
    pair.gateway.status().sessions[0].paths[0].outstanding.0
}

#[test]
fn data_in_flight_respects_the_cap() {
    let (mut pair, cap) = capped(3 * SEGMENT);
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, &[7; 60_000]);
    pair.run();
    // The OPEN has a number of its own, and a run is no shorter than a segment.
    let most = |segments: u64| segments * SEGMENT..(segments + 1) * SEGMENT;
    assert!(most(3).contains(&outstanding(&pair)), "{}", outstanding(&pair));
    // A higher cap takes effect with the next write.
    cap.store(10 * SEGMENT, Ordering::Relaxed);
    pair.gateway.write(pair.now, flow, &[7; 1]);
    pair.run();
    assert!(most(10).contains(&outstanding(&pair)), "{}", outstanding(&pair));
    // A lower cap withdraws no data.
    cap.store(0, Ordering::Relaxed);
    pair.gateway.write(pair.now, flow, &[7; 1]);
    pair.run();
    assert!(most(10).contains(&outstanding(&pair)), "{}", outstanding(&pair));
}

#[test]
fn cap_of_zero_permits_one_segment_and_all_data_arrives() {
    let (mut pair, _cap) = capped(0);
    pair.slow = None;
    let flow = pair.open();
    pair.gateway.write(pair.now, flow, &[7; 60_000]);
    pair.gateway.finish(pair.now, flow);
    let mut got = 0;
    for _ in 0..200 {
        pair.run();
        assert!(outstanding(&pair) <= SEGMENT + 1, "{}", outstanding(&pair));
        if pair.units.len() > 1 && got < 60_000 {
            let served = pair.opened();
            got += drain(&mut pair.cloud, pair.now, served).len();
        }
        pair.advance(Duration::from_millis(20));
    }
    assert_eq!(got, 60_000);
}

/// Alternates between two paths; the second one sends this many bytes ahead.
struct Ahead(u64, usize);

impl Schedulerlet for Ahead {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let available = |path: &usize| input.paths.get(*path).is_some_and(|p| p.available());
        let Some(path) = [self.1, 1 - self.1].into_iter().find(available) else { return };
        sets.select(path);
        sets.limit_run(SEGMENT);
        sets.begin_ahead(self.0 * path as u64);
        self.1 = 1 - path;
    }
}

#[test]
fn data_sent_ahead_arrives_without_copies() {
    for (ahead, lost) in [(5_000, false), (40_000, false), (5_000, true), (40_000, true)] {
        let chain = ChainSpec::custom("ahead", move || Chain::new(vec![Box::new(Ahead(ahead, 0))]));
        let mut pair = Pair::new(Settings { chain, ..Settings::default() });
        pair.up(0, "a");
        pair.up(1, "b");
        let flow = pair.open();
        let data: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
        let (mut sent, mut got, mut round) = (0, Vec::new(), 0);
        while got.len() < data.len() {
            sent += pair.gateway.write(pair.now, flow, &data[sent..]);
            pair.slow = (lost && round == 1).then_some(TunnelKey(1));
            pair.run();
            if lost && round == 1 {
                pair.down(1);
                pair.up(2, "b");
            }
            let served = pair.opened();
            got.extend(drain(&mut pair.cloud, pair.now, served));
            pair.advance(Duration::from_millis(20));
            round += 1;
            assert!(round < 1_000, "{ahead} {lost}: {} of {}", got.len(), data.len());
        }
        assert!(got == data, "{ahead} {lost}");
        let status = pair.gateway.status();
        let used = status.sessions[0].paths.iter().filter(|path| path.sent.0 > 10_000);
        assert!(lost || used.count() == 2, "{ahead}");
        let copied: usize = pair.user_bytes.iter().sum();
        assert!(lost || copied < 220_000, "{copied} bytes");
        pair.gateway.finish(pair.now, flow);
        pair.run();
        let served = pair.opened();
        assert!(pair.cloud.finished(served), "{ahead} {lost}");
    }
}

#[test]
fn flow_with_gaps_is_reset_without_a_leak() {
    for reset_at_cloud in [false, true] {
        let chain = ChainSpec::custom("ahead", || Chain::new(vec![Box::new(Ahead(9_000, 1))]));
        let mut pair = Pair::new(Settings { chain, ..Settings::default() });
        pair.up(0, "a");
        pair.up(1, "b");
        let flow = pair.open();
        pair.gateway.write(pair.now, flow, &[7; 60_000]);
        pair.run();
        let served = pair.opened();
        let (side, which) = match reset_at_cloud {
            true => (&mut pair.cloud, served),
            false => (&mut pair.gateway, flow),
        };
        side.reset(pair.now, which, ResetReason::Idle);
        pair.run();
        pair.advance(Duration::from_secs(1));
        for endpoint in [&pair.gateway, &pair.cloud] {
            let status = endpoint.status();
            assert_eq!((status.sessions[0].flows, status.sessions[0].memory_sent), (0, Bytes(0)));
        }
    }
}
