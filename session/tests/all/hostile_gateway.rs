//! A gateway with a valid certificate that attacks the cloud: the memory and the work that it can
//! cause stay within bounds.

use std::time::Duration;

use crate::endpoints::{Pair, Wire, closes, drain};
use polyrail_model::{
    Bitrate, Bytes, Destination, FlowId, HostName, Identity, PathId, PathRank, PathWish, SessionId,
    TunnelMode, UserId,
};
use polyrail_session::limits::{
    FLOW_OVERHEAD, FLOWS_UNOPENED_MAX, REPORT_APART, RESET_LINGER, TUNNELS_MAX,
};
use polyrail_session::wire::{
    Ack, DataMarks, Frame, Greeting, NUMBER_MAX, Notice, Open, Reset, Said, Target, encode,
};
use polyrail_session::{Event, FlowKey, PathReport, ResetReason, Settings, TunnelInfo, TunnelKey};

const MEMORY: u64 = 2 << 20;
const TUNNEL: TunnelKey = TunnelKey(0);

/// A cloud, and a gateway whose frames are the test's.
struct Attack {
    pair: Pair,
    tunnel: TunnelKey,
    frames: Vec<u8>,
}

impl Attack {
    fn new() -> Self {
        let mut pair = Pair::new(Settings { memory: Bytes(MEMORY), ..Settings::default() });
        pair.up(0, "a");
        Self { pair, tunnel: TUNNEL, frames: Vec::new() }
    }

    fn data(&mut self, flow: u64, sequence: u64, data: &[u8]) {
        let marks = DataMarks::default();
        let frame = Frame::Data { flow: FlowId(flow), sequence, sent_us: 0, marks, data };
        encode(&frame, &mut self.frames);
    }

    fn open(&mut self, flow: u64) {
        let server = Destination::Name(HostName::new("a.example").unwrap(), 80);
        let target = Target::Server(server);
        let (user, window, marks) = (UserId(1), 0, DataMarks::default());
        let open = Open { flow: FlowId(flow), user, window, sent_us: 0, marks, target };
        encode(&Frame::Open { open, data: &[] }, &mut self.frames);
    }

    fn reset(&mut self, flow: u64, last: u64, after: u64) {
        let (flow, reason) = (FlowId(flow), ResetReason::PeerReset);
        let reset = Reset { flow, answer: false, reason, last, after };
        encode(&Frame::Reset(reset), &mut self.frames);
    }

    /// Opens a flow with a large window and this much credit in total; returns its key.
    fn served(&mut self, flow: u64, credit: u64) -> FlowKey {
        self.open(flow);
        for (flow, limit) in [(flow, MEMORY), (0, credit)] {
            encode(&Frame::Window { flow: FlowId(flow), limit, drained: 0 }, &mut self.frames);
        }
        assert!(self.deliver());
        *self.opened().last().unwrap()
    }

    /// Delivers the frames. Returns whether the cloud still accepts the tunnel.
    fn deliver(&mut self) -> bool {
        let Self { pair, tunnel, frames } = self;
        pair.cloud.receive(pair.now, *tunnel, frames);
        frames.clear();
        pair.at_cloud.extend(std::iter::from_fn(|| pair.cloud.poll_event()));
        pair.cloud.transmit(pair.now, &mut Wire::default());
        !pair.at_cloud.iter().any(|event| closes(event).is_some())
    }

    /// Sends PINGs for this time.
    fn speak(&mut self, time: Duration) {
        let until = self.pair.now + time;
        while self.pair.now < until {
            self.pair.advance(Duration::from_millis(500));
            encode(&Frame::Ping { token: 0, sent_us: 0 }, &mut self.frames);
            self.deliver();
        }
    }

    /// The cloud has closed the tunnel: joins the session with another one.
    fn rejoin(&mut self) {
        self.pair.at_cloud.clear();
        self.pair.down(self.tunnel.0);
        self.tunnel = TunnelKey(1 - self.tunnel.0);
        self.pair.up(self.tunnel.0, "a");
        assert!(self.deliver(), "the new tunnel is accepted");
    }

    /// The flows that the cloud has reported.
    fn opened(&self) -> Vec<FlowKey> {
        let opened = |event: &Event| match event {
            Event::Opened { flow, .. } => Some(*flow),
            _ => None,
        };
        self.pair.at_cloud.iter().filter_map(opened).collect()
    }

    fn flows(&self) -> u64 {
        self.pair.cloud.status().sessions.iter().map(|session| session.flows_held as u64).sum()
    }
}

