//! Figures from pairs of runs of a trip, with forecasts and without.
//!
//! If forecasts should reduce the bytes in flight, a pair counts only if the carrier was full
//! without forecasts. Other pairs are rejected and counted. If fewer than half of the pairs remain,
//! the result is an error.

use anyhow::{Result, ensure};

use crate::report::{Goal, Report, median};

/// The figures of one run of a trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Bytes in flight on the carrier's downlink when its handover began.
    pub(super) inside: f64,
    /// The failure probability in permille that gateway and cloud predicted shortly before.
    pub(super) foreseen: [Option<u64>; 2],
    /// The goodput of the following 2 s, Mbit/s.
    pub(super) after: f64,
}

/// Two runs of one trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    pub(super) without: Seen,
    pub(super) with: Seen,
}

/// The pairs of a mode, and those that count.
#[derive(Clone, Debug)]
pub(super) struct Pairs<'a> {
    mode: &'a str,
    fall: Option<f64>,
    all: &'a [Pair],
    kept: Vec<Pair>,
}

impl<'a> Pairs<'a> {
    /// If `fall` sets a goal, keeps the pairs with at least `least` bytes in flight without
    /// forecasts and prints the others. Otherwise keeps all.
    pub(super) fn sift(mode: &'a str, fall: Option<f64>, all: &'a [Pair], least: f64) -> Self {
        let mut kept = Vec::new();
        for (number, pair) in all.iter().enumerate() {
            if fall.is_none() || pair.without.inside >= least {
                kept.push(*pair);
            } else {
                println!(
                    "{mode} trip {number} is refused: only {:.0} bytes were in flight without \
                     forecasts, of {least:.0} at least",
                    pair.without.inside
                );
            }
        }
        Self { mode, fall, all, kept }
    }

    /// Prints the figures.
    ///
    /// # Errors
    /// Too few pairs remain. Figures that do not need them are printed.
    pub(super) fn print(&self, report: &mut Report) -> Result<()> {
        let name = |what: &str| format!("linkdb_{}_{what}", self.mode);
        for (side, place) in [("gateway", 0), ("cloud", 1)] {
            let foreseen = self.all.iter().map(|pair| pair.with.foreseen[place].is_some());
            let foreseen: Vec<f64> = foreseen.map(|stood| f64::from(u8::from(stood))).collect();
            let share = foreseen.iter().sum::<f64>() / foreseen.len().max(1) as f64;
            let name = name(&format!("foreseen_{side}"));
            report.result(&name, share, "x", Goal::AtLeast(FORESEEN), &foreseen);
        }
        let permille = self.all.iter().filter_map(|pair| pair.with.foreseen[1]);
        let permille: Vec<f64> = permille.map(|permille| permille as f64).collect();
        if !permille.is_empty() {
            let most = permille.iter().copied().fold(0.0, f64::max);
            let name = name("foreseen_rate_most");
            report.result(&name, most, "permille", Goal::None, &permille);
        }
        let (all, kept) = (self.all.len(), self.kept.len());
        if self.fall.is_some() {
            report.result(&name("pairs_refused"), (all - kept) as f64, "", Goal::None, &[]);
        }
        ensure!(
            kept > 0 && 2 * kept >= all,
            "{}: the carrier was full without forecasts on {kept} of {all} trips only, so nothing \
             is said of what forecasts are worth",
            self.mode
        );
        let of = |figure: fn(&Pair) -> f64| self.kept.iter().map(figure).collect::<Vec<_>>();
        let (before, after) = (of(|pair| pair.without.inside), of(|pair| pair.with.inside));
        report.result(&name("in_flight_without"), median(&before), "bytes", Goal::None, &before);
        report.result(&name("in_flight_with"), median(&after), "bytes", Goal::None, &after);
        if let Some(least) = self.fall {
            let falls = of(|pair| 1.0 - pair.with.inside / pair.without.inside);
            let total = |values: &[f64]| values.iter().sum::<f64>();
            let fall = 1.0 - total(&after) / total(&before);
            report.result(&name("in_flight_fall"), fall, "x", Goal::AtLeast(least), &falls);
        }
        let gains = of(|pair| pair.with.after / pair.without.after.max(GOODPUT_LEAST));
        report.result(&name("goodput_2s_gain"), median(&gains), "x", Goal::None, &gains);
        Ok(())
    }

    /// Checks that at least one side had a forecast on each trip.
    ///
    /// # Errors
    /// A trip had no forecast: databases or telemetry do not work.
    pub(super) fn have_forecasts(&self) -> Result<()> {
        let blind = self.all.iter().position(|pair| pair.with.foreseen == [None; 2]);
        ensure!(
            blind.is_none(),
            "{}: on trip {} a forecast stood on neither side",
            self.mode,
            blind.unwrap_or_default()
        );
        Ok(())
    }
}

