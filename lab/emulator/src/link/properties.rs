//! Properties of every link with any traffic.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use polyrail_model::Bitrate;

const PERIOD_US: u64 = 20_000;

/// One thing done to the link, so many microseconds after the one before.
#[derive(Clone, Debug)]
enum Act {
    Send(usize),
    SendUdp(usize),
    Poll,
    Force(Option<Blackout>),
    Rate(u64),
    Delay(u64),
    Udp(Policing),
    Mtu(Option<u16>),
    Burst(f64),
    Reorder(f64),
}

fn acts(live_changes: bool) -> impl Strategy<Value = Vec<(u64, Act)>> {
    let calm = prop_oneof![
        6 => (1_usize..1500).prop_map(Act::Send),
        2 => (1_usize..1500).prop_map(Act::SendUdp),
        2 => Just(Act::Poll),
    ];
    let mode = prop_oneof![Just(None), Just(Some(Blackout::Hold)), Just(Some(Blackout::Drop))];
    let change = prop_oneof![
        mode.prop_map(Act::Force),
        (0_u64..20_000_000).prop_map(Act::Rate),
        (0_u64..9_000).prop_map(Act::Delay),
        policings().prop_map(Act::Udp),
        proptest::option::of(100_u16..1500).prop_map(Act::Mtu),
        (0.0..1.0).prop_map(Act::Burst),
        (0.0..1.0).prop_map(Act::Reorder),
    ];
    let weight = u32::from(live_changes);
    let act = prop_oneof![9 => calm, weight => change];
    vec((0_u64..1500, act), 1..80)
}

fn policings() -> impl Strategy<Value = Policing> {
    prop_oneof![
        Just(Policing::Free),
        Just(Policing::Blocked),
        (0_u64..9_000_000).prop_map(|bps| Policing::Limited(Bitrate::from_bps(bps))),
    ]
}

/// Rates, delays and blackouts that change; faults only when asked for.
fn specs(faults: bool) -> impl Strategy<Value = LinkSpec> {
    let steps = |max: u64| vec((1_u64..PERIOD_US, 0..max), 0..5);
    let modes = prop_oneof![Just(Blackout::Hold), Just(Blackout::Drop)];
    let windows = vec((0_u64..60_000, 0_u64..9_000, modes), 0..4);
    let chance = move || (0.0..0.3).prop_map(move |p| if faults { p } else { 0.0 });
    let chances = [chance(), chance(), chance(), chance()];
    (1_000_u64..50_000_000, steps(50_000_000), steps(9_000), 0_u64..8_000, windows, chances)
        .prop_map(|(rate, rates, delays, queue, windows, [loss, duplicate, reorder, enter])| {
            let limited = |bps| Rate::Limited(Bitrate::from_bps(bps));
            let p = |value| Probability::new(value).unwrap();
            let windows: Vec<_> = windows
                .into_iter()
                .map(|(start, length, mode)| BlackoutWindow {
                    start: us(start),
                    length: us(length),
                    mode,
                })
                .collect();
            LinkSpec {
                rate: schedule(limited(rate), rates, limited),
                delay: schedule(us(300), delays, us),
                queue: Bytes(queue),
                loss: p(loss),
                burst_loss: Some(BurstLoss {
                    enter: p(enter),
                    leave: p(0.5),
                    loss: Probability::ALWAYS,
                    loss_good: Probability::NEVER,
                }),
                duplicate: p(duplicate),
                reorder: Some(Reorder { share: p(reorder), delay: us(2_000) }),
                ..LinkSpec::default()
            }
            .with_blackouts(&windows)
            .unwrap()
        })
}

const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

fn schedule<T: Copy>(
    first: T,
    mut steps: Vec<(u64, u64)>,
    value: impl Fn(u64) -> T,
) -> Schedule<T> {
    steps.sort_by_key(|step| step.0);
    steps.dedup_by_key(|step| step.0);
    let steps = steps.into_iter().map(|(at, v)| (us(at), value(v)));
    Schedule::new(first, steps, Some(us(PERIOD_US))).unwrap()
}

struct Run {
    /// Due instants in nanoseconds since the epoch, numbers and sizes.
    delivered: Vec<(u128, usize, u64)>,
    counters: Counters,
}

