//! The semantics of a TCP connection, carried by a flow.

use std::time::Duration;

use polyrail_session::ResetReason;
use polyrail_sim::world::{Dial, LegState, Reader, Side};

use crate::lab::{CLOUD, GATEWAY, begin_download, is_downloaded, line, ms, s, state, talk, world};

#[test]
fn greeting_of_a_server_arrives_after_five_milliseconds_and_a_round_trip() {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    world.tap(GATEWAY).on = true;
    let flow = world.open_with(1, Dial::Stands(Duration::ZERO), false).unwrap();
    world.flow_mut(flow).server = (60, false);
    let opened_at = world.now();
    let time = world.run_until(s(1), |w| w.flow(flow).legs[0].read == 60).unwrap();
    let left = world.tap(GATEWAY).opens[0] - opened_at;
    assert_eq!(left, ms(5), "OPEN leaves alone after 5 ms");
    assert!(time >= ms(45) && time <= ms(48), "the greeting arrived after {time:?}");
}

#[test]
fn each_direction_ends_independently() {
    for first in Side::BOTH {
        let mut world = world(&[line("a", 20.0, ms(40)), line("b", 5.0, ms(90))]);
        let flow = talk(&mut world, 1);
        let (second, reader) = (first.other(), first.other() as usize);
        world.write(flow, first, 50_000);
        world.finish(flow, first);
        world.run_until(s(1), |w| w.flow(flow).legs[reader].end_seen).unwrap();
        world.run_for(s(5));
        assert_eq!(state(&world, flow, first), LegState::Open);
        let before = world.flow(flow).legs[first as usize].read;
        world.write(flow, second, 300_000);
        world.run_for(s(1));
        assert_eq!(world.flow(flow).legs[first as usize].read, before + 300_000);
        world.finish(flow, second);
        world.run_for(s(1));
        for side in Side::BOTH {
            assert_eq!(state(&world, flow, side), LegState::Closed, "{side:?}");
        }
    }
}

#[test]
fn reset_arrives_after_all_written_bytes() {
    for from in Side::BOTH {
        for bytes in [1, 1_400, 60_000, 300_000, 2_000_000] {
            let mut world = world(&[line("a", 20.0, ms(40)), line("b", 5.0, ms(90))]);
            let flow = talk(&mut world, 1);
            let to = from.other();
            let before = world.flow(flow).legs[to as usize].read;
            world.write(flow, from, bytes);
            let written = |w: &polyrail_sim::world::World| {
                let leg = &w.flow(flow).legs[from as usize];
                leg.written == leg.goal
            };
            world.run_until(s(5), written).unwrap();
            world.reset(flow, from, ResetReason::PeerReset);
            let reset = LegState::Reset(ResetReason::PeerReset);
            world.run_until(s(5), |w| state(w, flow, to) == reset).unwrap();
            assert_eq!(world.flow(flow).legs[to as usize].read, before + bytes, "{from:?}");
            world.run_for(s(1));
            world.check_end();
        }
    }
}

#[test]
fn a_reset_that_overtakes_its_open_still_delivers() {
    let mut slow = line("a", 1.0, ms(300));
    slow.stream = false;
    let mut world = world(&[slow, line("b", 20.0, ms(290))]);
    for bytes in [1, 1_000, 50_000] {
        let flow = world.open(1).unwrap();
        world.write(flow, GATEWAY, bytes);
        world.reset(flow, GATEWAY, ResetReason::PeerReset);
        let reset = LegState::Reset(ResetReason::PeerReset);
        world.run_until(s(5), |w| state(w, flow, CLOUD) == reset).unwrap();
        assert_eq!(world.flow(flow).legs[1].read, bytes);
    }
}

#[test]
fn reset_for_another_reason_is_immediate() {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    let flow = begin_download(&mut world, 1, 5_000_000);
    world.run_for(ms(500));
    world.reset(flow, CLOUD, ResetReason::TimedOut);
    let reset = LegState::Reset(ResetReason::TimedOut);
    let time = world.run_until(s(1), |w| state(w, flow, GATEWAY) == reset).unwrap();
    assert!(time <= ms(100), "{time:?}");
    assert!(!is_downloaded(&world, flow));
    world.run_for(s(1));
    world.check_end();
}

#[test]
fn failed_dial_is_reported_with_its_reason() {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    for reason in [ResetReason::Refused, ResetReason::Forbidden, ResetReason::NameNotFound] {
        let flow = world.open_with(1, Dial::Fails(ms(3), reason), true).unwrap();
        world.write(flow, GATEWAY, 200);
        let reset = LegState::Reset(reason);
        let time = world.run_until(s(1), |w| state(w, flow, GATEWAY) == reset).unwrap();
        assert!(time <= ms(45), "{time:?}");
    }
    world.run_for(s(1));
    world.check_end();
}

#[test]
fn unread_reset_ends_after_its_linger() {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    let flow = talk(&mut world, 1);
    world.set_reader(flow, GATEWAY, Reader::Stalled);
    // More than the user's share of the memory.
    world.write(flow, CLOUD, 2_200_000);
    world.run_for(s(2));
    world.reset(flow, CLOUD, ResetReason::PeerReset);
    world.run_for(s(29));
    assert_eq!(state(&world, flow, GATEWAY), LegState::Open);
    world.run_for(s(2));
    assert_eq!(state(&world, flow, GATEWAY), LegState::Reset(ResetReason::PeerReset));
    world.check_end();
}

#[test]
fn acknowledgements_are_few() {
    // 20 Mbit/s down, 1 Mbit/s up.
    let mut carrier = line("a", 20.0, ms(40));
    carrier.links[0] = line("up", 1.0, ms(40)).links[0].clone();
    let mut world = world(&[carrier]);
    world.tap(GATEWAY).on = true;
    world.tap(CLOUD).on = true;
    let flow = begin_download(&mut world, 1, 10_000_000);
    let time = world.run_until(s(10), |w| is_downloaded(w, flow)).unwrap();
    let (acks, control) = (world.tap(GATEWAY).acks, world.tap(GATEWAY).control);
    let runs = world.tap(CLOUD).runs;
    let delays = (time.as_millis() / 10) as u64;
    println!("{acks} acknowledgements for {runs} runs in {time:?}");
    assert!(acks <= runs / 2 + delays, "{acks} acknowledgements for {runs} runs");
    let share = control as f64 * 8.0 / (1e6 * time.as_secs_f64());
    println!("RESULT simulated_ack_share {:.2} % of the uplink", share * 100.0);
    assert!(share <= 0.035, "{:.1} % of the uplink", share * 100.0);
}
