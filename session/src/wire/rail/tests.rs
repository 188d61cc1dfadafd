//! Tests of TELEMETRY and HANDOVER: the longest fit a packet, what is bad is refused or skipped.

use proptest::prelude::*;

use super::*;
use crate::wire::{Decoder, encode};

/// The samples of the golden vectors.
pub fn telemetry() -> Telemetry {
    let carrier = |name: &str, cell: Option<u64>, dbm: Option<f64>| CarrierTelemetry {
        carrier: name.to_owned(),
        cell: cell.map(CellId),
        rsrp: dbm.and_then(Rsrp::from_dbm),
    };
    Telemetry {
        trip: TripId(0x0123_4567_89ab_cdef),
        route: RouteId(0xfedc_ba98_7654_3210),
        direction: Direction::Down,
        position: Position::from_metres(-12.3),
        speed: Speed::from_metres_per_second(83.33),
        error: Position::from_metres(20.0),
        age: Duration::from_millis(150),
        carriers: vec![
            carrier("a", Some(0x1a2b3c), Some(-101.5)),
            carrier("b", None, None),
            carrier("c", Some(u64::MAX), None),
        ],
    }
}

pub fn known() -> Vec<TripKnown> {
    let known = |trip, next| TripKnown { trip: TripId(trip), next };
    vec![known(1, 0), known(u64::MAX, 70), known(2, TripKnown::LEFT_OUT)]
}

pub fn records() -> Vec<Handover> {
    let first = Handover {
        trip: TripId(0x0123_4567_89ab_cdef),
        sequence: 69,
        at_ms: 1_700_000_000_123,
        carrier: "a".to_owned(),
        route: RouteId(9),
        direction: Direction::Up,
        position: Position::from_metres(1_234.5),
        speed: Speed::from_metres_per_second(97.2),
        from: CellId(7),
        to: Some(CellId(8)),
        rsrp: Rsrp::from_dbm(-110.0),
        outcome: HandoverOutcome::Success,
        dark: Duration::from_millis(45),
    };
    let second = Handover {
        sequence: 70,
        direction: Direction::Down,
        to: None,
        rsrp: None,
        outcome: HandoverOutcome::TypeIII,
        dark: Duration::from_micros(2_500_001),
        ..first.clone()
    };
    vec![first, second]
}

pub fn digest() -> LedgerDigest {
    LedgerDigest { trips: 3, hash: 0xfeed_0000_0000_beef, answer: true }
}

/// The longest handover that there is.
fn longest() -> Handover {
    Handover {
        trip: TripId(u64::MAX),
        sequence: u32::MAX,
        at_ms: NUMBER_MAX,
        carrier: "x".repeat(CARRIER_NAME_MAX),
        route: RouteId(u64::MAX),
        direction: Direction::Down,
        position: Position { decimetres: i32::MIN },
        speed: Speed { centimetres_per_second: u16::MAX },
        from: CellId(u64::MAX),
        to: Some(CellId(u64::MAX)),
        rsrp: Some(Rsrp { deci_dbm: -2_000 }),
        outcome: HandoverOutcome::TypeIII,
        dark: Duration::from_micros(NUMBER_MAX),
    }
}

fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    bytes
}

fn message(message: LedgerMessage) -> Frame<'static> {
    Frame::Handover { serial: NUMBER_MAX, message }
}

/// The only frame of these bytes.
fn decoded(bytes: &[u8]) -> Result<Frame<'static>, WireError> {
    let mut frames = Vec::new();
    Decoder::default().feed(bytes, |frame| {
        frames.push(match frame {
            Frame::Telemetry { serial, telemetry } => Frame::Telemetry { serial, telemetry },
            Frame::Handover { serial, message } => Frame::Handover { serial, message },
            Frame::Unknown { kind } => Frame::Unknown { kind },
            other => panic!("{other:?}"),
        });
    })?;
    assert_eq!(frames.len(), 1);
    Ok(frames.remove(0))
}

