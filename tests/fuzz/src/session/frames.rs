//! Frames with fields that the fuzzer chooses.

use polyrail_model::{
    BindingId, Bitrate, Channel, Destination, Families, FlowId, HostName, InstanceId, PathId,
    PathRank, SessionId, UserId, Weight,
};
use polyrail_session::ResetReason;
use polyrail_session::wire::{
    Ack, DATAGRAM_MAX, DataMarks, Datagram, Echo, Frame, Greeting, MESSAGE_MAX, NUMBER_MAX, Notice,
    Offer, Open, RejectCode, Reset, Said, Target, Terms,
};

use crate::input::Input;

/// The content of all data.
const CONTENT: [u8; 15_400] = [7; 15_400];

/// A frame.
pub fn frame(input: &mut Input<'_>) -> Frame<'static> {
    match input.byte() % 16 {
        0 => Frame::Hello {
            instance: InstanceId([7 + input.byte() % 3; 16]),
            greeting: greeting(input),
            terms: terms(input),
        },
        1 => Frame::Join {
            session: SessionId([input.byte(); 16]),
            proof: [input.byte(); 32],
            greeting: greeting(input),
        },
        2 => Frame::Welcome {
            session: SessionId([input.byte(); 16]),
            counter: (input.byte() % 8).into(),
            founder: (input.byte() % 8).into(),
            offer: Offer { families: Families::BOTH, datagrams: true, ..Offer::default() },
            terms: terms(input),
        },
        3 => Frame::Reject { code: input.pick(RejectCode::ALL), reason: "no".to_owned() },
        4 | 5 => Frame::Open { open: open(input), data: content(input) },
        6..=8 => Frame::Data {
            flow: flow(input),
            sequence: number(input),
            sent_us: input.short().into(),
            marks: marks(input),
            data: content(input),
        },
        9 => Frame::Ack(ack(input)),
        10 => {
            let flow = if input.flag() { FlowId(0) } else { flow(input) };
            Frame::Window { flow, limit: number(input), drained: number(input) }
        }
        11 => Frame::Reset(Reset {
            flow: flow(input),
            answer: input.flag(),
            reason: input.pick(ResetReason::ALL),
            last: number(input),
            after: number(input),
        }),
        12 => Frame::Ping { token: number(input), sent_us: number(input) },
        13 => {
            let (token, sent_us) = ((input.byte() % 16).into(), number(input));
            Frame::Pong { token, sent_us, received_us: number(input) }
        }
        14 => Frame::PathStatus(notice(input)),
        _ => rare(input),
    }
}

/// Changes a frame as a flood does: other flows, other offsets, other serials.
pub fn step(frame: &mut Frame<'_>, flows: u64, numbers: u64) {
    let (flow, number) = match frame {
        Frame::Hello { greeting, .. } | Frame::Join { greeting, .. } => {
            (None, &mut greeting.counter)
        }
        Frame::Open { open, .. } => (Some(&mut open.flow), &mut open.window),
        Frame::Data { flow, sequence, .. } => (Some(flow), sequence),
        Frame::Ack(ack) => (Some(&mut ack.flow), &mut ack.limit),
        Frame::Window { flow, limit, .. } => (Some(flow), limit),
        Frame::Reset(reset) => (Some(&mut reset.flow), &mut reset.last),
        Frame::Ping { token, .. } | Frame::Pong { token, .. } => (None, token),
        Frame::PathStatus(notice) => (None, &mut notice.serial),
        Frame::Message { serial, .. } => (None, serial),
        Frame::Datagram { datagram, .. } => (None, &mut datagram.sequence),
        _ => return,
    };
    *number = (*number + numbers).min(NUMBER_MAX);
    if let Some(flow) = flow {
        flow.0 = (flow.0 + flows).min(NUMBER_MAX);
    }
}

fn rare(input: &mut Input<'_>) -> Frame<'static> {
    match input.byte() % 6 {
        0 => Frame::GoAway { reason: "bye".to_owned() },
        4 | 5 => {
            let user = input.flag().then(|| UserId((input.byte() % 4).into()));
            let remote = Destination::Address(([192, 0, 2, 1], 9).into());
            let (binding, sequence) = (BindingId(number(input)), number(input));
            let (sent_us, weight) = (number(input), Weight::default());
            let datagram = Datagram { binding, sequence, sent_us, user, weight, remote };
            let length = usize::from(input.short()) % (DATAGRAM_MAX + 2);
            Frame::Datagram { datagram, data: &CONTENT[..length] }
        }
        _ => Frame::Message {
            channel: Channel(input.byte() % 4),
            latest: input.flag(),
            serial: number(input),
            waited_us: number(input),
            payload: &CONTENT[..usize::from(input.short()) % (MESSAGE_MAX + 1)],
        },
    }
}

fn number(input: &mut Input<'_>) -> u64 {
    input.number().min(NUMBER_MAX)
}

/// Mostly one of few flows. Zero is no flow.
fn flow(input: &mut Input<'_>) -> FlowId {
    match input.byte() {
        255 => FlowId(number(input).max(1)),
        few => FlowId(1 + u64::from(few % 16)),
    }
}

fn marks(input: &mut Input<'_>) -> DataMarks {
    let bits = input.byte();
    DataMarks { fin: bits & 1 != 0, tail: bits & 2 != 0, weight: Weight::new(bits >> 2) }
}

fn content(input: &mut Input<'_>) -> &'static [u8] {
    &CONTENT[..input.pick(&[0, 1, 1, 2, 100, 513, 1_400, 8_191, 15_400])]
}

fn greeting(input: &mut Input<'_>) -> Greeting {
    let carrier = input.pick(&["", "a", "b", "another"]).to_owned();
    Greeting {
        counter: (input.byte() % 16).into(),
        rank: rank(input),
        metered: input.flag(),
        carrier,
    }
}

fn terms(input: &mut Input<'_>) -> Terms {
    Terms { window: number(input), credit: number(input) }
}

fn open(input: &mut Input<'_>) -> Open {
    let name = HostName::new("somewhere.example").expect("a valid name");
    Open {
        flow: flow(input),
        user: UserId((input.byte() % 4).into()),
        window: number(input),
        sent_us: input.short().into(),
        marks: marks(input),
        target: match input.byte() % 4 {
            0 => Target::Binding(BindingId(u64::from(input.byte() % 4) + 1)),
            _ => Target::Server(Destination::Name(name, 80)),
        },
    }
}

fn ack(input: &mut Input<'_>) -> Ack {
    let (flow, bits, cumulative) = (flow(input), input.byte(), number(input));
    let mut edge = cumulative;
    let mut ranges = Vec::new();
    for _ in 0..input.pick(&[0, 0, 1, 2, 32]) {
        let start = edge + u64::from(input.short());
        edge = start + 1 + u64::from(input.short());
        if edge > NUMBER_MAX {
            break;
        }
        ranges.push(start..edge);
    }
    let (limit, drained) = (number(input), number(input));
    let echo = (bits & 4 != 0).then(|| {
        let path = PathId((input.byte() % 8).into());
        Echo { path, sent_us: number(input), received_us: number(input) }
    });
    let (done, dialed) = (bits & 1 != 0, bits & 2 != 0);
    Ack { flow, done, dialed, cumulative, limit, drained, echo, ranges }
}

fn rank(input: &mut Input<'_>) -> PathRank {
    match input.byte() % 3 {
        0 => PathRank::Primary,
        1 => PathRank::Secondary,
        _ => PathRank::Backup,
    }
}

fn notice(input: &mut Input<'_>) -> Notice {
    let (path, serial) = (PathId((input.byte() % 8).into()), number(input));
    let said = match input.byte() % 4 {
        0 => Said::Stalled,
        1 => Said::Policed { rate: Bitrate::from_bps(number(input)) },
        2 => Said::Limit { rate: input.flag().then(|| Bitrate::from_bps(number(input) | 1)) },
        _ => Said::Use { rank: rank(input), metered: input.flag() },
    };
    Notice { path, serial, said }
}
