//! Recordings as trips for the comparison of schedulers.

use std::path::PathBuf;

use polyrail_emulator::rail::{RecordedError, Trip, trips_of_traces};

use super::trips::LENGTH;

/// Consecutive trips of 100 s over these recordings, a carrier each: as many as the shortest has
/// room for, at most `count`. Missing columns get defaults (`docs/emulation.md`).
///
/// # Errors
/// Fewer than two or more than eight files, an invalid recording, or a recording that is too short.
pub fn trips(paths: &[PathBuf], count: u64) -> Result<Vec<Trip>, RecordedError> {
    trips_of_traces(paths, LENGTH, count)
}

/// The names of the recordings.
pub fn names(paths: &[PathBuf], trips: usize) -> String {
    let file = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let files: Vec<String> = paths.iter().map(file).collect();
    format!("recordings {}, trips 0 to {}", files.join(" and "), trips.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use polyrail_emulator::rail::trip_of_traces;

    use super::*;
    use crate::sim::{Contestant, Engine, bound, bulk, downloads, world};

    fn samples(names: [&str; 2]) -> [PathBuf; 2] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../emulator/tests/samples");
        names.map(|name| folder.join(name))
    }

    #[test]
    fn recordings_work_like_generated_trips() {
        let trip = trip_of_traces(&samples(["rates.csv", "delays.csv"])).unwrap();
        let polyrail = Contestant::named("polyrail", Engine::Full);
        let both = bulk(&trip, &polyrail);
        let most = bound::bulk(&trip).goodput();
        assert!(both.goodput() > 2.0 && both.goodput() < most, "{} of {most}", both.goodput());
        assert!(both.crossed.iter().all(|bytes| *bytes > 100_000), "{both:?}");
        let list = downloads(world(&trip, &polyrail), &trip, &[256_000]).list;
        assert!(list.iter().all(|one| one.ended), "{list:?}");
        assert!(list.len() >= 3, "{list:?}");
    }

    #[test]
    fn recordings_that_are_too_short_are_refused() {
        let paths = samples(["rates.csv", "all.csv"]);
        let error = trips(&paths, 24).unwrap_err().to_string();
        assert!(error.ends_with("all.csv: 15 s; a trip takes 100 s"), "{error}");
        assert_eq!(names(&paths, 3), "recordings rates.csv and all.csv, trips 0 to 2");
    }
}
