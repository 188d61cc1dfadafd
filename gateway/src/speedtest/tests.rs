//! The choice of carriers, and tests that cannot start.

use super::*;

fn path(carrier: &str, state: PathPhase) -> PathState {
    PathState {
        name: carrier.to_owned(),
        carrier: carrier.to_owned(),
        peer: Some("c".to_owned()),
        enabled: true,
        state,
        ..PathState::default()
    }
}

fn order(carriers: &[&str]) -> SpeedtestOrder {
    let carriers = carriers.iter().map(|name| (*name).to_owned()).collect();
    SpeedtestOrder { seconds: 5, carriers }
}

fn paths() -> Vec<PathState> {
    let elsewhere = PathState { peer: Some("d".to_owned()), ..path("lte", PathPhase::Standby) };
    let never = PathState { role: CarrierRole::Never, ..path("never", PathPhase::Disabled) };
    let up = ["lte", "metered", "nr"].map(|name| path(name, PathPhase::Up));
    up.into_iter().chain([path("off", PathPhase::Disabled), never, elsewhere]).collect()
}

fn cloud(speedtests: bool) -> Option<CurrentCloud> {
    let offer = Offer { speedtests, ..Offer::default() };
    Some(CurrentCloud { session: SessionKey(1), name: "c".to_owned(), offer })
}

/// The carriers of each measurement, and the skipped ones.
fn started(order: &SpeedtestOrder) -> Result<(Vec<Vec<String>>, Vec<String>), String> {
    let mut tests = Speedtests::default();
    let is_metered = |name: &str| name == "metered";
    let state = tests.start(Instant::now(), order, cloud(true), &paths(), is_metered);
    let skipped = state.map_err(|error| error.to_string())?.skipped;
    let left = tests.0.unwrap().left.into_iter().collect();
    Ok((left, skipped.into_iter().map(|one| one.carrier).collect()))
}

fn names(carriers: &[&str]) -> Vec<String> {
    order(carriers).carriers
}

#[test]
fn each_free_carrier_is_tested_alone_and_then_the_bond() {
    let (rows, skipped) = started(&order(&[])).unwrap();
    assert_eq!(rows, [names(&["lte"]), names(&["nr"]), names(&["lte", "nr"])]);
    assert_eq!(skipped, ["metered", "off", "never"]);
}

#[test]
fn named_carriers_alone_are_tested_unless_they_are_never_used() {
    let (rows, skipped) = started(&order(&["metered", "never"])).unwrap();
    assert_eq!((rows, skipped), (vec![names(&["metered"])], names(&["never"])));
    let error = started(&order(&["never"])).unwrap_err();
    assert!(error.contains("never: its role is never"), "{error}");
    let error = started(&order(&["lte", "unknown"])).unwrap_err();
    assert!(error.contains("unknown"), "{error}");
}

#[test]
fn test_needs_a_cloud_that_serves_it_and_no_other_test() {
    let (now, mut tests) = (Instant::now(), Speedtests::default());
    assert!(tests.state(now).is_err() && tests.next_timeout().is_none());
    for (cloud, reason) in [(None, "no session"), (cloud(false), "serves no speed tests")] {
        let error = tests.start(now, &order(&[]), cloud, &paths(), |_| false).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    tests.start(now, &order(&[]), cloud(true), &paths(), |_| false).unwrap();
    let error = tests.start(now, &order(&[]), cloud(true), &paths(), |_| false).unwrap_err();
    assert!(error.to_string().contains("a speed test runs"), "{error}");
    assert_eq!(tests.state(now).unwrap().state, SpeedtestPhase::Running);
}

#[test]
fn test_ends_without_its_session_and_without_a_client() {
    let settings = polyrail_session::Settings::default();
    for (late, reason) in [(Duration::ZERO, "session"), (LEASE, "client")] {
        let now = Instant::now();
        let instance = polyrail_model::InstanceId([7; 16]);
        let mut endpoint = Endpoint::gateway(now, settings.clone(), instance);
        let mut tests = Speedtests::default();
        let mut cloud = cloud(true).unwrap();
        // Of no session, or of the current one.
        cloud.session = if late.is_zero() { SessionKey(99) } else { endpoint.current().unwrap() };
        tests.start(now, &order(&[]), Some(cloud), &paths(), |_| false).unwrap();
        tests.on_turn(now + late, &mut endpoint, &paths());
        let state = tests.state(now).unwrap();
        assert_eq!(state.state, SpeedtestPhase::Stopped);
        assert!(state.message.unwrap().contains(reason));
        assert_eq!((tests.next_timeout(), endpoint.status().sessions[0].flows), (None, 0));
        assert!(tests.start(now, &order(&[]), self::cloud(true), &paths(), |_| false).is_ok());
    }
}

#[test]
fn carriers_without_a_path_have_rows_with_the_reason() {
    let now = Instant::now();
    let settings = polyrail_session::Settings::default();
    let mut endpoint = Endpoint::gateway(now, settings, polyrail_model::InstanceId([7; 16]));
    let mut tests = Speedtests::default();
    let session = endpoint.current().unwrap();
    let cloud = CurrentCloud { session, ..cloud(true).unwrap() };
    tests.start(now, &order(&["lte", "nr"]), Some(cloud), &paths(), |_| false).unwrap();
    tests.on_turn(now, &mut endpoint, &paths());
    let state = tests.state(now).unwrap();
    assert_eq!((state.state, state.rows.len()), (SpeedtestPhase::Finished, 3));
    assert!(state.rows.iter().all(|row| row.error.as_ref().unwrap().contains("no path")));
}
