//! Hostile bytes: noise, frames with random fields, and recorded traffic with changes.

use polyrail_model::{
    BindingId, Bitrate, Channel, Destination, Families, FlowId, HostName, InstanceId, NodeRole,
    PathId, PathRank, SessionId, UserId, Weight,
};
use polyrail_session::ResetReason;
use polyrail_session::wire::{
    Ack, DATAGRAM_MAX, DataMarks, Datagram, Echo, Frame, Greeting, MESSAGE_MAX, NUMBER_MAX, Notice,
    Offer, Open, RejectCode, Reset, Said, Target, Terms, encode,
};
use polyrail_sim::dice::Dice;

/// Hostile bytes, and the number of their frames before damage.
pub fn hostile(dice: &mut Dice, recorded: &[Vec<u8>], target: NodeRole) -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    let count = dice.scale(1, 40);
    match dice.weighted(&[1, 10, 6, 1]) {
        0 => bytes.extend((0..count * 8).map(|_| dice.number() as u8)),
        1 => {
            for _ in 0..count {
                random_frame(dice, target, &mut bytes);
            }
        }
        3 => {
            split_runs(dice, &mut bytes);
            return (bytes, count);
        }
        _ => {
            for _ in 0..count {
                let from = dice.between(0, recorded.len() as u64) as usize;
                bytes.extend_from_slice(&recorded[from]);
            }
        }
    }
    if dice.chance(0.4) {
        damage(dice, &mut bytes);
    }
    (bytes, count)
}

/// Acknowledges every second number of all flows.
fn split_runs(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let top = dice.scale(100, 3_000);
    let numbers: Vec<_> = (1..top).step_by(2).map(|at| at..at + 1).collect();
    for flow in (1..=12).map(FlowId) {
        for ranges in numbers.chunks(32) {
            let ack = Ack { flow, ranges: ranges.to_vec(), ..Ack::default() };
            encode(&Frame::Ack(ack), bytes);
        }
    }
}

fn damage(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..dice.scale(1, 10) {
        if bytes.is_empty() {
            return;
        }
        let at = dice.between(0, bytes.len() as u64) as usize;
        match dice.between(0, 4) {
            0 => bytes[at] ^= 1 << dice.between(0, 8),
            1 => bytes[at] = dice.pick(&[0, 1, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xff]),
            2 => bytes.truncate(at),
            _ => {
                bytes.remove(at);
            }
        }
    }
}

/// A flow id, mostly of an existing flow.
fn flow(dice: &mut Dice) -> FlowId {
    FlowId(match dice.between(0, 20) {
        0 => dice.number() & NUMBER_MAX,
        1 => 0,
        _ => dice.between(1, 12),
    })
}

/// An offset or a limit: mostly small, sometimes at an edge.
fn number(dice: &mut Dice) -> u64 {
    match dice.between(0, 10) {
        0 => NUMBER_MAX - dice.between(0, 3),
        1 => dice.number() & NUMBER_MAX,
        2 => 65_536 + dice.between(0, 3),
        3 => dice.between(0, 2_000_000),
        _ => dice.between(0, 4_000),
    }
}

fn marks(dice: &mut Dice) -> DataMarks {
    let weight = Weight::new(dice.pick(&[1, 1, 4, 16]));
    DataMarks { fin: dice.chance(0.2), tail: dice.chance(0.2), weight }
}

fn data(dice: &mut Dice) -> Vec<u8> {
    let length = dice.pick(&[0, 0, 1, 10, 1_400, 1_400, 15_400]);
    vec![dice.number() as u8; length]
}

fn greeting(dice: &mut Dice) -> Greeting {
    let carrier = dice.pick(&["", "a", "b", "another"]).to_owned();
    let rank = dice.pick(&[PathRank::Primary, PathRank::Secondary, PathRank::Backup]);
    Greeting { counter: dice.between(0, 6), rank, metered: false, carrier }
}

