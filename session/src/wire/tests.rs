//! Every frame survives encoding and decoding, no input panics, and the golden vectors hold.

use polyrail_model::codec::FieldError;
use polyrail_model::{
    BindingId, Bitrate, Channel, Destination, Families, FlowId, HostName, InstanceId, PathId,
    PathRank, SessionId, UserId, Weight,
};
use polyrail_scheduler::SEGMENT;
use proptest::prelude::*;
use rand_free::Lcg;

use super::*;

/// A small generator, so that the fuzz run is the same everywhere.
mod rand_free {
    pub struct Lcg(pub u64);

    impl Lcg {
        pub fn next(&mut self) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.0 >> 11
        }

        pub fn below(&mut self, bound: usize) -> usize {
            (self.next() % bound as u64) as usize
        }
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..100, 0u64..1 << 14, 0u64..1 << 30, 0u64..=NUMBER_MAX]
}

fn weight_strategy() -> impl Strategy<Value = Weight> {
    (1..=Weight::MAX).prop_map(Weight::new)
}

fn rank_strategy() -> impl Strategy<Value = PathRank> {
    prop_oneof![Just(PathRank::Primary), Just(PathRank::Secondary), Just(PathRank::Backup)]
}

fn greeting_strategy() -> impl Strategy<Value = Greeting> {
    let flags = (rank_strategy(), any::<bool>());
    (number(), flags, "[a-z0-9_-]{0,32}").prop_map(|(counter, (rank, metered), carrier)| Greeting {
        counter,
        rank,
        metered,
        carrier,
    })
}

fn terms_strategy() -> impl Strategy<Value = Terms> {
    (number(), number()).prop_map(|(window, credit)| Terms { window, credit })
}

fn destination_strategy() -> impl Strategy<Value = Destination> {
    prop_oneof![
        (any::<[u8; 4]>(), any::<u16>())
            .prop_map(|(ip, port)| Destination::Address((ip, port).into())),
        (any::<[u8; 16]>(), any::<u16>())
            .prop_map(|(ip, port)| Destination::Address((ip, port).into())),
        ("[a-z][a-z0-9]{0,20}(\\.[a-z]{2,10}){0,5}", any::<u16>())
            .prop_map(|(name, port)| { Destination::Name(HostName::new(&name).unwrap(), port) }),
    ]
}

fn marks_strategy() -> impl Strategy<Value = DataMarks> {
    (any::<bool>(), any::<bool>(), weight_strategy()).prop_map(|(fin, tail, weight)| DataMarks {
        fin,
        tail,
        weight,
    })
}

fn ack_strategy() -> impl Strategy<Value = Ack> {
    let echo = proptest::option::of((number(), number(), number()).prop_map(
        |(path, sent_us, received_us)| Echo { path: PathId(path), sent_us, received_us },
    ));
    let steps = prop::collection::vec((0u64..1 << 40, 1u64..1 << 40), 0..=ACK_RANGES_MAX);
    let numbers = (1u64..1 << 20, 0u64..1 << 40, number(), number());
    (numbers, any::<bool>(), any::<bool>(), echo, steps).prop_map(
        |((flow, cumulative, limit, drained), done, dialed, echo, steps)| {
            let mut edge = cumulative;
            let range = |(gap, length): (u64, u64)| {
                let start = edge + gap;
                edge = start + length;
                start..edge
            };
            let ranges = steps.into_iter().map(range).collect();
            let flow = FlowId(flow);
            Ack { flow, done, dialed, cumulative, limit, drained, echo, ranges }
        },
    )
}

fn said_strategy() -> impl Strategy<Value = Said> {
    prop_oneof![
        Just(Said::Stalled),
        number().prop_map(|bits| Said::Policed { rate: Bitrate::from_bps(bits) }),
        (rank_strategy(), any::<bool>()).prop_map(|(rank, metered)| Said::Use { rank, metered }),
        number()
            .prop_map(|bits| Said::Limit { rate: (bits > 0).then_some(Bitrate::from_bps(bits)) }),
    ]
}

