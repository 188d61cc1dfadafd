//! Faults that random worlds have found, made small. Each names the world that showed it first.

use std::time::{Duration, Instant};

use polyrail_model::{
    Bytes, Destination, HostName, Identity, InstanceId, TunnelMode, Unit, UserId,
};
use polyrail_session::wire::{Decoder, Frame};
use polyrail_session::{Endpoint, Event, Outlet, ResetReason, Settings, TunnelInfo, TunnelKey};
use polyrail_sim::world::{Dial, Habits, LegState, Reader, World};

use crate::lab::{
    CLOUD, GATEWAY, begin_download, is_downloaded, line, ms, read, s, state, talk, world,
    world_with,
};

/// World 4: a deadline for a judgement that was switched off stayed in the past.
#[test]
fn a_path_that_is_not_judged_rests() {
    let settings = Settings { stall: false, ..Settings::default() };
    let mut world = world_with(&[line("a", 20.0, ms(40))], settings);
    let flow = talk(&mut world, 1);
    world.blackout(0, Some(polyrail_emulator::link::Blackout::Hold));
    world.write(flow, GATEWAY, 10_000);
    // The world counts wake-ups, and ends when there are too many.
    world.run_for(s(8));
    world.blackout(0, None);
    world.run_until(s(10), |w| w.flow(flow).legs[1].read == 10_001).unwrap();
}

