//! Exports and imports: round trips, earlier versions, and invalid files.

use polyrail_model::{Handover, NodeRole, RouteId};

use super::*;
use crate::entry::{LogId, TrackPoint};
use crate::record::tests::handover;
use crate::store::Limits;
use crate::store::tests::entries;
use crate::track::{LatLon, Track};
use crate::views::Views;

const NOW: u64 = 1_800_000_000_000;

fn empty() -> Store {
    let mut store = Store::in_memory(Limits::default()).unwrap();
    store.set_own_name("cloud").unwrap();
    store
}

fn text(store: &Store, format: Format, coarsening: u16) -> String {
    let mut out = Vec::new();
    export(store, format, Coarsening(coarsening), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn full() -> Store {
    let mut store = empty();
    store.append_own(&entries(1, 9), NOW).unwrap();
    let id = LogId { writer: "train-7".to_owned(), incarnation: 0xab };
    let all: Vec<_> = (3..).zip(entries(2, 9)).collect();
    store.append(&id, 0, (0, 12), &all, NOW).unwrap();
    store
}

#[test]
fn exact_exports_are_imported_completely() {
    let file = text(&full(), Format::Ndjson, 0);
    let mut other = empty();
    let rows = import(&mut other, Format::Ndjson, file.as_bytes(), NOW).unwrap();
    assert_eq!((rows.handovers, rows.known), (18, 0));
    let mut lines: Vec<_> = file.lines().map(str::to_owned).collect();
    let copy = text(&other, Format::Ndjson, 0);
    let mut copied: Vec<_> = copy.lines().map(str::to_owned).collect();
    lines.sort();
    copied.sort();
    assert_eq!(lines, copied);
    let again = import(&mut other, Format::Ndjson, file.as_bytes(), NOW).unwrap();
    assert_eq!((again.handovers, again.known), (0, 18));
}

#[test]
fn first_version_is_imported_into_the_own_log() {
    let point = |hundred: i32| TrackPoint {
        latitude: 500_000_000 + hundred * 9_000,
        longitude: 80_000_000,
        position: Position { decimetres: hundred * 1_000 },
        weight: 1,
    };
    let points: Vec<_> = (0..20).map(point).collect();
    let track = Track::from_points(points.iter().map(|one| (one, true))).unwrap().encode();
    let bytes: String = track.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines = [
        "{\"linkdb\":{\"version\":1}}".to_owned(),
        format!("{{\"track\":{{\"route\":\"7\",\"bytes\":\"{bytes}\"}}}}"),
        "{\"cell\":{\"carrier\":\"A\"}}".to_owned(),
        "{\"place\":{\"carrier\":\"A\"}}".to_owned(),
        format!("{{\"handover\":{}}}", serde_json::to_string(&handover()).unwrap()),
    ];
    let file = lines.join("\n");
    let mut store = empty();
    let rows = import(&mut store, Format::Ndjson, file.as_bytes(), NOW).unwrap();
    assert_eq!((rows.handovers, rows.tracks, rows.skipped), (1, 1, 2));
    let again = import(&mut store, Format::Ndjson, file.as_bytes(), NOW).unwrap();
    assert_eq!((again.handovers, again.known), (0, 1));
    // Another node knows the track: after an import into a named file, and into one that gets its
    // name later.
    let mut unnamed = Store::in_memory(Limits::default()).unwrap();
    import(&mut unnamed, Format::Ndjson, file.as_bytes(), NOW).unwrap();
    unnamed.set_own_name("train-1").unwrap();
    for from in [store, unnamed] {
        let own = from.log(from.own_log()).unwrap();
        let page = from.since(from.own_log(), 0, usize::MAX).unwrap();
        let mut other = Store::in_memory(Limits::default()).unwrap();
        other.set_own_name("train-2").unwrap();
        other.append(&own.id, 0, (0, page.end), &page.entries, NOW).unwrap();
        let (views, _) = Views::of_store(&other, NodeRole::Gateway).unwrap();
        let [(route, _)] = &views.shared_tracks(9)[..] else { panic!("no track is shared") };
        let mut handovers = page.entries.iter().filter_map(|(_, one)| match one {
            Entry::Handover(handover, _) => Some(handover.route),
            _ => None,
        });
        assert!(handovers.any(|one| one == *route), "handovers stay on their track");
    }
}

/// What a coarse export omits would count as known.
#[test]
fn coarse_exports_of_logs_are_refused() {
    let file = text(&full(), Format::Ndjson, 100);
    let error = import(&mut empty(), Format::Ndjson, file.as_bytes(), NOW).unwrap_err();
    assert!(error.to_string().contains("made with --coarsen 0"), "{error}");
}

#[test]
fn handovers_survive_as_csv() {
    let file = text(&full(), Format::Csv, 0);
    assert!(file.starts_with("trip,sequence,at_ms,carrier,route,"));
    assert!(file.lines().next().unwrap().ends_with(",writer"));
    let mut other = empty();
    let rows = import(&mut other, Format::Csv, file.as_bytes(), NOW).unwrap();
    assert_eq!((rows.handovers, rows.known), (18, 0));
    let again = import(&mut other, Format::Csv, file.as_bytes(), NOW).unwrap();
    assert_eq!((again.handovers, again.known), (0, 18));
}

#[test]
fn coarse_exports_have_no_exact_positions() {
    let mut store = empty();
    let spot = Some(crate::entry::Spot { latitude: 1, longitude: 2, heading: 3 });
    let one = Handover { position: Position { decimetres: 12_345 }, ..handover() };
    let piece = Track::begun(LatLon::from_degrees(50.0, 8.0).unwrap()).pieces(RouteId(7));
    let all = [Entry::Handover(one, spot), Entry::Track(piece[0].clone())];
    assert_eq!(store.append_own(&all, NOW).unwrap().fresh.len(), 2);
    let exact = text(&store, Format::Ndjson, 0);
    assert!(exact.contains("spot") && exact.contains("bytes"), "{exact}");
    let coarse = text(&store, Format::Ndjson, 100);
    assert!(!coarse.contains("spot") && !coarse.contains("bytes"), "{coarse}");
    assert!(coarse.contains("\"position_m\":1200.0"), "{coarse}");
}

#[test]
fn invalid_line_is_named_and_nothing_is_imported() {
    let file = text(&full(), Format::Ndjson, 0);
    for (bad, reason) in [
        ("{".to_owned(), "EOF"),
        ("{\"linkdb\":{\"version\":2}}".to_owned(), "repeated"),
        (
            "{\"entry\":{\"writer\":\"a\",\"incarnation\":\"1\",\"sequence\":1}}".to_owned(),
            "neither",
        ),
        (nowhere(), "spot"),
    ] {
        let mut store = empty();
        let before = store.stats().unwrap();
        let text = format!("{file}{bad}");
        let error = import(&mut store, Format::Ndjson, text.as_bytes(), NOW).unwrap_err();
        assert!(error.to_string().starts_with("line 20, "), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(store.stats().unwrap(), before);
    }
    for format in [Format::Csv, Format::Ndjson] {
        let error = import(&mut empty(), format, io::repeat(b'"'), NOW).unwrap_err();
        assert_eq!(error.to_string(), "line 1, it has more than 4194304 bytes");
    }
}

/// A handover of another writer at a place that is not on earth.
fn nowhere() -> String {
    let handover = serde_json::to_string(&handover()).unwrap();
    let spot = "{\"latitude\":2000000000,\"longitude\":0,\"heading\":0}";
    let id = "\"writer\":\"a\",\"incarnation\":\"1\",\"sequence\":1";
    format!("{{\"entry\":{{{id},\"handover\":{handover},\"spot\":{spot}}}}}")
}
