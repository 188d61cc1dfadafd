//! Credit and memory: they are bounded, never deadlock, and recover.

use std::time::Duration;

use polyrail_emulator::link::Blackout;
use polyrail_model::Bytes;
use polyrail_session::limits::FLOOR;
use polyrail_session::{OpenError, ResetReason, Settings};
use polyrail_sim::congestion::Algorithm;
use polyrail_sim::world::{CarrierSpec, FlowNo, LegState, Reader, Side, World};

use crate::lab::{
    CLOUD, GATEWAY, begin_download, is_downloaded, line, lossy, ms, s, state, talk, world,
    world_with,
};

#[test]
fn exhausted_credit_never_deadlocks() {
    // 1 MiB for 300 flows, all with gaps, over two very different, lossy paths.
    let settings = Settings { memory: Bytes::from_mib(1), ..Settings::default() };
    let carriers = [lossy(line("a", 20.0, ms(20)), 0.03), lossy(line("b", 10.0, ms(300)), 0.03)];
    let mut world = world_with(&carriers, settings);
    let flows: Vec<_> = (0..300).map(|n| begin_download(&mut world, n % 7, 30_000)).collect();
    for &flow in &flows {
        world.set_reader(flow, GATEWAY, Reader::Stalled);
    }
    world.run_for(s(10));
    let held = world.status(GATEWAY).sessions[0].memory_received.0;
    assert!(held >= 400_000, "only {held} bytes are held");
    for &flow in &flows {
        world.set_reader(flow, GATEWAY, Reader::Quick);
    }
    let all = |world: &World| flows.iter().all(|&flow| is_downloaded(world, flow));
    let time = world.run_until(s(60), all).unwrap();
    println!("300 flows within 1 MiB take {time:?}");
}

#[test]
fn writers_wait_at_the_memory_bound_and_continue_when_there_is_room() {
    let settings = Settings { memory: Bytes::from_mib(1), ..Settings::default() };
    let mut world = world_with(&[line("a", 20.0, ms(40))], settings);
    world.enable(0, false);
    let flows: Vec<_> = (0..50).map(|user| world.open(user).unwrap()).collect();
    for &flow in &flows {
        world.write(flow, GATEWAY, 500_000);
        world.finish(flow, GATEWAY);
    }
    let held = world.status(GATEWAY).sessions[0].memory_sent.0;
    assert!((500_000..=1_200_000).contains(&held), "{held} bytes are held");
    world.enable(0, true);
    let all = |w: &World| flows.iter().all(|&flow| w.flow(flow).legs[1].end_seen);
    // 25 MB at 20 Mbit/s take 10.4 s.
    let time = world.run_until(s(40), all).unwrap();
    assert!(time <= s(16), "{time:?}");
}

#[test]
fn flow_beyond_the_limit_is_refused_until_another_one_ends() {
    let settings = Settings { flows_max: 10, ..Settings::default() };
    let mut world = world_with(&[line("a", 20.0, ms(40))], settings);
    let flows: Vec<_> = (0..10).map(|user| talk(&mut world, user)).collect();
    assert_eq!(world.open(1), Err(OpenError::TooManyFlows));
    for side in Side::BOTH {
        world.finish(flows[3], side);
    }
    world.run_for(s(1));
    assert_eq!(state(&world, flows[3], CLOUD), LegState::Closed);
    talk(&mut world, 1);
}

#[test]
fn departing_side_opens_no_flow_and_finishes_open_ones() {
    for side in Side::BOTH {
        let mut world = world(&[line("a", 20.0, ms(40))]);
        let flow = begin_download(&mut world, 1, 3_000_000);
        world.run_for(ms(500));
        world.go_away(side);
        world.run_for(ms(100));
        assert_eq!(world.open(1), Err(OpenError::GoingAway), "{side:?}");
        world.run_until(s(5), |world| is_downloaded(world, flow)).unwrap();
    }
}

/// 200 downloads, `apart` from each other, whose readers stop after `taken` bytes: the bytes that
/// kernel buffers take before a stalled reader is visible.
fn stop_many(world: &mut World, users: u64, apart: Duration, taken: u64) {
    for user in 0..200 {
        let flow = begin_download(world, user % users, 50_000_000);
        world.set_reader(flow, GATEWAY, Reader::First(taken));
        world.run_for(apart);
    }
    world.run_for(s(25));
}

/// The median of five downloads: how fast the first bytes are read varies by a round trip.
fn seconds(world: &mut World, user: u64, reader: Reader, bytes: u64) -> f64 {
    let mut all = [(); 5].map(|()| {
        let flow = begin_download(world, user, bytes);
        world.set_reader(flow, GATEWAY, reader);
        world.run_until(s(60), |world| is_downloaded(world, flow)).unwrap().as_secs_f64()
    });
    all.sort_by(f64::total_cmp);
    all[2]
}

const SLOW: Reader = Reader::Slow(30_000, Duration::from_millis(10));

/// User, reader and bytes of a download, and the least ratio of its time alone to that next to 200
/// stalled readers. 64 KB may take a round trip more, because a new reader gets only the floor.
const BESIDE: [(u64, Reader, u64, f64); 5] = [
    (99, Reader::Quick, 5_000_000, 0.8),
    (99, Reader::Quick, 65_536, 0.5),
    (99, SLOW, 5_000_000, 0.85),
    (0, Reader::Quick, 5_000_000, 0.85),
    (0, SLOW, 5_000_000, 0.85),
];

