//! Isolation and fairness between users and flows.

use std::time::Duration;

use polyrail_emulator::link::Blackout;
use polyrail_sim::world::{CarrierSpec, FlowNo, Reader, World};

use crate::lab::{
    CLOUD, GATEWAY, at_least, begin_download, download, echo, line, lossy, median, ms, s,
    seeded_world, talk, world,
};

const MB: u64 = 1_000_000;

/// Opens unread downloads of several users and lets them fill their share of memory.
fn stall(world: &mut World, flows: u64, users: u64) {
    for number in 0..flows {
        let flow = begin_download(world, 100 + number % users, MB);
        world.set_reader(flow, GATEWAY, Reader::Stalled);
    }
    world.run_for(s(20));
}

fn rate_beside_stalled(carriers: &[CarrierSpec], flows: u64, users: u64) -> f64 {
    let alone = download(&mut world(carriers), 5 * MB, s(120));
    let mut world = world(carriers);
    stall(&mut world, flows, users);
    let beside = download(&mut world, 5 * MB, s(120));
    alone.as_secs_f64() / beside.as_secs_f64()
}

#[test]
fn two_hundred_stalled_readers_leave_another_flow_its_rate() {
    for (name, users) in [("one_user", 1), ("many_users", 200)] {
        // bbr's estimates after the burst differ by a tenth, so the mean counts.
        let share = |flows| rate_beside_stalled(&[line("a", 20.0, ms(40))], flows, users);
        let share = (180..=220).step_by(10).map(share).sum::<f64>() / 5.0;
        at_least(&format!("rate_beside_200_stalled_of_{name}"), share, 0.9);
    }
}

#[test]
fn two_hundred_stalled_readers_and_loss_leave_another_flow_its_rate() {
    let carriers = [lossy(line("a", 20.0, ms(40)), 0.05), lossy(line("b", 20.0, ms(40)), 0.05)];
    // Random loss makes each run differ, so the sum over five seeds counts.
    let times = |stalled: u64| -> Duration {
        let time = |seed| {
            let mut world = seeded_world(&carriers, seed);
            stall(&mut world, stalled, 200);
            // The transports' windows have adapted to loss in both cases.
            download(&mut world, 2 * MB, s(120));
            download(&mut world, 5 * MB, s(120))
        };
        (1..=5).map(time).sum()
    };
    let (alone, beside) = (times(0), times(200));
    at_least("rate_beside_200_stalled_and_loss", alone.as_secs_f64() / beside.as_secs_f64(), 0.9);
}

#[test]
fn memory_of_stalled_flows_is_bounded_per_user_and_in_total() {
    let floor = polyrail_session::limits::FLOOR + polyrail_session::limits::ACK_EVERY as u64;
    for (users, share) in [(1, 16), (100, 2)] {
        let mut world = world(&[line("a", 50.0, ms(20))]);
        stall(&mut world, 100, users);
        let held = world.status(GATEWAY).sessions[0].memory_received.0;
        let bound = (16 << 20) / share + 100 * floor;
        println!("{users} users hold {held} bytes, the bound is {bound}");
        assert!(held <= bound, "{users} users hold {held} bytes, the bound is {bound}");
        assert!(held >= bound / 2, "{users} users hold only {held} bytes");
    }
}

#[test]
fn users_share_a_carrier_equally_however_many_flows_they_have() {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    let one = begin_download(&mut world, 1, 50 * MB);
    let many: Vec<_> = (0..9).map(|_| begin_download(&mut world, 2, 50 * MB)).collect();
    world.run_for(s(10));
    let read = |flow| crate::lab::read(&world, flow);
    let share = read(one) as f64 / many.iter().map(|&flow| read(flow)).sum::<u64>() as f64;
    assert!((0.85..=1.15).contains(&share), "one flow got {share:.2} of nine of another user");
}

/// Bytes that each flow has read in this time.
fn read_within(world: &mut World, flows: &[FlowNo], time: Duration) -> Vec<u64> {
    let before: Vec<_> = flows.iter().map(|&flow| crate::lab::read(world, flow)).collect();
    world.run_for(time);
    let after = flows.iter().map(|&flow| crate::lab::read(world, flow));
    after.zip(before).map(|(after, before)| after - before).collect()
}

#[test]
fn flows_of_a_user_share_equally() {
    let mut world = world(&[line("a", 20.0, ms(40)), line("b", 10.0, ms(80))]);
    let flows: Vec<_> = (0..5).map(|_| begin_download(&mut world, 1, 50 * MB)).collect();
    world.run_for(s(2));
    let got = read_within(&mut world, &flows, s(10));
    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    assert!(*least as f64 >= 0.85 * *most as f64, "{got:?}");
}