/// World 36: a cloud with a lower bound of flows broke the path off, again and again.
#[test]
fn a_cloud_with_fewer_places_refuses_flows_and_keeps_the_path() {
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

/// World 94: a late answer to a RESET took away what the reader had not read yet.
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

/// World 5665: a tunnel that died without a word, with a PING under way, was never noticed.
#[test]
fn an_unanswered_ping_is_sent_anew() {
    let (start, mut gateway, mut cloud) = (Instant::now(), gateway(Instant::now()), None);
    let cloud = cloud.insert(Endpoint::cloud(start, Settings::default(), [9; 32]));
    up(&mut gateway, start, 1, "a", "cloud");
    up(cloud, start, 1, "", "train-7");
    cloud.receive(start, TunnelKey(1), &sent(&mut gateway, start, 1));
    gateway.receive(start, TunnelKey(1), &sent(cloud, start, 1));
    // Nothing comes back from here on.
    let mut pings = Vec::new();
    while let Some(now) = gateway.next_timeout().filter(|at| *at < start + s(70)) {
        gateway.on_timeout(now);
        frames(&sent(&mut gateway, now, 1), |frame| {
            if matches!(frame, Frame::Ping { .. }) {
                pings.push(now - start);
            }
        });
    }
    assert!(pings.len() >= 3, "PINGs at {pings:?}");
}

/// World 11068: when the tunnel that had superseded another one died young, neither was used.
#[test]
fn a_path_goes_on_when_its_successor_dies_young() {
    let mut world = world(&[line("a", 20.0, ms(200))]);
    let flow = talk(&mut world, 1);
    world.race(0);
    world.run_until(s(2), |world| world.is_up(0)).unwrap();
    world.run_for(ms(150));
    // Both sides have it as a path, and no round trip is complete.
    world.break_connection(0, [ms(1), ms(1)]);
    world.run_for(ms(5));
    world.enable(0, false);
    assert_eq!(world.status(GATEWAY).sessions[0].paths.len(), 1);
    world.write(flow, GATEWAY, 1_000);
    world.run_until(s(2), |w| w.flow(flow).legs[1].read == 1_001).unwrap();
}

/// World 6330: windows that were withheld, because the user's readers had stopped, stayed so.
#[test]
fn windows_grow_again_when_a_users_readers_go_on() {
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

/// World 120248: what a reader drained was not told when the window did not grow by it, and the
/// sender held the flow for stalled for ever.
#[test]
fn a_sender_hears_that_a_stalled_reader_has_gone_on() {
    let settings = Settings { memory: Bytes::from_mib(1), ..Settings::default() };
    for first in [300_000, 600_000, 1_000_000, 2_000_000] {
        let mut world = world_with(&[line("a", 20.0, ms(40))], settings.clone());
        let flow = talk(&mut world, 1);
        // The window grows; then the reader stops, and the sender leaves it an eighth of the
        // memory, which is half of its window.
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

/// The same for a reader that takes what little the sender leaves a stalled flow.
#[test]
fn a_stalled_flow_at_its_floor_goes_on_when_it_is_read() {
    let settings = Settings { memory: Bytes::from_mib(1), ..Settings::default() };
    let mut world = world_with(&[line("a", 20.0, ms(40))], settings);
    // Two flows hold what their user may; the third has its floor.
    let flows: Vec<_> = (0..3).map(|_| begin_download(&mut world, 1, 200_000)).collect();
    for &flow in &flows {
        world.set_reader(flow, GATEWAY, Reader::Stalled);
    }
    world.run_for(s(5));
    world.set_reader(flows[2], GATEWAY, Reader::Quick);
    let time = world.run_until(s(10), |world| is_downloaded(world, flows[2]));
    assert!(time.is_some_and(|time| time <= s(1)), "{time:?}");
}

#[derive(Default)]
struct Wire(Vec<(TunnelKey, Vec<u8>)>);

impl Outlet for Wire {
    fn send(&mut self, tunnel: TunnelKey, _unit: Unit, frames: &[u8]) -> usize {
        self.0.push((tunnel, frames.to_vec()));
        16_384
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

fn up(endpoint: &mut Endpoint, now: Instant, key: usize, carrier: &str, peer: &str) {
    let peer = Identity::new(peer).unwrap();
    let (exporter, mode) = (Some([key as u8; 32]), TunnelMode::Tls);
    let info = TunnelInfo { carrier: carrier.to_owned(), peer, exporter, backup: false, mode };
    endpoint.tunnel_up(now, TunnelKey(key), info);
    endpoint.tunnel_room(TunnelKey(key), 16_384);
}

fn sent(endpoint: &mut Endpoint, now: Instant, key: usize) -> Vec<u8> {
    let mut wire = Wire::default();
    endpoint.transmit(now, &mut wire);
    let of_tunnel = wire.0.into_iter().filter(|(tunnel, _)| tunnel.0 == key);
    of_tunnel.flat_map(|(_, frames)| frames).collect()
}

fn frames(bytes: &[u8], mut look: impl FnMut(&Frame<'_>)) {
    Decoder::default().feed(bytes, |frame| look(&frame)).unwrap();
}

fn gateway(now: Instant) -> Endpoint {
    let mut gateway = Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]));
    let name = HostName::new("a.example").unwrap();
    let flow = gateway.open(now, UserId(1), Destination::Name(name, 80)).unwrap();
    gateway.write(now, flow, b"POST");
    gateway
}

/// World 180: when the tunnel of the founding HELLO was gone before its WELCOME, the gateway could
/// not JOIN, and refused the sessions of a restarted cloud for ever.
#[test]
fn a_founder_that_is_gone_still_keys_joins() {
    let now = Instant::now();
    let mut gateway = gateway(now);
    let mut cloud = Endpoint::cloud(now, Settings::default(), [9; 32]);
    for key in [1, 2] {
        up(&mut gateway, now, key, ["", "a", "b"][key], "cloud");
        up(&mut cloud, now, key, "", "train-7");
        let hello = sent(&mut gateway, now, key);
        cloud.receive(now, TunnelKey(key), &hello);
    }
    gateway.tunnel_down(now, TunnelKey(1));
    let welcome = sent(&mut cloud, now, 2);
    gateway.receive(now, TunnelKey(2), &welcome);
    up(&mut gateway, now, 3, "c", "cloud");
    up(&mut cloud, now, 3, "", "train-7");
    let join = sent(&mut gateway, now, 3);
    let mut joins = 0;
    frames(&join, |frame| joins += u32::from(matches!(frame, Frame::Join { .. })));
    assert_eq!(joins, 1);
    cloud.receive(now, TunnelKey(3), &join);
    let events: Vec<Event> = std::iter::from_fn(|| cloud.poll_event()).collect();
    let third = |event: &Event| matches!(event, Event::PathUp { tunnel: TunnelKey(3), .. });
    assert!(events.iter().any(third), "{events:?}");
}

/// World 1477: data behind a HELLO was delivered by two clouds when the first one died before its
/// WELCOME arrived.
#[test]
fn a_flow_is_opened_by_one_cloud_alone() {
    let now = Instant::now();
    let mut gateway = gateway(now);
    let mut opened = 0;
    for process in 1..=2 {
        let mut cloud = Endpoint::cloud(now, Settings::default(), [process; 32]);
        let key = usize::from(process);
        up(&mut gateway, now, key, "a", "cloud");
        up(&mut cloud, now, key, "", "train-7");
        for round in 0..3 {
            let bytes = sent(&mut gateway, now, key);
            cloud.receive(now, TunnelKey(key), &bytes);
            let events = std::iter::from_fn(|| cloud.poll_event());
            opened += events.filter(|event| matches!(event, Event::Opened { .. })).count();
            let answer = sent(&mut cloud, now, key);
            // The first cloud dies before anything of it arrives.
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

/// World 105: a reset that the session itself makes was not told.
#[test]
fn a_flow_on_which_the_peer_breaks_the_protocol_is_told() {
    let now = Instant::now();
    let mut gateway = gateway(now);
    let mut cloud = Endpoint::cloud(now, Settings::default(), [9; 32]);
    up(&mut gateway, now, 1, "a", "cloud");
    up(&mut cloud, now, 1, "", "train-7");
    let hello = sent(&mut gateway, now, 1);
    cloud.receive(now, TunnelKey(1), &hello);
    let welcome = sent(&mut cloud, now, 1);
    gateway.receive(now, TunnelKey(1), &welcome);
    gateway.on_timeout(now + Duration::from_millis(5));
    sent(&mut gateway, now, 1);
    let mut bytes = Vec::new();
    let never_sent = polyrail_session::wire::Ack {
        flow: polyrail_model::FlowId(1),
        cumulative: 5_000,
        ..Default::default()
    };
    polyrail_session::wire::encode(&Frame::Ack(never_sent), &mut bytes);
    gateway.receive(now, TunnelKey(1), &bytes);
    let events: Vec<Event> = std::iter::from_fn(|| gateway.poll_event()).collect();
    let told = |event: &Event| matches!(event, Event::Reset { reason: ResetReason::Protocol, .. });
    assert_eq!(events.iter().filter(|event| told(event)).count(), 1, "{events:?}");
}

/// World 255: the server's dial takes long, the passenger leaves; nothing stays behind.
#[test]
fn a_flow_that_is_reset_while_its_dial_is_under_way_leaves_nothing() {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    let flow = world.open_with(1, Dial::Stands(s(3)), true).unwrap();
    world.write(flow, GATEWAY, 100_000);
    world.run_for(ms(200));
    world.reset(flow, GATEWAY, ResetReason::PeerReset);
    world.run_for(s(40));
    assert_eq!(state(&world, flow, CLOUD), LegState::Reset(ResetReason::PeerReset));
    world.check_end();
}
