//! Records and histories as bytes: back and forth, golden bytes, and everything that is refused.

use proptest::prelude::*;

use super::*;

pub(crate) fn handover() -> Handover {
    Handover {
        trip: TripId(0x0102_0304_0506_0708),
        sequence: 300,
        at_ms: 1_754_000_000_123,
        carrier: "A".to_owned(),
        route: RouteId(7),
        direction: Direction::Down,
        position: Position { decimetres: -1 },
        speed: Speed { centimetres_per_second: 8333 },
        from: CellId(0x1234),
        to: Some(CellId(0x1235)),
        rsrp: Some(Rsrp { deci_dbm: -1013 }),
        outcome: HandoverOutcome::TypeII,
        dark: Duration::from_millis(1500),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn any_outcome() -> impl Strategy<Value = HandoverOutcome> {
    (0u8..4).prop_map(outcome_of)
}

pub(crate) fn any_handover() -> impl Strategy<Value = Handover> {
    (
        (any::<u64>(), any::<u32>(), 0..=AT_MS_MAX, "[ -~äß\"]{1,16}", any::<u64>()),
        (0u8..2, any::<i32>(), any::<u16>(), any::<u64>(), any::<Option<u64>>()),
        (prop::option::of(-2000i16..=0), any_outcome(), 0u64..=86_400_000),
    )
        .prop_map(|(a, b, c)| Handover {
            trip: TripId(a.0),
            sequence: a.1,
            at_ms: a.2,
            carrier: a.3,
            route: RouteId(a.4),
            direction: direction_of(b.0),
            position: Position { decimetres: b.1 },
            speed: Speed { centimetres_per_second: b.2 },
            from: CellId(b.3),
            to: b.4.map(CellId),
            rsrp: c.0.map(|deci_dbm| Rsrp { deci_dbm }),
            outcome: c.1,
            dark: Duration::from_millis(c.2),
        })
}

pub(crate) fn any_history() -> impl Strategy<Value = CellHistory> {
    prop::collection::vec(any_handover(), 0..PASSAGES_MAX + 9).prop_map(|all| {
        let mut history = CellHistory::default();
        for one in &all {
            history.add(one);
        }
        history
    })
}

#[test]
fn golden_vectors_hold() {
    let full = handover();
    let bare = Handover {
        to: None,
        rsrp: None,
        direction: Direction::Up,
        outcome: HandoverOutcome::Success,
        dark: Duration::ZERO,
        ..full.clone()
    };
    let mut history = CellHistory::default();
    history.add(&full);
    history.add(&Handover { sequence: 301, ..bare.clone() });
    let vectors = [
        (
            encode_handover(&full).unwrap(),
            "010102030405060708ac02fb88b094863301410000000000000007170\
             18d41b424b524e90fdc0b",
        ),
        (
            encode_handover(&bare).unwrap(),
            "010102030405060708ac02fb88b094863301410000000000000007000\
             18d41b42400",
        ),
        (
            encode_history(&history).unwrap(),
            "01020102030405060708ac020105e90f0102030405060708ad020100",
        ),
        (encode_history(&CellHistory::default()).unwrap(), "0100"),
    ];
    for (bytes, golden) in vectors {
        assert_eq!(hex(&bytes), golden);
    }
}

#[test]
fn silence_is_kept_in_whole_milliseconds() {
    let handover = Handover { dark: Duration::from_micros(1999), ..handover() };
    let kept = decode_handover(&encode_handover(&handover).unwrap()).unwrap();
    assert_eq!(kept.dark, Duration::from_millis(1));
}

#[test]
fn impossible_handovers_are_refused() {
    let good = handover();
    let bad = [
        ("carrier", Handover { carrier: String::new(), ..good.clone() }),
        ("carrier", Handover { carrier: "x".repeat(33), ..good.clone() }),
        ("carrier", Handover { carrier: "a\nb".to_owned(), ..good.clone() }),
        ("time", Handover { at_ms: AT_MS_MAX + 1, ..good.clone() }),
        ("silence", Handover { dark: DARK_MAX + Duration::from_millis(1), ..good.clone() }),
        ("received power", Handover { rsrp: Some(Rsrp { deci_dbm: 1 }), ..good.clone() }),
        ("received power", Handover { rsrp: Some(Rsrp { deci_dbm: -2001 }), ..good }),
    ];
    for (what, handover) in bad {
        assert_eq!(encode_handover(&handover), Err(RecordError::Impossible(what)));
    }
}

#[test]
fn impossible_bytes_are_refused() {
    let good = encode_handover(&handover()).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode_handover(&bytes)
    };
    assert_eq!(with(0, 0), Err(RecordError::Version(0)));
    assert_eq!(with(0, 2), Err(RecordError::Version(2)));
    // The sequence 300 is ac 02: written with a zero at its end it is overlong.
    assert_eq!(with(10, 0x00), Err(RecordError::Impossible("number")));
    // The flags stand behind version, trip, sequence, time, carrier and route.
    assert_eq!(with(27, 0xff), Err(RecordError::Impossible("flags")));
    assert_eq!(with(18, 0x07), Err(RecordError::Impossible("carrier")), "a control character");
    assert_eq!(with(18, 0xff), Err(RecordError::Impossible("text")));
    let mut trailing = good.clone();
    trailing.push(0);
    assert_eq!(decode_handover(&trailing), Err(RecordError::Trailing));

    let one = "0102030405060708ac020100";
    let bytes = |text: &str| -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    };
    let repeated = decode_history(&bytes(&format!("0102{one}{one}")));
    assert_eq!(repeated, Err(RecordError::Impossible("repeated passage")));
    let many = decode_history(&bytes("018101"));
    assert_eq!(many, Err(RecordError::Impossible("number of passages")));
    let huge = decode_history(&bytes("01ffffffffffffffffff01"));
    assert_eq!(huge, Err(RecordError::Impossible("number of passages")));
    let endless = decode_history(&bytes("01ffffffffffffffffffff01"));
    assert_eq!(endless, Err(RecordError::Impossible("number")));
}

proptest! {
    #[test]
    fn handovers_come_back_and_cut_ones_do_not(handover in any_handover()) {
        let bytes = encode_handover(&handover).unwrap();
        prop_assert!(bytes.len() <= 120, "{} bytes", bytes.len());
        prop_assert_eq!(decode_handover(&bytes), Ok(handover));
        for end in 0..bytes.len() {
            prop_assert!(decode_handover(&bytes[..end]).is_err(), "cut at {}", end);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn histories_come_back_and_cut_ones_do_not(history in any_history()) {
        let bytes = encode_history(&history).unwrap();
        prop_assert_eq!(decode_history(&bytes), Ok(history));
        for end in 0..bytes.len() {
            prop_assert!(decode_history(&bytes[..end]).is_err(), "cut at {}", end);
        }
    }

}

proptest! {
    #[test]
    fn what_decodes_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for bytes in [bytes.clone(), [&[1], &bytes[..]].concat()] {
            if let Ok(handover) = decode_handover(&bytes) {
                prop_assert_eq!(encode_handover(&handover), Ok(bytes.clone()));
            }
            if let Ok(history) = decode_history(&bytes) {
                prop_assert_eq!(encode_history(&history), Ok(bytes.clone()));
            }
        }
    }
}