/// The share of trips that must have a forecast.
const FORESEEN: f64 = 0.9;
/// A lower goodput counts as this, Mbit/s.
const GOODPUT_LEAST: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(without: f64, with: f64, foreseen: [Option<u64>; 2]) -> Pair {
        let seen = |inside| Seen { inside, foreseen, after: 1.0 };
        Pair { without: seen(without), with: seen(with) }
    }

    fn reported(fall: Option<f64>, pairs: &[Pair]) -> (Result<()>, Vec<(String, f64, bool)>) {
        let mut report = Report::default();
        let outcome = Pairs::sift("tls", fall, pairs, 10_000.0).print(&mut report);
        let folder = std::env::temp_dir().join(format!("polyrail-pairs-{}", std::process::id()));
        let path = folder.join(format!("{:?}.json", std::thread::current().id()));
        report.write(&path).unwrap();
        let figures: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let figure = |one: &serde_json::Value| {
            let name = one["name"].as_str().unwrap().to_owned();
            (name, one["value"].as_f64().unwrap(), one["met"].as_bool().unwrap())
        };
        (outcome, figures.as_array().unwrap().iter().map(figure).collect())
    }

    fn value(figures: &[(String, f64, bool)], name: &str) -> Option<(f64, bool)> {
        figures.iter().find(|one| one.0 == name).map(|one| (one.1, one.2))
    }

    #[test]
    fn pairs_without_bytes_in_flight_are_refused() {
        let empty = pair(0.0, 0.0, [Some(200); 2]);
        let (outcome, figures) = reported(Some(0.7), &[empty; 4]);
        assert!(outcome.is_err());
        assert_eq!(value(&figures, "linkdb_tls_pairs_refused"), Some((4.0, true)));
        assert_eq!(value(&figures, "linkdb_tls_in_flight_fall"), None);
        assert_eq!(value(&figures, "linkdb_tls_foreseen_cloud"), Some((1.0, true)));
        assert_eq!(value(&figures, "linkdb_tls_foreseen_rate_most"), Some((200.0, true)));
    }

    #[test]
    fn half_of_the_pairs_is_enough_and_only_they_count() {
        let (full, low) =
            (pair(100_000.0, 20_000.0, [Some(200); 2]), pair(9_999.0, 0.0, [Some(200); 2]));
        let (outcome, figures) = reported(Some(0.7), &[full, low, full, low]);
        assert!(outcome.is_ok());
        assert_eq!(value(&figures, "linkdb_tls_in_flight_fall"), Some((0.8, true)));
        assert_eq!(value(&figures, "linkdb_tls_pairs_refused"), Some((2.0, true)));
        assert!(reported(Some(0.7), &[full, low, low]).0.is_err());
        assert!(reported(Some(0.7), &[]).0.is_err());
    }

    #[test]
    fn all_pairs_count_without_a_goal_for_the_fall() {
        let (full, low) =
            (pair(100_000.0, 90_000.0, [Some(200); 2]), pair(0.0, 5_000.0, [Some(200); 2]));
        let (outcome, figures) = reported(None, &[full, low, low]);
        assert!(outcome.is_ok());
        assert_eq!(value(&figures, "linkdb_tls_in_flight_without"), Some((0.0, true)));
        assert_eq!(value(&figures, "linkdb_tls_in_flight_with"), Some((5_000.0, true)));
        assert_eq!(value(&figures, "linkdb_tls_in_flight_fall"), None);
        assert_eq!(value(&figures, "linkdb_tls_pairs_refused"), None);
        assert!(reported(None, &[]).0.is_err());
    }

    #[test]
    fn a_side_without_forecasts_falls_short() {
        let one = pair(100_000.0, 20_000.0, [Some(200), None]);
        let (_, figures) = reported(Some(0.7), &[one; 2]);
        assert_eq!(value(&figures, "linkdb_tls_foreseen_gateway"), Some((1.0, true)));
        assert_eq!(value(&figures, "linkdb_tls_foreseen_cloud"), Some((0.0, false)));
        assert_eq!(value(&figures, "linkdb_tls_foreseen_rate_most"), None);
        assert!(Pairs::sift("tls", None, &[one], 1.0).have_forecasts().is_ok());
        let blind = pair(100_000.0, 20_000.0, [None; 2]);
        assert!(Pairs::sift("tls", None, &[one, blind], 1.0).have_forecasts().is_err());
    }
}