/// The number of events of a kind since the last call.
fn events(attack: &mut Attack, of: impl Fn(&Event) -> bool) -> usize {
    std::mem::take(&mut attack.pair.at_cloud).iter().filter(|event| of(event)).count()
}

#[test]
fn flood_of_path_statuses_is_reported_once_per_path_and_period() {
    let mut attack = Attack::new();
    let reports = |event: &Event| matches!(event, Event::PathReport { .. });
    let flood = |attack: &mut Attack, serials: std::ops::Range<u64>| {
        for serial in serials {
            let said = Said::Policed { rate: Bitrate::from_bps(serial) };
            let notice = Notice { path: PathId(1), serial, said };
            encode(&Frame::PathStatus(notice), &mut attack.frames);
        }
        attack.deliver();
    };
    flood(&mut attack, 1..1_001);
    assert_eq!(events(&mut attack, reports), 1);
    for turn in 1..=100 {
        attack.pair.now += Duration::from_millis(10);
        flood(&mut attack, turn * 1_001..turn * 1_001 + 1_000);
    }
    let passed = events(&mut attack, reports);
    assert!((3..=4).contains(&passed), "{passed} in a second");
    // The newest is not lost.
    attack.pair.advance(REPORT_APART);
    let newest = PathReport::Policed { rate: Bitrate::from_bps(100 * 1_001 + 999) };
    let is_newest = |event: &Event| *event == Event::PathReport { tunnel: TUNNEL, report: newest };
    assert_eq!(events(&mut attack, is_newest), 1);
}

#[test]
fn flood_of_goaways_is_reported_once() {
    let mut attack = Attack::new();
    for _ in 0..1_000 {
        encode(&Frame::GoAway { reason: "bye".into() }, &mut attack.frames);
    }
    attack.deliver();
    assert_eq!(events(&mut attack, |event| matches!(event, Event::PeerGoing { .. })), 1);
}

#[test]
fn violations_on_flows_raise_one_alarm_in_a_session() {
    let mut attack = Attack::new();
    for flow in 1..1_000 {
        attack.open(flow);
        attack.data(flow, MEMORY, b"beyond the window");
    }
    attack.deliver();
    assert_eq!(events(&mut attack, |event| matches!(event, Event::Alarm { .. })), 1);
}

/// The bytes that the cloud has allocated at the end of the attack, and their bound.
fn allocated(attack: &mut Attack, act: impl FnOnce(&mut Attack)) -> (u64, u64) {
    let info = allocation_counter::measure(|| {
        act(attack);
        attack.frames = Vec::new();
        attack.pair.at_cloud = Vec::new();
    });
    let bytes = u64::try_from(info.bytes_current.max(0)).unwrap();
    let bound = MEMORY * 12 / 10 + attack.flows() * FLOW_OVERHEAD;
    (bytes, bound)
}

impl Attack {
    /// A tunnel of a certificate that has not greeted.
    fn connect(&mut self, key: usize, name: &str) -> TunnelKey {
        let (carrier, peer) = (String::new(), Identity::new(name).unwrap());
        let (exporter, mode) = (Some([7; 32]), TunnelMode::Tls);
        let info = TunnelInfo { carrier, peer, exporter, mode, wish: PathWish::default() };
        self.pair.cloud.tunnel_up(self.pair.now, TunnelKey(key), info);
        TunnelKey(key)
    }
}

#[test]
fn tunnels_of_a_certificate_are_bounded() {
    let mut attack = Attack::new();
    let refused = |attack: &mut Attack| {
        attack.deliver();
        events(attack, |event| closes(event).is_some())
    };
    for key in 1..1_000 {
        attack.connect(key, "train-7");
    }
    assert_eq!(refused(&mut attack), 1_000 - TUNNELS_MAX);
    attack.connect(1_000, "train-8");
    assert_eq!(refused(&mut attack), 0, "another gateway");
    // A tunnel holds its place until it is down, also if it was refused.
    for key in (TUNNELS_MAX..1_000).chain([1]) {
        attack.pair.cloud.tunnel_down(attack.pair.now, TunnelKey(key));
    }
    attack.connect(1_001, "train-7");
    assert_eq!(refused(&mut attack), 0);
    attack.connect(1_002, "train-7");
    assert_eq!(refused(&mut attack), 1);
}

