//! Small scenarios with exact expectations.

use super::*;
use polyrail_model::Bitrate;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A packet is its number; 1000 bytes take 1 ms at this rate.
const MBIT8: Rate = Rate::Limited(Bitrate::from_bps(8_000_000));

fn spec(delay: Duration, queue: u64) -> LinkSpec {
    LinkSpec::steady(Bitrate::from_bps(8_000_000), delay, Bytes(queue))
}

/// Everything that comes out, with its due time in milliseconds since `epoch`.
fn drain(link: &mut LinkModel<u32>, epoch: Instant) -> Vec<(u128, u32)> {
    let mut out = Vec::new();
    while let Some(next) = link.next_departure() {
        let Some((due, packet)) = link.poll_due(next) else { continue };
        assert!(due <= next, "a packet before its time");
        out.push(((due - epoch).as_millis(), packet));
    }
    out
}

fn send(link: &mut LinkModel<u32>, at: Instant, packets: std::ops::Range<u32>) -> Vec<Verdict> {
    packets.map(|packet| link.enqueue(at, packet, 1000)).collect()
}

#[test]
fn a_packet_takes_its_time_on_the_link_and_the_delay() {
    let epoch = Instant::now();
    let mut link = LinkModel::new(spec(ms(40), 10_000), epoch, 1);
    send(&mut link, epoch, 0..3);
    assert_eq!(link.poll(epoch + ms(40)), None);
    assert_eq!(drain(&mut link, epoch), [(41, 0), (42, 1), (43, 2)]);
    send(&mut link, epoch + ms(100), 3..4);
    assert_eq!(drain(&mut link, epoch), [(141, 3)], "an idle link saves nothing up");
}

#[test]
fn the_queue_drops_at_its_tail() {
    let epoch = Instant::now();
    let mut link = LinkModel::new(spec(ms(0), 2500), epoch, 1);
    let verdicts = send(&mut link, epoch, 0..5);
    use Verdict::{QueueFull, Queued};
    assert_eq!(verdicts, [Queued, Queued, Queued, QueueFull, QueueFull]);
    assert_eq!(link.queued(), Tally { packets: 3, bytes: 3000 });
    assert_eq!(link.enqueue(epoch, 9, 500), Queued, "a smaller one still fits");
    send(&mut link, epoch + ms(2), 10..11);
    assert_eq!(drain(&mut link, epoch).iter().map(|d| d.1).collect::<Vec<_>>(), [0, 1, 2, 9, 10]);
    assert_eq!(link.counters().queue_full, Tally { packets: 2, bytes: 2000 });
}

#[test]
fn a_rate_step_in_mid_packet_counts_from_its_instant() {
    let epoch = Instant::now();
    let slow = Rate::Limited(Bitrate::from_bps(1_000_000));
    let rate = Schedule::new(slow, [(ms(4), MBIT8)], None).unwrap();
    let mut link = LinkModel::new(LinkSpec { rate, ..spec(ms(0), 9000) }, epoch, 1);
    send(&mut link, epoch, 0..2);
    // 4 ms at 1 Mbit/s send 500 bytes; the rest takes 0.5 ms.
    let first = link.next_departure().unwrap();
    assert_eq!(first - epoch, Duration::from_micros(4500));
    assert_eq!(drain(&mut link, epoch), [(4, 0), (5, 1)]);
}

#[test]
fn a_stopped_server_starts_again_by_schedule_or_by_hand() {
    let epoch = Instant::now();
    let stop = Rate::Limited(Bitrate::from_bps(0));
    let rate = Schedule::new(stop, [(ms(10), MBIT8), (ms(12), stop)], Some(ms(20))).unwrap();
    let mut link = LinkModel::new(LinkSpec { rate, ..spec(ms(0), 9000) }, epoch, 1);
    send(&mut link, epoch, 0..3);
    assert_eq!(drain(&mut link, epoch), [(11, 0), (12, 1), (31, 2)]);
    link.set(epoch + ms(40), Setting::Rate(stop));
    send(&mut link, epoch + ms(40), 3..4);
    assert_eq!(link.next_departure(), None);
    link.set(epoch + ms(50), Setting::Rate(MBIT8));
    assert_eq!(drain(&mut link, epoch), [(51, 3)]);
}

