//! Faults found by random worlds, reduced. Each names the first world that showed it.

use std::time::{Duration, Instant};

use polyrail_model::Bytes;
use polyrail_session::wire::Frame;
use polyrail_session::{Event, ResetReason, Settings, TunnelKey};
use polyrail_sim::world::{Dial, Habits, LegState, Reader, World};

use crate::endpoints::{cloud, connect, events, frames, gateway, post, sent_on};
use crate::lab::{
    CLOUD, GATEWAY, begin_download, is_downloaded, line, ms, read, s, state, talk, world,
    world_with,
};

/// World 4: with stall detection disabled, a deadline stayed in the past.
#[test]
fn path_without_stall_detection_has_no_deadline_in_the_past() {
    let settings = Settings { stall: false, ..Settings::default() };
    let mut world = world_with(&[line("a", 20.0, ms(40))], settings);
    let flow = talk(&mut world, 1);
    world.blackout(0, Some(polyrail_emulator::link::Blackout::Hold));
    world.write(flow, GATEWAY, 10_000);
    // The world fails after too many wake-ups.
    world.run_for(s(8));
    world.blackout(0, None);
    world.run_until(s(10), |w| w.flow(flow).legs[1].read == 10_001).unwrap();
}

/// World 36: a cloud with a lower limit of flows closed the path again and again.
#[test]
fn cloud_with_a_lower_limit_refuses_flows_and_keeps_the_path() {
    let cloud = Settings { flows_max: 3, ..Settings::default() };
    let habits = Habits::default();
    let lines = [line("a", 20.0, ms(40))];
    let mut world = World::new(habits, Settings::default(), cloud, &lines);
    world.run_for(s(1));
    let flows: Vec<_> = (0..50).map(|user| world.open(user).unwrap()).collect();
    world.run_for(s(1));
    let refused = LegState::Reset(ResetReason::Overload);
    let count = flows.iter().filter(|&&flow| state(&world, flow, GATEWAY) == refused).count();
    assert_eq!(count, 47);
    assert_eq!(world.sessions_up(CLOUD), 1);
}

/// World 94: a late answer to a RESET discarded unread bytes.
#[test]
fn data_that_crosses_a_reset_does_not_shorten_what_precedes_it() {
    let mut world = world(&[line("a", 2.0, ms(200))]);
    let flow = talk(&mut world, 1);
    world.set_reader(flow, GATEWAY, Reader::Stalled);
    world.write(flow, CLOUD, 5_000);
    world.run_for(ms(50));
    world.write(flow, GATEWAY, 50_000);
    world.reset(flow, CLOUD, ResetReason::PeerReset);
    world.run_for(s(3));
    assert_eq!(state(&world, flow, GATEWAY), LegState::Open);
    world.set_reader(flow, GATEWAY, Reader::Quick);
    world.run_for(ms(10));
    assert_eq!(state(&world, flow, GATEWAY), LegState::Reset(ResetReason::PeerReset));
    assert_eq!(read(&world, flow), 5_000);
}

/// World 5665: a tunnel that died silently while a PING was in flight was never detected.
#[test]
fn unanswered_ping_is_retransmitted() {
    let start = Instant::now();
    let (mut gateway, mut cloud) = (gateway(start), cloud(start, 9));
    post(&mut gateway, start);
    connect(&mut gateway, &mut cloud, start, 1, "a");
    cloud.receive(start, TunnelKey(1), &sent_on(&mut gateway, start, 1));
    gateway.receive(start, TunnelKey(1), &sent_on(&mut cloud, start, 1));
    // No answer arrives from here on.
    let mut pings = Vec::new();
    while let Some(now) = gateway.next_timeout().filter(|at| *at < start + s(70)) {
        gateway.on_timeout(now);
        frames(&sent_on(&mut gateway, now, 1), |frame| {
            if matches!(frame, Frame::Ping { .. }) {
                pings.push(now - start);
            }
        });
    }
    assert!(pings.len() >= 3, "PINGs at {pings:?}");
}

/// World 11068: when the successor of a tunnel died early, neither tunnel was used.
#[test]
fn path_continues_when_its_successor_dies_early() {
    let mut world = world(&[line("a", 20.0, ms(200))]);
    let flow = talk(&mut world, 1);
    world.race(0);
    world.run_until(s(2), |world| world.is_up(0)).unwrap();
    world.run_for(ms(150));
    // Both sides have the path, and no round trip is complete.
    world.break_connection(0, [ms(1), ms(1)]);
    world.run_for(ms(5));
    world.enable(0, false);
    assert_eq!(world.status(GATEWAY).sessions[0].paths.len(), 1);
    world.write(flow, GATEWAY, 1_000);
    world.run_until(s(2), |w| w.flow(flow).legs[1].read == 1_001).unwrap();
}

/// World 6330: windows that were withheld from a user's stalled readers never grew again.
#[test]
fn windows_grow_again_when_a_users_readers_resume() {
    let settings = Settings { memory: Bytes::from_mib(1), ..Settings::default() };
    let mut world = world_with(&[line("a", 20.0, ms(40))], settings);
    let stalled: Vec<_> = (0..4).map(|_| begin_download(&mut world, 1, 300_000)).collect();
    for &flow in &stalled {
        world.set_reader(flow, GATEWAY, Reader::Stalled);
    }
    world.run_for(s(5));
    let other = begin_download(&mut world, 1, 300_000);
    world.run_for(s(5));
    for &flow in &stalled {
        world.set_reader(flow, GATEWAY, Reader::Quick);
    }
    let all =
        |world: &World| stalled.iter().chain([&other]).all(|&flow| is_downloaded(world, flow));
    let time = world.run_until(s(10), all).unwrap();
    assert!(time <= s(2), "{time:?}");
}

