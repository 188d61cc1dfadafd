//! The operator's wishes: roles, metered paths, rate limits.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Destination, HostName, PathRank, PathWish, UserId, Weight};
use polyrail_scheduler::ChainSpec;
use polyrail_session::{Endpoint, FlowKey, Settings};

use crate::endpoints::{Pair, drain};

#[test]
fn wishes_of_new_and_old_paths_reach_the_cloud() {
    let rate_limit = Some(Bitrate::from_mbps(2.0));
    let wish = PathWish { rank: PathRank::Secondary, metered: true, rate_limit };
    let mut pair = Pair::new(Settings::default());
    pair.wish = wish;
    let at_cloud = |pair: &Pair, path: usize| pair.cloud.status().sessions[0].paths[path].wish;
    pair.up(0, "a");
    assert_eq!(at_cloud(&pair, 0), wish, "of a HELLO");
    pair.up(1, "b");
    assert_eq!(at_cloud(&pair, 1), wish, "of a JOIN");
    pair.gateway.set_wish(pair.now, "b", PathWish::default());
    pair.run();
    assert_eq!([at_cloud(&pair, 0), at_cloud(&pair, 1)], [wish, PathWish::default()]);
}

#[test]
fn cloud_does_not_decide_about_paths() {
    let mut pair = Pair::over(&["a", "b"]);
    pair.cloud.set_wish(pair.now, "a", PathWish::BACKUP);
    pair.run();
    let paths = &pair.gateway.status().sessions[0].paths;
    assert!(paths.iter().all(|path| path.wish == PathWish::default()), "{paths:?}");
}

#[test]
fn metered_path_carries_no_copies() {
    for (metered, copies) in [(false, true), (true, false)] {
        let chain: ChainSpec = "redundancy, min_rtt".parse().unwrap();
        let mut pair = Pair::new(Settings { chain, ..Settings::default() });
        pair.up(0, "a");
        pair.up(1, "b");
        pair.gateway.set_wish(pair.now, "b", PathWish { metered, ..PathWish::default() });
        pair.run();
        let flow = pair.open();
        pair.gateway.write(pair.now, flow, &[7; 1_000]);
        pair.run();
        let on = |wanted| pair.units.iter().any(|(tunnel, _)| *tunnel == wanted);
        assert_eq!([on(0), on(1)], [true, copies], "metered: {metered}");
    }
}

#[test]
fn secondary_carries_data_only_while_the_primary_is_full() {
    let secondary = PathWish { rank: PathRank::Secondary, ..PathWish::default() };
    for (full, carries) in [(false, false), (true, true)] {
        let mut pair = Pair::over(&["a", "b"]);
        pair.gateway.set_wish(pair.now, "b", secondary);
        pair.run();
        pair.units.clear();
        let flow = pair.open();
        pair.gateway.write(pair.now, flow, &[7; 1_000]);
        if full {
            pair.gateway.tunnel_room(polyrail_session::TunnelKey(0), 0);
        }
        pair.run();
        let on = |wanted| pair.units.iter().any(|(tunnel, _)| *tunnel == wanted);
        assert_eq!([on(0), on(1)], [!full, carries], "full: {full}");
    }
}

/// The gateway's bytes on the wire while it sends as much as it can for this time.
fn sent_in(pair: &mut Pair, time: Duration) -> usize {
    let flow = pair.open();
    pair.run();
    pair.advance(Duration::from_millis(10));
    let served = pair.opened();
    let (end, before): (Instant, usize) = (pair.now + time, pair.user_bytes[0]);
    while pair.now < end {
        while pair.gateway.write(pair.now, flow, &[7; 100_000]) > 0 {}
        pair.advance(Duration::from_millis(5));
        drain(&mut pair.cloud, pair.now, served);
    }
    pair.user_bytes[0] - before
}

#[test]
fn rate_limit_paces_data_and_can_change_at_any_time() {
    let limited =
        |mbps| PathWish { rate_limit: Some(Bitrate::from_mbps(mbps)), ..PathWish::default() };
    let mut pair = Pair::new(Settings::default());
    pair.wish = limited(8.0);
    pair.up(0, "a");
    let sent = sent_in(&mut pair, Duration::from_secs(2));
    // 2 MB and the burst, less the allowance for headers.
    assert!((1_800_000..2_080_000).contains(&sent), "{sent} bytes in 2 s at 8 Mbit/s");
    pair.gateway.set_wish(pair.now, "a", limited(2.0));
    let sent = sent_in(&mut pair, Duration::from_secs(2));
    assert!((450_000..540_000).contains(&sent), "{sent} bytes in 2 s at 2 Mbit/s");
    pair.gateway.set_wish(pair.now, "a", PathWish::default());
    let sent = sent_in(&mut pair, Duration::from_secs(1));
    assert!(sent > 4_000_000, "{sent} bytes in 1 s without a limit");
}

/// Opens a flow of a user; returns both ends.
fn flow_of(pair: &mut Pair, user: u64) -> (FlowKey, FlowKey) {
    let to = Destination::Name(HostName::new("example.com").unwrap(), 80);
    let flow = pair.gateway.open(pair.now, UserId(user), to).unwrap();
    pair.gateway.write(pair.now, flow, b"hello");
    pair.advance(Duration::from_millis(10));
    (flow, pair.opened())
}

/// The bytes that each of these flows delivers to one side in two seconds, while all senders have
/// more; each is given as sender and receiver.
fn delivered(pair: &mut Pair, flows: &[(FlowKey, FlowKey)], down: bool) -> Vec<usize> {
    let mut counts = vec![0; flows.len()];
    let end = pair.now + Duration::from_secs(2);
    let fill =
        |endpoint: &mut Endpoint, now, flow| while endpoint.write(now, flow, &[7; 9_000]) > 0 {};
    while pair.now < end {
        for &(near, far) in flows {
            match down {
                true => fill(&mut pair.cloud, pair.now, far),
                false => fill(&mut pair.gateway, pair.now, near),
            }
        }
        pair.advance(Duration::from_millis(5));
        for (count, &(near, far)) in counts.iter_mut().zip(flows) {
            *count += match down {
                true => drain(&mut pair.gateway, pair.now, near).len(),
                false => drain(&mut pair.cloud, pair.now, far).len(),
            };
        }
    }
    counts
}

#[test]
fn users_share_a_path_by_their_weights_in_both_directions() {
    for down in [false, true] {
        let mut pair = Pair::new(Settings::default());
        pair.wish.rate_limit = Some(Bitrate::from_mbps(8.0));
        pair.up(0, "a");
        pair.gateway.set_weight(UserId(1), Weight::new(4));
        let flows = [1, 2].map(|user| flow_of(&mut pair, user));
        let ratio = |counts: Vec<usize>| counts[0] as f64 / counts[1] as f64;
        let weighted = ratio(delivered(&mut pair, &flows, down));
        assert!((3.4..4.6).contains(&weighted), "down {down}: {weighted}");
        // The new weight reaches the cloud with the next data of the flow.
        pair.gateway.set_weight(UserId(1), Weight::default());
        flows.iter().for_each(|(near, _)| {
            pair.gateway.write(pair.now, *near, b"more");
        });
        delivered(&mut pair, &flows, down);
        let equal = ratio(delivered(&mut pair, &flows, down));
        assert!((0.8..1.25).contains(&equal), "down {down}: {equal}");
    }
}