#[test]
fn hold_keeps_and_drop_drops_what_waits_but_not_what_has_left() {
    for (mode, expected, lost) in [
        (Blackout::Hold, vec![(41, 0), (46, 1), (47, 2), (48, 3), (50, 4)], 0),
        (Blackout::Drop, vec![(41, 0), (50, 4)], 3),
    ] {
        let epoch = Instant::now();
        let window = BlackoutWindow { start: ms(1), length: ms(4), mode };
        let spec = spec(ms(40), 9000).with_blackouts(&[window]).unwrap();
        let mut link = LinkModel::new(spec, epoch, 1);
        send(&mut link, epoch, 0..3);
        send(&mut link, epoch + ms(2), 3..4);
        assert_eq!(link.blackout(), Some(mode));
        send(&mut link, epoch + ms(9), 4..5);
        assert_eq!(link.blackout(), None);
        assert_eq!(drain(&mut link, epoch), expected, "{mode:?}");
        assert_eq!(link.counters().blackout.packets, lost, "{mode:?}");
    }
}

#[test]
fn a_held_queue_is_still_bounded() {
    let epoch = Instant::now();
    let mut link = LinkModel::new(spec(ms(0), 2000), epoch, 1);
    link.set_blackout(epoch, Some(Blackout::Hold));
    assert_eq!(send(&mut link, epoch, 0..4)[3], Verdict::QueueFull);
    link.set_blackout(epoch + ms(100), None);
    assert_eq!(drain(&mut link, epoch), [(101, 0), (102, 1), (103, 2)]);
}

#[test]
fn packet_dropped_by_a_later_blackout_never_departs_and_is_counted() {
    let epoch = Instant::now();
    let window = BlackoutWindow { start: ms(1), length: ms(1), mode: Blackout::Drop };
    let spec = LinkSpec {
        rate: Schedule::constant(Rate::Limited(Bitrate::from_bps(800_000))),
        ..spec(ms(40), 9000).with_blackouts(&[window]).unwrap()
    };
    for looks in [vec![1, 2_000], vec![2_000]] {
        let mut link = LinkModel::new(spec.clone(), epoch, 1);
        send(&mut link, epoch, 0..1);
        assert_eq!(link.next_departure(), None);
        looks.into_iter().for_each(|at| assert_eq!(link.poll(epoch + ms(at)), None));
        assert_eq!(link.counters().blackout.packets, 1);
    }
}

#[test]
fn the_stronger_of_overlapping_blackouts_wins() {
    use Blackout::{Drop, Hold};
    let window =
        |start, length, mode| BlackoutWindow { start: ms(start), length: ms(length), mode };
    let windows = [
        window(5, 10, Hold),
        window(10, 2, Drop),
        window(15, 5, Hold),
        window(30, 0, Drop),
        window(0, 1, Drop),
    ];
    let spec = LinkSpec::default().with_blackouts(&windows).unwrap();
    let at = |t| spec.blackouts.at(ms(t)).value;
    let seen: Vec<_> = [0, 1, 5, 10, 12, 15, 19, 20, 30].map(at).to_vec();
    let (h, d) = (Some(Hold), Some(Drop));
    assert_eq!(seen, [d, None, h, d, h, h, h, None, None]);
}

#[test]
fn a_falling_delay_keeps_the_order() {
    let epoch = Instant::now();
    let delay = Schedule::new(ms(40), [(ms(2), ms(10))], None).unwrap();
    let mut link = LinkModel::new(LinkSpec { delay, ..spec(ms(0), 9000) }, epoch, 1);
    send(&mut link, epoch, 0..3);
    assert_eq!(drain(&mut link, epoch), [(41, 0), (41, 1), (41, 2)]);
    send(&mut link, epoch + ms(60), 3..4);
    assert_eq!(drain(&mut link, epoch), [(71, 3)]);
}

