//! Tests of the payloads: round trips, golden vectors, bounds, and invalid input.

use std::time::Duration;

use polyrail_model::codec::NUMBER_MAX;
use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};
use proptest::prelude::*;

use super::*;
use crate::record::tests::any_handover;

/// The payload of the longest message that a session accepts (`docs/protocol.md`).
const PAYLOAD_MAX: usize = 1_178;

fn telemetry() -> Telemetry {
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

fn known() -> Vec<TripKnown> {
    let known = |trip, next| TripKnown { trip: TripId(trip), next };
    vec![known(1, 0), known(u64::MAX, 70), known(2, TripKnown::LEFT_OUT)]
}

fn records() -> Vec<Handover> {
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

fn digest() -> SyncDigest {
    SyncDigest { trips: 3, hash: 0xfeed_0000_0000_beef, answer: true }
}

/// The longest handover.
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
        rsrp: Rsrp::from_deci_dbm(-2_000),
        outcome: HandoverOutcome::TypeIII,
        dark: Duration::from_micros(NUMBER_MAX),
    }
}

fn decoded(payload: &[u8]) -> Result<Option<Message>, FieldError> {
    decode(SYNC, payload)
}

/// The values of the golden vectors.
fn samples() -> Vec<(Channel, Vec<u8>)> {
    let messages = [
        SyncMessage::Known(known()),
        SyncMessage::Records(records()),
        SyncMessage::Digest(digest()),
    ];
    let messages = messages.iter().map(|message| (SYNC, encode_sync(message)));
    [(TELEMETRY, encode_telemetry(&telemetry()))].into_iter().chain(messages).collect()
}

#[test]
fn golden_vectors_match() {
    let golden = include_str!("../../vectors/messages.txt");
    let golden: Vec<&str> = golden.lines().filter(|line| !line.starts_with('#')).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let samples = samples();
    let lines = samples.iter().map(|(channel, bytes)| format!("{} {}", channel.0, hex(bytes)));
    assert_eq!(golden, lines.collect::<Vec<_>>());
    assert_eq!(decode(TELEMETRY, &samples[0].1), Ok(Some(Message::Telemetry(telemetry()))));
}

proptest! {
    #[test]
    fn messages_survive_a_round_trip(
        records in prop::collection::vec(any_handover(), 0..=SyncMessage::RECORDS_MAX),
        trips in prop::collection::vec((any::<u64>(), any::<u32>()), 0..=SyncMessage::KNOWN_MAX),
        digest in (any::<u32>(), any::<u64>(), any::<bool>()),
    ) {
        let known = trips.into_iter().map(|(trip, next)| TripKnown { trip: TripId(trip), next });
        let (trips, hash, answer) = digest;
        let messages = [
            SyncMessage::Records(records),
            SyncMessage::Known(known.collect()),
            SyncMessage::Digest(SyncDigest { trips, hash, answer }),
        ];
        for message in messages {
            let payload = encode_sync(&message);
            prop_assert!(payload.len() <= PAYLOAD_MAX, "{} bytes", payload.len());
            prop_assert_eq!(decoded(&payload), Ok(Some(Message::Sync(message))));
        }
    }

    /// Any bytes, and any change to a valid payload, decode to a message or an error.
    #[test]
    fn decoder_never_panics(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        sample in 0usize..4, at in any::<prop::sample::Index>(), byte in any::<u8>(),
        length in any::<prop::sample::Index>(), channel in 0u8..4,
    ) {
        let _ = decode(Channel(channel), &noise);
        let (channel, mut payload) = samples().swap_remove(sample);
        let at = at.index(payload.len());
        payload[at] = byte;
        let _ = decode(channel, &payload);
        payload.truncate(length.index(payload.len()));
        let _ = decode(channel, &payload);
    }
}

#[test]
fn longest_payloads_fit_into_a_message() {
    let records = vec![longest(); SyncMessage::RECORDS_MAX];
    let trips = vec![TripKnown { trip: TripId(u64::MAX), next: u32::MAX }; SyncMessage::KNOWN_MAX];
    let carrier = CarrierTelemetry {
        carrier: "x".repeat(100),
        cell: Some(CellId(1)),
        rsrp: Rsrp::from_dbm(0.0),
    };
    let telemetry = Telemetry {
        error: Position { decimetres: i32::MAX },
        age: Duration::MAX,
        carriers: vec![carrier; 100],
        ..telemetry()
    };
    let telemetry = encode_telemetry(&telemetry);
    let sync = [SyncMessage::Records(records), SyncMessage::Known(trips)];
    let [records, known] = sync.map(|message| encode_sync(&message).len());
    assert_eq!([records, known, telemetry.len()], [PAYLOAD_MAX, 1_027, 745]);
    let Ok(Some(Message::Telemetry(telemetry))) = decode(TELEMETRY, &telemetry) else { panic!() };
    assert_eq!(telemetry.carriers.len(), TELEMETRY_CARRIERS_MAX);
    let usual = encode_sync(&SyncMessage::Records(super::tests::records()[..1].to_vec())).len();
    assert!(usual <= 66, "{usual}");
}

/// An invalid reading of a clock or a position is clamped.
#[test]
fn out_of_range_values_are_clamped() {
    let record = Handover { dark: Duration::MAX, ..longest() };
    assert_eq!(
        decoded(&encode_sync(&SyncMessage::Records(vec![record]))),
        Ok(Some(Message::Sync(SyncMessage::Records(vec![longest()]))))
    );
    let mut telemetry = Telemetry { error: Position { decimetres: -1 }, ..telemetry() };
    let payload = encode_telemetry(&telemetry);
    telemetry.error = Position::default();
    assert_eq!(decode(TELEMETRY, &payload), Ok(Some(Message::Telemetry(telemetry))));
}

#[test]
fn invalid_fields_are_rejected_and_unknown_forms_skipped() {
    assert_eq!(decode(TELEMETRY, &[2, 3]), Ok(None), "a later form");
    assert_eq!(decoded(&[4, 9, 9]), Ok(None), "a later kind");
    assert_eq!(decode(Channel(3), &[1, 1]), Ok(None), "a later channel");
    assert_eq!(decoded(&[]), Err(FieldError::Truncated));
    assert_eq!(decoded(&[1, 1]), Err(FieldError::Truncated));
    assert_eq!(decoded(&[1, 0, 0]), Err(FieldError::Invalid("bytes after the last field")));
    // Counts above the maximum, however little follows.
    let many = Err(FieldError::Invalid("too many entries"));
    assert_eq!(decoded(&[1, 0x40, 65]), many);
    assert_eq!(decoded(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), many);
    assert_eq!(decoded(&[2, 13]), many);
    let beyond = [&[1, 1][..], &[0; 8], &[0xc0, 0, 0, 1, 0, 0, 0, 0]].concat();
    assert_eq!(decoded(&beyond), Err(FieldError::Invalid("a number beyond 2^32")));
    // An invalid power.
    let mut payload = encode_telemetry(&telemetry());
    let at = payload.windows(2).position(|pair| pair == (-1_015i16).to_be_bytes()).unwrap();
    payload[at] = 0x7f;
    assert_eq!(decode(TELEMETRY, &payload), Err(FieldError::Invalid("RSRP")));
}
