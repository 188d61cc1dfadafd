//! Whose pieces of a track count.

use polyrail_model::{NodeRole, Position};

use super::fleet::{self, Train, Written, line, name, views};
use crate::entry::{Entry, TrackPiece, WriterNumber};
use crate::track::Track;
use crate::views::{PIECES_MAX, TRACKS_MAX, Views, WRITER_TRACKS_MAX, creator_hash, new_route};

/// A train's track, moved north.
fn moved(train: &mut Train, writer: u32, units: i32) -> Vec<Written> {
    let pieces = train.track.pieces(train.route).into_iter();
    let pieces = pieces.map(|mut piece| {
        piece.points.iter_mut().for_each(|point| point.latitude += units);
        piece
    });
    let all = pieces.map(|piece| (WriterNumber(writer), train.key(), Entry::Track(piece)));
    all.collect()
}

fn north_of(views: &Views, train: &Train) -> f64 {
    let track = views.track(train.route).unwrap();
    let spot =
        |track: &Track| track.spot(Position::from_metres(9_000.0), polyrail_model::Direction::Up);
    f64::from(spot(track).unwrap().latitude - spot(&train.track).unwrap().latitude)
}

#[test]
fn pieces_count_if_they_are_the_creators_or_the_nodes_own() {
    let line = line();
    let mut train = Train::new(2, &line);
    let creators = train.pieces();
    let (forged, own) = (moved(&mut train, 3, 9_000), moved(&mut train, 0, 500));
    for (entries, north, why) in [
        ([&creators[..], &forged], 0.0, "another writer's do not"),
        ([&forged, &creators], 0.0, "whatever comes first"),
        ([&creators, &own], 500.0, "the node's own win"),
        ([&own, &creators], 500.0, "whatever comes first"),
    ] {
        let views = views(&entries.concat());
        assert_eq!(north_of(&views, &train), north, "{why}");
    }
    assert!(views(&forged).track(train.route).is_none());
}

#[test]
fn replaced_and_useless_pieces_are_reported() {
    let line = line();
    let mut train = Train::new(2, &line);
    let mut views = Views::new(NodeRole::Cloud);
    [2, 3].map(WriterNumber).iter().for_each(|writer| views.introduce(*writer, &name(*writer)));
    let first = train.pieces();
    for (writer, key, entry) in &first {
        assert!(views.apply(*writer, *key, entry).is_empty());
    }
    let (second, forged) = (moved(&mut train, 2, 100), moved(&mut train, 3, 100));
    for (writer, key, entry) in &second {
        assert_eq!(views.apply(*writer, *key, entry), [*key], "it adds nothing");
    }
    for (writer, key, entry) in &first {
        assert!(views.apply(*writer, *key, entry).is_empty(), "once more");
    }
    let (old, new) = (moved(&mut train, 0, 0), moved(&mut train, 0, 100));
    for (_, key, entry) in &old {
        assert!(views.apply(WriterNumber::OWN, *key, entry).is_empty());
    }
    for ((_, key, entry), (_, before, _)) in new.iter().zip(&old) {
        assert_eq!(views.apply(WriterNumber::OWN, *key, entry), [*before], "the earlier version");
        assert!(views.apply(WriterNumber::OWN, *key, entry).is_empty(), "once more");
    }
    for (writer, key, entry) in &forged {
        assert_eq!(views.apply(*writer, *key, entry), [*key], "another's");
    }
    let unknown = moved(&mut train, 7, 0);
    let (_, key, entry) = &unknown[0];
    assert!(views.apply(WriterNumber(7), *key, entry).is_empty(), "a writer without a name");
    assert_eq!(north_of(&views, &train), 100.0, "the node's own");
}

#[test]
fn pieces_make_the_same_track() {
    let line = line();
    let train = Train::new(1, &line);
    let pieces = train.track.pieces(train.route);
    assert!(pieces.len() >= 2 && pieces.iter().all(TrackPiece::is_valid));
    let points = || pieces.iter().flat_map(|piece| &piece.points);
    assert_eq!(Track::from_points(points().map(|one| (one, false))).as_ref(), Some(&train.track));
    let some = Track::from_points(points().take(7).map(|one| (one, false))).unwrap();
    assert_eq!(some.points(), 7);
    assert_eq!(Track::from_points(points().take(1).map(|one| (one, false))), None);
    // Without a middle part the longer rest is left.
    let far = |one: &&crate::entry::TrackPoint| one.position.metres() < 2_000.0;
    let mut jump = pieces.clone();
    for point in jump.iter_mut().flat_map(|piece| &mut piece.points) {
        point.latitude += if far(&&*point) { 20_000_000 } else { 0 };
    }
    let rest =
        Track::from_points(jump.iter().flat_map(|piece| &piece.points).map(|one| (one, true)))
            .unwrap();
    assert!(rest.ends().0 >= 2_000.0 && rest.ends().1 == train.track.ends().1);
    let views = views(&Train::new(1, &line).pieces());
    assert!(views.changed_pieces(train.route, &train.track).is_empty());
    assert_eq!(views.changed_pieces(train.route, &rest).len(), 1, "the first one differs");
}

