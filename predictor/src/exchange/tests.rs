//! Exports and imports: back and forth, golden files, and everything that is refused.

use polyrail_model::{Bitrate, CellId, Direction, RouteId, TripId};
use proptest::prelude::*;

use super::*;
use crate::history::{CellHistory, CellKey};
use crate::record::tests::{any_handover, any_history, handover};
use crate::store::{Limits, PlaceSample, StoreStats};

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

/// One of everything.
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
    store.put_track(RouteId(7), &[0, 255, 16]).unwrap();
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
fn golden_files_hold() {
    let store = one_of_each();
    assert_eq!(text(&store, Format::Csv, Coarsening::Exact), GOLDEN_CSV);
    assert_eq!(text(&store, Format::Ndjson, Coarsening::Exact), GOLDEN_NDJSON);
    for (format, file) in [(Format::Csv, GOLDEN_CSV), (Format::Ndjson, GOLDEN_NDJSON)] {
        let mut other = empty();
        let imported = import(&mut other, format, file.as_bytes(), NOW).unwrap();
        assert_eq!((imported.fresh, imported.known), (2, 0));
        assert_eq!(held(&other), held(&store));
        assert_eq!(other.cells().unwrap(), store.cells().unwrap());
        let again = import(&mut other, format, file.as_bytes(), NOW).unwrap();
        assert_eq!((again.fresh, again.known), (0, 2));
        assert_eq!(other.cells().unwrap(), store.cells().unwrap());
    }
}

#[test]
fn exports_are_coarse_unless_asked_for() {
    let store = one_of_each();
    let coarse = text(&store, Format::Ndjson, Coarsening::default());
    assert!(!coarse.contains("track"), "its bytes hold positions: {coarse}");
    for format in [Format::Csv, Format::Ndjson] {
        let mut other = empty();
        let file = text(&store, format, Coarsening::default());
        import(&mut other, format, file.as_bytes(), NOW).unwrap();
        let positions: Vec<_> = held(&other).iter().map(|one| one.position.metres()).collect();
        assert_eq!(positions, [12_300.0, 0.0]);
        let cells = other.cells().unwrap();
        let mut passages = cells.iter().flat_map(|(_, history)| history.passages());
        assert!(passages.all(|passage| passage.position.decimetres % 1000 == 0));
    }
    for (metres, told) in [(1, true), (100, true), (101, false), (1_000, false)] {
        let file = text(&store, Format::Ndjson, Coarsening::Metres(metres));
        assert_eq!(file.contains("\"place\""), told, "{metres}: {file}");
    }
    let exact = [Coarsening::Exact, Coarsening::Metres(0)];
    assert!(exact.iter().all(|one| text(&store, Format::Ndjson, *one) == GOLDEN_NDJSON));
    for (metres, coarse) in [(49.9, 0.0), (50.0, 100.0), (-50.0, 0.0), (-50.1, -100.0)] {
        let of = Coarsening::default().of(Position::from_metres(metres));
        assert_eq!(of.metres(), coarse, "{metres}");
    }
    for decimetres in [i32::MIN, i32::MAX] {
        let of = Coarsening::Metres(u16::MAX).of(Position { decimetres });
        assert_eq!(of.decimetres.signum(), decimetres.signum());
    }
}

#[test]
fn empty_databases_are_exported_and_imported() {
    for format in [Format::Csv, Format::Ndjson] {
        let file = text(&empty(), format, Coarsening::Exact);
        assert_eq!(file.lines().count(), 1);
        let imported = import(&mut empty(), format, file.as_bytes(), NOW).unwrap();
        assert_eq!(imported, Imported::default());
    }
}