#[test]
fn packets_held_back_are_overtaken_and_copies_arrive() {
    let epoch = Instant::now();
    let always = Probability::ALWAYS;
    let reorder = Some(Reorder { share: Probability::new(0.2).unwrap(), delay: ms(5) });
    let mut link =
        LinkModel::new(LinkSpec { reorder, duplicate: always, ..spec(ms(10), 90_000) }, epoch, 7);
    send(&mut link, epoch, 0..50);
    let out = drain(&mut link, epoch);
    assert_eq!(out.len(), 100);
    assert!(out.windows(2).any(|pair| pair[1].1 < pair[0].1), "nothing was overtaken");
    assert!(out.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    assert_eq!(link.counters().duplicated.packets, 50);
}

#[test]
fn loss_has_the_asked_share_and_bursts_the_asked_length() {
    let p = |value| Probability::new(value).unwrap();
    let bursts = BurstLoss {
        enter: p(0.01),
        leave: p(0.25),
        loss: Probability::ALWAYS,
        loss_good: Probability::NEVER,
    };
    for (loss, burst_loss, share, run) in
        [(0.05, None, 0.05, 1.0 / 0.95), (0.0, Some(bursts), 0.01 / 0.26, 4.0)]
    {
        let epoch = Instant::now();
        let spec = LinkSpec { loss: p(loss), burst_loss, ..LinkSpec::default() };
        let mut link = LinkModel::new(spec, epoch, 3);
        let (mut lost, mut runs, mut before) = (0_u32, 0_u32, false);
        for packet in 0..200_000 {
            link.enqueue(epoch, packet, 1000);
            let gone = link.poll(epoch).is_none();
            lost += u32::from(gone);
            runs += u32::from(gone && !before);
            before = gone;
        }
        let measured = f64::from(lost) / 200_000.0;
        assert!((measured / share - 1.0).abs() < 0.1, "share {measured}, not {share}");
        let length = f64::from(lost) / f64::from(runs);
        assert!((length / run - 1.0).abs() < 0.1, "bursts of {length}, not {run}");
        assert_eq!(link.counters().lost.packets, u64::from(lost));
    }
}

#[test]
fn too_much_in_propagation_is_dropped_and_counted() {
    let epoch = Instant::now();
    let delay = Schedule::constant(ms(1000));
    let mut link = LinkModel::new(LinkSpec { delay, ..LinkSpec::default() }, epoch, 1);
    let (packet_bytes, fits) = (1 << 20, FLIGHT_MAX.0 >> 20);
    for packet in 0..fits + 3 {
        link.enqueue(epoch, packet, packet_bytes);
    }
    assert_eq!(link.counters().flight_full.packets, 3);
    assert_eq!(link.in_flight(), Tally { packets: fits, bytes: FLIGHT_MAX.0 });
}

#[test]
fn equal_seeds_give_equal_losses_in_new_links_and_when_set_again() {
    let epoch = Instant::now();
    let loss = Probability::new(0.3).unwrap();
    let link = |seed| LinkModel::new(LinkSpec { loss, ..LinkSpec::default() }, epoch, seed);
    let passed = |link: &mut LinkModel<u32>| -> Vec<bool> {
        (0..100)
            .map(|n| link.enqueue(epoch, n, 100) == Verdict::Queued && link.poll(epoch).is_some())
            .collect()
    };
    let mut set = link(1);
    let [one, other] = [1, 2].map(|seed| passed(&mut link(seed)));
    assert_eq!(passed(&mut set), one);
    assert_ne!(one, other);
    for (seed, expected) in [(2, &other), (1, &one)] {
        set.set(epoch, Setting::Seed(seed));
        assert_eq!(passed(&mut set), *expected, "{seed}");
    }
}

#[test]
fn settings_change_while_packets_are_inside() {
    let epoch = Instant::now();
    let mut link = LinkModel::new(spec(ms(40), 9000), epoch, 1);
    send(&mut link, epoch, 0..1);
    link.set(epoch + ms(2), Setting::Delay(ms(5)));
    link.set(epoch + ms(2), Setting::Queue(Bytes(1000)));
    assert_eq!(send(&mut link, epoch + ms(50), 1..4)[2], Verdict::QueueFull);
    link.set_blackout(epoch + ms(50), Some(Blackout::Drop));
    link.set_blackout(epoch + ms(51), None);
    assert_eq!(send(&mut link, epoch + ms(51), 4..5), [Verdict::Queued]);
    link.set(epoch + ms(60), Setting::Loss(Probability::ALWAYS));
    send(&mut link, epoch + ms(60), 5..6);
    assert_eq!(drain(&mut link, epoch), [(41, 0), (57, 4)]);
    assert_eq!(link.counters().dropped().packets, 4);
}

#[test]
fn udp_is_policed_before_the_queue_and_the_rest_is_not() {
    let epoch = Instant::now();
    let mut link = LinkModel::new(spec(ms(0), 90_000), epoch, 1);
    let send = |link: &mut LinkModel<u32>, at, class| {
        (0..6).filter(|n| link.enqueue_as(at, class, *n, 1000) == Verdict::Queued).count()
    };
    assert_eq!(send(&mut link, epoch, Class::Udp), 6, "free by default");
    link.set(epoch, Setting::Udp(Policing::Limited(Bitrate::from_bps(80_000))));
    assert_eq!(send(&mut link, epoch, Class::Udp), 3, "the burst");
    assert_eq!(send(&mut link, epoch, Class::Other), 6);
    // 200 ms at 80 kbit/s are two packets.
    assert_eq!(send(&mut link, epoch + ms(200), Class::Udp), 2);
    link.set(epoch + ms(300), Setting::Udp(Policing::Blocked));
    assert_eq!(send(&mut link, epoch + ms(900), Class::Udp), 0);
    assert_eq!(send(&mut link, epoch + ms(900), Class::Other), 6);
    link.set(epoch + ms(900), Setting::Udp(Policing::Free));
    assert_eq!(send(&mut link, epoch + ms(900), Class::Udp), 6);
    assert_eq!(link.counters().policed, Tally { packets: 3 + 4 + 6, bytes: 13_000 });
    assert_eq!(drain(&mut link, epoch).len() as u64, link.counters().delivered.packets);
}

#[test]
fn larger_packets_than_the_path_takes_are_dropped_and_counted() {
    let epoch = Instant::now();
    let mut link = LinkModel::new(spec(ms(0), 90_000), epoch, 1);
    link.set(epoch, Setting::Mtu(Some(PathMtu { bytes: 1280, silent: false })));
    let verdicts = [1281, 1280, 1500].map(|bytes| link.enqueue(epoch, 0, bytes));
    assert_eq!(verdicts, [Verdict::TooBig, Verdict::Queued, Verdict::TooBig]);
    assert_eq!(link.counters().too_big, Tally { packets: 2, bytes: 2781 });
    link.set_blackout(epoch, Some(Blackout::Drop));
    assert_eq!(link.enqueue(epoch, 0, 1500), Verdict::Blackout, "nobody is there to tell");
    link.set_blackout(epoch, None);
    link.set(epoch, Setting::Mtu(None));
    assert_eq!(link.enqueue(epoch, 0, 1500), Verdict::Queued);
}

#[test]
fn bursts_and_overtaking_are_set_and_unset() {
    let epoch = Instant::now();
    let mut link = LinkModel::new(spec(ms(10), 900_000), epoch, 1);
    let p = |value| Probability::new(value).unwrap();
    let (always, never) = (Probability::ALWAYS, Probability::NEVER);
    let burst = BurstLoss { enter: always, leave: never, loss: always, loss_good: never };
    link.set(epoch, Setting::BurstLoss(Some(burst)));
    send(&mut link, epoch, 0..10);
    assert!(drain(&mut link, epoch).is_empty());
    link.set(epoch + ms(100), Setting::BurstLoss(Some(BurstLoss { enter: never, ..burst })));
    send(&mut link, epoch + ms(100), 10..20);
    assert_eq!(drain(&mut link, epoch).len(), 10, "a new setting begins in the good state");
    link.set(epoch + ms(200), Setting::Reorder(Some(Reorder { share: p(0.5), delay: ms(5) })));
    send(&mut link, epoch + ms(200), 20..60);
    let swapped = |out: Vec<(u128, u32)>| out.windows(2).any(|pair| pair[1].1 < pair[0].1);
    assert!(swapped(drain(&mut link, epoch)));
    link.set(epoch + ms(400), Setting::Reorder(None));
    send(&mut link, epoch + ms(400), 60..99);
    assert!(!swapped(drain(&mut link, epoch)));
}