/// Acts, checks the bounds after each act, then drains until the link is idle.
fn run(spec: &LinkSpec, acts: &[(u64, Act)], seed: u64, polls: bool) -> Run {
    let epoch = Instant::now();
    let mut link = LinkModel::new(spec.clone(), epoch, seed);
    let mut delivered = Vec::new();
    let mut now = epoch;
    for (number, (pause, act)) in acts.iter().enumerate() {
        now += us(*pause);
        match act {
            Act::Send(bytes) => {
                let verdict = link.enqueue(now, (number, *bytes as u64), *bytes);
                assert_ne!(verdict, Verdict::Policed, "not UDP");
            }
            Act::SendUdp(bytes) => {
                link.enqueue_as(now, Class::Udp, (number, *bytes as u64), *bytes);
            }
            Act::Poll if polls => collect(&mut link, now, epoch, &mut delivered),
            Act::Poll => {}
            Act::Force(mode) => link.set_blackout(now, *mode),
            Act::Rate(bps) => {
                let rate = Rate::Limited(Bitrate::from_bps(*bps));
                link.set(now, Setting::Rate(rate));
            }
            Act::Delay(delay) => link.set(now, Setting::Delay(us(*delay))),
            change => fault(&mut link, now, change),
        }
        check_bounds(&link);
    }
    // Ten thousand wake-ups are more than so few packets can need, unless time stands still.
    for _ in 0..10_000 {
        let Some(next) = link.next_departure() else { break };
        now = now.max(next);
        collect(&mut link, now, epoch, &mut delivered);
        check_bounds(&link);
    }
    // Packets that a blackout will drop never depart, so `next_departure` does not wait for them.
    collect(&mut link, now + DROPPED_BY, epoch, &mut delivered);
    Run { delivered, counters: *link.counters() }
}

/// The changes of faults of single packets.
fn fault(link: &mut LinkModel<Numbered>, now: Instant, change: &Act) {
    let p = |value: f64| Probability::new(value).unwrap();
    match change {
        Act::Udp(rule) => link.set(now, Setting::Udp(*rule)),
        Act::Mtu(mtu) => {
            link.set(now, Setting::Mtu(mtu.map(|bytes| PathMtu { bytes, silent: true })))
        }
        Act::Burst(share) => {
            let (enter, leave) = (p(*share), p(0.5));
            let (loss, loss_good) = (Probability::ALWAYS, Probability::NEVER);
            link.set(now, Setting::BurstLoss(Some(BurstLoss { enter, leave, loss, loss_good })));
        }
        // It never turns on here what a property has turned off.
        Act::Reorder(share) => {
            let reorder = link.spec().reorder;
            link.set(now, Setting::Reorder(reorder.map(|r| Reorder { share: p(*share), ..r })));
        }
        _ => unreachable!("{change:?} is no fault"),
    }
}

type Numbered = (usize, u64);

/// More than all packets of a run take at the least rate.
const DROPPED_BY: Duration = Duration::from_secs(3_600);

fn collect(
    link: &mut LinkModel<Numbered>,
    now: Instant,
    epoch: Instant,
    delivered: &mut Vec<(u128, usize, u64)>,
) {
    while let Some((due, (number, bytes))) = link.poll_due(now) {
        assert!(due <= now, "a packet before its time");
        delivered.push(((due - epoch).as_nanos(), number, bytes));
    }
    assert!(link.next_departure().is_none_or(|next| next > now), "polling gets nowhere");
}