#[test]
fn join_of_an_unknown_session_is_rejected_once_in_a_tunnel() {
    let mut attack = Attack::new();
    let tunnel = attack.connect(1, "train-7");
    let mut closed_after = Vec::new();
    for turn in 0..20u64 {
        let greeting = Greeting {
            counter: 100 + turn,
            rank: PathRank::Primary,
            metered: false,
            carrier: "a".into(),
        };
        let (session, proof) = (SessionId([9; 16]), [0; 32]);
        let mut frames = Vec::new();
        encode(&Frame::Join { session, proof, greeting }, &mut frames);
        attack.pair.cloud.receive(attack.pair.now, tunnel, &frames);
        attack.deliver();
        if events(&mut attack, |event| closes(event) == Some(tunnel)) > 0 {
            closed_after.push(turn);
        }
        attack.pair.now += Duration::from_secs(9);
        attack.pair.cloud.on_timeout(attack.pair.now);
    }
    assert_eq!(closed_after, [1], "the second JOIN costs the tunnel");
}

#[test]
fn reset_beyond_the_credit_costs_the_tunnel() {
    for after in [0, 1] {
        let mut attack = Attack::new();
        for flow in 1..9 {
            attack.reset(flow, NUMBER_MAX, after);
        }
        assert!(!attack.deliver(), "RESETs with `last` 2^62 and `after` {after}");
    }
}

#[test]
fn data_of_an_ended_flow_beyond_the_credit_costs_the_tunnel() {
    let mut attack = Attack::new();
    attack.reset(1, 0, 0);
    attack.data(1, NUMBER_MAX - 1, b"x");
    assert!(!attack.deliver());
}

#[test]
fn resets_do_not_enlarge_the_memory_of_the_session() {
    let mut attack = Attack::new();
    let (bytes, bound) = allocated(&mut attack, |attack| {
        for flow in 1..9 {
            attack.reset(flow, NUMBER_MAX, 0);
        }
        assert!(!attack.deliver());
        // Sixteen times the memory, and a tunnel is lost each time that the credit is exceeded.
        let mut accepted = 0;
        for flow in 9..(9 + 16 * 8) {
            attack.rejoin();
            attack.open(flow);
            for at in 0..MEMORY / 8 / 8_192 {
                attack.data(flow, 1 + at * 8_192, &[7; 8_191]);
            }
            accepted += u32::from(attack.deliver());
        }
        assert!((7..=9).contains(&accepted), "{accepted} flows with an eighth of the memory");
    });
    println!("resets: {bytes} bytes allocated, bound {bound}");
    assert!(bytes <= bound, "{bytes} bytes, bound {bound}");
}

#[test]
fn sparse_data_costs_no_more_memory_than_credit() {
    for (step, length) in [(2, 1), (512, 1), (1_025, 513), (3_000, 1_400)] {
        let mut attack = Attack::new();
        let (bytes, bound) = allocated(&mut attack, |attack| {
            for flow in 1..=256 {
                attack.open(flow);
                for at in (2..MEMORY / 256).step_by(step) {
                    attack.data(flow, at, &vec![7; length]);
                }
                assert!(attack.deliver());
            }
        });
        println!("{length} bytes every {step}: {bytes} bytes allocated, bound {bound}");
        assert!(bytes <= bound, "{length} bytes every {step}: {bytes} bytes, bound {bound}");
    }
}

#[test]
fn slow_readers_pin_no_more_memory_than_credit() {
    // Servers that take all but the last bytes, and servers that leave more than half.
    for (leave, flows) in [(10, 256), (MEMORY as usize / 28, 27)] {
        let mut attack = Attack::new();
        let (bytes, bound) = allocated(&mut attack, |attack| {
            for flow in 1..=flows {
                attack.open(flow);
                let most = MEMORY / 16;
                for at in 0..most / 1_024 {
                    attack.data(flow, 1 + at * 1_024, &[7; 1_024]);
                }
                assert!(attack.deliver(), "flow {flow}: the rest returned as credit");
                let key = *attack.opened().last().unwrap();
                let unread = attack.pair.cloud.readable(key).concat().len();
                attack.pair.cloud.consume(attack.pair.now, key, unread - leave);
                assert!(attack.deliver());
            }
        });
        println!("slow readers: {bytes} bytes allocated, bound {bound}");
        assert!(bytes <= bound, "{bytes} bytes, bound {bound}");
    }
}

