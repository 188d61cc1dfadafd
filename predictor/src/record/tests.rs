//! Records and histories: round trips, golden bytes, and invalid bytes.

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
        rsrp: Rsrp::from_deci_dbm(-1013),
        outcome: HandoverOutcome::TypeII,
        dark: Duration::from_millis(1500),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn any_handover() -> impl Strategy<Value = Handover> {
    (
        (any::<u64>(), any::<u32>(), 0..=AT_MS_MAX, "[ -~äß\"]{1,16}", any::<u64>()),
        (0u8..2, any::<i32>(), any::<u16>(), any::<u64>(), any::<Option<u64>>()),
        (prop::option::of(-2000i16..=0), 0u8..4, 0u64..=86_400_000),
    )
        .prop_map(|(a, b, c)| Handover {
            trip: TripId(a.0),
            sequence: a.1,
            at_ms: a.2,
            carrier: a.3,
            route: RouteId(a.4),
            direction: Direction::from_bit(b.0),
            position: Position { decimetres: b.1 },
            speed: Speed { centimetres_per_second: b.2 },
            from: CellId(b.3),
            to: b.4.map(CellId),
            rsrp: c.0.and_then(Rsrp::from_deci_dbm),
            outcome: HandoverOutcome::from_bits(c.1),
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
            encode_handover(&full),
            "010102030405060708ac02fb88b094863301410000000000000007170\
             18d41b424b524e90fdc0b",
        ),
        (
            encode_handover(&bare),
            "010102030405060708ac02fb88b094863301410000000000000007000\
             18d41b42400",
        ),
        (encode_history(&history), "01020102030405060708ac020105e90f0102030405060708ad020100"),
        (encode_history(&CellHistory::default()), "0100"),
    ];
    for (bytes, golden) in vectors {
        assert_eq!(hex(&bytes), golden);
    }
}

#[test]
fn outages_are_truncated_to_milliseconds() {
    let handover = Handover { dark: Duration::from_micros(1999), ..handover() };
    let kept = decode_handover(&encode_handover(&handover)).unwrap();
    assert_eq!(kept.dark, Duration::from_millis(1));
}

#[test]
fn invalid_handovers_are_rejected() {
    let good = handover();
    let bad = [
        ("carrier", Handover { carrier: String::new(), ..good.clone() }),
        ("carrier", Handover { carrier: "x".repeat(33), ..good.clone() }),
        ("carrier", Handover { carrier: "a\nb".to_owned(), ..good.clone() }),
        ("time", Handover { at_ms: AT_MS_MAX + 1, ..good.clone() }),
        ("outage", Handover { dark: DARK_MAX + Duration::from_millis(1), ..good.clone() }),
    ];
    assert_eq!(check(&good), Ok(()));
    for (field, handover) in bad {
        assert_eq!(check(&handover), Err(FieldError::Invalid(field)));
        let encoded = encode_handover(&handover);
        assert_eq!(decode_handover(&encoded), Err(FieldError::Invalid(field)));
    }
}

#[test]
fn invalid_bytes_are_rejected() {
    let good = encode_handover(&handover());
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode_handover(&bytes)
    };
    assert_eq!(with(0, 0), Err(FieldError::Invalid("version")));
    assert_eq!(with(0, 2), Err(FieldError::Invalid("version")));
    // The sequence 300 is ac 02; with a zero at its end it is overlong.
    assert_eq!(with(10, 0x00), Err(FieldError::Invalid("number")));
    // The flags follow version, trip, sequence, time, carrier and route.
    assert_eq!(with(27, 0xff), Err(FieldError::Invalid("flags")));
    assert_eq!(with(18, 0x07), Err(FieldError::Invalid("carrier")), "a control character");
    assert_eq!(with(18, 0xff), Err(FieldError::Invalid("text")));
    let mut trailing = good.clone();
    trailing.push(0);
    assert_eq!(decode_handover(&trailing), Err(FieldError::Invalid("trailing bytes")));

    let one = "0102030405060708ac020100";
    let bytes = |text: &str| -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    };
    let repeated = decode_history(&bytes(&format!("0102{one}{one}")));
    assert_eq!(repeated, Err(FieldError::Invalid("repeated passage")));
    let many = decode_history(&bytes("018101"));
    assert_eq!(many, Err(FieldError::Invalid("number of passages")));
    let huge = decode_history(&bytes("01ffffffffffffffffff01"));
    assert_eq!(huge, Err(FieldError::Invalid("number of passages")));
    let endless = decode_history(&bytes("01ffffffffffffffffffff01"));
    assert_eq!(endless, Err(FieldError::Invalid("number")));
}

proptest! {
    #[test]
    fn handovers_decode_and_truncated_ones_do_not(handover in any_handover()) {
        let bytes = encode_handover(&handover);
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
    fn histories_decode_and_truncated_ones_do_not(history in any_history()) {
        let bytes = encode_history(&history);
        prop_assert_eq!(decode_history(&bytes), Ok(history));
        for end in 0..bytes.len() {
            prop_assert!(decode_history(&bytes[..end]).is_err(), "cut at {}", end);
        }
    }
}