/// Encodes, decodes in cuts of `cut` bytes, and compares.
fn round_trip(frame: &Frame<'_>, cut: usize) {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    encode(frame, &mut bytes);
    let mut decoder = Decoder::default();
    let mut seen = 0;
    for part in bytes.chunks(cut.max(1)) {
        decoder
            .feed(part, |decoded| {
                assert_eq!(&decoded, frame);
                seen += 1;
            })
            .unwrap();
    }
    assert_eq!(seen, 2);
    assert!(decoder.partial.is_empty());
}

proptest! {
    #[test]
    fn datagrams(
        binding in 1..=NUMBER_MAX, numbers in (number(), number()), user in any::<Option<u32>>(),
        weight in weight_strategy(), remote in destination_strategy(),
        data in prop::collection::vec(any::<u8>(), 0..300),
        cut in 1usize..400,
    ) {
        let (sequence, sent_us) = numbers;
        let user = user.map(|user| UserId(user.into()));
        let binding = BindingId(binding);
        let datagram = Datagram { binding, sequence, sent_us, user, weight, remote };
        round_trip(&Frame::Datagram { datagram, data: &data }, cut);
    }

    #[test]
    fn greetings(
        array in any::<[u8; 16]>(), proof in any::<[u8; 32]>(), greeting in greeting_strategy(),
        terms in terms_strategy(), numbers in (number(), number()), v4 in any::<bool>(),
        v6 in any::<bool>(), reason in ".{0,60}", cut in 1usize..40,
    ) {
        let session = SessionId(array);
        let instance = InstanceId(array);
        round_trip(&Frame::Hello { instance, greeting: greeting.clone(), terms }, cut);
        round_trip(&Frame::Join { session, proof, greeting }, cut);
        let (counter, founder) = numbers;
        let families = Families { v4, v6 };
        let (datagrams, reports, speedtests, streams) = (v4, v6, v4, v6);
        let offer = Offer { families, datagrams, reports, speedtests, streams };
        round_trip(&Frame::Welcome { session, counter, founder, offer, terms }, cut);
        round_trip(&Frame::Reject { code: RejectCode::Replayed, reason: reason.clone() }, cut);
        round_trip(&Frame::GoAway { reason }, cut);
    }

    #[test]
    fn flows(
        flow in 1..=NUMBER_MAX, user in number(), sequence in number(),
        times in (number(), number()),
        marks in marks_strategy(), destination in destination_strategy(),
        binding in 1..=NUMBER_MAX,
        data in prop::collection::vec(any::<u8>(), 0..2_000), cut in 1usize..600,
    ) {
        let flow = FlowId(flow);
        let (sent_us, window) = times;
        for target in [Target::Server(destination), Target::Binding(BindingId(binding))] {
            let open = Open { flow, user: UserId(user), window, sent_us, marks, target };
            round_trip(&Frame::Open { open, data: &data }, cut);
        }
        round_trip(&Frame::Data { flow, sequence, sent_us, marks, data: &data }, cut);
    }

    #[test]
    fn controls(
        ack in ack_strategy(), flow in 1..=NUMBER_MAX, numbers in (number(), number(), number()),
        said in said_strategy(), answer in any::<bool>(),
        reason in 0..ResetReason::ALL.len(), cut in 1usize..60,
    ) {
        round_trip(&Frame::Ack(ack), cut);
        let (a, b, c) = numbers;
        round_trip(&Frame::Window { flow: FlowId(a), limit: b, drained: c }, cut);
        let reason = ResetReason::ALL[reason];
        let reset = Reset { flow: FlowId(flow), answer, reason, last: a, after: b };
        round_trip(&Frame::Reset(reset), cut);
        round_trip(&Frame::PathStatus(Notice { path: PathId(a), serial: b, said }), cut);
        round_trip(&Frame::Ping { token: a, sent_us: b }, cut);
        round_trip(&Frame::Pong { token: a, sent_us: b, received_us: c }, cut);
    }
}

