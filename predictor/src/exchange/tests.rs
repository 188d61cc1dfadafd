//! Exports and imports: round trips, golden files, and invalid files.

use polyrail_model::{Bitrate, CellId, Direction, RouteId, TripId};
use proptest::prelude::*;

use super::*;
use crate::history::{CellHistory, CellKey};
use crate::record::tests::{any_handover, any_history, handover};
use crate::store::tests::cells;
use crate::store::{Limits, PlaceSample, StoreStats};
use crate::track::{LatLon, Track};

const NOW: u64 = 1_800_000_000_000;

fn empty() -> Store {
    Store::in_memory(Limits::default()).unwrap()
}

fn text(store: &Store, format: Format, coarsening: Coarsening) -> String {
    let mut out = Vec::new();
    export(store, format, coarsening, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn sample(trip: u64) -> PlaceSample {
    PlaceSample {
        carrier: "B".to_owned(),
        route: RouteId(7),
        direction: Direction::Up,
        position: Position::from_metres(-150.0),
        trip: TripId(trip),
        rate: Some(Bitrate::from_bps(1_000_000)),
        delay: None,
    }
}

/// A track of one point, encoded.
fn track(latitude: f64) -> Vec<u8> {
    Track::begun(LatLon::from_degrees(latitude, 8.0).unwrap()).encode()
}

/// A store with one row of each kind.
fn one_of_each() -> Store {
    let mut store = empty();
    let bare = Handover {
        sequence: 0,
        carrier: "say \"B\", twice".to_owned(),
        to: None,
        rsrp: None,
        position: Position { decimetres: 123_456 },
        from: CellId(u64::MAX),
        ..handover()
    };
    store.append(&[bare, Handover { sequence: 1, ..handover() }], NOW).unwrap();
    store.put_track(RouteId(7), &track(50.0)).unwrap();
    store.record_places(&[sample(1)]).unwrap();
    store
}

fn held(store: &Store) -> Vec<Handover> {
    let mut held = Vec::new();
    let visited = store.visit(|one| {
        held.push(one);
        Ok::<_, StoreError>(())
    });
    visited.unwrap();
    held.sort_by_key(|one| (one.trip, one.sequence));
    held
}

#[test]
fn golden_files_match() {
    let store = one_of_each();
    assert_eq!(text(&store, Format::Csv, Coarsening(0)), GOLDEN_CSV);
    assert_eq!(text(&store, Format::Ndjson, Coarsening(0)), GOLDEN_NDJSON);
    for (format, file) in [(Format::Csv, GOLDEN_CSV), (Format::Ndjson, GOLDEN_NDJSON)] {
        let mut other = empty();
        let imported = import(&mut other, format, file.as_bytes(), NOW).unwrap();
        assert_eq!((imported.handovers, imported.known), (2, 0));
        assert_eq!(held(&other), held(&store));
        assert_eq!(cells(&other), cells(&store));
        let again = import(&mut other, format, file.as_bytes(), NOW).unwrap();
        assert_eq!((again.handovers, again.known), (0, 2));
        assert_eq!(cells(&other), cells(&store));
    }
}

#[test]
fn exports_are_coarse_by_default() {
    let store = one_of_each();
    let coarse = text(&store, Format::Ndjson, Coarsening::default());
    assert!(!coarse.contains("track"), "its bytes contain positions: {coarse}");
    for format in [Format::Csv, Format::Ndjson] {
        let mut other = empty();
        let file = text(&store, format, Coarsening::default());
        import(&mut other, format, file.as_bytes(), NOW).unwrap();
        let positions: Vec<_> = held(&other).iter().map(|one| one.position.metres()).collect();
        assert_eq!(positions, [12_300.0, 0.0]);
        let cells = cells(&other);
        let mut passages = cells.iter().flat_map(|(_, history)| history.passages());
        assert!(passages.all(|passage| passage.position.decimetres % 1000 == 0));
    }
    for (metres, included) in [(1, true), (100, true), (101, false), (1_000, false)] {
        let file = text(&store, Format::Ndjson, Coarsening(metres));
        assert_eq!(file.contains("\"place\""), included, "{metres}: {file}");
    }
    for (metres, coarse) in [(49.9, 0.0), (50.0, 100.0), (-50.0, 0.0), (-50.1, -100.0)] {
        let of = Coarsening::default().of(Position::from_metres(metres));
        assert_eq!(of.metres(), coarse, "{metres}");
    }
    for decimetres in [i32::MIN, i32::MAX] {
        let of = Coarsening(u16::MAX).of(Position { decimetres });
        assert_eq!(of.decimetres.signum(), decimetres.signum());
    }
}

#[test]
fn empty_databases_are_exported_and_imported() {
    for format in [Format::Csv, Format::Ndjson] {
        let file = text(&empty(), format, Coarsening(0));
        assert_eq!(file.lines().count(), 1);
        let imported = import(&mut empty(), format, file.as_bytes(), NOW).unwrap();
        assert_eq!(imported, Rows::default());
    }
}

/// Imports an invalid file, which must leave the store empty.
fn refused(format: Format, file: &[u8]) -> String {
    let mut store = empty();
    let error = import(&mut store, format, file, NOW).unwrap_err();
    let stats = store.stats().unwrap();
    assert_eq!(stats, StoreStats::default(), "{error}");
    error.to_string()
}

#[test]
fn errors_in_csv_name_line_column_and_reason() {
    let replace = |from: &str, to: &str| {
        assert!(GOLDEN_CSV.contains(from), "{from}");
        refused(Format::Csv, GOLDEN_CSV.replacen(from, to, 1).as_bytes())
    };
    let table = [
        ("trip,", "journey,", "line 1, column \"trip\" is missing"),
        ("rsrp_dbm,", "", "line 1, column \"rsrp_dbm\" is missing"),
        (",down,-0.1", ",downwards,-0.1", "line 3, column \"direction\": unknown variant"),
        (",-0.1,", ",NaN,", "line 3, column \"position_m\": NaN is no position"),
        (",83.33,", ",-1,", "line 2, column \"speed_m_s\": -1 is no speed"),
        (",-101.3,", ",3,", "line 3, column \"rsrp_dbm\": 3 is no power"),
        (",1234,", ",+1234,", "line 3, column \"from\": \"+1234\" is not a"),
        (",1234,", ",,", "line 3, column \"from\": \"\" is not a number"),
        (",type2,1500\n", ",type2\n", "line 2, row: 12 fields instead of 13"),
        (",type2,1500\n", ",type4,1500\n", "line 2, column \"outcome\": unknown variant"),
        (",1500\n", ",-1\n", "line 2, column \"dark_ms\": invalid digit"),
        (",1500\n", ",99999999999\n", "line 2, invalid field: outage"),
        ("102030405060708,1,", "102030405060708,9999,", "line 3, sequence: too far ahead"),
        ("102030405060708,1,", "102030405060708,4294967296,", "line 3, column \"sequence\""),
        (",A,", ",,", "line 3, invalid field: carrier"),
    ];
    for (from, to, wanted) in table {
        let error = replace(from, to);
        assert!(error.starts_with(wanted), "{error}\n{wanted}");
    }
    let latin = GOLDEN_CSV.replace(",A,", ",\u{1},").into_bytes();
    let latin: Vec<u8> = latin.iter().map(|byte| if *byte == 1 { 0xe4 } else { *byte }).collect();
    assert_eq!(
        refused(Format::Csv, &latin),
        "line 3, row: invalid utf-8: invalid UTF-8 in field 3 near byte index 0"
    );
    assert!(refused(Format::Csv, b"").starts_with("line 1, column \"trip\" is missing"));
    assert!(refused(Format::Csv, GOLDEN_NDJSON.as_bytes()).starts_with("line 1, column"));
}

#[test]
fn errors_in_ndjson_name_line_place_and_reason() {
    let replace = |from: &str, to: &str| {
        assert!(GOLDEN_NDJSON.contains(from), "{from}");
        refused(Format::Ndjson, GOLDEN_NDJSON.replacen(from, to, 1).as_bytes())
    };
    let table = [
        ("\"version\":1", "\"version\":2", "line 1, the version is 2, this program reads 1"),
        ("{\"linkdb\":{\"version\":1}}\n", "", "line 1, an export begins with"),
        ("{\"track\"", "{\"linkdb\":{\"version\":1}}\n{\"track\"", "line 2, repeated \"linkdb\""),
        ("\"bytes\":\"01", "\"bytes\":\"1", "line 2, invalid field: bytes"),
        ("\"bytes\":\"01", "\"bytes\":\"02", "line 2, invalid field: version"),
        ("\"bytes\"", "\"octets\"", "line 2, column 30: unknown field `octets`"),
        ("\"cell\":\"1234\"", "\"cell\":1234", "line 3, column 65: invalid type: integer `1234`"),
        ("\"cell\":\"1234\",", "", "line 3, column 161: missing field `cell`"),
        ("{\"cell\":{", "{\"cell\":{\"x\":1,", "line 3, column 12: unknown field `x`"),
        ("{\"place\":{", "{\"place\":{\"x\":1,", "line 5, column 13: unknown field `x`"),
        ("{\"trip\":\"1\"", "{\"trip\":\"1\",\"trip\":\"1\"", "line 5, column 96: duplicate field"),
        ("\"rate_samples\":1,", "\"rate_samples\":1001,", "line 5, invalid field: number of sam"),
        ("\"delay_us\":0", "\"delay_us\":1", "line 5, invalid field: number of samples"),
        ("\"sequence\":1,\"at_ms\"", "\"sequence\":9999,\"at_ms\"", "line 7, sequence: too far"),
        ("\"at_ms\":", "\"at_ms\":9999", "line 6, invalid field: time"),
        ("\"dark_ms\":1500}}", "\"dark_ms\":1500}", "line 6, column 257: EOF while parsing"),
        ("\"dark_ms\":1500}}\n", "\"dark_ms\":1500}}\n\n", "line 7, column"),
    ];
    for (from, to, wanted) in table {
        let error = replace(from, to);
        assert!(error.starts_with(wanted), "{error}\n{wanted}");
    }
    let passage =
        "{\"trip\":\"1\",\"sequence\":0,\"position_m\":0,\"rsrp_dbm\":null,\"outcome\":\"type1\"}";
    let visit =
        "{\"trip\":\"1\",\"rate_bps\":0,\"rate_samples\":0,\"delay_us\":0,\"delay_samples\":0}";
    for (key, row, most, line) in [("passages", passage, 128, 3), ("trips", visit, 32, 5)] {
        let number = |n: u64| row.replacen("\"1\"", &format!("\"{n:x}\""), 1) + ",";
        for rows in [(2..most + 2).map(number).collect(), number(2).repeat(2)] {
            let error = replace(&format!("\"{key}\":["), &format!("\"{key}\":[{rows}"));
            assert_eq!(error, format!("line {line}, invalid field: {key}"));
        }
    }
    assert!(refused(Format::Ndjson, b"").starts_with("line 1, an export begins"));
    assert!(refused(Format::Ndjson, GOLDEN_CSV.as_bytes()).starts_with("line 1, column 1:"));
    let deep = [b"{\"linkdb\":{\"version\":1}}\n".to_vec(), vec![b'['; 100_000]].concat();
    assert!(refused(Format::Ndjson, &deep).starts_with("line 2, column"));
}

#[test]
fn endless_lines_do_not_fill_the_memory() {
    for format in [Format::Csv, Format::Ndjson] {
        for byte in [0, b'"'] {
            let error = import(&mut empty(), format, io::repeat(byte), NOW).unwrap_err();
            assert_eq!(error.to_string(), "line 1, it has more than 4194304 bytes");
        }
    }
    let open = format!("{GOLDEN_CSV}\"");
    let open = open.as_bytes().chain(io::repeat(b'\n'));
    let error = import(&mut empty(), Format::Csv, open, NOW).unwrap_err();
    assert_eq!(error.to_string(), "line 4, it has more than 4194304 bytes");
}

/// Older than all others, the trip is evicted, but only when it has been learned completely.
#[test]
fn cells_learn_all_of_an_old_trip_from_a_full_database() {
    let trip = |trip, at_ms| {
        let one = Handover { trip: TripId(trip), at_ms, ..handover() };
        let with = |n: u32| Handover { sequence: n, from: CellId(n.into()), ..one.clone() };
        (0..8).map(with).collect::<Vec<_>>()
    };
    let mut source = empty();
    source.append(&trip(1, NOW - 1), NOW).unwrap();
    for format in [Format::Csv, Format::Ndjson] {
        let limits = Limits { events_max: 8, ..Limits::default() };
        let mut store = Store::in_memory(limits).unwrap();
        store.append(&trip(2, NOW), NOW).unwrap();
        let file = text(&source, format, Coarsening(0));
        let imported = import(&mut store, format, file.as_bytes(), NOW).unwrap();
        assert_eq!((imported.handovers, imported.known), (8, 0));
        assert_eq!(held(&store), trip(2, NOW));
        assert!(cells(&store).iter().all(|(_, history)| history.passages().len() == 2));
    }
}

#[test]
fn late_error_leaves_nothing_of_a_long_file() {
    let mut store = empty();
    for trip in 0..30 {
        let all: Vec<_> = (0..500)
            .map(|sequence| Handover { trip: TripId(trip), sequence, ..handover() })
            .collect();
        store.append(&all, NOW).unwrap();
    }
    for format in [Format::Csv, Format::Ndjson] {
        let file = text(&store, format, Coarsening(0));
        let error = refused(format, format!("{file}x").as_bytes());
        assert!(error.starts_with(&format!("line {},", file.lines().count() + 1)), "{error}");
        let mut other = empty();
        let imported = import(&mut other, format, file.as_bytes(), NOW).unwrap();
        assert_eq!(imported.handovers, 15_000);
        assert_eq!(held(&other), held(&store));
        assert_eq!(cells(&other), cells(&store));
    }
}

#[test]
fn imported_trips_count_as_older_than_known_ones() {
    let mut store = empty();
    let own = Handover { trip: TripId(1), sequence: 0, ..handover() };
    store.append(std::slice::from_ref(&own), NOW).unwrap();
    import(&mut store, Format::Ndjson, GOLDEN_NDJSON.as_bytes(), NOW).unwrap();
    let history = store.cell(&CellKey::of(&own)).unwrap().unwrap();
    let trips: Vec<_> = history.passages().map(|passage| passage.trip.0).collect();
    assert_eq!(trips, [0x0102_0304_0506_0708, 1], "known trips count as newer");
    let stats = store.stats().unwrap();
    assert_eq!((stats.events, stats.forecastable_cells), (3, 1));
}

/// A cell with trips that were evicted long ago, as in a file.
fn cell_line(cell: u64, history: &CellHistory) -> String {
    let key = CellKey::of(&Handover { from: CellId(cell), ..handover() });
    let passages = history.passages().map(|one| serde_json::to_value(one).unwrap()).collect();
    let mut cell = serde_json::to_value(key).unwrap();
    cell["passages"] = serde_json::Value::Array(passages);
    cell.to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn exact_exports_are_imported_completely(
        records in prop::collection::vec((0u64..9, 0u32..40, any_handover()), 0..60),
        histories in prop::collection::vec(any_history(), 0..2),
        latitude in 40.0..60.0,
        samples in prop::collection::vec((any::<u64>(), any::<i32>(), any::<Option<u64>>()), 0..9),
    ) {
        let mut store = empty();
        let head = "{\"linkdb\":{\"version\":1}}\n".to_owned();
        let rows = histories.iter().enumerate();
        let rows = rows.map(|(n, one)| format!("{{\"cell\":{}}}\n", cell_line(n as u64, one)));
        let file: String = std::iter::once(head).chain(rows).collect();
        import(&mut store, Format::Ndjson, file.as_bytes(), NOW).unwrap();
        let records: Vec<_> = records
            .into_iter()
            .map(|(trip, sequence, one)| Handover { trip: TripId(trip), sequence, ..one })
            .collect();
        store.append(&records, NOW).unwrap();
        store.put_track(RouteId(7), &track(latitude)).unwrap();
        let samples: Vec<_> = samples
            .into_iter()
            .map(|(trip, decimetres, rate)| PlaceSample {
                position: Position { decimetres },
                rate: rate.map(Bitrate::from_bps),
                ..sample(trip)
            })
            .collect();
        store.record_places(&samples).unwrap();

        let mut other = empty();
        let file = text(&store, Format::Csv, Coarsening(0));
        import(&mut other, Format::Csv, file.as_bytes(), NOW).unwrap();
        prop_assert_eq!(held(&other), held(&store));

        let mut other = empty();
        let file = text(&store, Format::Ndjson, Coarsening(0));
        import(&mut other, Format::Ndjson, file.as_bytes(), NOW).unwrap();
        prop_assert_eq!(held(&other), held(&store));
        prop_assert_eq!(cells(&other), cells(&store));
        prop_assert_eq!(other.tracks().unwrap(), store.tracks().unwrap());
        prop_assert_eq!(other.stats().unwrap(), store.stats().unwrap());
        prop_assert_eq!(text(&other, Format::Ndjson, Coarsening(0)), file);
    }

    #[test]
    fn changed_files_are_refused_or_valid(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        for (format, file) in [(Format::Csv, GOLDEN_CSV), (Format::Ndjson, GOLDEN_NDJSON)] {
            let mut bytes = file.as_bytes().to_vec();
            if cut {
                bytes.truncate(end.index(bytes.len() + 1));
            } else {
                for (at, byte) in &changes {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
            }
            let mut store = empty();
            match import(&mut store, format, &bytes[..], NOW) {
                Ok(imported) => prop_assert_eq!(held(&store).len() as u64, imported.handovers),
                Err(_) => prop_assert_eq!(store.stats().unwrap(), StoreStats::default()),
            }
        }
    }
}

const GOLDEN_CSV: &str = include_str!("tests/golden.csv");

const GOLDEN_NDJSON: &str = include_str!("tests/golden.ndjson");