fn check_bounds(link: &LinkModel<Numbered>) {
    let (counters, queued, flying) = (link.counters(), link.queued(), link.in_flight());
    for part in [|tally: Tally| tally.packets, |tally: Tally| tally.bytes] {
        let came = part(counters.offered) + part(counters.duplicated);
        let went = part(counters.delivered) + part(counters.dropped());
        assert_eq!(came, went + part(queued) + part(flying), "packets or bytes got lost");
    }
    assert!(queued.bytes <= link.spec().queue.0 + 1500, "the queue passed its bound");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_vanishes_and_bounds_hold(
        spec in specs(true), acts in acts(true), seed: u64,
    ) {
        let run = run(&spec, &acts, seed, true);
        prop_assert_eq!(run.delivered.len() as u64, run.counters.delivered.packets);
        prop_assert!(run.delivered.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn without_reordering_packets_keep_their_order(
        spec in specs(true), acts in acts(true), seed: u64,
    ) {
        let spec = LinkSpec { reorder: None, ..spec };
        let run = run(&spec, &acts, seed, true);
        prop_assert!(run.delivered.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }

    #[test]
    fn the_polling_changes_nothing(spec in specs(true), acts in acts(true), seed: u64) {
        let (often, late) = (run(&spec, &acts, seed, true), run(&spec, &acts, seed, false));
        prop_assert_eq!(often.delivered, late.delivered);
        prop_assert_eq!(often.counters, late.counters);
    }

    #[test]
    fn the_rate_is_never_exceeded(spec in specs(false), acts in acts(false)) {
        let spec = LinkSpec { delay: Schedule::constant(Duration::ZERO), ..spec };
        let run = run(&spec, &acts, 0, true);
        for from in 0..run.delivered.len() {
            let mut bytes = 0;
            for to in from + 1..run.delivered.len() {
                bytes += run.delivered[to].2;
                let able = capacity(&spec, run.delivered[from].0, run.delivered[to].0);
                prop_assert!(bytes <= able + 1, "{} bytes where {} fit", bytes, able);
            }
        }
    }

    #[test]
    fn a_steady_link_agrees_with_arithmetic(
        rate in 100_000_u64..50_000_000,
        delay in 0_u64..50_000,
        queue in 0_u64..8_000,
        sends in vec((0_u64..2_000, 1_usize..1500), 1..80),
    ) {
        let spec = LinkSpec::steady(Bitrate::from_bps(rate), us(delay), Bytes(queue));
        let acts: Vec<_> = sends.iter().map(|&(t, bytes)| (t, Act::Send(bytes))).collect();
        let run = run(&spec, &acts, 0, false);
        let expected = arithmetic(rate, us(delay), queue, &sends);
        prop_assert_eq!(run.delivered.len(), expected.len());
        for (got, want) in run.delivered.iter().zip(expected) {
            prop_assert_eq!(got.1, want.1);
            prop_assert!(got.0.abs_diff(want.0) <= 2, "{} ns, not {} ns", got.0, want.0);
        }
    }
}

/// The capacity of a server with these rates and blackouts, summed in small pieces.
fn capacity(spec: &LinkSpec, from_ns: u128, to_ns: u128) -> u64 {
    let (mut at, mut bit_ns) = (from_ns, 0_u128);
    while at < to_ns {
        let offset = Duration::from_nanos(at as u64);
        let (rate, dark) = (spec.rate.at(offset), spec.blackouts.at(offset));
        let ends = [rate.until, dark.until].into_iter().flatten().map(|end| end.as_nanos());
        let end = ends.min().unwrap_or(to_ns).min(to_ns);
        if let (Rate::Limited(rate), None) = (rate.value, dark.value) {
            bit_ns += u128::from(rate.as_bps()) * (end - at);
        }
        at = end;
    }
    (bit_ns / 8_000_000_000) as u64
}

/// The textbook queue: the accepted packets, and their departures in nanoseconds since the epoch.
fn arithmetic(
    rate: u64,
    delay: Duration,
    queue: u64,
    sends: &[(u64, usize)],
) -> Vec<(u128, usize)> {
    let (mut now, mut free_at) = (0.0_f64, 0.0_f64);
    let mut inside: Vec<(f64, u64)> = Vec::new();
    let mut out = Vec::new();
    for (number, &(pause_us, bytes)) in sends.iter().enumerate() {
        now += pause_us as f64 * 1e3;
        inside.retain(|packet| packet.0 > now);
        let waiting: u64 = inside.iter().skip(1).map(|packet| packet.1).sum();
        if !inside.is_empty() && waiting + bytes as u64 > queue {
            continue;
        }
        free_at = free_at.max(now) + bytes as f64 * 8e9 / rate as f64;
        inside.push((free_at, bytes as u64));
        out.push(((free_at + delay.as_nanos() as f64).round() as u128, number));
    }
    out
}