/// World 120248: drained bytes were not reported if the window did not grow, so the sender treated
/// the flow as stalled for ever.
#[test]
fn sender_learns_that_a_stalled_reader_resumed() {
    let settings = Settings { memory: Bytes::from_mib(1), ..Settings::default() };
    for first in [300_000, 600_000, 1_000_000, 2_000_000] {
        let mut world = world_with(&[line("a", 20.0, ms(40))], settings.clone());
        let flow = talk(&mut world, 1);
        // Then the reader stalls, and the sender grants it a sixteenth of the memory, a quarter
        // of its window.
        world.write(flow, CLOUD, first);
        world.run_until(s(5), |world| read(world, flow) == first).unwrap();
        world.set_reader(flow, GATEWAY, Reader::Stalled);
        world.run_for(s(2));
        world.write(flow, CLOUD, 700_000);
        world.run_for(s(4));
        world.set_reader(flow, GATEWAY, Reader::Quick);
        let time = world.run_until(s(10), |world| read(world, flow) == first + 700_000);
        assert!(time.is_some_and(|time| time <= s(1)), "after {first}: {time:?}");
    }
}

/// World 180: when the tunnel of the first HELLO closed before its WELCOME, the gateway could not
/// JOIN, and refused the sessions of a restarted cloud for ever.
#[test]
fn closed_first_tunnel_still_provides_the_key_of_joins() {
    let now = Instant::now();
    let (mut gateway, mut cloud) = (gateway(now), cloud(now, 9));
    post(&mut gateway, now);
    for key in [1, 2] {
        connect(&mut gateway, &mut cloud, now, key, ["", "a", "b"][key]);
        let hello = sent_on(&mut gateway, now, key);
        cloud.receive(now, TunnelKey(key), &hello);
    }
    gateway.tunnel_down(now, TunnelKey(1));
    let welcome = sent_on(&mut cloud, now, 2);
    gateway.receive(now, TunnelKey(2), &welcome);
    connect(&mut gateway, &mut cloud, now, 3, "c");
    let join = sent_on(&mut gateway, now, 3);
    let mut joins = 0;
    frames(&join, |frame| joins += u32::from(matches!(frame, Frame::Join { .. })));
    assert_eq!(joins, 1);
    cloud.receive(now, TunnelKey(3), &join);
    let events: Vec<Event> = events(&mut cloud);
    let third = |event: &Event| matches!(event, Event::PathUp { tunnel: TunnelKey(3), .. });
    assert!(events.iter().any(third), "{events:?}");
}

/// World 1477: data after a HELLO was delivered by two clouds when the first one died before its
/// WELCOME arrived.
#[test]
fn flow_is_opened_by_one_cloud_only() {
    let now = Instant::now();
    let mut gateway = gateway(now);
    post(&mut gateway, now);
    let mut opened = 0;
    for process in 1..=2 {
        let mut cloud = cloud(now, process);
        let key = usize::from(process);
        connect(&mut gateway, &mut cloud, now, key, "a");
        for round in 0..3 {
            let bytes = sent_on(&mut gateway, now, key);
            cloud.receive(now, TunnelKey(key), &bytes);
            let events = events(&mut cloud).into_iter();
            opened += events.filter(|event| matches!(event, Event::Opened { .. })).count();
            let answer = sent_on(&mut cloud, now, key);
            // The first cloud dies before its first frame arrives.
            if process == 2 {
                gateway.receive(now, TunnelKey(key), &answer);
            }
            assert!(round > 0 || !answer.is_empty());
        }
        if process == 1 {
            gateway.tunnel_down(now, TunnelKey(key));
        }
    }
    assert_eq!(opened, 1);
}

/// World 105: a reset by the session itself was not reported.
#[test]
fn reset_after_a_protocol_violation_is_reported() {
    let now = Instant::now();
    let (mut gateway, mut cloud) = (gateway(now), cloud(now, 9));
    post(&mut gateway, now);
    connect(&mut gateway, &mut cloud, now, 1, "a");
    let hello = sent_on(&mut gateway, now, 1);
    cloud.receive(now, TunnelKey(1), &hello);
    let welcome = sent_on(&mut cloud, now, 1);
    gateway.receive(now, TunnelKey(1), &welcome);
    gateway.on_timeout(now + Duration::from_millis(5));
    sent_on(&mut gateway, now, 1);
    let mut bytes = Vec::new();
    let never_sent = polyrail_session::wire::Ack {
        flow: polyrail_model::FlowId(1),
        cumulative: 5_000,
        ..Default::default()
    };
    polyrail_session::wire::encode(&Frame::Ack(never_sent), &mut bytes);
    gateway.receive(now, TunnelKey(1), &bytes);
    let events: Vec<Event> = events(&mut gateway);
    let is_reset =
        |event: &Event| matches!(event, Event::Reset { reason: ResetReason::Protocol, .. });
    assert_eq!(events.iter().filter(|event| is_reset(event)).count(), 1, "{events:?}");
}

/// World 255: a passenger that left during a long dial left state behind.
#[test]
fn flow_reset_during_its_dial_leaves_no_state() {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    let flow = world.open_with(1, Dial::Stands(s(3)), true).unwrap();
    world.write(flow, GATEWAY, 100_000);
    world.run_for(ms(200));
    world.reset(flow, GATEWAY, ResetReason::PeerReset);
    world.run_for(s(40));
    assert_eq!(state(&world, flow, CLOUD), LegState::Reset(ResetReason::PeerReset));
    world.check_end();
}