fn handover_strategy() -> impl Strategy<Value = Handover> {
    let places = (any::<u64>(), any::<u64>(), any::<i32>(), any::<u16>());
    let cells = (any::<u64>(), any::<Option<u64>>(), proptest::option::of(-2_000i16..=0));
    let numbers = (any::<u32>(), 0..=NUMBER_MAX, 0..=NUMBER_MAX, 0u8..4, any::<bool>());
    (places, cells, numbers, "[a-zö]{0,16}").prop_map(|(places, cells, numbers, carrier)| {
        let (sequence, at_ms, dark_us, outcome, up) = numbers;
        let outcomes = [
            HandoverOutcome::Success,
            HandoverOutcome::TypeI,
            HandoverOutcome::TypeII,
            HandoverOutcome::TypeIII,
        ];
        Handover {
            trip: TripId(places.0),
            sequence,
            at_ms,
            carrier,
            route: RouteId(places.1),
            direction: if up { Direction::Up } else { Direction::Down },
            position: Position { decimetres: places.2 },
            speed: Speed { centimetres_per_second: places.3 },
            from: CellId(cells.0),
            to: cells.1.map(CellId),
            rsrp: cells.2.map(|deci_dbm| Rsrp { deci_dbm }),
            outcome: outcomes[usize::from(outcome)],
            dark: Duration::from_micros(dark_us),
        }
    })
}

proptest! {
    #[test]
    fn handovers_come_back(
        records in prop::collection::vec(handover_strategy(), 0..=LedgerMessage::RECORDS_MAX),
        trips in prop::collection::vec((any::<u64>(), any::<u32>()), 0..=LedgerMessage::KNOWN_MAX),
        digest in (any::<u32>(), any::<u64>(), any::<bool>()), serial in 0..=NUMBER_MAX,
    ) {
        let known = trips.into_iter().map(|(trip, next)| TripKnown { trip: TripId(trip), next });
        let (trips, hash, answer) = digest;
        let messages = [
            LedgerMessage::Records(records),
            LedgerMessage::Known(known.collect()),
            LedgerMessage::Digest(LedgerDigest { trips, hash, answer }),
        ];
        for message in messages {
            let frame = Frame::Handover { serial, message };
            let bytes = bytes_of(&frame);
            prop_assert!(bytes.len() <= RAIL_FRAME_MAX, "{} bytes", bytes.len());
            prop_assert_eq!(decoded(&bytes), Ok(frame));
        }
    }

    #[test]
    fn telemetry_comes_back(
        records in prop::collection::vec(handover_strategy(), 1..=TELEMETRY_CARRIERS_MAX),
        error in 0..=i32::MAX, age_us in 0..=NUMBER_MAX, serial in 0..=NUMBER_MAX,
    ) {
        let Handover { trip, route, direction, position, speed, .. } = records[0];
        let carrier = |record: &Handover| CarrierTelemetry {
            carrier: record.carrier.clone(),
            cell: record.to,
            rsrp: record.rsrp,
        };
        let carriers = records.iter().map(carrier).collect();
        let (error, age) = (Position { decimetres: error }, Duration::from_micros(age_us));
        let telemetry =
            Telemetry { trip, route, direction, position, speed, error, age, carriers };
        let frame = Frame::Telemetry { serial, telemetry };
        let bytes = bytes_of(&frame);
        prop_assert!(bytes.len() <= RAIL_FRAME_MAX, "{} bytes", bytes.len());
        prop_assert_eq!(decoded(&bytes), Ok(frame));
    }
}

