//! Credit and memory: they bound, they never lock up, and they come back.

use std::time::Duration;

use polyrail_model::Bytes;
use polyrail_session::limits::FLOOR;
use polyrail_session::{OpenError, Settings};
use polyrail_sim::congestion::Algorithm;
use polyrail_sim::world::{CarrierSpec, LegState, Reader, Side, World};

use crate::lab::{
    CLOUD, GATEWAY, begin_download, is_downloaded, line, lossy, ms, s, state, talk, world,
    world_with,
};

#[test]
fn exhausted_credit_never_locks_up() {
    // 1 MiB for 300 flows that all arrive with gaps over two very different, lossy paths.
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
fn writers_are_held_back_by_the_bound_and_told_when_it_has_room() {
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
fn a_thousand_flows_come_and_go_and_leave_nothing() {
    let mut world = world(&[line("a", 20.0, ms(40)), line("b", 10.0, ms(60))]);
    for round in 0..1_000_u64 {
        let flow = begin_download(&mut world, round % 20, 3_000);
        world.write(flow, GATEWAY, 200);
        world.finish(flow, GATEWAY);
        world.run_for(ms(7));
    }
    world.run_until(s(5), World::is_quiet).unwrap();
    world.run_for(s(2));
    for flow in 0..1_000 {
        for side in Side::BOTH {
            assert_eq!(state(&world, flow, side), LegState::Closed);
        }
    }
    world.check_end();
}

#[test]
fn at_the_bound_of_flows_one_is_refused_and_a_place_becomes_free() {
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

/// 200 downloads, `apart` from each other, whose readers take so much and stop: what buffers behind
/// the daemon take in before a reader that does not read is seen.
fn stop_many(world: &mut World, users: u64, apart: Duration, taken: u64) {
    for user in 0..200 {
        let flow = begin_download(world, user % users, 50_000_000);
        world.set_reader(flow, GATEWAY, Reader::First(taken));
        world.run_for(apart);
    }
    world.run_for(s(25));
}

/// The median of three downloads.
fn seconds(world: &mut World, user: u64, reader: Reader, bytes: u64) -> f64 {
    let mut all = [(); 3].map(|()| {
        let flow = begin_download(world, user, bytes);
        world.set_reader(flow, GATEWAY, reader);
        world.run_until(s(60), |world| is_downloaded(world, flow)).unwrap().as_secs_f64()
    });
    all.sort_by(f64::total_cmp);
    all[1]
}

const SLOW: Reader = Reader::Slow(30_000, Duration::from_millis(10));

/// What is downloaded, by whom and how, and the least ratio of the time alone to that beside 200
/// that stop, at once and one after the other. Of 64 KB a round trip more is allowed: to a reader
/// that has not shown that it reads goes only what each may hold in any case. Who stops one after
/// the other may have used all of the link before: then all of the memory is withheld but little,
/// and others go on with that.
const BESIDE: [(u64, Reader, u64, [f64; 2]); 5] = [
    (99, Reader::Quick, 5_000_000, [0.8, 0.25]),
    (99, Reader::Quick, 65_536, [0.5, 0.08]),
    (99, SLOW, 5_000_000, [0.85, 0.3]),
    (0, Reader::Quick, 5_000_000, [0.85, 0.25]),
    (0, SLOW, 5_000_000, [0.85, 0.3]),
];

#[test]
fn many_readers_that_stop_leave_room_for_others() {
    for (users, apart, taken) in [
        (8, ms(0), 0),
        (8, ms(0), 20_000),
        (8, ms(0), 100_000),
        (8, ms(0), 300_000),
        (200, ms(0), 100_000),
        (8, ms(100), 100_000),
        (200, ms(100), 100_000),
    ] {
        let carrier = CarrierSpec { congestion: Algorithm::Cubic, ..line("a", 40.0, ms(40)) };
        let mut world = world(&[carrier]);
        let alone = BESIDE.map(|(user, reader, bytes, _)| seconds(&mut world, user, reader, bytes));
        stop_many(&mut world, users, apart, taken);
        let held = [GATEWAY, CLOUD].map(|side| world.status(side).sessions[0].clone());
        let held = [held[0].memory_received, held[1].memory_sent];
        let what = format!("{users} users, {apart:?} apart, {taken} bytes: {held:?}");
        // Withheld windows, the floor of each flow, and bytes in flight when readers stopped.
        let at_once = apart.is_zero();
        assert!(!at_once || held[0].0 <= (8 << 20) + 200 * FLOOR + (1 << 20), "{what}");
        for ((user, reader, bytes, least), alone) in BESIDE.into_iter().zip(alone) {
            let beside = seconds(&mut world, user, reader, bytes);
            let ratio = alone / beside;
            let what =
                format!("{what}: user {user} {reader:?} {bytes}: {alone:.3} s, {beside:.3} s");
            println!("{what}: {ratio:.2}");
            assert!(ratio >= least[usize::from(!at_once)], "{what}");
        }
    }
}
