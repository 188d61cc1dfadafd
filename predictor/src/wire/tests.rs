//! Tests of the payloads: round trips, golden vectors, bounds, and invalid input.

use proptest::prelude::*;

use super::*;
use crate::record::tests::{any_handover, handover};

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

fn log() -> LogId {
    LogId { writer: "train-7".to_owned(), incarnation: 0x0123_4567_89ab_cdef }
}

fn marks() -> SyncMessage {
    let mark = |floor, next| Mark { log: log(), floor, next };
    SyncMessage::Marks { end: true, heard: false, marks: vec![mark(0, 70), mark(5, 1 << 48)] }
}

fn some_entries() -> SyncMessage {
    let entry = Entry::Handover(handover(), None);
    let entries = vec![(66, entry.clone()), (69, entry)];
    SyncMessage::Entries { log: log(), floor: 5, first: 65, end: 70, entries }
}

fn decoded(payload: &[u8]) -> Result<Option<Message>, FieldError> {
    decode(SYNC, payload)
}

/// The values of the golden vectors.
fn samples() -> Vec<(Channel, Vec<u8>)> {
    let messages = [marks(), some_entries()];
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
        records in prop::collection::vec((0u64..9, any_handover()), 0..=8),
        floor in 0u64..9, end in any::<bool>(), heard in any::<bool>(),
    ) {
        let mut sequence = 10;
        let entries: Vec<_> = records.into_iter().map(|(hole, one)| {
            sequence += hole + 1;
            (sequence, Entry::Handover(one, None))
        }).collect();
        let marks = vec![Mark { log: log(), floor, next: floor + 9 }; 3];
        for message in [
            SyncMessage::Marks { end, heard, marks },
            SyncMessage::Entries { log: log(), floor, first: 10, end: sequence + 1, entries },
        ] {
            prop_assert_eq!(decoded(&encode_sync(&message)), Ok(Some(Message::Sync(message))));
        }
    }

    /// Any bytes, and any change to a valid payload, decode to a message or an error.
    #[test]
    fn decoder_never_panics(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        sample in 0usize..3, at in any::<prop::sample::Index>(), byte in any::<u8>(),
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
fn longest_marks_fit_into_a_message() {
    let log = LogId { writer: "x".repeat(63), incarnation: u64::MAX };
    let mark = Mark { log, floor: 1 << 48, next: 1 << 48 };
    let marks = vec![mark; SyncMessage::MARKS_MAX];
    let marks = SyncMessage::Marks { end: true, heard: true, marks };
    let length = encode_sync(&marks).len();
    assert!(length <= PAYLOAD_MAX, "{length}");
    // Those of entries: kind, log, three numbers, and the count.
    let around = 1 + 64 + 8 + 3 * 8 + 2;
    assert!(around + SyncMessage::ENTRIES_BYTES <= PAYLOAD_MAX);
}

#[test]
fn invalid_fields_are_rejected_and_unknown_forms_skipped() {
    assert_eq!(decode(TELEMETRY, &[2, 3]), Ok(None), "a later form");
    assert_eq!(decoded(&[6, 9, 9]), Ok(None), "a later kind");
    for kind in 1..4 {
        assert_eq!(decoded(&[kind, 9, 9]), Ok(Some(Message::Sync(SyncMessage::Older))));
    }
    assert_eq!(decode(Channel(3), &[1, 1]), Ok(None), "a later channel");
    assert_eq!(decoded(&[]), Err(FieldError::Truncated));
    assert_eq!(decoded(&[4, 0]), Err(FieldError::Truncated));
    assert_eq!(decoded(&[4, 0, 0, 0]), Err(FieldError::Invalid("bytes after the last field")));
    assert_eq!(decoded(&[4, 4, 0]), Err(FieldError::Invalid("flags")));
    // Counts above the maximum, however little follows.
    assert_eq!(decoded(&[4, 0, 13]), Err(FieldError::Invalid("too many entries")));
    let text = |message: &SyncMessage, at: usize, byte: u8| {
        let mut payload = encode_sync(message);
        payload[at] = byte;
        decoded(&payload)
    };
    assert_eq!(text(&marks(), 4, 0), Err(FieldError::Invalid("writer")), "a control character");
    let beyond = SyncMessage::Entries {
        log: log(),
        floor: 0,
        first: 0,
        end: 1,
        entries: vec![(1, Entry::Handover(handover(), None))],
    };
    assert_eq!(decoded(&encode_sync(&beyond)), Err(FieldError::Invalid("sequence")));
    // An invalid power.
    let mut payload = encode_telemetry(&telemetry());
    let at = payload.windows(2).position(|pair| pair == (-1_015i16).to_be_bytes()).unwrap();
    payload[at] = 0x7f;
    assert_eq!(decode(TELEMETRY, &payload), Err(FieldError::Invalid("RSRP")));
}