#[test]
fn codes_are_unique_and_unknown_codes_are_none() {
    for &reason in ResetReason::ALL {
        assert_eq!(ResetReason::from_code(reason.code()), Some(reason));
    }
    for &code in RejectCode::ALL {
        assert_eq!(RejectCode::from_code(code.code()), Some(code));
    }
    assert_eq!(ResetReason::from_code(99), None);
}

#[test]
fn invalid_bytes_are_named() {
    let feed = |bytes: &[u8]| Decoder::default().feed(bytes, |_| {});
    assert_eq!(feed(&[2]), Err(WireError::Version(2)));
    assert_eq!(feed(&[1, 6, 0xff, 0xff]), Err(WireError::Oversized(65_535)));
    assert_eq!(feed(&[1, 0x0a, 0, 1, 7]), Err(FieldError::Truncated.into()));
    assert_eq!(feed(&[1, 0x0a, 0, 3, 7, 7, 7]), Err(WireError::Excess));
    assert_eq!(feed(&[1, 6, 0, 4, 0, 0, 0, 0]), Err(FieldError::Invalid("flow zero").into()));
    assert_eq!(feed(&[1, 0x77, 0, 2, 9, 9]), Ok(()), "unknown types are skipped");
    assert_eq!(feed(&[1, 0x0e, 0, 4, 1, 1, 1, 9]), Err(WireError::Excess));
    let mut seen = Vec::new();
    let each = |frame: Frame<'_>| seen.push(format!("{frame:?}"));
    Decoder::default().feed(&[1, 0x0e, 0, 5, 1, 1, 9, 7, 7], each).unwrap();
    assert_eq!(seen, ["Unknown { kind: 14 }"], "a PATH_STATUS with a new statement");
}

/// One million valid frames with random damage, in random cuts.
#[test]
fn fuzz_a_million_damaged_frames() {
    let seed = 0x706f_6c79;
    let mut random = Lcg(seed);
    let valid = samples();
    let (mut decoded, mut refused) = (0u64, 0u64);
    for _ in 0..1_000_000 {
        let mut bytes = valid[random.below(valid.len())].clone();
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
        }
        if random.below(4) == 0 {
            bytes.truncate(random.below(bytes.len() + 1));
        }
        if random.below(4) == 0 && bytes.len() >= HEADER {
            let length = (bytes.len() - HEADER) as u16;
            bytes[2..HEADER].copy_from_slice(&length.to_be_bytes());
        }
        let (head, tail) = bytes.split_at(random.below(bytes.len() + 1));
        let mut decoder = Decoder::default();
        let mut count = |_: Frame<'_>| decoded += 1;
        if decoder.feed(head, &mut count).and_then(|()| decoder.feed(tail, &mut count)).is_err() {
            refused += 1;
        }
    }
    println!("1000000 frames from seed {seed:#x}: {decoded} decoded, {refused} refused");
    assert!(decoded > 100_000 && refused > 100_000, "{decoded} {refused}");
}

/// A change of the committed bytes is a change of the protocol.
#[test]
fn golden_vectors_hold() {
    let golden = include_str!("../../vectors/frames.txt");
    let lines: Vec<&str> = golden.lines().filter(|line| !line.starts_with('#')).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let encoded: Vec<String> = samples().iter().map(|bytes| hex(bytes)).collect();
    let vectors: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(vectors, encoded);
    for (line, bytes) in lines.iter().zip(samples()) {
        let mut names = Vec::new();
        let seen = |frame: Frame<'_>| names.push(format!("{frame:?}").to_uppercase());
        Decoder::default().feed(&bytes, seen).unwrap();
        assert!(names[0].starts_with(line.split(' ').next().unwrap()), "{line}: {names:?}");
    }
}

