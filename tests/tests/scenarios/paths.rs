//! Races, restarts, withdrawals and changes of paths while flows run.

use std::time::Duration;

use polyrail_emulator::link::Blackout;
use polyrail_session::{PathReport, PathStatus, Settings};
use polyrail_sim::world::{CarrierSpec, Habits, Side, World};

use crate::lab::{
    CLOUD, GATEWAY, begin_download, chain, download, echo, is_downloaded, line, make, median, ms,
    read, s, talk, world, world_with,
};

const MB: u64 = 1_000_000;

/// The same carrier with tunnels like QUIC's.
fn quic(carrier: CarrierSpec) -> CarrierSpec {
    CarrierSpec { stream: false, ..carrier }
}

/// Gateways that restart stalled paths, with early data.
fn brisk(carriers: &[CarrierSpec]) -> World {
    let habits = Habits { early: 1.0, restarts: true, ..Habits::default() };
    make(carriers, Settings::default(), habits)
}

fn paths(world: &World, side: Side) -> Vec<PathStatus> {
    world.status(side).sessions[0].paths.clone()
}

/// User bytes received more than once.
fn copies(world: &World, flow: usize) -> u64 {
    let received: u64 = paths(world, GATEWAY).iter().map(|path| path.received.0).sum();
    received - read(world, flow) - world.status(GATEWAY).sessions[0].memory_received.0
}

/// Useless retransmissions of a dark path, as a share of its bytes in flight.
fn resent(settings: Settings, stream: bool) -> f64 {
    let carrier = |name| CarrierSpec { stream, ..line(name, 20.0, ms(40)) };
    let mut world = world_with(&[carrier("a"), carrier("b")], settings);
    let flow = begin_download(&mut world, 1, 60 * MB);
    world.run_for(s(3));
    let dark = paths(&world, CLOUD).into_iter().find(|path| path.carrier == "a").unwrap();
    world.blackout(0, Some(Blackout::Drop));
    world.run_for(s(5));
    let before = copies(&world, flow);
    world.blackout(0, None);
    // The timeouts have doubled in the blackout.
    world.run_for(s(12));
    let again = copies(&world, flow) - before;
    let back = paths(&world, CLOUD).into_iter().find(|path| path.carrier == "a").unwrap();
    assert!(!back.stalled && back.sent.0 > dark.sent.0 + MB, "the path is unused: {back:?}");
    again as f64 / dark.outstanding.0 as f64
}

#[test]
fn data_delivered_by_another_path_is_not_retransmitted_after_a_blackout() {
    // The chain of the paper's engine.
    let [quic, tls] = [false, true].map(|stream| resent(chain("min_rtt"), stream));
    println!("RESULT simulated_resent_after_5s_dark_quic {:.2} %", quic * 100.0);
    println!("RESULT simulated_resent_after_5s_dark_tls {:.2} %", tls * 100.0);
    assert!(quic < 0.05, "{quic:.3}");
    assert!(tls > 0.5, "the scenario shows nothing: {tls:.3}");
    // The default chain also sends redundant copies.
    let [quic, tls] = [false, true].map(|stream| resent(Settings::default(), stream));
    println!("RESULT simulated_resent_after_5s_dark_default_quic {:.2} %", quic * 100.0);
    println!("RESULT simulated_resent_after_5s_dark_default_tls {:.2} %", tls * 100.0);
    assert!(quic < 1.5 && tls < 3.0, "{quic:.3}, {tls:.3}");
}

#[test]
fn attempts_during_a_blackout_do_not_delay_an_interactive_flow() {
    for carrier in [quic, |carrier| carrier] {
        // The dark carrier is the faster one, so its newest path would be preferred.
        let lines = [carrier(line("a", 20.0, ms(40))), carrier(line("b", 20.0, ms(20)))];
        let mut world = brisk(&lines);
        let flow = talk(&mut world, 1);
        world.blackout(1, Some(Blackout::Drop));
        echo(&mut world, flow);
        world.run_for(s(1));
        world.race_attempts(1, 100);
        let reinjected = world.status(GATEWAY).sessions[0].reinjected;
        for _ in 0..40 {
            world.run_for(ms(90));
            let time = echo(&mut world, flow);
            assert!(time <= ms(42), "{time:?}");
        }
        assert!(world.coverage().attempts > 25);
        // Only messages are duplicated, over paths that work.
        let copies = world.status(GATEWAY).sessions[0].reinjected.0 - reinjected.0;
        assert!(copies <= 40 * 100, "{copies} duplicate bytes");
        world.blackout(1, None);
        world.run_for(s(1));
        let time = echo(&mut world, flow);
        assert!(time <= ms(22), "the faster path is not in use again: {time:?}");
    }
}