/// Compares downloads with those of the same world before its readers stopped.
fn compare(world: &mut World, alone: [f64; 5], what: &str) {
    for ((user, reader, bytes, least), alone) in BESIDE.into_iter().zip(alone) {
        let beside = seconds(world, user, reader, bytes);
        let ratio = alone / beside;
        let what = format!("{what}: user {user} {reader:?} {bytes}: {alone:.3} s, {beside:.3} s");
        println!("{what}: {ratio:.2}");
        assert!(ratio >= least, "{what}");
    }
}

/// A world with one carrier, and its downloads while nothing else is going on.
fn alone(congestion: Algorithm, mib: u64) -> (World, [f64; 5]) {
    let settings = Settings { memory: Bytes::from_mib(mib), ..Settings::default() };
    let carrier = CarrierSpec { congestion, ..line("a", 40.0, ms(40)) };
    let mut world = world_with(&[carrier], settings);
    let alone = BESIDE.map(|(user, reader, bytes, _)| seconds(&mut world, user, reader, bytes));
    (world, alone)
}

#[test]
fn two_hundred_stopping_readers_leave_memory_for_others() {
    for (users, apart, taken) in [
        (8, ms(0), 0),
        (8, ms(0), 20_000),
        (8, ms(0), 100_000),
        (8, ms(0), 300_000),
        (200, ms(0), 100_000),
        (8, ms(100), 100_000),
        (200, ms(100), 100_000),
    ] {
        let (mut world, alone) = alone(Algorithm::Cubic, 16);
        stop_many(&mut world, users, apart, taken);
        let held = [GATEWAY, CLOUD].map(|side| world.status(side).sessions[0].clone());
        let held = [held[0].memory_received, held[1].memory_sent];
        let what = format!("{users} users, {apart:?} apart, {taken} bytes: {held:?}");
        // Withheld windows, the floor of each flow, and bytes in flight when readers stopped.
        assert!(held[0].0 <= (8 << 20) + 200 * FLOOR + (1 << 20), "{what}");
        compare(&mut world, alone, &what);
    }
}

/// Each reads 5 MB with the whole link and then stops, 3 s after the one before.
fn pause(world: &mut World, users: u64) -> Vec<FlowNo> {
    let flows = (0..users).map(|user| {
        let flow = begin_download(world, 200 + user, 50_000_000);
        world.set_reader(flow, GATEWAY, Reader::First(5_000_000));
        world.run_for(s(3));
        flow
    });
    let flows = flows.collect();
    world.run_for(s(25));
    flows
}

#[test]
fn paused_videos_of_many_users_leave_memory_for_others() {
    // Memory in MiB, and how many of so many users' videos may be reset.
    for (mib, users, resets) in [(16, 5, 0..=0), (16, 40, 20..=35), (64, 20, 0..=0)] {
        for congestion in [Algorithm::Cubic, Algorithm::Bbr2] {
            let (mut world, alone) = alone(congestion, mib);
            let flows = pause(&mut world, users);
            let is_reset = |flow: &&FlowNo| {
                let state = state(&world, **flow, GATEWAY);
                assert!(matches!(state, LegState::Open | LegState::Reset(ResetReason::Overload)));
                state != LegState::Open
            };
            let reset = flows.iter().filter(is_reset).count();
            let what = format!("{congestion:?}, {mib} MiB, {users} users, {reset} reset");
            assert!(resets.contains(&reset), "{what}");
            compare(&mut world, alone, &what);
        }
    }
}

#[test]
fn slow_readers_and_readers_behind_a_gap_are_not_reset() {
    // Paths never stall, so nothing closes the gaps of a dark carrier.
    let settings = Settings { stall: false, ..Settings::default() };
    let carriers = ["a", "b"]
        .map(|name| CarrierSpec { congestion: Algorithm::Cubic, ..line(name, 20.0, ms(40)) });
    let mut world = world_with(&carriers, settings);
    let mut read = |user: u64, reader| {
        let flow = begin_download(&mut world, user, 50_000_000);
        world.set_reader(flow, GATEWAY, reader);
        world.run_for(s(2));
        flow
    };
    // About 1 MB is unread: for half a minute, and for three.
    let slow: Vec<_> = (0..4).map(|user| read(user, Reader::Slow(3_000, ms(100)))).collect();
    let slower: Vec<_> = (4..8).map(|user| read(user, Reader::Slow(500, ms(100)))).collect();
    let quick = read(8, Reader::Quick);
    (9..12).for_each(|user| _ = read(user, Reader::First(3_000_000)));
    world.blackout(0, Some(Blackout::Hold));
    world.run_for(s(30));
    let held = world.status(GATEWAY).sessions[0].memory_received;
    let reset = |flows: &[FlowNo]| {
        flows.iter().filter(|flow| state(&world, **flow, GATEWAY) != LegState::Open).count()
    };
    let counts = (reset(&slow), reset(&slower), reset(&[quick]));
    assert!(counts.0 == 0 && counts.1 > 0 && counts.2 == 0, "{counts:?}, {held:?}");
}