/// One frame of each type.
fn samples() -> Vec<Vec<u8>> {
    let flow = FlowId(70);
    let greeting =
        Greeting { counter: 3, rank: PathRank::Backup, metered: false, carrier: "a".into() };
    let terms = Terms { window: 65_536, credit: 1 << 24 };
    let marks = DataMarks { fin: true, ..DataMarks::default() };
    let server = Destination::Name(HostName::new("example.com").unwrap(), 443);
    let echo = Some(Echo { path: PathId(3), sent_us: 77, received_us: 20_000 });
    let ack = Ack {
        flow,
        done: false,
        dialed: true,
        cumulative: 500,
        limit: 70_000,
        drained: 400,
        echo,
        ranges: vec![600..700, 900..2_000],
    };
    let reset = Reset { flow, answer: false, reason: ResetReason::Refused, last: 9, after: 3 };
    let notice = |said| Frame::PathStatus(Notice { path: PathId(3), serial: 80, said });
    let message = |latest| Frame::Message {
        channel: Channel(2),
        latest,
        serial: 70,
        waited_us: 400_000,
        payload: b"opaque",
    };
    let welcome = |datagrams, reports, speedtests, streams| {
        let session = SessionId([8; 16]);
        let families = Families::BOTH;
        let offer = Offer { families, datagrams, reports, speedtests, streams };
        Frame::Welcome { session, counter: 3, founder: 1, offer, terms }
    };
    let frames = [
        Frame::Hello { instance: InstanceId([7; 16]), greeting: greeting.clone(), terms },
        Frame::Join { session: SessionId([8; 16]), proof: [9; 32], greeting },
        welcome(false, false, false, false),
        Frame::Reject { code: RejectCode::Unknown, reason: "gone".into() },
        Frame::Open { open: open(Target::Server(server)), data: b"GET / HTTP/1.1\r\n\r\n" },
        Frame::Data { flow, sequence: 1_000, sent_us: 6_000, marks, data: b"hello" },
        Frame::Ack(ack),
        Frame::Window { flow: FlowId(0), limit: 1 << 25, drained: 1 << 24 },
        Frame::Reset(reset),
        Frame::Ping { token: 1, sent_us: 2 },
        Frame::Pong { token: 1, sent_us: 2, received_us: 3 },
        notice(Said::Stalled),
        notice(Said::Policed { rate: Bitrate::from_bps(1_000_000) }),
        notice(Said::Use { rank: PathRank::Backup, metered: false }),
        notice(Said::Use { rank: PathRank::Secondary, metered: true }),
        notice(Said::Limit { rate: Some(Bitrate::from_mbps(20.0)) }),
        Frame::GoAway { reason: "maintenance".into() },
        Frame::Unknown { kind: 0x12 },
        message(false),
        message(true),
        welcome(true, false, false, false),
        welcome(true, true, false, false),
        welcome(true, true, true, false),
    ];
    let encoded = |frame: &Frame<'_>| {
        let mut bytes = Vec::new();
        encode(frame, &mut bytes);
        bytes
    };
    let stream = Frame::Open { open: open(Target::Binding(BindingId(7))), data: b"" };
    let streams = [welcome(true, true, true, true), stream];
    frames.iter().chain(&weighed_samples()).chain(&streams).map(encoded).collect()
}

fn open(target: Target) -> Open {
    let (flow, user, window, sent_us) = (FlowId(70), UserId(9), 65_536, 5_000);
    let marks = DataMarks { fin: true, ..DataMarks::default() };
    Open { flow, user, window, sent_us, marks, target }
}