/// Imports what must fail; nothing may be left of it.
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
        ("trip,", "journey,", "line 1, column \"journey\": it is not known"),
        ("rsrp_dbm,", "", "line 1, column \"rsrp_dbm\": it is missing"),
        ("trip,", "trip,trip,", "line 1, column \"trip\": it is there twice"),
        (",down,-0.1", ",downwards,-0.1", "line 3, column \"direction\": unknown variant"),
        (",-0.1,", ",-0.15,", "line 3, column \"position_m\": -0.15 is finer than 1/10"),
        (",-0.1,", ",1e30,", "line 3, column \"position_m\": 1000000000000000000000000000000 is"),
        (",-0.1,", ",NaN,", "line 3, column \"position_m\": NaN is not between"),
        (",83.33,", ",-1,", "line 2, column \"speed_m_s\": -1 is not between 0 and 655.35"),
        (",-101.3,", ",3,", "line 3, row: the record's received power cannot be"),
        (",1234,", ",+1234,", "line 3, column \"from\": \"+1234\" is no id"),
        (",1234,", ",,", "line 3, column \"from\": \"\" is no id"),
        (",type2,1500\n", ",type2\n", "line 2, row: it has 12 fields in place of 13"),
        (",type2,1500\n", ",type4,1500\n", "line 2, column \"outcome\": unknown variant"),
        (",1500\n", ",-1\n", "line 2, column \"dark_ms\": invalid digit"),
        (",1500\n", ",99999999999\n", "line 2, row: the record's silence cannot be"),
        ("102030405060708,1,", "102030405060708,9999,", "line 3, sequence: it is too far ahead"),
        ("102030405060708,1,", "102030405060708,4294967296,", "line 3, column \"sequence\""),
        (",A,", ",,", "line 3, row: the record's carrier cannot be"),
    ];
    for (from, to, wanted) in table {
        let error = replace(from, to);
        assert!(error.starts_with(wanted), "{error}\n{wanted}");
    }
    let latin = GOLDEN_CSV.replace(",A,", ",\u{1},").into_bytes();
    let latin: Vec<u8> = latin.iter().map(|byte| if *byte == 1 { 0xe4 } else { *byte }).collect();
    assert_eq!(refused(Format::Csv, &latin), "line 3, column 4: it is not UTF-8");
    assert!(refused(Format::Csv, b"").starts_with("line 1, column \"trip\": it is missing"));
    assert!(refused(Format::Csv, GOLDEN_NDJSON.as_bytes()).starts_with("line 1, column"));
}

#[test]
fn errors_in_ndjson_name_line_place_and_reason() {
    let replace = |from: &str, to: &str| {
        assert!(GOLDEN_NDJSON.contains(from), "{from}");
        refused(Format::Ndjson, GOLDEN_NDJSON.replacen(from, to, 1).as_bytes())
    };
    let table = [
        (
            "\"version\":1",
            "\"version\":2",
            "line 1, key \"version\": it is 2, this program reads 1",
        ),
        ("{\"linkdb\":{\"version\":1}}\n", "", "line 1, line: an export begins with"),
        ("{\"track\"", "{\"linkdb\":{\"version\":1}}\n{\"track\"", "line 2, key \"linkdb\""),
        ("\"bytes\":\"00ff10\"", "\"bytes\":\"00ff1\"", "line 2, line: the record's bytes cannot"),
        ("\"bytes\"", "\"octets\"", "line 2, column 30: unknown field `octets`"),
        ("\"cell\":\"1234\"", "\"cell\":1234", "line 3, column 65: invalid type: integer `1234`"),
        ("\"cell\":\"1234\",", "", "line 3, column 161: missing field `cell`"),
        ("{\"trip\":\"1\"", "{\"trip\":\"1\",\"trip\":\"1\"", "line 5, column 96: duplicate field"),
        ("\"rate_samples\":1,", "\"rate_samples\":1001,", "line 5, line: the record's number of"),
        (
            "\"sequence\":1,\"at_ms\"",
            "\"sequence\":9999,\"at_ms\"",
            "line 7, sequence: it is too far",
        ),
        ("\"at_ms\":", "\"at_ms\":9999", "line 6, line: the record's time cannot be"),
        ("\"dark_ms\":1500}}", "\"dark_ms\":1500}", "line 6, column 231: EOF while parsing"),
        ("\"dark_ms\":1500}}\n", "\"dark_ms\":1500}}\n\n", "line 7, column"),
    ];
    for (from, to, wanted) in table {
        let error = replace(from, to);
        assert!(error.starts_with(wanted), "{error}\n{wanted}");
    }
    assert!(refused(Format::Ndjson, b"").starts_with("line 1, line: an export begins"));
    assert!(refused(Format::Ndjson, GOLDEN_CSV.as_bytes()).starts_with("line 1, column 1:"));
    let deep = [b"{\"linkdb\":{\"version\":1}}\n".to_vec(), vec![b'['; 100_000]].concat();
    assert!(refused(Format::Ndjson, &deep).starts_with("line 2, column"));
}

#[test]
fn endless_lines_do_not_fill_the_memory() {
    for format in [Format::Csv, Format::Ndjson] {
        let mut store = empty();
        let error = import(&mut store, format, io::repeat(b'"'), NOW).unwrap_err();
        let told = "the file cannot be read: line 1 has more than 4194304 bytes";
        assert_eq!(error.to_string(), told);
    }
}

