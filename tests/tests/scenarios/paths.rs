//! Paths that are raced, restarted, withdrawn from and changed while flows run.

use std::time::Duration;

use polyrail_emulator::link::Blackout;
use polyrail_scheduler::{ChainSpec, chain_names};
use polyrail_session::{PathReport, PathStatus, Settings};
use polyrail_sim::world::{CarrierSpec, Habits, LegState, Side, World};

use crate::lab::{
    CLOUD, GATEWAY, begin_download, chain, download, echo, is_downloaded, line, make, median, ms,
    read, s, state, talk, world, world_with,
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

/// User bytes that came in more than once.
fn copies(world: &World, flow: usize) -> u64 {
    let received: u64 = paths(world, GATEWAY).iter().map(|path| path.received.0).sum();
    received - read(world, flow) - world.status(GATEWAY).sessions[0].memory_received.0
}

/// The share of a dark path's bytes in flight that it delivered again in vain.
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
    // The timeouts have doubled in the dark.
    world.run_for(s(12));
    let again = copies(&world, flow) - before;
    let back = paths(&world, CLOUD).into_iter().find(|path| path.carrier == "a").unwrap();
    assert!(!back.stalled && back.sent.0 > dark.sent.0 + MB, "it is not in use again: {back:?}");
    again as f64 / dark.outstanding.0 as f64
}

#[test]
fn data_delivered_by_another_path_is_not_retransmitted_after_a_blackout() {
    // What the engine does.
    let [quic, tls] = [false, true].map(|stream| resent(chain("min_rtt"), stream));
    println!("RESULT simulated_resent_after_5s_dark_quic {:.2} %", quic * 100.0);
    println!("RESULT simulated_resent_after_5s_dark_tls {:.2} %", tls * 100.0);
    assert!(quic < 0.05, "{quic:.3}");
    assert!(tls > 0.5, "the scenario shows nothing: {tls:.3}");
    // The default chain sends more than once of its own will.
    let [quic, tls] = [false, true].map(|stream| resent(Settings::default(), stream));
    println!("RESULT simulated_resent_after_5s_dark_default_quic {:.2} %", quic * 100.0);
    println!("RESULT simulated_resent_after_5s_dark_default_tls {:.2} %", tls * 100.0);
    assert!(quic < 1.5 && tls < 3.0, "{quic:.3}, {tls:.3}");
}

#[test]
fn attempts_in_the_dark_do_not_delay_an_interactive_flow() {
    for carrier in [quic, |carrier| carrier] {
        // The dark carrier is the faster one: its newest path would be preferred.
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
        // Messages are copied to paths that look sound; nothing else goes twice.
        let copies = world.status(GATEWAY).sessions[0].reinjected.0 - reinjected.0;
        assert!(copies <= 40 * 100, "{copies} bytes went again");
        world.blackout(1, None);
        world.run_for(s(1));
        let time = echo(&mut world, flow);
        assert!(time <= ms(22), "the faster one is not in use again: {time:?}");
    }
}

/// From the end of five dark seconds on the only carrier until the download goes on.
fn back_in(mut world: World, start: Duration) -> Duration {
    let flow = begin_download(&mut world, 1, 50 * MB);
    world.run_for(s(1) + start);
    world.blackout(0, Some(Blackout::Drop));
    world.run_for(s(5));
    let before = read(&world, flow);
    world.blackout(0, None);
    let time = world.run_until(s(20), |world| read(world, flow) > before).unwrap();
    world.run_until(s(60), |world| is_downloaded(world, flow)).unwrap();
    assert_eq!(paths(&world, GATEWAY).len(), 1, "old paths are let go");
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
    assert!(without > with, "a restart buys nothing");
}