fn random_frame(dice: &mut Dice, target: NodeRole, out: &mut Vec<u8>) {
    // Mostly frames that the other role may send.
    let weights: [u64; 15] = match target {
        NodeRole::Cloud => [1, 1, 1, 1, 6, 20, 12, 5, 8, 2, 2, 2, 1, 4, 6],
        NodeRole::Gateway => [1, 1, 3, 2, 1, 20, 14, 6, 9, 2, 2, 2, 1, 3, 6],
    };
    let data = data(dice);
    let frame = match dice.weighted(&weights) {
        0 => Frame::Hello {
            instance: InstanceId([dice.between(7, 9) as u8; 16]),
            greeting: greeting(dice),
            terms: terms(dice),
        },
        1 => Frame::Join {
            session: SessionId([dice.number() as u8; 16]),
            proof: dice.key(),
            greeting: greeting(dice),
        },
        2 => Frame::Welcome {
            session: SessionId([dice.number() as u8; 16]),
            counter: dice.between(0, 6),
            founder: dice.between(0, 6),
            offer: Offer { families: Families::BOTH, datagrams: true, ..Offer::default() },
            terms: terms(dice),
        },
        3 => Frame::Reject { code: dice.pick(RejectCode::ALL), reason: "it is so".to_owned() },
        4 => Frame::Open { open: open(dice), data: &data },
        5 => {
            let (flow, sequence, sent_us) = (flow(dice), number(dice), number(dice));
            Frame::Data { flow, sequence, sent_us, marks: marks(dice), data: &data }
        }
        6 => Frame::Ack(ack(dice)),
        7 => Frame::Window { flow: flow(dice), limit: number(dice), drained: number(dice) },
        8 => Frame::Reset(Reset {
            flow: flow(dice),
            answer: dice.chance(0.3),
            reason: dice.pick(ResetReason::ALL),
            last: number(dice),
            after: number(dice),
        }),
        9 => Frame::Ping { token: number(dice), sent_us: number(dice) },
        10 => Frame::Pong {
            token: dice.between(0, 9),
            sent_us: number(dice),
            received_us: number(dice),
        },
        11 => Frame::PathStatus(notice(dice)),
        12 => Frame::GoAway { reason: "why not".to_owned() },
        13 => {
            let user = dice.chance(0.5).then(|| UserId(dice.between(0, 4)));
            let remote = Destination::Address(([192, 0, 2, 1], 9).into());
            let (binding, sequence) = (BindingId(number(dice)), number(dice));
            let (sent_us, weight) = (number(dice), Weight::default());
            let datagram = Datagram { binding, sequence, sent_us, user, weight, remote };
            Frame::Datagram { datagram, data: &data[..data.len().min(DATAGRAM_MAX + 1)] }
        }
        _ => Frame::Message {
            channel: Channel(dice.between(0, 4) as u8),
            latest: dice.chance(0.5),
            serial: number(dice),
            waited_us: number(dice),
            payload: &data[..data.len().min(MESSAGE_MAX)],
        },
    };
    // Flow id zero is invalid on the wire, which the encoder does not check.
    encode(&frame, out);
}

fn notice(dice: &mut Dice) -> Notice {
    let rate = Bitrate::from_bps(number(dice));
    let rank = dice.pick(&[PathRank::Primary, PathRank::Secondary, PathRank::Backup]);
    let uses = Said::Use { rank, metered: dice.chance(0.5) };
    let limit = Said::Limit { rate: dice.chance(0.5).then_some(rate) };
    let said = dice.pick(&[Said::Stalled, Said::Policed { rate }, uses, limit]);
    Notice { path: PathId(dice.between(0, 6)), serial: number(dice), said }
}

fn terms(dice: &mut Dice) -> Terms {
    Terms { window: number(dice), credit: number(dice) }
}

fn open(dice: &mut Dice) -> Open {
    let name = HostName::new("somewhere.example").unwrap();
    Open {
        flow: flow(dice),
        user: UserId(dice.between(0, 4)),
        window: number(dice),
        sent_us: number(dice),
        marks: marks(dice),
        target: match dice.between(0, 3) {
            0 => Target::Binding(BindingId(dice.between(1, 4))),
            _ => Target::Server(Destination::Name(name, 80)),
        },
    }
}

fn ack(dice: &mut Dice) -> Ack {
    let cumulative = number(dice);
    let mut edge = cumulative;
    let mut ranges = Vec::new();
    for _ in 0..dice.pick(&[0, 0, 1, 3, 32]) {
        let start = edge + dice.between(0, 2_000);
        let end = start + 1 + dice.between(0, 3_000);
        if end > NUMBER_MAX {
            break;
        }
        ranges.push(start..end);
        edge = end;
    }
    let echo = Echo { path: PathId(number(dice)), sent_us: number(dice), received_us: 5 };
    Ack {
        flow: flow(dice),
        done: dice.chance(0.1),
        dialed: dice.chance(0.2),
        cumulative,
        limit: number(dice),
        drained: number(dice),
        echo: dice.chance(0.5).then_some(echo),
        ranges,
    }
}