#[test]
fn the_longest_frames_fit_a_packet_and_more_is_left_out() {
    let records = bytes_of(&message(LedgerMessage::Records(vec![longest(); 100])));
    let trips = vec![TripKnown { trip: TripId(u64::MAX), next: u32::MAX }; 100];
    let known = bytes_of(&message(LedgerMessage::Known(trips)));
    let carrier = CarrierTelemetry {
        carrier: "x".repeat(100),
        cell: Some(CellId(1)),
        rsrp: Some(Rsrp { deci_dbm: 0 }),
    };
    let telemetry = Telemetry {
        error: Position { decimetres: i32::MAX },
        age: Duration::MAX,
        carriers: vec![carrier; 100],
        ..telemetry()
    };
    let telemetry = bytes_of(&Frame::Telemetry { serial: NUMBER_MAX, telemetry });
    assert_eq!([records.len(), known.len(), telemetry.len()], [1_190, 1_039, 757]);
    assert!(matches!(decoded(&records), Ok(Frame::Handover {
        message: LedgerMessage::Records(records), ..
    }) if records == vec![longest(); 12]));
    assert!(matches!(decoded(&known), Ok(Frame::Handover {
        message: LedgerMessage::Known(trips), ..
    }) if trips.len() == 64));
    assert!(matches!(decoded(&telemetry), Ok(Frame::Telemetry {
        telemetry: Telemetry { carriers, .. }, ..
    }) if carriers.len() == 16));
    // As a handover mostly is.
    let usual = records_length(&super::tests::records()[0]);
    assert!(usual <= 64, "{usual}");
}

fn records_length(record: &Handover) -> usize {
    let mut bytes = Vec::new();
    put_record(&mut bytes, record);
    bytes.len()
}

/// A modem or a clock that reads nonsense costs no tunnel.
#[test]
fn what_is_out_of_range_is_not_told() {
    let odd = Some(Rsrp { deci_dbm: 1 });
    let record = Handover { rsrp: odd, dark: Duration::MAX, ..longest() };
    let told = decoded(&bytes_of(&message(LedgerMessage::Records(vec![record]))));
    let kept = Handover { rsrp: None, ..longest() };
    assert_eq!(told, Ok(message(LedgerMessage::Records(vec![kept]))));
    let mut telemetry = Telemetry { error: Position { decimetres: -1 }, ..telemetry() };
    telemetry.carriers[0].rsrp = odd;
    let told = decoded(&bytes_of(&Frame::Telemetry { serial: 1, telemetry: telemetry.clone() }));
    telemetry.error = Position::default();
    telemetry.carriers[0].rsrp = None;
    assert_eq!(told, Ok(Frame::Telemetry { serial: 1, telemetry }));
}

#[test]
fn bad_fields_are_refused_and_new_ones_skipped() {
    let frame = |kind: u8, payload: &[u8]| {
        let length = (payload.len() as u16).to_be_bytes();
        decoded(&[&[1, kind, length[0], length[1]], payload].concat())
    };
    let handover = |payload: &[u8]| frame(0x0d, payload);
    for (kind, payload) in [(0x0c, &[1, 2, 3][..]), (0x0d, &[1, 4, 9, 9]), (0x0d, &[1, 0])] {
        assert_eq!(frame(kind, payload), Ok(Frame::Unknown { kind }), "later versions may say so");
    }
    assert_eq!(handover(&[1]), Err(WireError::Truncated));
    assert_eq!(handover(&[1, 1, 1]), Err(WireError::Truncated));
    assert_eq!(handover(&[1, 1, 0, 0]), Err(WireError::Excess));
    // Counts beyond the bound, however little follows.
    let many = Err(WireError::Field("too many entries"));
    assert_eq!(handover(&[1, 1, 0x40, 65]), many);
    assert_eq!(handover(&[1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), many);
    assert_eq!(handover(&[1, 2, 13]), many);
    let beyond = [&[1, 1, 1][..], &[0; 8], &[0xc0, 0, 0, 1, 0, 0, 0, 0]].concat();
    assert_eq!(handover(&beyond), Err(WireError::Field("a number beyond 2^32")));
    for kind in [0x0c, 0x0d] {
        let long = [&[1, 9][..], &[0; RAIL_FRAME_MAX - HEADER - 1]].concat();
        assert_eq!(frame(kind, &long), Err(WireError::Field("longer than a packet")));
        assert_eq!(frame(kind, &long[1..]), Ok(Frame::Unknown { kind }));
    }
    // A signal that no receiver reports.
    let mut bytes = bytes_of(&Frame::Telemetry { serial: 1, telemetry: telemetry() });
    let at = bytes.windows(2).position(|pair| pair == (-1_015i16).to_be_bytes()).unwrap();
    bytes[at] = 0x7f;
    assert_eq!(decoded(&bytes), Err(WireError::Field("RSRP")));
}
