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
    let vectors = [
        (
            encode_handover(&full, None),
            "010102030405060708ac02fb88b094863301410000000000000007170\
             18d41b424b524e90fdc0b",
        ),
        (
            encode_handover(&bare, None),
            "010102030405060708ac02fb88b094863301410000000000000007000\
             18d41b42400",
        ),
    ];
    for (bytes, golden) in vectors {
        assert_eq!(hex(&bytes), golden);
    }
}

#[test]
fn outages_are_truncated_to_milliseconds() {
    let handover = Handover { dark: Duration::from_micros(1999), ..handover() };
    let Ok(Entry::Handover(kept, None)) = decode(&encode_handover(&handover, None)) else {
        panic!()
    };
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
    assert_eq!(check_entry(&Entry::Handover(good.clone(), None)), Ok(()));
    for (field, handover) in bad {
        let encoded = encode_handover(&handover, None);
        let checked = check_entry(&Entry::Handover(handover, None));
        assert_eq!(checked, Err(FieldError::Invalid(field)));
        assert_eq!(decode(&encoded), Err(FieldError::Invalid(field)));
    }
}

#[test]
fn invalid_bytes_are_rejected() {
    let good = encode_handover(&handover(), None);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode(&bytes)
    };
    assert_eq!(with(0, 0), Err(FieldError::Invalid("kind of an entry")));
    assert_eq!(with(0, 4), Err(FieldError::Invalid("kind of an entry")));
    // The sequence 300 is ac 02; with a zero at its end it is overlong.
    assert_eq!(with(10, 0x00), Err(FieldError::Invalid("number")));
    // The flags follow version, trip, sequence, time, carrier and route.
    assert_eq!(with(27, 0xff), Err(FieldError::Invalid("flags")));
    assert_eq!(with(18, 0x07), Err(FieldError::Invalid("carrier")), "a control character");
    assert_eq!(with(18, 0xff), Err(FieldError::Invalid("text")));
    let mut trailing = good.clone();
    trailing.push(0);
    assert_eq!(decode(&trailing), Err(FieldError::Invalid("trailing bytes")));
}

/// The longest entries fit a message, and survive a round trip.
#[test]
fn tracks_and_rates_decode_and_truncated_ones_do_not() {
    let spot = Some(Spot { latitude: -899_999_999, longitude: 1_799_999_999, heading: 255 });
    let point = |at: i32| TrackPoint {
        latitude: if at % 2 == 0 { 880_000_000 } else { -880_000_000 },
        longitude: if at % 2 == 0 { 1_790_000_000 } else { -1_790_000_000 },
        position: Position { decimetres: 50_000 + at * 700 },
        weight: 16,
    };
    let points = (0..TrackPiece::POINTS_MAX as i32).map(point).collect();
    let sample = RateSample {
        position: Position { decimetres: i32::MIN },
        spot,
        rate: Some(Bitrate::from_bps(NUMBER_MAX)),
        delay: Some(Duration::from_micros(NUMBER_MAX)),
    };
    let rates = Rates {
        trip: TripId(u64::MAX),
        carrier: "x".repeat(32),
        route: RouteId(u64::MAX),
        direction: Direction::Down,
        link: Link::Down,
        samples: vec![sample; Rates::SAMPLES_MAX],
    };
    let all = [
        Entry::Track(TrackPiece { route: RouteId(7), piece: 1, points }),
        Entry::Rates(rates),
        Entry::Handover(handover(), spot),
    ];
    for entry in all {
        let bytes = encode(&entry);
        assert!(bytes.len() <= ENTRY_BYTES_MAX, "{}", bytes.len());
        assert_eq!(check_entry(&entry), Ok(()));
        assert_eq!(decode(&bytes), Ok(entry));
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "cut at {end}");
        }
    }
}

proptest! {
    #[test]
    fn handovers_decode_and_truncated_ones_do_not(handover in any_handover()) {
        let bytes = encode_handover(&handover, None);
        prop_assert!(bytes.len() <= 120, "{} bytes", bytes.len());
        prop_assert_eq!(decode(&bytes), Ok(Entry::Handover(handover, None)));
        for end in 0..bytes.len() {
            prop_assert!(decode(&bytes[..end]).is_err(), "cut at {}", end);
        }
    }

}
