//! The quality of forecasts of failed handovers, and their effect on goodput.

use polyrail_emulator::rail::Speed;
use polyrail_emulator::results::Report as Results;
use polyrail_predictor::forecast::evaluate::{EvaluateSettings, Report, evaluate_against};
use polyrail_sim::linkdb::learned::{Case, Trips};
use polyrail_sim::linkdb::records::{Campaign, campaign};

use super::TOLERANCE;

/// The committed figures. Those of goodput are of two trips, and any change of the transport moves
/// them by up to a third: they show that something changed, not what forecasts are worth.
const GATE: [(&str, f64); 8] = [
    ("failures correct", 0.8543),
    ("successes correct", 0.8488),
    ("coverage", 0.8368),
    ("alarms true", 0.6500),
    ("goodput after failures, learned over none", 1.2017),
    ("the same, learned over an oracle", 1.1125),
    ("the same with the default chain, learned over none", 1.2122),
    ("goodput with the default chain, learned over none", 0.9946),
];
/// The largest share of late forecasts, of the failures with a forecast.
const LATE_MAX: f64 = 0.02;
/// The least goodput of whole trips with forecasts over without: within chance on so few trips.
const GOODPUT_LEAST: f64 = 0.98;
/// The most bytes in flight at a failure with forecasts over without, in the default chain.
const IN_FLIGHT_MOST: f64 = 0.9;
/// The first route: one for tuning that no evaluation begins with.
const FIRST: u64 = 2_100;
const ROUTES: u64 = 6;
const SIMULATED: u64 = 2;

#[test]
fn forecasts_are_as_good_as_committed() {
    let mut all = Report::default();
    for route in FIRST..FIRST + ROUTES {
        let trips = campaign(route, &Campaign::default()).unwrap();
        let settings = EvaluateSettings { learning: vec![], ..Default::default() };
        all.merge(&evaluate_against(&trips.records, &trips.truths, &settings));
    }
    let mut simulated = Results::default();
    let trips = Trips::after(FIRST, SIMULATED, Speed::Kmh300, 1.0, 2).unwrap();
    for case in [Case::PAPER, Case::DEFAULT] {
        trips.bulk(case, &[], case.name, &mut simulated).unwrap();
    }
    let figure = |name: &str| simulated.value(name).unwrap();
    let after = |who: &str| figure(&format!("paper_after_{who}_mean"));
    let (failures, told) = (all.told.failures, all.told);
    let measured = [
        failures.correct_share().unwrap(),
        told.successes.correct_share().unwrap(),
        failures.coverage().unwrap(),
        all.alarms_true()[1].unwrap(),
        after("learned") / after("none"),
        after("learned") / after("oracle"),
        figure("default_gain_mean"),
        figure("default_goodput"),
    ];
    let rows = GATE.iter().zip(measured);
    let table: String =
        rows.clone().map(|((name, _), value)| format!("    (\"{name}\", {value:.4}),\n")).collect();
    println!("measured:\n{table}");
    for ((name, committed), value) in rows {
        let off = value / committed - 1.0;
        assert!(off.abs() <= TOLERANCE, "{name}: {value:.4} instead of {committed}; now:\n{table}");
    }
    let late = failures.late_share().unwrap();
    assert!(late <= LATE_MAX, "{late} of the failures with a forecast are late");
    let goodput = figure("default_goodput");
    assert!(goodput >= GOODPUT_LEAST, "forecasts cost the default chain too much: {goodput}");
    let held = figure("default_in_flight_at_failure_learned");
    assert!(held <= IN_FLIGHT_MOST, "a failure catches {held} of the bytes without forecasts");
}
