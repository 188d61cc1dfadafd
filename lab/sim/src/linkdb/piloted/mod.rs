//! The quality of forecasts from records that the gateway itself makes. Generated trips are played
//! to its [`Pilot`](polyrail_predictor::pilot::Pilot) as satellite fixes, modem reports, path
//! stalls and receptions.
//!
//! The code that runs on board learns the track, filters positions, and detects, places and labels
//! handovers. No part of a record comes from the generator. All true handovers are judged, recorded
//! or not, each at the gateway's own estimate of the place at that moment. Traffic is not
//! simulated: a carrier is always busy or always idle, whatever the forecasts.

mod drive;
mod found;
mod line;
mod modem;
mod path;
mod play;
#[cfg(test)]
mod tests;

use anyhow::Result;
use polyrail_emulator::results::Report as Results;
use polyrail_predictor::forecast::evaluate::{EvaluateSettings, Report, evaluate_against};

pub use drive::Setup;

use super::results;
use drive::Course;
use found::Found;
use modem::Modem;

/// The observations that carriers and modems allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name in RESULT lines.
    name: &'static str,
    /// Its title.
    title: &'static str,
    /// Carriers carry data all the time, so that stalls are noticed.
    busy: bool,
    modem: Modem,
    /// The goals of forecasts apply.
    judged: bool,
}

/// The outcome of a variant.
#[derive(Debug, Default)]
struct VariantResult {
    report: Report,
    found: Found,
}

/// Prints the tables and RESULT lines of all variants over routes of these seeds; returns the
/// tables.
///
/// # Errors
/// A trip cannot be drawn, or a gateway learns no track.
pub fn judge(
    results: &mut Results,
    prefix: &str,
    routes: impl Iterator<Item = u64>,
    setup: &Setup,
    settings: &EvaluateSettings,
) -> Result<serde_json::Value> {
    let mut outcomes: Vec<VariantResult> =
        VARIANTS.iter().map(|_| VariantResult::default()).collect();
    for seed in routes {
        let course = Course::new(seed, setup);
        let drives = course.drives(setup)?;
        for (variant, outcome) in VARIANTS.iter().zip(&mut outcomes) {
            let (mut records, mut truths) = (Vec::new(), Vec::new());
            for passage in play::play(&course, &drives, *variant, setup)? {
                outcome.found.count(&passage);
                truths.extend(passage.truths.into_iter().map(|truth| truth.handover));
                records.extend(passage.records);
            }
            outcome.report.merge(&evaluate_against(&records, &truths, settings));
        }
    }
    let mut tables = serde_json::Map::new();
    for (variant, VariantResult { report, found }) in VARIANTS.iter().zip(&outcomes) {
        println!("\n## by the pilot, {}: {}\n\n{report}", variant.name, variant.title);
        let prefix = format!("{prefix}_pilot_{}", variant.name);
        results::forecasts(results, &prefix, report, variant.judged);
        found.judge(results, &prefix);
        tables.insert(variant.name.into(), serde_json::to_value(report)?);
    }
    Ok(tables.into())
}

const VARIANTS: [Variant; 5] = [
    Variant {
        name: "busy",
        title: "carriers carry data all the time, modems are asked once a second",
        busy: true,
        modem: Modem::Polled,
        judged: true,
    },
    Variant {
        name: "events",
        title: "idle carriers, modems report each change and its outcome",
        busy: false,
        modem: Modem::Events,
        judged: true,
    },
    Variant {
        name: "busy_mute",
        title: "busy carriers, modems are asked once a second and never report a loss",
        busy: true,
        modem: Modem::Mute,
        judged: false,
    },
    Variant {
        name: "idle",
        title: "idle carriers, modems are asked once a second",
        busy: false,
        modem: Modem::Polled,
        judged: false,
    },
    Variant {
        name: "mute",
        title: "idle carriers, modems are asked once a second and never report a loss",
        busy: false,
        modem: Modem::Mute,
        judged: false,
    },
];