/// Datagrams, and frames with the weight of a user.
fn weighed_samples() -> Vec<Frame<'static>> {
    let datagram = |user, weight| {
        let remote = Destination::Address(([192, 0, 2, 1], 443).into());
        let (binding, sequence, sent_us) = (BindingId(7), 300, 5_000);
        let weight = Weight::new(weight);
        let datagram = Datagram { binding, sequence, sent_us, user, weight, remote };
        Frame::Datagram { datagram, data: b"udp" }
    };
    let weighed = DataMarks { tail: true, weight: Weight::new(16), ..DataMarks::default() };
    let (flow, data) = (FlowId(70), b"hello");
    vec![
        datagram(Some(UserId(9)), 1),
        datagram(None, 1),
        datagram(Some(UserId(9)), 4),
        Frame::Data { flow, sequence: 1_000, sent_us: 6_000, marks: weighed, data },
    ]
}

#[test]
fn longest_message_fits_a_packet_and_a_longer_one_is_rejected() {
    let frame = |payload| Frame::Message {
        channel: Channel(255),
        latest: true,
        serial: NUMBER_MAX,
        waited_us: NUMBER_MAX,
        payload,
    };
    let payload = [7; MESSAGE_MAX + 1];
    let mut bytes = Vec::new();
    encode(&frame(&payload[1..]), &mut bytes);
    assert_eq!(bytes.len(), MESSAGE_FRAME_MAX);
    let mut decoded = 0;
    let mut decoder = Decoder::default();
    decoder.feed(&bytes, |seen| decoded += usize::from(seen == frame(&payload[1..]))).unwrap();
    assert_eq!(decoded, 1);
    bytes.clear();
    encode(&frame(&payload), &mut bytes);
    assert_eq!(decoder.feed(&bytes, |_| {}), Err(FieldError::Invalid("message too long").into()));
}

#[test]
fn datagram_of_the_longest_length_is_accepted_and_a_longer_one_is_rejected() {
    let data = [7; DATAGRAM_MAX + 1];
    let remote = Destination::Address(([0; 16], 9).into());
    let (binding, sequence) = (BindingId(NUMBER_MAX), NUMBER_MAX);
    let (user, weight) = (Some(UserId(NUMBER_MAX)), Weight::new(Weight::MAX));
    let datagram = Datagram { binding, sequence, sent_us: NUMBER_MAX, user, weight, remote };
    for (length, accepted) in [(DATAGRAM_MAX, true), (DATAGRAM_MAX + 1, false)] {
        let frame = Frame::Datagram { datagram: datagram.clone(), data: &data[..length] };
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes);
        assert!(bytes.len() <= HEADER + 52 + length, "{} bytes", bytes.len());
        let mut same = false;
        let fed = Decoder::default().feed(&bytes, |seen| same = seen == frame);
        assert_eq!((fed.is_ok(), same), (accepted, accepted));
    }
}

/// The length of the unit of one segment. A QUIC packet at an MTU of 1,500 has room for about 1,427
/// bytes of a stream over IPv4, and 20 less over IPv6 (docs/protocol.md, "Flows").
#[test]
fn segment_with_its_header_usually_fits_a_packet() {
    let length = |flow: u64, sequence: u64, sent_us: u64| {
        let (flow, data) = (FlowId(flow), &[7; SEGMENT as usize][..]);
        let mut out = Vec::new();
        encode(
            &Frame::Data { flow, sequence, sent_us, marks: DataMarks::default(), data },
            &mut out,
        );
        out.len()
    };
    let (hour_us, gigabyte) = (3_600_000_000, 1 << 30);
    // A download of less than 1 GiB in the first 17 minutes of a process, and later.
    assert_eq!(length(10_000, gigabyte - 1, 1_000_000_000), 1_415);
    assert_eq!(length(10_000, gigabyte - 1, hour_us), 1_419);
    // After many flows, and over 1 GiB.
    assert_eq!(length(100_000, gigabyte - 1, hour_us), 1_421);
    assert_eq!(length(100_000, gigabyte, hour_us), 1_425);
    // Beyond 2^30 flows.
    assert_eq!(length(NUMBER_MAX, NUMBER_MAX, NUMBER_MAX), 1_429);
}