#[test]
fn the_cloud_reports_a_stall_once_and_the_gateway_hears_it_over_the_other_path() {
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
fn a_gateway_that_only_receives_notices_a_dark_path_by_the_silence() {
    let mut world = world(&[quic(line("a", 20.0, ms(40)))]);
    let flow = begin_download(&mut world, 1, 50 * MB);
    world.run_for(s(2));
    // Acknowledgements alone are not judged.
    world.blackout(0, Some(Blackout::Drop));
    let stalled = |world: &World| paths(world, GATEWAY)[0].stalled;
    let time = world.run_until(s(5), stalled).unwrap();
    println!("RESULT simulated_silence_noticed_after {} ms", time.as_millis());
    assert!(time <= ms(600), "{time:?}");
    world.blackout(0, None);
    world.run_until(s(60), |world| is_downloaded(world, flow)).unwrap();
}

#[test]
fn a_silence_costs_one_ping() {
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
fn a_planned_restart_of_a_healthy_path_sends_nothing_twice() {
    for carrier in [quic, |carrier| carrier] {
        let habits = Habits { early: 1.0, ..Habits::default() };
        let lines = [carrier(line("a", 20.0, ms(60)))];
        let mut world = make(&lines, Settings::default(), habits);
        let flow = begin_download(&mut world, 1, 20 * MB);
        world.run_for(s(1));
        for _ in 0..5 {
            world.race(0);
            world.run_for(s(1));
            assert_eq!(paths(&world, GATEWAY).len(), 1, "the old path is let go");
        }
        let resets = world.status(CLOUD).sessions[0].reinjected.0;
        assert!(resets <= 30_000, "{resets} bytes went again");
        world.run_until(s(20), |world| is_downloaded(world, flow)).unwrap();
    }
}

#[test]
fn an_attempt_that_never_proves_itself_changes_nothing() {
    let habits = Habits { early: 1.0, ..Habits::default() };
    let mut world = make(&[quic(line("a", 20.0, ms(40)))], Settings::default(), habits);
    let flow = talk(&mut world, 1);
    for _ in 0..5 {
        world.race(0);
        world.run_for(Duration::ZERO);
        // Nothing of the new connection arrives anywhere.
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
fn attempts_that_a_dark_carrier_held_back_may_come_all_at_once() {
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
fn a_cloud_that_restarts_under_early_data_costs_its_flows_and_nothing_else() {
    let lines = [quic(line("a", 20.0, ms(60))), quic(line("b", 20.0, ms(60)))];
    let mut world = brisk(&lines);
    let flow = talk(&mut world, 1);
    world.write(flow, GATEWAY, 200_000);
    (0..2).for_each(|carrier| world.race_attempts(carrier, 3));
    world.run_for(ms(20));
    world.restart(CLOUD);
    let lost = |world: &World| matches!(state(world, flow, GATEWAY), LegState::Reset(_));
    world.run_until(s(5), lost).unwrap();
    download(&mut world, MB, s(5));
}

#[test]
fn chains_change_fifty_times_under_load() {
    let lines = [line("a", 10.0, ms(40)), quic(line("b", 10.0, ms(60)))];
    let mut world = world(&lines);
    let flow = begin_download(&mut world, 1, 10 * MB);
    let up = world.open(2).unwrap();
    world.write(up, GATEWAY, 5 * MB);
    let names: Vec<&str> = chain_names().collect();
    for name in names.iter().cycle().take(50) {
        world.run_for(ms(50));
        world.set_chain(&ChainSpec::named(name).unwrap());
    }
    world.set_chain(&ChainSpec::default());
    world.run_until(s(20), |world| is_downloaded(world, flow)).unwrap();
    world.run_until(s(20), |world| world.flow(up).legs[1].read == 5 * MB).unwrap();
}

#[test]
fn carriers_change_their_mode_under_load_and_lose_nothing() {
    let mut world = world(&[line("a", 10.0, ms(40)), quic(line("b", 10.0, ms(60)))]);
    let flow = begin_download(&mut world, 1, 20 * MB);
    for turn in 0..10 {
        world.run_for(ms(500));
        world.switch_mode(turn % 2);
    }
    let rest = world.run_until(s(30), |world| is_downloaded(world, flow)).unwrap();
    // Alone, without changes, it takes 8.2 s.
    assert!(s(5) + rest <= ms(10_500), "{rest:?}");
    world.run_for(s(1));
    assert_eq!(paths(&world, CLOUD).len(), 2);
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
    assert!(paths(&world, CLOUD).iter().any(|path| path.backup));
    world.set_backup(1, false);
    world.run_for(s(2));
    assert!(sent(&world, CLOUD) > before + MB);
}

/// The longest time without a byte read, from the begin of a race of three attempts on the only
/// carrier, all of which the cloud hears before the first is answered. The gateway keeps the oldest
/// and closes the others; the cloud has moved to the newest by then.
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
fn a_race_that_an_older_attempt_wins_costs_a_round_trip() {
    for rtt in [ms(250), ms(400), ms(600)] {
        let [message, download] = [false, true].map(|all| longest_pause_of_a_race(rtt, all));
        println!("RESULT simulated_race_pause_at_{}_ms {message:?} {download:?}", rtt.as_millis());
        // A message takes half a round trip without a race.
        assert!(message <= rtt + ms(20), "{rtt:?}: {message:?}");
        assert!(download <= rtt * 2 + ms(20), "{rtt:?}: {download:?}");
    }
}