#[test]
fn later_user_gets_half_within_a_second_and_no_more() {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    let old = begin_download(&mut world, 1, 100 * MB);
    world.run_for(s(5));
    let new = begin_download(&mut world, 2, 100 * MB);
    world.run_for(s(1));
    for second in 1..=4 {
        let got = read_within(&mut world, &[old, new], s(1));
        let share = got[1] as f64 / (got[0] + got[1]) as f64;
        assert!((0.42..=0.58).contains(&share), "{share:.2} in second {second}");
    }
}

#[test]
fn retransmissions_precede_new_data() {
    let mut world = world(&[line("a", 20.0, ms(40)), line("b", 20.0, ms(40))]);
    let flows: Vec<_> = (0..8).map(|i| begin_download(&mut world, 1 + i % 4, 100 * MB)).collect();
    world.run_for(s(3));
    world.blackout(0, Some(Blackout::Drop));
    let mut read: Vec<_> = flows.iter().map(|&flow| (crate::lab::read(&world, flow), 0)).collect();
    let mut longest = 0;
    for step in 1..=400 {
        world.run_for(ms(10));
        for (&flow, (known, moved)) in flows.iter().zip(&mut read) {
            let now = crate::lab::read(&world, flow);
            if now > *known {
                (*known, *moved) = (now, step);
            }
            longest = longest.max(step - *moved);
        }
    }
    // The path stalls after about 450 ms, and the backlog of the other path takes 70 ms. If
    // retransmissions came after new data, a flow would pause for seconds.
    println!("RESULT simulated_flow_pause_after_blackout {} ms", 10 * longest);
    assert!(longest <= 90, "a flow paused for {} ms", 10 * longest);
}

#[test]
fn retransmissions_of_an_interactive_flow_precede_a_download() {
    let mut world = world(&[line("a", 20.0, ms(20)), line("b", 20.0, ms(90))]);
    let flow = talk(&mut world, 1);
    begin_download(&mut world, 1, 100 * MB);
    world.run_for(s(2));
    let mut times = Vec::new();
    for _ in 0..8 {
        let wanted = crate::lab::read(&world, flow) + 100;
        world.write(flow, CLOUD, 100);
        world.run_for(ms(5));
        world.blackout(0, Some(Blackout::Drop));
        let there = |world: &World| crate::lab::read(world, flow) == wanted;
        times.push(world.run_until(s(10), there).unwrap());
        world.blackout(0, None);
        world.run_for(s(6));
    }
    let most = *times.iter().max().unwrap();
    println!("RESULT simulated_message_into_blackout {} ms", most.as_millis());
    assert!(most >= ms(250), "none was lost: {times:?}");
    // The path stalls after about 450 ms; then one way, after the queue of the other path.
    assert!(most <= ms(900), "{times:?}");
}

#[test]
fn memory_of_a_flow_is_bounded_while_all_paths_are_dark() {
    let mut world = world(&[line("a", 50.0, ms(40))]);
    begin_download(&mut world, 1, 100 * MB);
    world.run_for(s(5));
    world.blackout(0, Some(Blackout::Drop));
    world.run_for(s(5));
    let held = world.status(CLOUD).sessions[0].memory_sent.0;
    let window = (16 << 20) / polyrail_session::limits::WINDOW_SHARE;
    let bound = window + polyrail_session::limits::UNSENT_MAX;
    assert!(held <= bound, "{held} bytes, the bound is {bound}");
    assert!(held >= 256 * 1024, "only {held} bytes");
}

/// The median echo time of 100 bytes next to a download.
fn echo_beside(bulk_user: Option<u64>) -> Duration {
    let mut world = world(&[line("a", 20.0, ms(40))]);
    let flow = talk(&mut world, 1);
    if let Some(user) = bulk_user {
        begin_download(&mut world, user, 100 * MB);
        world.run_for(s(2));
    }
    let times = (0..30).map(|_| {
        world.run_for(ms(100));
        echo(&mut world, flow)
    });
    median(times.collect())
}

#[test]
fn an_interactive_flow_waits_little_behind_a_download() {
    let alone = echo_beside(None);
    assert!(alone <= ms(42), "{alone:?} alone");
    for (name, user) in [("same_user", 1), ("another_user", 2)] {
        let beside = echo_beside(Some(user));
        println!("RESULT simulated_echo_beside_{name} {} ms", beside.as_millis());
        // The link's own queue takes 42 ms when it is full, the tunnel's 13 ms.
        assert!(beside <= alone + ms(60), "{name}: {beside:?}, alone {alone:?}");
    }
}

#[test]
fn thousand_unread_downloads_of_one_user_leave_another_its_rate() {
    let share = rate_beside_stalled(&[line("a", 20.0, ms(40))], 1_000, 1);
    at_least("rate_beside_1000_unread_of_one_user", share, 0.9);
}
