//! Blackouts of one or all carriers, with and without recovery.

use polyrail_emulator::link::Blackout;
use polyrail_session::{ResetReason, Settings};
use polyrail_sim::world::LegState;

use crate::lab::{
    CLOUD, GATEWAY, begin_download, is_downloaded, line, ms, read, s, state, talk, world,
    world_with,
};

const MB: u64 = 1_000_000;

#[test]
fn a_path_dark_for_five_seconds_delays_a_download_a_little() {
    for mode in [Blackout::Hold, Blackout::Drop] {
        for start in [0, 300, 700, 1_500, 3_000] {
            let mut world = world(&[line("a", 20.0, ms(40)), line("b", 20.0, ms(40))]);
            let flow = begin_download(&mut world, 1, 20 * MB);
            world.run_for(ms(start));
            world.blackout(0, Some(mode));
            world.run_for(s(5));
            world.blackout(0, None);
            // One path alone needs 8.2 s; no data may wait for the dark one.
            let rest = world.run_until(s(8), |world| is_downloaded(world, flow));
            let rest = rest.unwrap_or_else(|| panic!("{mode:?} at {start} ms"));
            assert!(ms(start) + s(5) + rest <= ms(9_500), "{mode:?} at {start} ms: {rest:?}");
        }
    }
}

#[test]
fn flows_continue_after_thirty_dark_seconds_on_all_paths() {
    for mode in [Blackout::Hold, Blackout::Drop] {
        let mut world = world(&[line("a", 20.0, ms(40)), line("b", 10.0, ms(60))]);
        let flow = begin_download(&mut world, 1, 10 * MB);
        let idle = talk(&mut world, 2);
        (0..2).for_each(|carrier| world.blackout(carrier, Some(mode)));
        world.run_for(s(30));
        let before = read(&world, flow);
        (0..2).for_each(|carrier| world.blackout(carrier, None));
        let first = world.run_until(s(10), |world| read(world, flow) > before).unwrap();
        println!("RESULT simulated_first_byte_after_30s_dark {} ms", first.as_millis());
        world.run_until(s(10), |world| is_downloaded(world, flow)).unwrap();
        world.write(idle, GATEWAY, 10);
        world.run_until(s(5), |world| world.flow(idle).legs[1].read == 11).unwrap();
    }
}

#[test]
fn flows_are_reset_on_both_sides_after_the_linger() {
    let settings = Settings { linger: s(12), ..Settings::default() };
    let mut world = world_with(&[line("a", 20.0, ms(40))], settings);
    let flow = talk(&mut world, 1);
    world.enable(0, false);
    world.run_for(s(11));
    assert_eq!(state(&world, flow, GATEWAY), LegState::Open);
    world.run_for(s(2));
    assert_eq!(state(&world, flow, GATEWAY), LegState::Reset(ResetReason::SessionLost));
    // The cloud detects the dead tunnel with a PING; then the session lingers.
    let reset = LegState::Reset(ResetReason::SessionLost);
    world.run_until(s(50), |world| state(world, flow, CLOUD) == reset).unwrap();
    assert!(world.status(CLOUD).sessions.is_empty());
    // New flows work.
    world.enable(0, true);
    world.run_for(s(3));
    talk(&mut world, 1);
}

#[test]
fn within_the_linger_a_flow_outlives_all_its_paths() {
    let settings = Settings { linger: s(60), ..Settings::default() };
    let mut world = world_with(&[line("a", 20.0, ms(40)), line("b", 5.0, ms(40))], settings);
    let flow = begin_download(&mut world, 1, 10 * MB);
    world.run_for(s(1));
    (0..2).for_each(|carrier| world.enable(carrier, false));
    world.run_for(s(50));
    world.enable(1, true);
    world.run_until(s(20), |world| is_downloaded(world, flow)).unwrap();
}

#[test]
fn an_address_change_costs_no_flow() {
    for overlap in [false, true] {
        let mut world = world(&[line("a", 20.0, ms(40))]);
        let flow = begin_download(&mut world, 1, 10 * MB);
        world.run_for(s(1));
        world.change_address(0, ms(300), overlap);
        let rest = world.run_until(s(10), |world| is_downloaded(world, flow)).unwrap();
        assert!(rest <= s(6), "overlap {overlap}: {rest:?}");
    }
}