#[test]
fn invalid_pieces_do_not_count() {
    let line = line();
    let train = Train::new(1, &line);
    let valid = train.track.pieces(train.route).swap_remove(0);
    let changes: [fn(&mut TrackPiece); 6] = [
        |piece| piece.points.clear(),
        |piece| piece.piece += 1,
        |piece| piece.points[1].position = piece.points[0].position,
        |piece| piece.points[1].weight = 0,
        |piece| piece.points[1].latitude = i32::MAX,
        |piece| piece.points = vec![piece.points[0]; TrackPiece::POINTS_MAX + 1],
    ];
    for change in changes {
        let mut piece = valid.clone();
        change(&mut piece);
        assert!(!piece.is_valid(), "{:?}", piece.piece);
    }
}

/// The numbers of its tracks are lower than those of all others.
#[test]
fn writer_with_many_tracks_leaves_others_their_projections() {
    let line = line();
    let mut honest: Vec<Train> = (2..5).map(|one| Train::new(one, &line)).collect();
    let mut forger = Train::new(8, &line);
    let lowest = honest.iter().map(|train| train.route).min().unwrap();
    assert!(forger.route < lowest);
    let mut entries = Vec::new();
    for number in 0..40 {
        forger.route = new_route(creator_hash(&name(forger.writer)), number);
        entries.extend(forger.pieces());
    }
    honest.iter_mut().for_each(|train| entries.extend(train.pieces()));
    entries.push(honest[0].handover(&line, 1, 7, 8_000.0, true));
    let counts = |views: &Views| {
        let on = |train: &&Train| views.cells().iter().any(|(key, _)| key.route == train.route);
        (honest.iter().filter(on).count(), views.cells().len())
    };
    assert_eq!(counts(&views(&entries)), (3, 17), "three and 14 of the forger's");
    // The same if the tracks become known after the handover.
    entries.rotate_right(1);
    let mut late = views(&[]);
    for (writer, key, entry) in &entries {
        let _ = late.apply(*writer, *key, entry);
    }
    assert_eq!(counts(&late), (1, 1));
    fleet::derive(&mut late, &entries);
    assert_eq!(counts(&late), (3, 17));
}

#[test]
fn full_collection_of_tracks_evicts_the_heaviest_writers() {
    let line = line();
    let (train, own) = (Train::new(1, &line), Train::new(0, &line));
    let piece = |writer: u32, number: u32, sequence: u64| {
        let route = new_route(creator_hash(&name(WriterNumber(writer))), number);
        let piece = TrackPiece { route, ..train.track.pieces(route).swap_remove(0) };
        let log = crate::entry::LogNumber(writer);
        (WriterNumber(writer), crate::entry::EntryKey { log, sequence }, Entry::Track(piece))
    };
    let mut entries: Vec<Written> = (0..20).map(|one| piece(0, one, one.into())).collect();
    entries.extend((0..20).map(|one| piece(1, one, one.into())));
    entries.extend((0..500).map(|one| piece(2, one, one.into())));
    entries.extend(
        (3..10)
            .flat_map(|writer| (0..40).map(move |one| (writer, one)))
            .map(|(writer, one)| piece(writer, one, one.into())),
    );
    let views = views(&entries);
    assert_eq!(views.sizes().tracks, TRACKS_MAX);
    let held = |writer: u32, number: u32| views.track(piece(writer, number, 0).2.route()).is_some();
    assert!((0..20).all(|one| held(0, one) && held(1, one)), "others keep theirs");
    assert!((500 - 27..500).all(|one| held(2, one)), "and it keeps its newest");
    assert_eq!(views.own_tracks().len(), 20);
    // Of a few the others get their share as well.
    let shared = views.shared_tracks(32);
    let of = |writer| {
        let creator = creator_hash(&name(WriterNumber(writer)));
        shared.iter().filter(|(route, _)| crate::views::creator_of(*route) == creator).count()
    };
    assert_eq!(shared.len(), 32);
    assert!((1..10).all(|writer| (3..=4).contains(&of(writer))));
    assert_eq!(own.writer, WriterNumber::OWN);
}

#[test]
fn pieces_of_evicted_tracks_are_reported() {
    let line = line();
    let mut train = Train::new(2, &line);
    let mut views = views(&[]);
    let mut first = Vec::new();
    for number in 0..=WRITER_TRACKS_MAX as u32 {
        train.route = new_route(creator_hash(&name(train.writer)), number);
        let pieces = train.pieces();
        let mut useless = Vec::new();
        for (writer, key, entry) in &pieces {
            useless.extend(views.apply(*writer, *key, entry));
        }
        let keys = pieces.into_iter().map(|(_, key, _)| key);
        first.extend(keys.filter(|_| number == 0));
        let is_full = number == WRITER_TRACKS_MAX as u32;
        assert_eq!(useless, if is_full { first.clone() } else { vec![] });
    }
    assert_eq!(views.sizes().tracks, WRITER_TRACKS_MAX);
}

