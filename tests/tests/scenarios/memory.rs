//! Credit and memory: they bound, they never lock up, and they come back.

use polyrail_model::Bytes;
use polyrail_session::{OpenError, Settings};
use polyrail_tests::world::{LegState, Reader, Side, World};

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
fn who_goes_away_opens_no_more_but_ends_what_is_open() {
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

#[test]
fn many_readers_that_stop_at_once_leave_room_for_others() {
    // Buffers behind the daemon take in so much before a reader that does not read is seen.
    for buffered in [0, 20_000, 100_000, 300_000] {
        let mut world = world(&[line("a", 40.0, ms(40))]);
        let get = |world: &mut World, user, bytes| {
            let flow = begin_download(world, user, bytes);
            world.run_until(s(60), |world| is_downloaded(world, flow)).unwrap()
        };
        let alone = [5_000_000, 65_536].map(|bytes| get(&mut world, 99, bytes));
        for user in 0..200 {
            let flow = begin_download(&mut world, user % 8, 50_000_000);
            world.set_reader(flow, GATEWAY, Reader::First(buffered));
        }
        world.run_for(s(25));
        let held = world.status(GATEWAY).sessions[0].memory_received;
        let of_other = [5_000_000, 65_536].map(|bytes| get(&mut world, 99, bytes));
        let of_same = get(&mut world, 0, 5_000_000);
        println!("{buffered} B: {held} held; {alone:?}, {of_other:?}, {of_same:?}");
        for beside in [of_other[0], of_same] {
            let ratio = alone[0].as_secs_f64() / beside.as_secs_f64();
            assert!(ratio >= 0.8, "{alone:?} alone, {beside:?} beside 200 that stop at {buffered}");
        }
        // One round trip more: the others have taken all that flows may hold before their readers
        // have drained anything, except for what each may hold in any case.
        assert!(of_other[1] <= alone[1] + ms(60), "{alone:?} alone, {of_other:?} beside 200");
    }
}
