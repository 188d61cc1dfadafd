//! Whether the simulator has been shown to be honest: tables count only then.
//!
//! `make sim-validate` leaves two files in the folder `sim` of the results: what the kernel did,
//! and how far the simulator was from it.

use std::path::Path;

use polyrail_emulator::trials::{Played, Trial, trials};
use serde_json::Value;

/// In words for the head of the tables: validated, or `NOT VALIDATED` and why.
pub fn of(folder: &Path) -> String {
    match error(folder) {
        Ok(error) => format!("Validated: the median error of goodput is {error:.3}."),
        Err(why) => format!("NOT VALIDATED: {why}; see `make sim-validate`."),
    }
}

/// The median error of goodput, or why the tables do not count.
fn error(folder: &Path) -> Result<f64, String> {
    let read = |name: &str| {
        std::fs::read(folder.join(name)).map_err(|_| format!("there is no {name} of this machine"))
    };
    let error = median_error(&read("validation.json")?)?;
    let kernel: Vec<Played> = serde_json::from_slice(&read("kernel.json")?)
        .map_err(|error| format!("kernel.json: {error}"))?;
    let marks: Vec<(&str, u64)> = kernel.iter().map(|it| (&it.trial[..], it.mark)).collect();
    same_links(&marks, &trials().map_err(|error| error.to_string())?)?;
    Ok(error)
}

fn median_error(validation: &[u8]) -> Result<f64, String> {
    let figures: Value =
        serde_json::from_slice(validation).map_err(|error| format!("validation.json: {error}"))?;
    let found = figures.as_array().into_iter().flatten().find(|it| it["name"] == MEDIAN_ERROR);
    match found.and_then(|figure| figure["value"].as_f64()) {
        Some(error) if error <= ERROR_MOST => Ok(error),
        Some(error) => Err(format!("the median error of goodput is {error:.3}")),
        None => Err(format!("validation.json has no {MEDIAN_ERROR}")),
    }
}

fn same_links(played: &[(&str, u64)], trials: &[Trial]) -> Result<(), String> {
    for trial in trials {
        let mut own = played.iter().filter(|(name, _)| *name == trial.name).peekable();
        if own.peek().is_none() || own.any(|(_, mark)| *mark != trial.mark()) {
            return Err(format!("the links of {} have changed since", trial.name));
        }
    }
    Ok(())
}

const MEDIAN_ERROR: &str = "sim_validate_goodput_median_error";
/// As validation judges it.
const ERROR_MOST: f64 = 0.15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validation_counts_when_it_is_there_and_near_enough() {
        let figure = |name: &str, value: &str| {
            format!(r#"[{{"name": "other", "value": 1}}, {{"name": "{name}", "value": {value}}}]"#)
        };
        let judged = |name, value| median_error(figure(name, value).as_bytes());
        assert_eq!(judged(MEDIAN_ERROR, "0.007"), Ok(0.007));
        assert!(judged(MEDIAN_ERROR, "0.16").is_err());
        assert!(judged(MEDIAN_ERROR, "null").is_err());
        assert!(judged("something", "0.007").is_err());
        assert!(median_error(b"no figures").is_err());
        assert!(
            of(Path::new("/nowhere")).starts_with("NOT VALIDATED: there is no validation.json")
        );
    }

    #[test]
    fn links_of_yesterday_do_not_count() {
        let trials = trials().unwrap();
        let mut played: Vec<(&str, u64)> =
            trials.iter().flat_map(|trial| [(trial.name, trial.mark()); 3]).collect();
        assert_eq!(same_links(&played, &trials), Ok(()));
        played[1].1 += 1;
        assert!(same_links(&played, &trials).is_err());
        assert!(same_links(&played[3..], &trials).is_err(), "the first is missing");
    }
}