/// Honest trains record positions on it, so a later version that moves them would move these.
#[test]
fn known_part_of_a_track_does_not_move() {
    let line = line();
    let mut train = Train::new(2, &line);
    let first = train.pieces();
    // The same places 2 km farther along, with the same ends.
    let shifted = first.iter().map(|(_, _, entry)| {
        let Entry::Track(mut piece) = entry.clone() else { unreachable!() };
        for point in &mut piece.points {
            let (position, _) = train.at(&line, point.position.metres());
            let at = Position::from_metres(position.metres() + 2_000.0);
            let Some(spot) = train.track.spot(at, polyrail_model::Direction::Up) else { continue };
            (point.latitude, point.longitude) = (spot.latitude, spot.longitude);
        }
        (train.writer, train.key(), Entry::Track(piece))
    });
    let shifted: Vec<Written> = shifted.collect();
    let mut views = views(&first);
    let before = views.track(train.route).cloned();
    for (writer, key, entry) in &shifted {
        assert_eq!(views.apply(*writer, *key, entry), [*key], "refused");
    }
    assert_eq!(views.track(train.route).cloned(), before);
    // It grows at its end.
    let Entry::Track(whole) = &first[first.len() - 2].2 else { unreachable!() };
    let mut half = whole.clone();
    half.points.truncate(half.points.len() / 2);
    let mut views = self::views(&[]);
    for piece in [&half, whole] {
        let (writer, key, entry) = train.write(Entry::Track(piece.clone()));
        let _ = views.apply(writer, key, &entry);
        let last = piece.points.last().unwrap().position.metres();
        assert_eq!(views.track(train.route).unwrap().ends().1, last);
    }
}

/// A zigzag is near every spot of a region.
#[test]
fn others_pieces_are_as_long_on_earth_as_along_the_track() {
    let line = line();
    let train = Train::new(2, &line);
    let mut piece = train.track.pieces(train.route).swap_remove(1);
    assert!(piece.is_valid() && piece.is_plausible());
    for (number, point) in piece.points.iter_mut().enumerate() {
        point.longitude += if number % 2 == 0 { 200_000 } else { 0 };
    }
    assert!(piece.is_valid() && !piece.is_plausible());
    let key = crate::entry::EntryKey::default();
    let entry = Entry::Track(piece);
    assert_eq!(views(&[]).apply(WriterNumber(2), key, &entry), [key]);
    assert!(views(&[]).apply(WriterNumber::OWN, key, &entry).is_empty(), "its own stays");
}

/// A piece with one point, so many km of land after the ones before.
fn lone(train: &mut Train, piece: i16, km: f64) -> Written {
    let position = Position::from_metres(TrackPiece::LENGTH * f64::from(piece));
    let latitude = 100_000_000 + (f64::from(piece) * km * 89_932.0) as i32;
    let point = crate::entry::TrackPoint { latitude, longitude: 0, position, weight: 1 };
    let (route, points) = (train.route, vec![point]);
    train.write(Entry::Track(TrackPiece { route, piece, points }))
}

#[test]
fn others_tracks_are_as_long_on_earth_between_their_pieces() {
    let line = line();
    let mut train = Train::new(2, &line);
    let of = |train: &mut Train, km: f64| {
        let pieces: Vec<Written> = (0..10).map(|piece| lone(train, piece, km)).collect();
        views(&pieces).track(train.route).map(|track| track.length())
    };
    assert_eq!(of(&mut train, 5.0), Some(45_000.0));
    assert_eq!(of(&mut train, 1.0), None, "it would move its records along");
    assert_eq!(of(&mut train, 9.0), None);
}

#[test]
fn pieces_are_bounded() {
    let line = line();
    let mut views = views(&[]);
    let mut honest: Vec<Train> = (1..5).map(|one| Train::new(one, &line)).collect();
    for train in &mut honest {
        train.pieces().iter().for_each(|(one, key, entry)| drop(views.take(*one, *key, entry)));
    }
    for forger in 6..9 {
        let mut forger = Train::new(forger, &line);
        for number in 0..WRITER_TRACKS_MAX as u32 {
            forger.route = new_route(creator_hash(&name(forger.writer)), number);
            for piece in 0..420 {
                let (writer, key, entry) = lone(&mut forger, piece, 5.0);
                let is_useless = views.take(writer, key, &entry).contains(&key);
                assert_eq!(is_useless, piece > 400, "a track has at most 2,000 km");
            }
        }
    }
    views.refresh();
    let pieces = views.pieces();
    assert!((PIECES_MAX - 401..=PIECES_MAX).contains(&pieces), "{pieces}");
    assert!(honest.iter().all(|train| views.track(train.route) == Some(&train.track)));
}

impl Entry {
    fn route(&self) -> polyrail_model::RouteId {
        match self {
            Self::Track(piece) => piece.route,
            Self::Handover(handover, _) => handover.route,
            Self::Rates(rates) => rates.route,
        }
    }
}