/// The time from the end of a blackout of 5 s on the only carrier until the download continues.
fn back_in(mut world: World, start: Duration) -> Duration {
    let flow = begin_download(&mut world, 1, 50 * MB);
    world.run_for(s(1) + start);
    world.blackout(0, Some(Blackout::Drop));
    world.run_for(s(5));
    let before = read(&world, flow);
    world.blackout(0, None);
    let time = world.run_until(s(20), |world| read(world, flow) > before).unwrap();
    world.run_until(s(60), |world| is_downloaded(world, flow)).unwrap();
    assert_eq!(paths(&world, GATEWAY).len(), 1, "old paths are closed");
    time
}

#[test]
fn a_restart_brings_the_only_path_back_within_two_round_trips_and_200_ms() {
    let starts = || (0..10).map(|i| ms(37 * i));
    let line = || quic(line("a", 20.0, ms(60)));
    let with = median(starts().map(|start| back_in(brisk(&[line()]), start)).collect());
    let without = median(starts().map(|start| back_in(world(&[line()]), start)).collect());
    println!("RESULT simulated_back_after_5s_dark_with_restart {} ms", with.as_millis());
    println!("RESULT simulated_back_after_5s_dark_without {} ms", without.as_millis());
    assert!(with <= ms(120 + 200), "{with:?}");
    assert!(without > with, "a restart has no benefit");
}

#[test]
fn cloud_reports_a_stall_once_over_the_other_path() {
    for settings in [chain("min_rtt"), Settings::default()] {
        reports_stalls(settings);
    }
}

fn reports_stalls(settings: Settings) {
    let name = settings.chain.names()[0].clone();
    let lines = [quic(line("a", 20.0, ms(40))), quic(line("b", 20.0, ms(40)))];
    let mut world = world_with(&lines, settings);
    begin_download(&mut world, 1, 100 * MB);
    world.run_for(s(2));
    world.blackout(1, Some(Blackout::Drop));
    let dark = world.now();
    world.run_for(s(5));
    let reports = world.reports(GATEWAY);
    assert_eq!(reports.len(), 1, "{name}: {reports:?}");
    let (at, report) = reports[0];
    assert_eq!(report, PathReport::Stalled);
    let time = (at - dark).as_millis();
    println!("RESULT simulated_stall_reported_after_with_{name} {time} ms");
    assert!(at - dark <= ms(800), "{name}: {:?}", at - dark);
    world.blackout(1, None);
    world.run_for(s(12));
    world.blackout(1, Some(Blackout::Hold));
    world.run_for(s(2));
    let times: Vec<_> = world.reports(GATEWAY).iter().map(|(at, _)| *at - dark).collect();
    assert_eq!(times.len(), 2, "{name}: {times:?}");
    assert_eq!(world.reports(CLOUD), []);
}

#[test]
fn gateway_that_only_receives_detects_a_dark_path() {
    let mut world = world(&[quic(line("a", 20.0, ms(40)))]);
    let flow = begin_download(&mut world, 1, 50 * MB);
    world.run_for(s(2));
    // Acknowledgements alone cause no stall.
    world.blackout(0, Some(Blackout::Drop));
    let stalled = |world: &World| paths(world, GATEWAY)[0].stalled;
    let time = world.run_until(s(5), stalled).unwrap();
    println!("RESULT simulated_stall_of_receiver_detected_after {} ms", time.as_millis());
    assert!(time <= ms(600), "{time:?}");
    world.blackout(0, None);
    world.run_until(s(60), |world| is_downloaded(world, flow)).unwrap();
}

#[test]
fn pause_of_the_sender_costs_one_ping() {
    let mut world = world(&[quic(line("a", 20.0, ms(40)))]);
    talk(&mut world, 1);
    download(&mut world, MB, s(3));
    world.run_for(s(30));
    world.tap(GATEWAY).on = true;
    let flow = talk(&mut world, 1);
    world.run_for(s(30));
    let quiet = world.tap(GATEWAY).pings;
    world.write(flow, CLOUD, 20_000);
    world.run_for(ms(400));
    assert_eq!(world.tap(GATEWAY).pings - quiet, 1);
}