#[test]
fn a_late_error_leaves_nothing_of_a_long_file() {
    let mut store = empty();
    for trip in 0..30 {
        let all: Vec<_> = (0..500)
            .map(|sequence| Handover { trip: TripId(trip), sequence, ..handover() })
            .collect();
        store.append(&all, NOW).unwrap();
    }
    for format in [Format::Csv, Format::Ndjson] {
        let file = text(&store, format, Coarsening::Exact);
        let error = refused(format, format!("{file}x").as_bytes());
        assert!(error.starts_with(&format!("line {},", file.lines().count() + 1)), "{error}");
        let mut other = empty();
        let imported = import(&mut other, format, file.as_bytes(), NOW).unwrap();
        assert_eq!(imported.fresh, 15_000);
        assert_eq!(held(&other), held(&store));
        assert_eq!(other.cells().unwrap(), store.cells().unwrap());
    }
}

#[test]
fn what_is_there_stays_beside_what_is_imported() {
    let mut store = empty();
    let own = Handover { trip: TripId(1), sequence: 0, ..handover() };
    store.append(std::slice::from_ref(&own), NOW).unwrap();
    import(&mut store, Format::Ndjson, GOLDEN_NDJSON.as_bytes(), NOW).unwrap();
    let history = store.cell(&CellKey::of(&own)).unwrap().unwrap();
    let trips: Vec<_> = history.passages().map(|passage| passage.trip.0).collect();
    assert_eq!(trips, [0x0102_0304_0506_0708, 1], "the own ones count as newer");
    let stats = store.stats().unwrap();
    assert_eq!((stats.events, stats.forecastable_cells), (3, 1));
}

/// Cells from trips that fell out long ago, as a line of a file.
fn remembered(cell: u64, history: &CellHistory) -> String {
    let key = CellKey::of(&Handover { from: CellId(cell), ..handover() });
    serde_json::to_string(&rows::CellRow::of(key, history, Coarsening::Exact)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn exact_exports_come_back_whole(
        records in prop::collection::vec((0u64..9, 0u32..40, any_handover()), 0..60),
        histories in prop::collection::vec(any_history(), 0..2),
        track in prop::collection::vec(any::<u8>(), 0..300),
        samples in prop::collection::vec((any::<u64>(), any::<i32>(), any::<Option<u64>>()), 0..9),
    ) {
        let mut store = empty();
        let head = "{\"linkdb\":{\"version\":1}}\n".to_owned();
        let cells = histories.iter().enumerate();
        let cells = cells.map(|(n, one)| format!("{{\"cell\":{}}}\n", remembered(n as u64, one)));
        let file: String = std::iter::once(head).chain(cells).collect();
        import(&mut store, Format::Ndjson, file.as_bytes(), NOW).unwrap();
        let records: Vec<_> = records
            .into_iter()
            .map(|(trip, sequence, one)| Handover { trip: TripId(trip), sequence, ..one })
            .collect();
        store.append(&records, NOW).unwrap();
        store.put_track(RouteId(track.len() as u64), &track).unwrap();
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
        let file = text(&store, Format::Csv, Coarsening::Exact);
        import(&mut other, Format::Csv, file.as_bytes(), NOW).unwrap();
        prop_assert_eq!(held(&other), held(&store));

        let mut other = empty();
        let file = text(&store, Format::Ndjson, Coarsening::Exact);
        import(&mut other, Format::Ndjson, file.as_bytes(), NOW).unwrap();
        prop_assert_eq!(held(&other), held(&store));
        prop_assert_eq!(other.cells().unwrap(), store.cells().unwrap());
        prop_assert_eq!(other.tracks().unwrap(), store.tracks().unwrap());
        prop_assert_eq!(other.stats().unwrap(), store.stats().unwrap());
        prop_assert_eq!(text(&other, Format::Ndjson, Coarsening::Exact), file);
    }

    #[test]
    fn changed_files_are_refused_or_still_make_sense(
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
                Ok(imported) => prop_assert_eq!(held(&store).len() as u64, imported.fresh),
                Err(_) => prop_assert_eq!(store.stats().unwrap(), StoreStats::default()),
            }
        }
    }
}

const GOLDEN_CSV: &str = include_str!("tests/golden.csv");

const GOLDEN_NDJSON: &str = include_str!("tests/golden.ndjson");
