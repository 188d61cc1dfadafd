//! Recorded metro runs: one is learned from, another one predicted.
//!
//! The recordings say when a phone's cell changed, not which cell it was in (its number counts the
//! changes), so cells cannot be told apart, and one run is too little for LinkDB: a cell needs two
//! failures. What can be asked is whether failures come again at their places: of the handovers of
//! the second run with loss, how many are near one of the first run with loss? Beside that stands
//! what as many places get that are drawn from all handovers of the first run, and along the line.

mod line;
mod run;

use std::path::Path;

use super::results::figure;
use crate::dice::Dice;
use anyhow::{Context, Result, ensure};
use line::Line;
use polyrail_emulator::results::{Goal, Report as Results};
use run::{Run, RunHandover};

/// Reads the runs in a folder and prints the figures.
///
/// # Errors
/// The folder or a run cannot be read; there are not both runs of at least one phone.
pub fn judge(results: &mut Results, folder: &Path) -> Result<()> {
    let [first, second] = ["run01", "run03"].map(|name| Run::all(folder, name));
    let (first, second) = (first?, second?);
    let phones = |runs: &[Run]| runs.iter().map(|run| run.phone.clone()).collect::<Vec<_>>();
    ensure!(
        phones(&first) == phones(&second),
        "{}: run 1 is of {:?}, run 3 of {:?}; both need the same phones",
        folder.display(),
        phones(&first),
        phones(&second)
    );
    ensure!(
        !first.is_empty() && !second.is_empty(),
        "{}: no files wmn-*_run01_*.csv and wmn-*_run03_*.csv",
        folder.display()
    );
    let line = first.first().and_then(|run| Line::new(&run.points()));
    let line = line.context("the first run does not move")?;
    let events = |runs: &[Run]| -> Vec<Vec<RunHandover>> {
        runs.iter().map(|run| run.events(&line)).collect()
    };
    let (learned, tested) = (events(&first), events(&second));
    let metres = line.metres();
    println!("\n## metro: {} phones, {metres:.0} m; run 1 learns, run 3 tests\n", first.len());
    for (name, events) in [("learned", &learned), ("tested", &tested)] {
        let all = events.iter().flatten();
        let (count, failed) = (all.clone().count(), all.filter(|event| event.failed).count());
        println!("{name}: {count} handovers, {failed} with loss");
        let name = |what: &str| format!("linkdb_metro_{name}_{what}");
        results.result(&name("handovers"), count as f64, "handovers", Goal::None, &[]);
        results.result(&name("failures"), failed as f64, "handovers", Goal::None, &[]);
    }
    places(results, &learned, &tested, metres);
    Ok(())
}

/// How many failures come again where there was one.
fn places(
    results: &mut Results,
    learned: &[Vec<RunHandover>],
    tested: &[Vec<RunHandover>],
    metres: f64,
) {
    let failed = |events: &[RunHandover]| -> Vec<f64> {
        events.iter().filter(|event| event.failed).map(|event| event.metres).collect()
    };
    let all = |events: &[Vec<RunHandover>]| events.concat();
    let own: Vec<[Vec<RunHandover>; 2]> =
        learned.iter().zip(tested).map(|(one, other)| [one.clone(), other.clone()]).collect();
    let together = vec![[all(learned), all(tested)]];
    for (name, pairs) in [("of_phone", own), ("of_any_phone", together)] {
        let mut dice = Dice::new(1);
        let (mut hits, mut of) = (0, 0);
        let mut drawn = [0.0; 2];
        for [learned, tested] in &pairs {
            let (places, tests) = (failed(learned), failed(tested));
            of += tests.len();
            hits += near(&places, &tests);
            let mut any: Vec<f64> = learned.iter().map(|event| event.metres).collect();
            for _ in 0..DRAWS {
                for chosen in 0..places.len() {
                    let other = dice.between(chosen as u64, any.len() as u64) as usize;
                    any.swap(chosen, other);
                }
                drawn[0] += f64::from(near(&any[..places.len()], &tests));
                let one = |_: &f64| metres * dice.unit();
                drawn[1] += f64::from(near(&places.iter().map(one).collect::<Vec<_>>(), &tests));
            }
        }
        let share = |count: f64| (of > 0).then(|| count / of as f64);
        let draws = f64::from(DRAWS);
        for (what, value) in [
            ("hits", share(f64::from(hits))),
            ("hits_random_handover", share(drawn[0] / draws)),
            ("hits_random_place", share(drawn[1] / draws)),
        ] {
            figure(results, &format!("linkdb_metro_{what}_{name}"), value, Goal::None);
        }
    }
}

/// How many of these are near one of the places.
fn near(places: &[f64], tests: &[f64]) -> u32 {
    let hit = |test: &&f64| places.iter().any(|place| (place - **test).abs() <= NEAR);
    tests.iter().filter(hit).count() as u32
}

/// Places of handovers are the same when they are so near, in metres: seven seconds of a metro, and
/// as far as they were seen to vary.
const NEAR: f64 = 100.0;
const DRAWS: u32 = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_hit_once() {
        assert_eq!(near(&[100.0, 110.0], &[0.0, 150.0, 211.0]), 2);
    }

    #[test]
    fn two_runs_in_a_folder_are_judged_and_an_empty_folder_is_refused() {
        let folder = std::env::temp_dir().join(format!("polyrail-metro-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut results = Results::default();
        let refused = judge(&mut results, &folder).unwrap_err().to_string();
        assert!(refused.contains("run01"), "{refused}");
        for name in ["run01", "run03"] {
            let text = run::tests::recording(60, &[20, 40], &[21]);
            std::fs::write(folder.join(format!("wmn-x_{name}_y.csv")), text).unwrap();
        }
        judge(&mut results, &folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let text = format!("{results:?}");
        assert!(text.contains("linkdb_metro_hits_of_phone\", value: 1.0"), "{text}");
        assert!(text.contains("linkdb_metro_tested_handovers\", value: 2.0"), "{text}");
    }
}