#[test]
fn acknowledging_all_but_the_last_bytes_keeps_no_memory() {
    let mut attack = Attack::new();
    let (bytes, bound) = allocated(&mut attack, |attack| {
        for flow in 1..=256 {
            let key = attack.served(flow, flow * MEMORY);
            let (cloud, now) = (&mut attack.pair.cloud, attack.pair.now);
            let written = cloud.write(now, key, &vec![7; MEMORY as usize / 32]) as u64;
            assert!(attack.deliver());
            let cumulative = written - 10;
            let ack = Ack { flow: FlowId(flow), cumulative, drained: cumulative, ..Ack::default() };
            encode(&Frame::Ack(ack), &mut attack.frames);
            assert!(attack.deliver());
        }
    });
    assert_eq!(attack.flows(), 256);
    println!("unacknowledged ends: {bytes} bytes allocated, bound {bound}");
    assert!(bytes <= bound, "{bytes} bytes, bound {bound}");
}

#[test]
fn acknowledgements_that_split_runs_take_bounded_memory() {
    let mut attack = Attack::new();
    let (bytes, bound) = allocated(&mut attack, |attack| {
        for flow in 1..=64 {
            let key = attack.served(flow, MEMORY);
            let (cloud, now) = (&mut attack.pair.cloud, attack.pair.now);
            assert_eq!(cloud.write(now, key, &[7; 7_000]), 7_000);
            assert!(attack.deliver());
            let every_second: Vec<_> = (1..7_000).step_by(2).map(|at| at..at + 1).collect();
            // Few enough that the first flows stay below the bound and keep their runs.
            for ranges in every_second.chunks(32).take(30) {
                let (flow, ranges) = (FlowId(flow), ranges.to_vec());
                encode(&Frame::Ack(Ack { flow, ranges, ..Ack::default() }), &mut attack.frames);
            }
            assert!(attack.deliver());
        }
    });
    println!("split runs: {bytes} bytes allocated, bound {bound}");
    assert!(bytes <= bound, "{bytes} bytes, bound {bound}");
    // A server that drips takes the rest.
    let key = attack.served(65, MEMORY);
    for _ in 0..300 {
        assert_eq!(attack.pair.cloud.write(attack.pair.now, key, b"x"), 1);
        assert!(attack.deliver());
    }
    // At the bound, a flow whose runs are acknowledged whole still moves.
    attack.pair.at_cloud.clear();
    let key = attack.served(66, MEMORY);
    for turn in 1..=20 {
        assert_eq!(attack.pair.cloud.write(attack.pair.now, key, &[7; 2_000]), 2_000);
        assert!(attack.deliver());
        let (flow, cumulative) = (FlowId(66), turn * 2_000);
        let ack = Ack { flow, cumulative, drained: cumulative, ..Ack::default() };
        encode(&Frame::Ack(ack), &mut attack.frames);
        assert!(attack.deliver());
    }
    assert_eq!(events(&mut attack, |event| matches!(event, Event::Reset { .. })), 0);
    // An acknowledgement that splits a run resets it.
    let (flow, ranges) = (FlowId(66), std::iter::once(40_500..40_501).collect());
    assert_eq!(attack.pair.cloud.write(attack.pair.now, key, &[7; 2_000]), 2_000);
    assert!(attack.deliver());
    let ack = Ack { flow, cumulative: 40_000, ranges, ..Ack::default() };
    encode(&Frame::Ack(ack), &mut attack.frames);
    assert!(attack.deliver());
    assert_eq!(events(&mut attack, |event| matches!(event, Event::Reset { .. })), 1);
}

#[test]
fn run_that_is_never_acknowledged_does_not_keep_later_ones_in_memory() {
    let mut attack = Attack::new();
    let (bytes, bound) = allocated(&mut attack, |attack| {
        let [first, second] = [1, 2].map(|flow| attack.served(flow, 1 << 40));
        attack.pair.cloud.write(attack.pair.now, first, b"never acknowledged");
        assert!(attack.deliver());
        for turn in 1..=140_000 {
            assert_eq!(attack.pair.cloud.write(attack.pair.now, second, &[7; 10]), 10);
            let (flow, cumulative) = (FlowId(2), (turn - 1) * 10);
            let (limit, drained) = (cumulative + MEMORY, cumulative);
            let ack = Ack { flow, cumulative, limit, drained, ..Ack::default() };
            encode(&Frame::Ack(ack), &mut attack.frames);
            assert!(attack.deliver());
            attack.pair.at_cloud.clear();
        }
    });
    println!("runs of a path: {bytes} bytes allocated, bound {bound}");
    assert!(bytes <= bound, "{bytes} bytes, bound {bound}");
}