#[test]
fn planned_restart_of_a_healthy_path_causes_no_duplicates() {
    for carrier in [quic, |carrier| carrier] {
        let habits = Habits { early: 1.0, ..Habits::default() };
        let lines = [carrier(line("a", 20.0, ms(60)))];
        let mut world = make(&lines, Settings::default(), habits);
        let flow = begin_download(&mut world, 1, 20 * MB);
        world.run_for(s(1));
        for _ in 0..5 {
            world.race(0);
            world.run_for(s(1));
            assert_eq!(paths(&world, GATEWAY).len(), 1, "the old path is closed");
        }
        let resets = world.status(CLOUD).sessions[0].reinjected.0;
        assert!(resets <= 30_000, "{resets} duplicate bytes");
        world.run_until(s(20), |world| is_downloaded(world, flow)).unwrap();
    }
}

#[test]
fn attempt_that_never_connects_changes_nothing() {
    let habits = Habits { early: 1.0, ..Habits::default() };
    let mut world = make(&[quic(line("a", 20.0, ms(40)))], Settings::default(), habits);
    let flow = talk(&mut world, 1);
    for _ in 0..5 {
        world.race(0);
        world.run_for(Duration::ZERO);
        // No packet of the new connection arrives.
        world.break_connection(0, [s(3), s(3)]);
        for _ in 0..10 {
            world.run_for(ms(100));
            let time = echo(&mut world, flow);
            assert!(time <= ms(42), "{time:?}");
        }
    }
    assert_eq!(world.status(GATEWAY).sessions[0].reinjected.0, 0);
}

#[test]
fn attempts_held_by_a_dark_carrier_may_arrive_at_once() {
    let mut world = brisk(&[quic(line("a", 20.0, ms(60)))]);
    let flow = begin_download(&mut world, 1, 20 * MB);
    world.run_for(s(1));
    world.blackout(0, Some(Blackout::Hold));
    world.race_attempts(0, 200);
    world.run_for(s(10));
    let before = read(&world, flow);
    world.blackout(0, None);
    let time = world.run_until(s(10), |world| read(world, flow) > before).unwrap();
    println!("RESULT simulated_back_after_10s_held_and_attempts {} ms", time.as_millis());
    assert!(time <= ms(400), "{time:?}");
    world.run_until(s(30), |world| is_downloaded(world, flow)).unwrap();
}

#[test]
fn a_carrier_becomes_a_backup_and_back_while_it_runs() {
    let mut world = world(&[line("a", 10.0, ms(40)), quic(line("b", 10.0, ms(40)))]);
    let sent = |world: &World, side: Side| {
        paths(world, side).iter().find(|path| path.carrier == "b").unwrap().sent.0
    };
    begin_download(&mut world, 1, 50 * MB);
    world.run_for(s(2));
    world.set_backup(1, true);
    world.run_for(ms(100));
    let before = sent(&world, CLOUD);
    world.run_for(s(2));
    assert_eq!(sent(&world, CLOUD), before);
    assert!(paths(&world, CLOUD).iter().any(|path| path.wish.is_backup()));
    world.set_backup(1, false);
    world.run_for(s(2));
    assert!(sent(&world, CLOUD) > before + MB);
}

/// The longest pause of the reader after a race of three attempts begins on the only carrier. The
/// cloud receives all three before its first answer arrives. The gateway keeps the oldest and
/// closes the others, but the cloud has moved to the newest by then.
fn longest_pause_of_a_race(rtt: Duration, download: bool) -> Duration {
    let habits = Habits { early: 1.0, ..Habits::default() };
    let mut world = make(&[quic(line("a", 20.0, rtt))], Settings::default(), habits);
    let flow = talk(&mut world, 1);
    if download {
        world.write(flow, CLOUD, 60 * MB);
        world.run_for(s(3));
    }
    world.race_attempts(0, 3);
    let (begun, mut longest) = (world.now(), Duration::ZERO);
    while world.now() - begun < s(3) {
        if !download {
            world.write(flow, CLOUD, 100);
        }
        let before = read(&world, flow);
        let pause = world.run_until(s(10), |world| read(world, flow) > before).unwrap();
        longest = longest.max(pause);
    }
    assert!(world.coverage().attempts >= 3, "{} attempts", world.coverage().attempts);
    assert_eq!(paths(&world, CLOUD).len(), 1, "{:?}", paths(&world, CLOUD));
    longest
}

#[test]
fn race_won_by_an_older_attempt_costs_a_round_trip() {
    for rtt in [ms(250), ms(400), ms(600)] {
        let [message, download] = [false, true].map(|all| longest_pause_of_a_race(rtt, all));
        println!("RESULT simulated_race_pause_at_{}_ms {message:?} {download:?}", rtt.as_millis());
        // A message takes half a round trip without a race.
        assert!(message <= rtt + ms(20), "{rtt:?}: {message:?}");
        assert!(download <= rtt * 2 + ms(20), "{rtt:?}: {download:?}");
    }
}
