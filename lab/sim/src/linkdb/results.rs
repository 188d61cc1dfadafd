//! The RESULT lines of an evaluation, and its goals.

use polyrail_emulator::results::{Goal, Report as Results};
use polyrail_predictor::forecast::evaluate::{Bin, Classes, Probabilities, Report, Told};

/// All figures of the forecasts as they are.
pub fn judge(results: &mut Results, prefix: &str, report: &Report) {
    forecasts(results, prefix, report, true);
    beside(results, &format!("{prefix}_always"), &report.always);
    for (count, told) in &report.learning {
        beside(results, &format!("{prefix}_after_{count}"), told);
        if *count == 1 {
            // One trip foresees nothing, so nothing is worse than without.
            let alarms = told.successes.correct_share().map(|share| 1.0 - share);
            figure(results, &format!("{prefix}_after_1_alarms"), alarms, Goal::AtMost(0.0));
        }
    }
}

/// The figures of forecasts in all their classes; with their goals, or without.
pub fn forecasts(results: &mut Results, prefix: &str, report: &Report, judged: bool) {
    let failures = &report.told.failures;
    let mut add = |name: &str, value: Option<f64>, goal: Goal| {
        let goal = if judged { goal } else { Goal::None };
        figure(results, &format!("{prefix}_{name}"), value, goal);
    };
    add("failures_correct", failures.correct_share(), Goal::AtLeast(0.806));
    add("failures_correct_aim", failures.correct_share(), Goal::AtLeast(0.90));
    add("failures_late", failures.late_share(), Goal::AtMost(LATE));
    add("failures_early", failures.early_share(), Goal::None);
    let successes = report.told.successes.correct_share();
    add("successes_correct", successes, Goal::AtLeast(0.782));
    add("successes_correct_aim", successes, Goal::AtLeast(0.88));
    let inside = report.told.successes.correct_share_in_forecast_cells();
    add("successes_correct_in_forecast_cells", inside, Goal::None);
    add("correct_of_all_failures", failures.correct_of_all(), Goal::None);
    add("coverage", failures.coverage(), Goal::None);
    add("coverage_ceiling", report.ceiling(), Goal::None);
    add("coverage_of_ceiling", covered(report), Goal::AtLeast(COVERED));
    let [by_rate, seen] = report.alarms_true();
    add("alarms_true", seen, Goal::None);
    add("alarms_true_by_rate", by_rate, Goal::None);
    add("calibration_error", calibration_error(&report.calibration), Goal::AtMost(CALIBRATED));
    add("probability_error", probability_error(&report.probabilities[1]), Goal::None);
}

/// The rule in one world, beside fixed quantiles.
pub fn world(results: &mut Results, prefix: &str, own: &Report, fixed: &[Classes]) {
    let failures = &own.told.failures;
    let mut add = |name: &str, value: Option<f64>, goal: Goal| {
        figure(results, &format!("{prefix}_{name}"), value, goal);
    };
    add("failures", Some(failures.all() as f64), Goal::None);
    add("late", failures.late_share(), Goal::AtMost(LATE));
    for (count, told) in &own.learning {
        add(&format!("after_{count}_late"), told.failures.late_share(), Goal::AtMost(LATE));
        add(&format!("after_{count}_correct"), told.failures.correct_share(), Goal::None);
    }
    let goal = |all: &[(&str, f64)]| {
        let own = all.iter().find(|(world, _)| prefix.ends_with(&format!("_{world}")));
        own.map_or(Goal::None, |(_, least)| Goal::AtLeast(*least))
    };
    add("correct", failures.correct_share(), goal(&CORRECT));
    let allowed = fixed.iter().filter(|one| one.late_share() <= Some(LATE));
    let best = allowed.filter_map(Classes::correct_share).max_by(f64::total_cmp);
    add("correct_fixed", best, Goal::None);
    let behind = best.zip(failures.correct_share()).map(|(best, own)| best - own);
    add("correct_behind_fixed", behind, Goal::AtMost(BEHIND));
    add("coverage_of_ceiling", covered(own), Goal::AtLeast(COVERED));
    let [by_rate, seen] = own.alarms_true();
    add("alarms_true", seen, goal(&ALARMS_TRUE));
    add("alarms_true_by_rate", by_rate, Goal::None);
}

/// The share of failures with a forecast, of those that could have one.
fn covered(report: &Report) -> Option<f64> {
    report.told.failures.coverage().zip(report.ceiling()).map(|(own, most)| own / most)
}

/// The main figures of other forecasts.
pub fn beside(results: &mut Results, prefix: &str, told: &Told) {
    let Told { failures, successes } = told;
    for (name, value) in [
        ("failures_correct", failures.correct_share()),
        ("failures_late", failures.late_share()),
        ("successes_correct", successes.correct_share()),
        ("coverage", failures.coverage()),
        ("correct_of_all_failures", failures.correct_of_all()),
    ] {
        figure(results, &format!("{prefix}_{name}"), value, Goal::None);
    }
}

/// Prints a figure; where there is nothing to count, says so, and a goal is not met.
pub fn figure(results: &mut Results, name: &str, value: Option<f64>, goal: Goal) {
    if value.is_none() {
        println!("MISSING {name}: nothing was counted");
    }
    if value.is_some() || goal != Goal::None {
        results.result(name, value.unwrap_or(f64::NAN), "share", goal, &[]);
    }
}

/// The mean distance between the rates that were expected and those that came.
fn calibration_error(bins: &[Bin]) -> Option<f64> {
    let all: u64 = bins.iter().map(|bin| bin.handovers).sum();
    let off: f64 = bins.iter().map(|bin| (bin.expected - bin.failed as f64).abs()).sum();
    (all > 0).then(|| off / all as f64)
}

/// The same of the probabilities that forecasts had when the handover began, by tenths.
fn probability_error(probabilities: &Probabilities) -> Option<f64> {
    let tenth = |(tenth, bins): (usize, &[[u64; 2]])| {
        let mut bin = Bin::default();
        for (hundredth, [handovers, failed]) in (tenth * 10..).zip(bins) {
            bin.handovers += handovers;
            bin.failed += failed;
            bin.expected += (hundredth as f64 + 0.5) * 0.01 * *handovers as f64;
        }
        bin
    };
    let tenths: Vec<Bin> = probabilities.bins.chunks(10).enumerate().map(tenth).collect();
    calibration_error(&tenths)
}

/// In these worlds so many forecasts are to be correct, and so many alarms true.
const CORRECT: [(&str, f64); 2] = [("world_generated", 0.87), ("world_spread_2", 0.40)];
const ALARMS_TRUE: [(&str, f64); 1] = [("world_generated", 0.45)];
/// The share of failures with a forecast that may come before its place.
const LATE: f64 = 0.02;
/// By how much the share of correct ones may be less than that of the best fixed quantile.
const BEHIND: f64 = 0.05;
/// Rare forecasts are easily right: so much of the predictable failures must be predicted.
const COVERED: f64 = 0.9;
/// A quarter of how many handovers fail.
const CALIBRATED: f64 = 0.015;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_of_which_nothing_was_counted_is_not_met() {
        let mut results = Results::default();
        judge(&mut results, "none", &Report::default());
        let text = format!("{results:?}");
        for name in
            ["failures_correct", "failures_late", "successes_correct", "coverage_of_ceiling"]
        {
            let at = text.find(&format!("\"none_{name}\"")).expect(name);
            assert!(text[at..].split('}').next().unwrap().contains("met: false"), "{text}");
        }
    }
}