#[test]
fn flow_numbers_with_gaps_take_bounded_memory() {
    let mut attack = Attack::new();
    let use_numbers = |attack: &mut Attack, numbers: std::ops::Range<u64>| {
        for number in numbers {
            attack.reset(2 * number, 0, 0);
            if number % 1_000 == 0 {
                attack.deliver();
                attack.pair.at_cloud.clear();
            }
        }
        attack.deliver();
    };
    use_numbers(&mut attack, 1..50_000);
    let (bytes, _) = allocated(&mut attack, |attack| use_numbers(attack, 50_000..150_000));
    println!("100000 flow numbers with gaps: {bytes} bytes more");
    assert!(bytes < 64 * 1_024, "{bytes} bytes for 100000 numbers");
}

#[test]
fn flows_whose_open_never_arrives_expire() {
    let mut attack = Attack::new();
    for flow in 1..=100 {
        attack.data(flow, 2, b"x");
        attack.reset(100 + flow, 20, 20);
    }
    assert!(attack.deliver());
    assert_eq!(attack.flows(), 200);
    let linger = Settings::default().linger;
    // While its carriers are dark, an honest peer cannot deliver an OPEN.
    attack.pair.dark(attack.tunnel.0);
    attack.pair.advance(linger + 3 * RESET_LINGER);
    assert_eq!(attack.flows(), 200, "the OPEN may be on its way");
    attack.speak(linger + RESET_LINGER);
    assert_eq!(attack.flows(), 200, "it speaks again");
    attack.speak(2 * RESET_LINGER);
    assert_eq!(attack.flows(), 0);
    // A flow with an OPEN stays.
    attack.open(201);
    attack.deliver();
    attack.pair.advance(2 * linger);
    assert_eq!(attack.flows(), 1);
    let key = attack.pair.opened();
    assert!(drain(&mut attack.pair.cloud, attack.pair.now, key).is_empty());
}

#[test]
fn tunnel_is_closed_at_the_bound_of_flows_without_an_open() {
    let mut attack = Attack::new();
    let last = FLOWS_UNOPENED_MAX as u64;
    (1..=last).for_each(|flow| attack.reset(flow, 20, 20));
    assert!(attack.deliver());
    // An OPEN makes room for one more.
    attack.open(1);
    attack.reset(last + 1, 20, 20);
    assert!(attack.deliver());
    attack.open(last + 3);
    assert!(attack.deliver(), "an OPEN is welcome at the bound, too");
    attack.reset(last + 2, 20, 20);
    assert!(!attack.deliver());
    assert_eq!(attack.flows(), last + 2);
    // The refused flow can still be opened.
    attack.rejoin();
    attack.open(2);
    attack.open(last + 2);
    assert!(attack.deliver());
    assert_eq!(attack.opened().last().map(|key| key.flow), Some(FlowId(last + 2)));
}

#[test]
fn pauses_neither_keep_flows_without_an_open_nor_end_them() {
    let periods = (Settings::default().linger + 3 * RESET_LINGER).as_secs() / 30;
    // The cloud looks for such flows every 30 s.
    let flows_after = |silent: u64, speaks: u64| {
        let mut attack = Attack::new();
        attack.data(1, 2, b"x");
        assert!(attack.deliver());
        for _ in 0..periods {
            attack.speak(Duration::from_secs(30 - silent - speaks));
            attack.pair.advance(Duration::from_secs(silent));
            attack.speak(Duration::from_secs(speaks));
        }
        attack.flows()
    };
    assert_eq!(flows_after(26, 4), 1, "dark for most of the time");
    assert_eq!(flows_after(2, 0), 0, "a pause before each look");
}

/// A peer remembers a bounded number of ended flows, and takes older ones for delivered.
#[test]
fn flow_that_the_peer_has_forgotten_is_reset_although_its_own_direction_has_ended() {
    let mut attack = Attack::new();
    let flow = attack.served(1, MEMORY);
    attack.pair.cloud.finish(attack.pair.now, flow);
    attack.deliver();
    let ack = Ack {
        flow: FlowId(1),
        done: true,
        cumulative: NUMBER_MAX,
        limit: NUMBER_MAX,
        drained: NUMBER_MAX,
        ..Ack::default()
    };
    encode(&Frame::Ack(ack), &mut attack.frames);
    assert!(attack.deliver());
    assert_eq!(events(&mut attack, |event| matches!(event, Event::Reset { .. })), 1);
    assert_eq!(attack.flows(), 0);
}
